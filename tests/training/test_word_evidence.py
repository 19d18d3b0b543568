"""What bags of words say of words, beside the tokens that the network reads, and learned by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from model.config import BertConfig
from model.heads import BertForSequenceClassification
from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.conftest import tiny_config
from training.batches import collate_classification
from training.classification import LabelledTexts, encode, joined, respelled
from training.config import FinetuneConfig
from training.naive_bayes import Evidence, words_of
from training.sources import Document
from training.word_evidence import WithWordHead, load, save, squared_error, with_evidence

PIECES = ["good", "bad", "is", "##n", "n", "t", "'", "\u2019", "mov", "##ie", ".", "a", '"', "\u201c", "\u201d"]


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return Tokenizer.from_vocab([*SPECIAL_TOKENS, *PIECES])


def numbered(text: str, columns: int = 1) -> Evidence:
    """A word's row is its place in the text, from 1."""
    count = len(words_of(text))
    return np.repeat(np.arange(1, count + 1, dtype=np.float16)[:, None], columns, axis=1)


def evidence_of(
    documents: list[Document],
    said: list[Evidence | None],
    tokenizer: Tokenizer,
    likes: list[str | None] | None = None,
    **settings: object,
) -> tuple[LabelledTexts, list[Evidence]]:
    """With the unit taken out again: what stands at each token, to the nearest number."""
    config = FinetuneConfig.model_validate({"typographic_fraction": 0.0, **settings})
    spelled = respelled(documents, config.typographic_fraction)
    target = np.array([0.0, 1.0], dtype=np.float32)
    texts = encode("texts", spelled, [target] * len(documents), config, tokenizer)
    names = likes or ["reviews"] * len(documents)
    return texts, with_evidence(texts, documents, spelled, said, names, config, tokenizer).evidence


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    said = [numbered("a good movie"), None, numbered("bad", 3), np.empty((0, 1), np.float16), None]
    save(tmp_path / "words.npz", "these texts", said)
    again = load(tmp_path / "words.npz", "these texts")
    assert again is not None
    assert [None if words is None else words.tolist() for words in again] == [
        None if words is None else words.tolist() for words in said
    ]
    assert load(tmp_path / "words.npz", "other texts") is None
    assert load(tmp_path / "nowhere.npz", "these texts") is None
    assert [file.name for file in tmp_path.iterdir()] == ["words.npz"]


@pytest.mark.parametrize("typographic", [0.0, 1.0])
def test_a_word_stands_at_its_last_token(pieces: Tokenizer, typographic: float) -> None:
    text = '"A movie isn\'t bad." Good'
    texts, (rows,) = evidence_of(
        [Document(text, (text,))], [numbered(text)], pieces, typographic_fraction=typographic
    )
    tokens = [pieces.token(i) for i in texts.input_ids[0].tolist()]
    marks = ("\u201c", "\u2019", "\u201d") if typographic else ('"', "'", '"')
    opening, apostrophe, closing = marks
    assert tokens == [
        *(
            "[CLS]",
            opening,
            "a",
            "mov",
            "##ie",
            "is",
            "##n",
            apostrophe,
            "t",
            "bad",
            ".",
            closing,
            "good",
            "[SEP]",
        )
    ]
    assert np.isnan(rows[[0, -1]]).all()
    inner = rows[1:-1, 0].astype(float)
    there = np.flatnonzero(inner)
    assert there.tolist() == [1, 3, 7, 8, 9, 11]  # a, movie, isn't, bad, the full stop, good
    assert inner[there] / inner[1] == pytest.approx([1, 2, 3, 4, 5, 6], rel=2e-3)
    assert inner.std() == pytest.approx(1, rel=1e-2)


