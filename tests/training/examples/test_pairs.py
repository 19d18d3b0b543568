"""Examples decoded and compared with the text that they came from: pairs of segments, and their masks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.tokenizer import Tokenizer, truncate_longest_first
from tests.training.texts import MemoryText
from training.examples import pairs as pairs_module
from training.examples.masking import Vocabulary, mask
from training.examples.pairs import IGNORE_INDEX, IS_NEXT, LABELS, NOT_NEXT, PairKind, Pairs, _starts, sample_pairs
from training.recipe import ExamplesConfig

SPECIAL = 5
VOCABULARY = 60_000


def vocabulary() -> Vocabulary:
    """Ids 0 to 4 are special."""
    return Vocabulary(cls_id=2, sep_id=3, mask_id=4, unk_id=1, ordinary=np.arange(SPECIAL, VOCABULARY))


def text(documents: int, sentences: int, longest: int, seed: int = 0) -> MemoryText:
    """Random lengths; no id occurs twice unless the text is long, so a segment's place is known."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, longest + 1, rng.integers(1, sentences + 1)) for _ in range(documents)]
    ids = iter(np.resize(rng.permutation(np.arange(SPECIAL, VOCABULARY)), sum(map(int, map(sum, lengths)))))
    return MemoryText([[[int(next(ids)) for _ in range(n)] for n in row] for row in lengths])


@dataclass
class Example:
    input_ids: list[int]
    unmasked: list[int]
    token_type_ids: list[int]
    masked_positions: list[int]
    kind: PairKind

    @property
    def halves(self) -> tuple[list[int], list[int]]:
        """Both segments without special tokens and masks."""
        first_end = self.unmasked.index(3)
        return self.unmasked[1:first_end], self.unmasked[first_end + 1 : -1]


def config(**changes: object) -> ExamplesConfig:
    return ExamplesConfig(**({"short_length": 48, "long_fraction": 0.0} | changes))  # type: ignore[arg-type]


def pairs(corpus: MemoryText, seed: int = 1, **changes: object) -> Pairs:
    return sample_pairs(corpus, config(**changes), np.random.default_rng(seed))


def examples(corpus: MemoryText, seed: int = 1, chosen: Pairs | None = None, **changes: object) -> list[Example]:
    """The examples of a pass."""
    chosen = pairs(corpus, seed, **changes) if chosen is None else chosen
    found = mask(corpus, chosen, config(**changes).mask_fraction, vocabulary(), np.random.default_rng(seed))
    whole, hidden, made = found.shown_as(found.masked_ids).input_ids, np.zeros(len(found.input_ids), bool), []
    hidden[found.masked_positions] = True
    for end, length, kind in zip(found.lengths.cumsum(), found.lengths, found.kinds, strict=True):
        columns = (each[end - length : end] for each in (found.input_ids, whole, found.token_type_ids))
        positions = hidden[end - length : end].nonzero()[0].tolist()
        made.append(Example(*(each.tolist() for each in columns), positions, PairKind(kind)))
    return made


