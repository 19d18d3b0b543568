"""Examples decoded and held against the text they came from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from tests.training.texts import MemoryText
from training.examples.pairs import (
    ALONE,
    APART,
    IGNORE_INDEX,
    IS_NEXT,
    NEXT,
    NOT_NEXT,
    RANDOM,
    SWAPPED,
    Example,
    ExampleMaker,
    Vocabulary,
)
from training.recipe import ExamplesConfig

SPECIAL = 5
VOCABULARY = 60_000


def vocabulary() -> Vocabulary:
    """Ids 0 to 4 are special; every third id continues a word."""
    ids = np.arange(VOCABULARY)
    return Vocabulary(VOCABULARY, 2, 3, 4, 1, ids[SPECIAL:], (ids % 3 == 0) & (ids >= SPECIAL))


def text(documents: int, sentences: int, longest: int, seed: int = 0) -> MemoryText:
    """Random lengths; no id occurs twice unless the text is long, so a segment's place is known."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, longest + 1, rng.integers(1, sentences + 1)) for _ in range(documents)]
    ids = iter(np.resize(rng.permutation(np.arange(SPECIAL, VOCABULARY)), sum(map(int, map(sum, lengths)))))
    return MemoryText([[[int(next(ids)) for _ in range(n)] for n in row] for row in lengths])


def maker(corpus: MemoryText, seed: int = 1, **changes: object) -> ExampleMaker:
    config = ExamplesConfig(**({"sequence_length": 48} | changes))  # type: ignore[arg-type]
    return ExampleMaker(corpus, vocabulary(), config, seed)


def examples(of: ExampleMaker, epoch: int = 0) -> list[Example]:
    return [of(epoch, i) for i in range(len(of.starts(epoch)))]


def original(example: Example) -> list[int]:
    """The ids before masking."""
    ids = example.input_ids.copy()
    ids[example.masked_positions] = example.masked_ids
    return ids.tolist()


def halves(example: Example) -> tuple[list[int], list[int]]:
    """Both segments without special tokens and masks."""
    ids = original(example)
    first_end = ids.index(3)
    return ids[1:first_end], ids[first_end + 1 : -1]


def find(corpus: MemoryText, part: list[int]) -> int:
    """Where a run of ids stands in the corpus."""
    places = np.flatnonzero(corpus.ids[: len(corpus.ids) - len(part) + 1] == part[0])
    found = [at for at in places if corpus.ids[at : at + len(part)].tolist() == part]
    assert found, "the segment is no run of the text"
    return int(found[0])


def document_at(corpus: MemoryText, token: int) -> int:
    sentence = np.searchsorted(corpus.sentence_starts, token, side="right") - 1
    return int(np.searchsorted(corpus.document_starts, sentence, side="right") - 1)


shapes = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 40), st.integers(0, 999))
settings_of_examples = st.fixed_dictionaries(
    {
        "sequence_length": st.integers(8, 64),
        "mask_fraction": st.floats(0, 1),
        "whole_word": st.booleans(),
        "short_fraction": st.floats(0, 0.5),
        "sentence_pair_fraction": st.floats(0, 0.5),
    }
)


@given(shapes, settings_of_examples)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_example_is_cls_first_sep_second_sep_within_the_length(
    shape: tuple[int, int, int, int], config: dict[str, object]
) -> None:
    corpus = text(*shape)
    of = maker(corpus, **config)
    for example in examples(of)[:40]:
        ids = original(example)
        assert len(ids) <= of.config.sequence_length
        assert ids[0] == 2
        assert ids[-1] == 3
        separators = [i for i, token in enumerate(ids) if token < SPECIAL]
        paired = example.kind != ALONE
        assert len(separators) == (3 if paired else 2)
        assert example.token_type_ids.tolist() == [int(paired and i > separators[1]) for i in range(len(ids))]
        assert all(len(half) > 0 for half in halves(example)[: 1 + paired])


@given(shapes, settings_of_examples)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_special_tokens_are_never_masked_and_nothing_else_changes(
    shape: tuple[int, int, int, int], config: dict[str, object]
) -> None:
    corpus = text(*shape)
    for example in examples(maker(corpus, **config))[:40]:
        assert (example.masked_ids >= SPECIAL).all()
        assert (np.diff(example.masked_positions) > 0).all()
        assert len(example.masked_positions) >= 1
        for half in halves(example):
            assert not half or find(corpus, half) >= 0