def test_a_long_text_keeps_what_stands_at_the_tokens_that_it_keeps(pieces: Tokenizer) -> None:
    text = "good bad a is good bad a is good bad"
    for truncation, kept in (("head_tail", [1, 2, 3, 9, 10]), ("head", [1, 2, 3, 4, 5])):
        texts, (rows,) = evidence_of(
            [Document(text, (text,))], [numbered(text)], pieces, max_length=7, truncation=truncation
        )
        assert len(rows) == len(texts.input_ids[0]) == 7
        assert rows[1:-1, 0] / rows[1, 0] == pytest.approx(kept, rel=2e-3)


def test_both_texts_of_a_pair_have_theirs(pieces: Tokenizer) -> None:
    fields = ("good movie", "a bad movie")
    said = np.concatenate([numbered(fields[0]), numbered(fields[1]) + np.float16(2)])
    texts, (rows,) = evidence_of([Document("\n".join(fields), fields)], [said], pieces)
    special = np.isin(texts.input_ids[0], [pieces.cls_id, pieces.sep_id])
    assert np.isnan(rows[special]).all()
    assert rows[~special, 0] / rows[1, 0] == pytest.approx([1, 0, 2, 3, 4, 0, 5], rel=2e-3)


def test_each_source_has_columns_of_its_own(pieces: Tokenizer) -> None:
    documents = [Document(text, (text,)) for text in ("good bad", "bad good", "a", "good")]
    said = [numbered("good bad"), numbered("bad good", 3), None, numbered("good")]
    likes = ["films", "goods", None, "films"]
    texts, evidence = evidence_of(documents, said, pieces, likes)
    known = [(~np.isnan(rows[1:-1])).any(axis=0).tolist() for rows in evidence]
    assert known == [[True, *[False] * 3], [False, *[True] * 3], [False] * 4, [True, *[False] * 3]]
    whole = joined([encode("own", documents[:1], texts.targets[:1], FinetuneConfig(), pieces)], "train")
    assert whole.evidence == []
    whole = joined(
        [texts, LabelledTexts("taught", *(texts.input_ids, texts.token_type_ids, texts.targets), evidence)],
        "train",
    )
    assert [rows.shape for rows in whole.evidence] == [(len(ids), 4) for ids in whole.input_ids]
    batch = whole.batch([0, 2, 4, 5])
    assert batch.evidence is not None
    assert batch.counts == (4, 8)  # two tokens in a column, and two in three


def test_rare_extremes_are_cut(pieces: Tokenizer) -> None:
    text = " ".join(["a"] * 200)
    said = np.zeros((200, 1), np.float16)
    said[3] = 50
    _, (rows,) = evidence_of([Document(text, (text,))], [said], pieces)
    assert np.nanmax(rows) == 4


@pytest.mark.parametrize("layers", [1, 2])
def test_a_network_learns_what_tokens_say(layers: int) -> None:
    config: BertConfig = tiny_config(num_hidden_layers=layers, hidden_dropout_prob=0.0)
    torch.manual_seed(0)
    network = BertForSequenceClassification(config)
    model = WithWordHead(network, 2)
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, config.vocab_size, n).astype(np.int32) for n in (9, 17, 4)]
    evidence = [
        np.stack([np.where(i % 2, 1.0, -1.0), np.full(len(i), np.nan)], 1).astype(np.float16) for i in ids
    ]
    targets = [np.array([0.0, 1.0], dtype=np.float32)] * 3
    batch = collate_classification(ids, [np.zeros_like(i) for i in ids], targets, evidence)
    assert batch.evidence is not None
    assert batch.counts == (3, 30)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        logits, said = model(batch.packed)
        assert said.shape == batch.evidence.shape
        losses.append(squared_error(said, batch.evidence) / 30)
        optimizer.zero_grad()
        (losses[-1] + F.cross_entropy(logits, batch.targets)).backward()
        optimizer.step()
    assert losses[0].item() == pytest.approx(1)
    assert losses[-1].item() < 0.2
    with torch.no_grad():
        assert torch.equal(network.eval()(batch.packed), model.eval()(batch.packed)[0])