@pytest.fixture
def full_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples fill their length."""
    monkeypatch.setattr(pairs_module, "SHORT_FRACTION", 0.0)
    monkeypatch.setattr(pairs_module, "SENTENCE_PAIR_FRACTION", 0.0)


def find(corpus: MemoryText, part: list[int]) -> int:
    """Where a run of ids stands in the corpus."""
    places = np.flatnonzero(corpus.ids[: len(corpus.ids) - len(part) + 1] == part[0])
    found = [at for at in places if corpus.ids[at : at + len(part)].tolist() == part]
    assert found, "the segment is not a part of the text"
    return int(found[0])


def document_at(corpus: MemoryText, token: int) -> int:
    sentence = np.searchsorted(corpus.sentence_starts, token, side="right") - 1
    return int(np.searchsorted(corpus.document_starts, sentence, side="right") - 1)


shapes = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 40), st.integers(0, 999))
settings_of_examples = st.fixed_dictionaries(
    {
        "short_length": st.integers(8, 64),
        "long_length": st.integers(64, 80),
        "long_fraction": st.sampled_from([0, 1]),
        "mask_fraction": st.floats(0.01, 1),
    }
)


@given(shapes, settings_of_examples)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_example_is_cls_first_sep_second_sep_within_the_length(
    shape: tuple[int, int, int, int], changes: dict[str, object]
) -> None:
    corpus = text(*shape)
    for example in examples(corpus, **changes)[:40]:
        ids = example.unmasked
        assert len(ids) <= config(**changes).longest
        assert ids[0] == 2
        assert ids[-1] == 3
        separators = [i for i, token in enumerate(ids) if token < SPECIAL]
        paired = example.kind != PairKind.SINGLE
        assert len(separators) == (3 if paired else 2)
        assert example.token_type_ids == [int(paired and i > separators[1]) for i in range(len(ids))]
        assert all(len(half) > 0 for half in example.halves[: 1 + paired])
        assert len(example.masked_positions) >= 1
        assert not set(example.masked_positions) & set(separators)
        assert all(find(corpus, half) >= 0 for half in example.halves if half), "a mask changes nothing else"


@given(shapes)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_pair_label_says_whether_the_second_segment_follows(shape: tuple[int, int, int, int]) -> None:
    corpus = text(*shape)
    for example in examples(corpus):
        first, second = example.halves
        if example.kind == PairKind.SINGLE:
            assert LABELS[example.kind] == IGNORE_INDEX
            continue
        at, then = find(corpus, first), find(corpus, second)
        same = document_at(corpus, at) == document_at(corpus, then)
        follows = at + len(first) == then
        assert LABELS[example.kind] == (IS_NEXT if follows and same else NOT_NEXT)
        assert (example.kind == PairKind.NEXT) == (follows and same)
        assert (example.kind == PairKind.RANDOM_DOCUMENT) == (not same)
        if example.kind == PairKind.SWAPPED:
            assert then + len(second) <= at
        if example.kind == PairKind.NOT_ADJACENT:
            assert then >= at + len(first) or then + len(second) <= at, "segments overlap"


@pytest.mark.usefixtures("full_only")
def test_pair_segments_are_whole_sentences_where_they_fit() -> None:
    corpus = text(30, 12, 10)
    bounds = set(corpus.sentence_starts.tolist())
    for example in examples(corpus):
        for half in filter(None, example.halves):
            at = find(corpus, half)
            assert at in bounds
            assert at + len(half) in bounds


@pytest.mark.usefixtures("full_only")
def test_pair_that_is_too_long_is_cut_at_its_outer_ends() -> None:
    corpus = MemoryText([[list(range(5, 105)), list(range(105, 205))]])
    found = [example for seed in range(20) for example in examples(corpus, seed) if example.kind == 0]
    assert found
    for example in found:
        first, second = example.halves
        assert (first[-1], second[0]) == (104, 105)
        assert len(example.unmasked) == 48


def test_pairs_of_a_pass_begin_once_in_every_stretch_of_text() -> None:
    corpus = text(40, 30, 12)
    orders = []
    for seed in (0, 1):
        starts = _starts(corpus, config(), np.random.default_rng(seed))
        orders.append(starts.tolist())
        assert len(set(starts.tolist())) == len(starts)
        assert set(corpus.document_starts[:-1]) <= set(starts.tolist())
        gaps = np.diff(corpus.sentence_starts[np.append(np.sort(starts), len(corpus.sentence_starts) - 1)])
        assert gaps.max() <= 48 + 12
    assert orders[0] != orders[1]


@pytest.mark.usefixtures("full_only")
def test_pairs_of_a_pass_cover_the_text() -> None:
    corpus = text(20, 30, 8)
    seen = np.zeros(len(corpus.ids), dtype=bool)
    for half in (half for example in examples(corpus) for half in example.halves):
        at = find(corpus, half)
        seen[at : at + len(half)] = True
    assert seen.mean() > 0.9


def test_examples_of_other_random_numbers_differ() -> None:
    corpus = text(20, 10, 12)
    assert examples(corpus) == examples(corpus)
    assert len({tuple(example.input_ids) for seed in (1, 2, 3) for example in examples(corpus, seed)[:5]}) == 15


@given(shapes, st.integers(32, 60))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_pairs_that_are_cut_have_at_most_so_many_tokens(shape: tuple[int, int, int, int], most: int) -> None:
    corpus = text(*shape)
    whole = pairs(corpus, short_length=64)
    cut = whole.cut(most)
    np.testing.assert_array_equal(cut.lengths, np.minimum(whole.lengths, most))
    assert ((cut.starts >= whole.starts) & (cut.starts + cut.sizes <= whole.starts + whole.sizes)).all()
    for size, kept in zip(whole.sizes.tolist(), cut.sizes.tolist(), strict=True):
        assert not size[1] or kept == truncate_longest_first(size, most - 3)


@pytest.fixture(scope="module")
def many() -> list[Example]:
    return examples(text(400, 24, 20), short_length=64)


def test_mask_hides_fifteen_percent_as_mask_other_and_same_token(many: list[Example]) -> None:
    ordinary = sum(len(e.unmasked) - (2 if e.kind == PairKind.SINGLE else 3) for e in many)
    before = np.array([e.unmasked[i] for e in many for i in e.masked_positions])
    after = np.array([e.input_ids[i] for e in many for i in e.masked_positions])
    assert len(before) > 5000
    assert len(before) / ordinary == pytest.approx(0.15, abs=0.005)
    slack = 4 * (0.25 / len(before)) ** 0.5  # four standard deviations at the most
    assert (after == 4).mean() == pytest.approx(0.8, abs=slack)
    assert (after == before).mean() == pytest.approx(0.1, abs=slack)
    assert ((after != 4) & (after != before)).mean() == pytest.approx(0.1, abs=slack)
    assert (after[after != 4] >= SPECIAL).all()


def test_mask_passes_over_unknown_words_where_there_are_others() -> None:
    known, nothing = [[10, 1, 1, 11, 1, 12], [13, 1, 1, 14]], [[1, 1, 1], [1, 1]]
    for example in examples(MemoryText([known, nothing] * 20), mask_fraction=0.5, random_fraction=0):
        masked = {example.unmasked[i] for i in example.masked_positions}
        assert masked
        assert (masked == {1}) == (set(example.unmasked) <= {1, 2, 3})
        assert masked == {1} or 1 not in masked


def test_mask_of_more_tokens_than_there_is_room_for_leaves_the_shortest_examples_whole() -> None:
    corpus = text(20, 10, 12)
    found = mask(corpus, pairs(corpus), 0.15, vocabulary(), np.random.default_rng(1), most=30)
    assert found.masked.sum() == len(found.masked_ids) == 30
    np.testing.assert_array_equal(found.masked[10:], 0)


def test_mask_falls_on_every_position_alike(many: list[Example]) -> None:
    long = [e for e in many if len(e.input_ids) >= 50]
    hits = Counter(p for e in long for p in e.masked_positions)
    shares = [hits[p] / len(long) for p in range(1, 49)]  # the shortest may end with a [SEP] at 49
    slack = 5 * (0.15 / len(long)) ** 0.5
    assert max(shares) < 0.15 + slack
    assert min(shares) > 0.15 * 0.95 - slack  # now and then the [SEP] in the middle stands there


def test_pair_kinds_come_in_the_configured_shares(many: list[Example]) -> None:
    paired = [e.kind for e in many if e.kind != PairKind.SINGLE]
    assert paired.count(PairKind.NEXT) / len(paired) == pytest.approx(0.5, abs=0.05)
    assert paired.count(PairKind.RANDOM_DOCUMENT) / len(paired) == pytest.approx(0.25, abs=0.05)
    assert paired.count(PairKind.SWAPPED) > 0.05 * len(paired)
    assert paired.count(PairKind.NOT_ADJACENT) > 0.05 * len(paired)


def test_pairs_of_single_sentences_and_short_examples_have_their_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus, made = text(200, 30, 6), {}
    for name, short, sentence_pair in (("full", 0, 0), ("short", 1, 0), ("sentences", 0, 1)):
        monkeypatch.setattr(pairs_module, "SHORT_FRACTION", short)
        monkeypatch.setattr(pairs_module, "SENTENCE_PAIR_FRACTION", sentence_pair)
        made[name] = pairs(corpus)
    assert made["sentences"].sizes.max() <= 6
    assert np.median(made["full"].lengths) > 42
    assert np.median(made["short"].lengths) < 35


@pytest.mark.usefixtures("full_only")
def test_full_and_long_examples_fill_their_lengths() -> None:
    assert np.median(pairs(text(50, 60, 12), short_length=128).lengths) > 115
    lengths = pairs(text(400, 200, 12), short_length=32, long_length=128, long_fraction=0.3).lengths
    assert lengths.max() > 100
    assert lengths[lengths > 32].sum() / lengths.sum() == pytest.approx(0.3, abs=0.05)


def test_pair_lengths_do_not_tell_the_label() -> None:
    """The best guess from both lengths, learned on one half of the pairs, fails on the other."""
    kept = pairs(text(1500, 30, 25), short_length=64)
    rows = [(a, b, LABELS[kind]) for (a, b), kind in zip(kept.sizes, kept.kinds, strict=True) if b]
    assert len(rows) > 5000
    half = len(rows) // 2
    votes: Counter[tuple[int, int]] = Counter()
    for a, b, label in rows[:half]:
        votes[a // 6, b // 6] += 1 if label == IS_NEXT else -1
    right = [(votes[a // 6, b // 6] > 0) == (label == IS_NEXT) for a, b, label in rows[half:]]
    assert np.mean(right) < 0.53


def test_pairs_of_two_documents_exchange_second_segments_of_one_length() -> None:
    found = pairs(text(1500, 30, 25), short_length=64)
    firsts, seconds = ({tuple(each) for each in found.starts[found.kinds == kind]} for kind in (0, 1))
    lengths = found.sizes[found.kinds == PairKind.RANDOM_DOCUMENT, 1]
    assert len(seconds) == len(lengths) > 1000
    assert len({second for _, second in seconds}) > 0.99 * len(seconds), "a segment is second once"
    assert not firsts & seconds


def test_pair_second_segment_opens_no_document_unless_swapped() -> None:
    corpus = text(300, 6, 10)
    openings = {int(corpus.sentence_starts[s]) for s in corpus.document_starts[:-1]}
    for example in examples(corpus):
        if example.kind in (PairKind.NEXT, PairKind.RANDOM_DOCUMENT, PairKind.NOT_ADJACENT):
            assert find(corpus, example.halves[1]) not in openings


def test_pairs_of_a_single_document_come_from_itself() -> None:
    corpus = MemoryText([[[5, 6, 7]] * 2000])
    kinds = Counter(e.kind for e in examples(corpus))
    assert set(kinds) == {PairKind.NEXT, PairKind.SWAPPED, PairKind.NOT_ADJACENT}


def test_pairs_of_one_sentence_documents_have_no_label() -> None:
    corpus = text(20, 1, 12)
    for example in examples(corpus):
        assert (example.kind, LABELS[example.kind]) == (PairKind.SINGLE, IGNORE_INDEX)
        assert not any(example.token_type_ids)


def test_vocabulary_of_a_tokenizer_has_its_special_tokens(tokenizer: Tokenizer) -> None:
    known = Vocabulary.of(tokenizer)
    assert (known.cls_id, known.sep_id, known.mask_id) == (
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    )
    assert not tokenizer.special_ids & set(known.ordinary.tolist())