@given(shapes)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_labels_say_whether_the_second_segment_follows(shape: tuple[int, int, int, int]) -> None:
    corpus = text(*shape)
    for example in examples(maker(corpus)):
        first, second = halves(example)
        if example.kind == ALONE:
            assert example.next_label == IGNORE_INDEX
            continue
        at, then = find(corpus, first), find(corpus, second)
        same = document_at(corpus, at) == document_at(corpus, then)
        follows = at + len(first) == then
        assert example.next_label == (IS_NEXT if follows and same else NOT_NEXT)
        assert (example.kind == NEXT) == (follows and same)
        assert (example.kind == RANDOM) == (not same)
        if example.kind == SWAPPED:
            assert then + len(second) <= at
        if example.kind == APART:
            assert then >= at + len(first) or then + len(second) <= at, "segments overlap"


def test_segments_are_whole_sentences_where_they_fit() -> None:
    corpus = text(30, 12, 10)
    bounds = set(corpus.sentence_starts.tolist())
    for example in examples(maker(corpus)):
        for half in filter(None, halves(example)):
            at = find(corpus, half)
            assert at in bounds
            assert at + len(half) in bounds


def test_a_long_true_pair_is_cut_at_its_outer_ends() -> None:
    corpus = MemoryText([[list(range(5, 105)), list(range(105, 205))]])
    for example in examples(maker(corpus, next_fraction=1, random_fraction=0, short_fraction=0)):
        first, second = halves(example)
        assert (first[-1], second[0]) == (104, 105)
        assert len(example.input_ids) == 48


def test_an_epoch_begins_once_in_every_stretch_of_text() -> None:
    corpus = text(40, 30, 12)
    of = maker(corpus)
    for epoch in (0, 1):
        starts = of.starts(epoch)
        assert len(set(starts.tolist())) == len(starts)
        assert set(corpus.document_starts[:-1]) <= set(starts.tolist())
        gaps = np.diff(corpus.sentence_starts[np.append(np.sort(starts), len(corpus.sentence_starts) - 1)])
        assert gaps.max() <= of.config.sequence_length + 12
    assert of.starts(0).tolist() != of.starts(1).tolist()


def test_true_pairs_of_an_epoch_cover_the_text() -> None:
    corpus = text(20, 30, 8)
    changes = {"next_fraction": 1, "random_fraction": 0, "short_fraction": 0, "sentence_pair_fraction": 0}
    seen = np.zeros(len(corpus.ids), dtype=bool)
    for example in examples(maker(corpus, **changes)):
        for half in filter(None, halves(example)):
            at = find(corpus, half)
            seen[at : at + len(half)] = True
    assert seen.mean() > 0.9


