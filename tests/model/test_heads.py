from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from model import BertConfig, BertForPreTraining, BertForSequenceClassification, PackedBatch, load_checkpoint
from model.errors import BatchError
from model.packing import SequenceBounds
from tests.model.reference import Sequences, assert_same, randomise, save_theirs, their_answers, their_model

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)


def test_masked_lm_tied_decoder_is_the_word_embedding() -> None:
    model = BertForPreTraining(CONFIG)
    words = model.encoder.embeddings.word_embeddings.weight
    assert model.masked_lm.decoder.weight is words
    model.masked_lm(model(PackedBatch.pack([[1, 2]]))).sum().backward()
    assert words.grad is not None
    assert words.grad[29].any()  # a word that is not in the text learns through the decoder


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_masked_lm_decoder_stays_tied_after_a_change_of_precision(dtype: torch.dtype) -> None:
    model = BertForPreTraining(CONFIG).to(dtype)
    assert model.masked_lm.decoder.weight is model.encoder.embeddings.word_embeddings.weight


def test_masked_lm_untied_decoder_has_its_own_weight() -> None:
    tied, untied = (BertForPreTraining(CONFIG.replace(tie_word_embeddings=tie)) for tie in (True, False))
    sizes = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert sizes[1] - sizes[0] == 30 * 16


def test_masked_lm_projects_only_the_rows_given() -> None:
    model = BertForPreTraining(CONFIG)
    randomise(model)
    hidden = model.eval()(PackedBatch.pack([[1, 2, 3], [4]]))
    everything = model.masked_lm(hidden)
    assert everything.shape == (4, 30)
    torch.testing.assert_close(model.masked_lm(hidden[[2]]), everything[[2]])
    assert model.masked_lm(hidden[:0]).shape == (0, 30)


def test_next_sentence_head_has_two_logits_from_the_pooled_cls() -> None:
    model = BertForPreTraining(CONFIG)
    randomise(model)
    assert model.next_sentence is not None
    cls = model(PackedBatch.pack([[1, 2], [3]], outputs=[[0], [0]]))
    dense, classifier = model.next_sentence.pooler.dense, model.next_sentence.classifier
    logits = model.next_sentence(cls)
    assert logits.shape == (2, 2)
    torch.testing.assert_close(logits, classifier(torch.tanh(dense(cls))))


def test_classifier_without_outputs_reads_cls_of_each_sequence_as_transformers_does(tmp_path: Path) -> None:
    theirs = their_model("BertForSequenceClassification", num_labels=3)
    model = load_checkpoint(save_theirs(tmp_path, theirs), dtype=torch.float32).model
    sequences = Sequences.random(37, longest=24)
    with torch.no_grad():
        logits = model(sequences.packed())
    assert logits.shape == (5, 3)
    assert_same({"labels": logits}, their_answers(theirs, sequences))


def test_classifier_takes_a_batch_with_room_for_more_sequences() -> None:
    model = BertForSequenceClassification(CONFIG).eval()
    plain = PackedBatch.pack([[1, 2], [3]])
    roomy = replace(plain, sequences=SequenceBounds.of([2, 1], capacity=4))
    logits = model(roomy)
    assert logits.shape == (4, 2)
    torch.testing.assert_close(logits[:2], model(plain))


TOO_LONG = [1] * 17
IDS = PackedBatch.pack([[1, 2, 3]])


@pytest.mark.parametrize("network", [BertForPreTraining, BertForSequenceClassification])
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (PackedBatch.pack([[1], TOO_LONG]), "input has 17 tokens; the model reads at most 16"),
        (PackedBatch.pack([[1, 30]]), "token id 30 is out of range; the model has 0 to 29"),
        (PackedBatch.pack([[1, -1]]), "token id -1 is out of range"),
        (PackedBatch.pack([[1, 2]], [[0, 2]]), "token type 2 is out of range; the model has 0 to 1"),
        (PackedBatch.pack([[1, 2]], [[0, -1]]), "token type -1 is out of range"),
        (PackedBatch.pack([[30]]).to("meta"), "token id 30 is out of range"),  # the tensors cannot be read
        (PackedBatch(IDS.input_ids + 30, IDS.position_ids, IDS.token_type_ids, IDS.sequences), "token id 33"),
        (PackedBatch(IDS.input_ids, IDS.position_ids + 16, IDS.token_type_ids, IDS.sequences), "input has 19 tokens"),
        (PackedBatch(IDS.input_ids, IDS.position_ids - 1, IDS.token_type_ids, IDS.sequences), "position -1"),
        (PackedBatch(IDS.input_ids, IDS.position_ids, IDS.token_type_ids + 2, IDS.sequences), "token type 2"),
    ],
)
def test_network_error_names_the_value_out_of_range(
    network: type[BertForPreTraining | BertForSequenceClassification], batch: PackedBatch, message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        network(CONFIG)(batch)


@pytest.mark.parametrize(("own", "expected"), [(None, 0.1), (0.0, 0.0), (0.4, 0.4)])
def test_classifier_dropout_defaults_to_the_hidden_dropout(own: float | None, expected: float) -> None:
    assert BertForSequenceClassification(CONFIG.replace(classifier_dropout=own)).dropout.p == expected


def test_masked_lm_untrained_predicts_all_words_alike() -> None:
    model = BertForPreTraining(CONFIG).eval()
    model.initialise(torch.Generator().manual_seed(0))
    logits = model.masked_lm(model(PackedBatch.pack([[1, 2, 3, 4]])))
    loss = F.cross_entropy(logits, torch.tensor([1, 2, 3, 4]))
    assert loss.item() == pytest.approx(math.log(30), abs=0.2)
