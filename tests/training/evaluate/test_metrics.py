"""Figures against hand-made answers, and evaluation that leaves no trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training.evaluate.metrics import (
    calibration_error_by_chance,
    classification_report,
    evaluate_pretraining,
    evaluating,
    expected_calibration_error,
    predict_pretraining,
    reliability,
    unigram_shares,
)

from model import BertForPreTraining, Tokenizer, load_checkpoint
from tests.training.texts import MemoryText, ribbon_text
from training.examples.pairs import ExampleMaker, Vocabulary, unmasked
from training.recipe import ExamplesConfig


@pytest.fixture
def model(pretrained: Path) -> BertForPreTraining:
    loaded = load_checkpoint(pretrained).model
    assert isinstance(loaded, BertForPreTraining)
    return loaded


def evaluate(model: BertForPreTraining, tokenizer: Tokenizer, text: MemoryText, examples: int = 100):  # type: ignore[no-untyped-def]
    return evaluate_pretraining(
        model, {"memory": text}, tokenizer, ExamplesConfig(sequence_length=32), examples=examples
    )["memory"]


def test_the_same_model_scores_the_same(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    text = ribbon_text(tokenizer)
    assert evaluate(model, tokenizer, text) == evaluate(model, tokenizer, text)


def test_a_random_model_is_no_better_than_a_guess(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    report = evaluate(model, tokenizer, ribbon_text(tokenizer, documents=200), examples=300)
    assert report.mlm_loss > report.unigram_entropy
    assert report.mlm_accuracy < 0.1
    assert 0.3 < report.nsp_accuracy_random < 0.7


def test_less_text_than_a_batch_is_evaluated(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    report = evaluate(model, tokenizer, MemoryText([[[10, 11, 12], [13, 14]]]))
    assert report.examples == 1


def test_text_without_pairs_has_no_such_figures(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    report = evaluate(model, tokenizer, MemoryText([[[10, 11, 12]], [[13, 14]]]))
    assert report.nsp_accuracy is None
    assert report.nsp_accuracy_random is None
    assert report.nsp_recall == {}
    assert report.masked == 2


def test_one_document_has_no_random_negatives(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    sentences = [[10 + i, 11 + i, 12 + i] for i in range(60)]
    report = evaluate(model, tokenizer, MemoryText([sentences]))
    assert report.nsp_accuracy is not None
    assert report.nsp_accuracy_random is None


def test_evaluation_masks_fifteen_percent_whatever_training_does(
    model: BertForPreTraining, tokenizer: Tokenizer
) -> None:
    text = ribbon_text(tokenizer)
    reports = [
        evaluate_pretraining(model, {"m": text}, tokenizer, config, examples=50)["m"]
        for config in (
            ExamplesConfig(sequence_length=32, mask_fraction=0.4, whole_word=True),
            ExamplesConfig(sequence_length=32),
        )
    ]
    assert reports[0] == reports[1]


def test_pairs_are_judged_by_their_whole_text(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.append(tokenizer.mask_id in given[0].input_ids))
    text = ribbon_text(tokenizer)
    evaluate(model, tokenizer, text, examples=10)
    assert seen == [True, False]
    maker = ExampleMaker(text, Vocabulary.of(tokenizer), ExamplesConfig(sequence_length=32), 1)
    example = maker(0, 0)
    restored = unmasked(example).input_ids
    differing = set((restored != example.input_ids).nonzero()[0])
    assert differing
    assert differing <= set(example.masked_positions)
    assert list(restored[example.masked_positions]) == list(example.masked_ids)


def test_answers_do_not_depend_on_the_batch(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    maker = ExampleMaker(
        ribbon_text(tokenizer), Vocabulary.of(tokenizer), ExamplesConfig(sequence_length=32), 1
    )
    examples = sorted((maker(0, i) for i in range(20)), key=lambda e: -len(e.input_ids))
    together = predict_pretraining(model, examples)
    alone = [predict_pretraining(model, [example]) for example in examples]
    np.testing.assert_allclose(together.losses, np.concatenate([a.losses for a in alone]), rtol=0.1, atol=0.1)


def test_evaluating_leaves_no_trace(model: BertForPreTraining, tokenizer: Tokenizer) -> None:
    model.train()
    before = torch.get_rng_state()
    evaluate(model, tokenizer, ribbon_text(tokenizer))
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError), evaluating(model):
        _ = 1 / 0
    assert model.training
    assert torch.is_grad_enabled()


def test_unigram_shares_are_those_of_the_text() -> None:
    assert sorted(unigram_shares(MemoryText([[[7, 7], [9]], [[7]]]), unk_id=1)) == [0.25, 0.75]


def test_an_unknown_word_is_no_guess_of_the_unigrams_since_it_is_never_asked_for() -> None:
    assert sorted(unigram_shares(MemoryText([[[7, 7], [9]], [[9, 7]]]), unk_id=9)) == [1.0]


def test_classification_figures() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]])
    report = classification_report(logits, torch.tensor([0, 1, 1, 0]))
    assert report.accuracy == 0.75
    assert report.majority_accuracy == 0.5
    assert report.confusion == [[2, 0], [1, 1]]
    confidence = 1 / (1 + np.exp(-2))
    assert report.expected_calibration_error == pytest.approx(confidence - 0.75)


def test_a_label_that_never_occurs_has_a_row_of_zeros() -> None:
    report = classification_report(torch.eye(3)[:2], torch.tensor([0, 1]))
    assert report.confusion == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_honest_confidence_has_no_calibration_error() -> None:
    confidence = torch.full((10,), 0.8)
    right = torch.tensor([True] * 8 + [False] * 2)
    assert expected_calibration_error(reliability(confidence, right)) == pytest.approx(0, abs=1e-6)
    sure = reliability(torch.ones(4), torch.tensor([True, True, False, False]))
    assert expected_calibration_error(sure) == 0.5


@pytest.mark.parametrize("answers", [100, 3000])
def test_calibration_error_by_chance_is_what_honest_answers_have(answers: int) -> None:
    generator = torch.Generator().manual_seed(5)
    confidence = 0.5 + 0.5 * torch.rand(answers, generator=generator)
    errors = []
    for _ in range(200):
        right = torch.rand(answers, generator=generator) < confidence
        bins = reliability(confidence, right)
        errors.append(expected_calibration_error(bins))
    assert calibration_error_by_chance(bins) == pytest.approx(np.mean(errors), rel=0.06)


def test_sure_answers_and_empty_bins_have_no_calibration_error_by_chance() -> None:
    assert (
        calibration_error_by_chance(reliability(torch.ones(4), torch.tensor([True, True, False, False]))) == 0
    )
