"""A network twice as wide that answers as before, and then learns with all of its width."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from model import BertForPreTraining, BertForSequenceClassification, PackedBatch, load_checkpoint
from tests.conftest import MakeCheckpoint
from training.__main__ import main
from training.errors import RunError
from training.grow import grow

BATCH = PackedBatch.pack([[2, 7, 9, 3, 8, 3], [2, 11, 3]], [[0, 0, 0, 0, 1, 1], [0, 0, 0]])


def pretrained_model(folder: Path) -> BertForPreTraining:
    model = load_checkpoint(folder).model
    assert isinstance(model, BertForPreTraining)
    return model


@torch.no_grad()
def test_a_pretrained_network_answers_as_before(pretrained: Path, tmp_path: Path) -> None:
    target = tmp_path / "wide"
    assert main(["grow", str(target), str(pretrained)]) == 0
    narrow, wide = pretrained_model(pretrained), pretrained_model(target)
    assert (wide.config.hidden_size, wide.config.num_attention_heads, wide.config.intermediate_size) == (
        64,
        4,
        128,
    )
    before, after = narrow(BATCH), wide(BATCH)
    torch.testing.assert_close(after, torch.cat([before, before], 1))
    torch.testing.assert_close(wide.masked_lm(after), narrow.masked_lm(before))
    assert narrow.next_sentence is not None
    assert wide.next_sentence is not None
    torch.testing.assert_close(wide.next_sentence(after), narrow.next_sentence(before))


@torch.no_grad()
def test_a_classifier_answers_as_before(sentiment: Path, tmp_path: Path) -> None:
    batch = BATCH.reading([[0], [0]])
    before = load_checkpoint(sentiment)
    after = load_checkpoint(grow(sentiment, tmp_path / "wide"))
    assert isinstance(after.model, BertForSequenceClassification)
    torch.testing.assert_close(after.model(batch), before.model(batch))
    assert (after.config.labels, after.config.hidden_size) == (before.config.labels, 64)


def test_a_checkpoint_without_next_sentence_grows(save_pretrained: MakeCheckpoint, tmp_path: Path) -> None:
    narrow = save_pretrained("masked-only", next_sentence=False)
    assert pretrained_model(grow(narrow, tmp_path / "wide")).next_sentence is None


def test_the_copies_do_not_stay_alike(pretrained: Path, tmp_path: Path) -> None:
    model = pretrained_model(grow(pretrained, tmp_path / "wide")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        F.cross_entropy(model.masked_lm(model(BATCH)), BATCH.input_ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        one, other = model(BATCH).chunk(2, 1)
    assert (one - other).abs().mean() > 0.01 * one.abs().mean()


def test_an_untied_decoder_is_refused(save_pretrained: MakeCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="only tied ones can grow"):
        grow(save_pretrained("untied", tie_word_embeddings=False), tmp_path / "wide")
