"""Figures of a pretrained network, and evaluation without side effects."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model import BertForPreTraining, Tokenizer, load_checkpoint
from tests.training.texts import MemoryText, random_text
from training.errors import RunError
from training.examples.masking import Examples
from training.examples.pairs import IS_NEXT, NOT_NEXT, PairKind
from training.metrics import pretraining as evaluation
from training.metrics.pretraining import (
    PretrainingAnswers,
    PretrainingReport,
    evaluate_pretraining,
    heldout_examples,
    predict_pretraining,
    pretraining_report,
)
from training.recipe import ExamplesConfig
from training.runtime.device import evaluating

CONFIG = ExamplesConfig(short_length=32, long_fraction=0)


class HeldOut(MemoryText):
    """A text in memory in place of `PreparedText`."""

    def window(self) -> MemoryText:
        return self


@pytest.fixture
def model(pretrained: Path) -> BertForPreTraining:
    loaded = load_checkpoint(pretrained).model
    assert isinstance(loaded, BertForPreTraining)
    return loaded


def held_out(tokenizer: Tokenizer, documents: int = 30) -> HeldOut:
    text = random_text(tokenizer, documents)
    text.__class__ = HeldOut
    assert isinstance(text, HeldOut)
    return text


def evaluate(
    model: BertForPreTraining,
    tokenizer: Tokenizer,
    text: HeldOut,
    count: int = 100,
    config: ExamplesConfig = CONFIG,
) -> PretrainingReport:
    reports = evaluate_pretraining(model, {"memory": text}, tokenizer, config, count=count)  # type: ignore[dict-item]
    return reports["memory"]


def test_pretraining_report_of_hand_made_answers() -> None:
    kinds = np.array([PairKind.NEXT, PairKind.NEXT, PairKind.RANDOM_DOCUMENT, PairKind.SWAPPED, PairKind.SINGLE])
    follows = np.array([IS_NEXT, NOT_NEXT, NOT_NEXT, IS_NEXT, IS_NEXT])
    answers = PretrainingAnswers(np.array([1.0, 3.0]), np.array([True, False]), follows, kinds)
    report = pretraining_report(answers, np.array([1, 0, 3]))
    assert (report.examples, report.masked, report.mlm_loss, report.mlm_accuracy) == (5, 2, 2.0, 0.5)
    assert report.nsp_accuracy == 0.5, "of four pairs"
    assert report.nsp_accuracy_random == 0.75, "mean of the recalls 0.5 and 1"
    assert report.nsp_recall == {"next": 0.5, "random_document": 1.0, "swapped": 0.0}
    assert report.unigram_accuracy == 0.75
    assert report.unigram_entropy == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))


def test_evaluation_of_a_random_network_is_no_better_than_chance(
    model: BertForPreTraining, tokenizer: Tokenizer
) -> None:
    report = evaluate(model, tokenizer, held_out(tokenizer, documents=200), count=300)
    assert report.mlm_loss > report.unigram_entropy
    assert report.mlm_accuracy < 0.1
    assert report.nsp_accuracy_random is not None
    assert 0.3 < report.nsp_accuracy_random < 0.7


def test_evaluation_of_a_diverged_network_is_an_error(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    with torch.no_grad():
        model.encoder.layers[0].query_key_value.weight.fill_(1e30)
    with pytest.raises(RunError, match="outputs are not finite: start again with a lower learning_rate"):
        evaluate(model, tokenizer, held_out(tokenizer))


def test_evaluation_of_less_text_than_a_batch(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    assert evaluate(model, tokenizer, HeldOut([[[10, 11, 12], [13, 14]]])).examples == 1


def test_evaluation_of_text_without_pairs_has_no_figures_of_pairs(
    model: BertForPreTraining, tokenizer: Tokenizer
) -> None:
    report = evaluate(model, tokenizer, HeldOut([[[10, 11, 12]], [[13, 14]]]))
    assert (report.nsp_accuracy, report.nsp_accuracy_random, report.nsp_recall) == (None, None, {})
    assert report.masked == 2


def test_evaluation_of_one_document_has_no_pairs_of_two_documents(
    model: BertForPreTraining, tokenizer: Tokenizer
) -> None:
    report = evaluate(model, tokenizer, HeldOut([[[10 + i, 11 + i, 12 + i] for i in range(60)]]))
    assert report.nsp_accuracy is not None
    assert report.nsp_accuracy_random is None


def test_evaluation_masks_fifteen_percent_whatever_training_masks(
    model: BertForPreTraining, tokenizer: Tokenizer
) -> None:
    text = held_out(tokenizer)
    other = ExamplesConfig(short_length=32, long_length=64, mask_fraction=0.4, random_fraction=0.5)
    assert evaluate(model, tokenizer, text, config=other) == evaluate(model, tokenizer, text)


def test_heldout_examples_have_a_mask_at_each_token_to_predict(tokenizer: Tokenizer) -> None:
    examples = heldout_examples(random_text(tokenizer), tokenizer, CONFIG, 20)
    assert {int(i) for each in examples for i in each.input_ids[each.masked_positions]} == {tokenizer.mask_id}


def test_evaluation_of_pairs_masks_nothing(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.append(tokenizer.mask_id in given[0].input_ids))
    evaluate(model, tokenizer, held_out(tokenizer), count=10)
    assert seen == [True, False]


def test_predict_pretraining_does_not_depend_on_the_batch(
    model: BertForPreTraining, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "BATCH", 1)
    alone = heldout_examples(random_text(tokenizer), tokenizer, CONFIG, 20)
    starts = np.cumsum([0, *(len(each.input_ids) for each in alone[:-1])])
    moved = [
        replace(each, masked_positions=each.masked_positions + start) for each, start in zip(alone, starts, strict=True)
    ]
    together = Examples(*(np.concatenate([getattr(each, field.name) for each in moved]) for field in fields(Examples)))
    losses = [predict_pretraining(model, batches).losses for batches in (alone, [together])]
    assert len(alone) == len(together) == 20
    np.testing.assert_allclose(*losses, rtol=0.1, atol=0.1)


def test_evaluating_restores_the_mode_and_draws_no_random_numbers(
    model: BertForPreTraining, tokenizer: Tokenizer
) -> None:
    model.train()
    before = torch.get_rng_state()
    evaluate(model, tokenizer, held_out(tokenizer))
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError), evaluating(model):
        _ = 1 / 0
    assert model.training
    assert torch.is_grad_enabled()


def test_unigram_figures_are_those_of_tokens_that_can_be_masked(
    model: BertForPreTraining, tokenizer: Tokenizer
) -> None:
    text = HeldOut([[[7, 7, tokenizer.unk_id], [9, tokenizer.unk_id]], [[9, 7, 7], [tokenizer.unk_id] * 2]])
    report = evaluate(model, tokenizer, text)
    assert report.unigram_accuracy == pytest.approx(4 / 6)
    assert report.unigram_entropy == pytest.approx(-(4 / 6 * np.log(4 / 6) + 2 / 6 * np.log(2 / 6)))