def test_an_example_depends_on_corpus_seed_epoch_and_index_alone() -> None:
    corpus = text(20, 10, 12)
    once, again = maker(corpus), maker(corpus)
    wanted = [(epoch, i) for epoch in (0, 1) for i in range(20)]
    forwards = [once(*place) for place in wanted]
    backwards = [again(*place) for place in reversed(wanted)][::-1]
    for one, other in zip(forwards, backwards, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.masked_ids.tolist() == other.masked_ids.tolist()
        assert one.next_label == other.next_label


def test_seeds_and_epochs_mask_anew() -> None:
    corpus = text(20, 10, 12)
    chosen = {
        tuple(example.input_ids.tolist())
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
        for example in examples(maker(corpus, seed), epoch)[:5]
    }
    assert len(chosen) == 15


@pytest.fixture(scope="module")
def many() -> list[Example]:
    return examples(maker(text(400, 24, 20), sequence_length=64))


def test_fifteen_percent_are_masked_eighty_ten_ten(many: list[Example]) -> None:
    ordinary = sum(len(original(e)) - (2 if e.kind == ALONE else 3) for e in many)
    before = np.concatenate([e.masked_ids for e in many])
    after = np.concatenate([e.input_ids[e.masked_positions] for e in many])
    assert len(before) > 5000
    assert len(before) / ordinary == pytest.approx(0.15, abs=0.005)
    slack = 4 * (0.25 / len(before)) ** 0.5  # four standard deviations at the most
    assert (after == 4).mean() == pytest.approx(0.8, abs=slack)
    assert (after == before).mean() == pytest.approx(0.1, abs=slack)
    assert ((after != 4) & (after != before)).mean() == pytest.approx(0.1, abs=slack)
    assert (after[after != 4] >= SPECIAL).all()


@pytest.mark.parametrize("whole_word", [False, True])
def test_an_unknown_word_is_nothing_to_guess(whole_word: bool) -> None:
    known = [[[10, 1, 1, 11, 1, 12], [13, 1, 1, 14]]] * 20
    made = examples(maker(MemoryText(known), whole_word=whole_word, mask_fraction=0.5))
    assert all((e.masked_ids != 1).all() and len(e.masked_ids) >= 1 for e in made)
    nothing = examples(maker(MemoryText([[[1, 1, 1], [1, 1]]] * 20), whole_word=whole_word))
    assert all((e.masked_ids == 1).all() and len(e.masked_ids) >= 1 for e in nothing)


def test_masks_fall_on_every_position_alike(many: list[Example]) -> None:
    long = [e for e in many if len(e.input_ids) >= 50]
    hits = Counter(int(p) for e in long for p in e.masked_positions)
    shares = [hits[p] / len(long) for p in range(1, 49)]  # the shortest may end with a [SEP] at 49
    slack = 5 * (0.15 / len(long)) ** 0.5
    assert max(shares) < 0.15 + slack
    assert min(shares) > 0.15 * 0.95 - slack  # now and then the [SEP] in the middle stands there


def test_kinds_come_in_the_configured_shares(many: list[Example]) -> None:
    paired = [e.kind for e in many if e.kind != ALONE]
    assert paired.count(NEXT) / len(paired) == pytest.approx(0.5, abs=0.05)
    assert paired.count(RANDOM) / len(paired) == pytest.approx(0.25, abs=0.05)
    assert paired.count(SWAPPED) > 0.05 * len(paired)
    assert paired.count(APART) > 0.05 * len(paired)


def test_single_pairs_and_short_examples_come_in_the_configured_shares() -> None:
    corpus = text(200, 30, 6)
    only = examples(maker(corpus, sentence_pair_fraction=1, short_fraction=0))
    assert max(len(half) for e in only for half in halves(e)) <= 6
    full = np.array(
        [len(e.input_ids) for e in examples(maker(corpus, sentence_pair_fraction=0, short_fraction=0))]
    )
    short = np.array(
        [len(e.input_ids) for e in examples(maker(corpus, sentence_pair_fraction=0, short_fraction=1))]
    )
    assert np.median(full) > 42
    assert np.median(short) < 35


def test_full_examples_fill_their_length() -> None:
    corpus = text(50, 60, 12)
    lengths = [
        len(e.input_ids)
        for e in examples(maker(corpus, sequence_length=128, sentence_pair_fraction=0, short_fraction=0))
    ]
    assert np.median(lengths) > 115


def test_lengths_do_not_tell_the_label() -> None:
    """The best guess from both lengths, learned on one half of the pairs, fails on the other."""
    kept = examples(maker(text(1500, 30, 25), sequence_length=64))
    rows = [(len(a), len(b), e.next_label) for e in kept if e.kind != ALONE for a, b in [halves(e)]]
    assert len(rows) > 5000
    half = len(rows) // 2
    votes: Counter[tuple[int, int]] = Counter()
    for a, b, label in rows[:half]:
        votes[a // 6, b // 6] += 1 if label == IS_NEXT else -1
    right = [(votes[a // 6, b // 6] > 0) == (label == IS_NEXT) for a, b, label in rows[half:]]
    assert np.mean(right) < 0.53


def test_no_second_segment_but_a_swapped_one_opens_a_document() -> None:
    corpus = text(300, 6, 10)
    openings = {int(corpus.sentence_starts[s]) for s in corpus.document_starts[:-1]}
    for example in examples(maker(corpus)):
        if example.kind in (NEXT, RANDOM, APART):
            assert find(corpus, halves(example)[1]) not in openings


def test_a_single_document_gives_pairs_from_itself() -> None:
    corpus = MemoryText([[[5 + i, 6 + i, 7 + i] for i in range(0, 600, 3)]])
    kinds = Counter(e.kind for e in examples(maker(corpus)))
    assert set(kinds) == {NEXT, SWAPPED, APART}


def test_documents_of_one_sentence_have_no_label() -> None:
    corpus = text(20, 1, 12)
    for example in examples(maker(corpus)):
        assert (example.kind, example.next_label) == (ALONE, IGNORE_INDEX)
        assert not example.token_type_ids.any()


def test_whole_words_are_masked_whole() -> None:
    corpus = text(60, 10, 12)
    continues = vocabulary().continues_word
    for example in examples(maker(corpus, whole_word=True)):
        ids, masked = original(example), set(example.masked_positions.tolist())
        for i in range(1, len(ids)):
            if continues[ids[i]] and ids[i - 1] >= SPECIAL:
                assert (i in masked) == (i - 1 in masked)


def test_whole_word_masking_masks_about_the_same_share() -> None:
    masked = ordinary = 0
    for example in examples(maker(text(200, 20, 12), whole_word=True, sequence_length=128)):
        masked += len(example.masked_positions)
        ordinary += sum(map(len, halves(example)))
    assert masked / ordinary == pytest.approx(0.15, abs=0.02)


def test_vocabulary_of_a_tokenizer_knows_pieces_and_special_tokens(tokenizer: Tokenizer) -> None:
    known = Vocabulary.of(tokenizer)
    assert (known.cls_id, known.sep_id, known.mask_id) == (
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    )
    assert not tokenizer.special_ids & set(known.ordinary.tolist())
    assert known.continues_word[tokenizer.token_id("##ing")]
    assert not known.continues_word[tokenizer.token_id("good")]
