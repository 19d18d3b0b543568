"""Fine-tuning of a tiny pretrained network."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from training.evaluate.metrics import predict_classification
from training.finetune.dataset import LabelledTexts, joined
from training.finetune.seeds import best_of, load_results, seed_folder

from model import BertForPreTraining, BertForSequenceClassification, Tokenizer, load_checkpoint, save_checkpoint
from tests.conftest import MakeCheckpoint
from tests.training.commands import finish, start, until
from tests.training.conftest import MakeRecipe
from training.errors import RunError
from training.finetune.run import calibrate, finetune, read_all
from training.finetune.task import SHORT, ClassificationTask, classifier_from
from training.loop.checkpoint import Progress
from training.loop.log import RunLog
from training.pretrain.run import new_model
from training.recipe import FinetuneConfig, Recipe


def with_pretrained(recipe: Recipe) -> Recipe:
    """A run folder as pretraining leaves it, without its cost."""
    tokenizer = Tokenizer.load(recipe.folder / "tokenizer")
    save_checkpoint(recipe.folder / "pretrained", new_model(recipe, tokenizer), tokenizer)
    return recipe


def weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    return load_file(recipe.folder / "sentiment" / "model.safetensors")


@pytest.fixture(scope="module")
def finished(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    recipe = with_pretrained(make_recipe_in(tmp_path_factory.mktemp("finetuned")))
    torch.set_num_threads(1)
    assert finetune(recipe)
    return recipe


def test_the_classifier_starts_from_the_pretrained_encoder_and_pooler(pretrained: Path) -> None:
    source = load_checkpoint(pretrained).model
    assert isinstance(source, BertForPreTraining)
    labels = {"bad": "NEGATIVE", "so-so": "NEUTRAL", "good": "POSITIVE"}
    model = classifier_from(source, FinetuneConfig(labels=labels, truncation="head"), seed=1)
    assert model.training
    for name, tensor in source.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)
    assert source.next_sentence is not None
    assert torch.equal(model.pooler.dense.weight, source.next_sentence.pooler.dense.weight)
    assert model.config.labels == ["NEGATIVE", "NEUTRAL", "POSITIVE"]
    assert (model.config.truncation, model.config.hidden_dropout_prob) == ("head", 0.1)
    assert model.config.attention_probs_dropout_prob == 0.1
    plain = classifier_from(source, FinetuneConfig(attention_dropout=0.0), seed=1).config
    assert (plain.hidden_dropout_prob, plain.attention_probs_dropout_prob) == (0.1, 0.0)


def test_a_checkpoint_without_next_sentence_head_can_be_fine_tuned(save_pretrained: MakeCheckpoint) -> None:
    source = load_checkpoint(save_pretrained("no-nsp", next_sentence=False)).model
    assert isinstance(source, BertForPreTraining)
    assert isinstance(classifier_from(source, FinetuneConfig(), 1), BertForSequenceClassification)


def test_the_checkpoint_carries_labels_and_truncation(finished: Recipe) -> None:
    config = load_checkpoint(finished.folder / "sentiment").config
    assert config.labels == ["NEGATIVE", "POSITIVE"]
    assert config.truncation == "head_tail"


def test_the_best_look_at_dev_is_what_is_kept(finished: Recipe) -> None:
    folder = seed_folder(finished, 1)
    looks = [line for line in RunLog(folder / "log.jsonl") if line["event"] == "evaluation"]
    best = max(looks, key=lambda line: (line["dev_accuracy"], -line["dev_loss"]))
    (result,) = load_results(finished)
    assert (result.step, result.dev_accuracy) == (best["step"], best["dev_accuracy"])
    kept, state = weights(finished), torch.load(folder / "best.pt", weights_only=True)
    ratio = state["model"]["classifier.weight"] / kept["classifier.weight"]
    assert torch.allclose(ratio, ratio.mean())  # the temperature


def test_dev_is_looked_at_evenly_within_an_epoch_and_at_its_end(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.evaluate_steps=3", "finetune.epochs=2"))
    assert finetune(recipe)
    log = list(RunLog(seed_folder(recipe, 1) / "log.jsonl"))
    looks = [line["step"] for line in log if line["event"] == "evaluation"]
    last = log[-1]["step"]
    per_epoch = last // 2
    assert per_epoch in looks
    assert looks[-1] == last
    assert all(later - earlier <= 3 for earlier, later in pairwise([0, *looks]))


def test_a_run_that_gets_no_better_ends_early_and_stays_ended(make_recipe: MakeRecipe) -> None:
    never = ("finetune.learning_rate=1e-12", "finetune.patience=2", "finetune.evaluate_steps=1")
    recipe = with_pretrained(make_recipe("finetune.epochs=50", *never))
    assert finetune(recipe)
    log = (seed_folder(recipe, 1) / "log.jsonl").read_text()
    last = [line["step"] for line in RunLog(seed_folder(recipe, 1) / "log.jsonl")][-1]
    assert last < 100
    assert finetune(recipe)
    assert (seed_folder(recipe, 1) / "log.jsonl").read_text() == log


def test_of_several_seeds_the_best_on_dev_is_kept(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.seeds=[1, 2, 3]", "finetune.epochs=1"))
    assert finetune(recipe)
    results = load_results(recipe)
    assert [result.seed for result in results] == [1, 2, 3]
    own = [load_file(seed_folder(recipe, seed) / "model" / "model.safetensors") for seed in (1, 2, 3)]
    assert not torch.equal(own[0]["classifier.weight"], own[1]["classifier.weight"])
    assert torch.equal(
        weights(recipe)["classifier.weight"], own[best_of(results).seed - 1]["classifier.weight"]
    )


def test_another_mean_of_the_weights_is_another_run(finished: Recipe) -> None:
    settings = finished.finetune.model_copy(update={"average_fraction": 0.5})
    with pytest.raises(RunError, match=r"finetune\.average_fraction was 0\.0, is 0\.5"):
        finetune(finished.model_copy(update={"finetune": settings}))


def test_a_command_that_names_fewer_seeds_keeps_the_best_of_all(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.seeds=[1, 2, 3]", "finetune.epochs=1"))
    assert finetune(recipe)
    results, kept = load_results(recipe), weights(recipe)
    best = best_of(results).seed
    worse = 1 if best != 1 else 2
    settings = recipe.finetune.model_copy(update={"seeds": (worse,)})
    assert finetune(recipe.model_copy(update={"finetune": settings}))
    assert load_results(recipe) == results
    assert all(torch.equal(kept[name], tensor) for name, tensor in weights(recipe).items())


def test_seeds_of_other_settings_are_forgotten(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.seeds=[1, 2]", "finetune.epochs=1"))
    assert finetune(recipe)
    settings = recipe.finetune.model_copy(update={"seeds": (3,), "epochs": 0.5})
    assert finetune(recipe.model_copy(update={"finetune": settings}))
    assert [result.seed for result in load_results(recipe)] == [3]


def test_several_seeds_without_a_dev_part_are_refused(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.seeds=[1, 2]", "finetune.dev_fraction=0"))
    with pytest.raises(RunError, match="dev_fraction must be above 0"):
        finetune(recipe)


def test_without_a_dev_part_the_last_state_is_kept(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.dev_fraction=0", "finetune.epochs=1"))
    assert finetune(recipe)
    assert load_results(recipe)[0].step is None


def test_another_checkpoint_can_be_the_start(make_recipe: MakeRecipe, save_pretrained: MakeCheckpoint) -> None:
    start = save_pretrained("elsewhere")
    recipe = make_recipe(f"finetune.pretrained={start}", "finetune.epochs=1")
    assert finetune(recipe)
    assert (
        load_checkpoint(recipe.folder / "sentiment").config.vocab_size
        == load_checkpoint(start).config.vocab_size
    )


def test_texts_longer_than_the_start_has_positions_are_refused(
    make_recipe: MakeRecipe, save_pretrained: MakeCheckpoint
) -> None:
    start = save_pretrained("short", max_position_embeddings=16)
    with pytest.raises(RunError, match=r"max_length is 48, but .* has 16 positions"):
        finetune(make_recipe(f"finetune.pretrained={start}"))


def test_a_killed_run_ends_with_the_same_weights(
    make_recipe: MakeRecipe, recipe_file: Path, finished: Recipe
) -> None:
    recipe = with_pretrained(make_recipe())
    places = [f"data={recipe.data}", f"run={recipe.run}"]
    process = start("finetune", str(recipe_file), *places, "finetune.checkpoint_minutes=1e-9")
    until(process, "step 4 ")
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert finetune(recipe)
    mine, theirs = weights(recipe), weights(finished)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_second_process_in_the_same_folder_is_refused(make_recipe: MakeRecipe, recipe_file: Path) -> None:
    recipe = with_pretrained(make_recipe())
    process = start("finetune", str(recipe_file), f"data={recipe.data}", f"run={recipe.run}")
    until(process, "step 2 ")
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(RunError, match=r"another process is at work in .*finetune: wait for its end"):
            finetune(recipe)
    finally:
        process.kill()
        finish(process)


def test_a_finished_run_started_again_changes_nothing(finished: Recipe) -> None:
    before = weights(finished)
    assert finetune(finished)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(finished).items())


def test_another_pretrained_network_is_another_run(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe())
    assert finetune(recipe)
    with_pretrained(recipe.model_copy(update={"seed": 2}))
    with pytest.raises(RunError, match="pretrained was"):
        finetune(recipe)


def test_a_classifier_goes_on_as_it_is(finished: Recipe) -> None:
    source = load_checkpoint(finished.folder / "sentiment")
    assert isinstance(source.model, BertForSequenceClassification)
    going_on = classifier_from(source.model, FinetuneConfig(), seed=7)
    before = source.model.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in going_on.state_dict().items())


def test_fine_tuning_starts_from_a_classifier(make_recipe: MakeRecipe, finished: Recipe) -> None:
    recipe = make_recipe()
    (recipe.folder / "pretrained").symlink_to(finished.folder / "sentiment")
    assert finetune(recipe)
    assert not all(torch.equal(weights(finished)[name], tensor) for name, tensor in weights(recipe).items())


def test_a_classifier_of_other_labels_is_refused(make_recipe: MakeRecipe, finished: Recipe) -> None:
    recipe = make_recipe("finetune.labels={0='BAD',1='GOOD'}")
    (recipe.folder / "pretrained").symlink_to(finished.folder / "sentiment")
    with pytest.raises(
        RunError, match=r"is a classifier of \['NEGATIVE', 'POSITIVE'\], but finetune.labels are"
    ):
        finetune(recipe)


def test_no_source_is_a_clear_error(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RunError, match=r"finetune\.train names no source"):
        finetune(with_pretrained(make_recipe("finetune.train=[]")))


def test_every_text_comes_once_an_epoch(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe())
    begun = load_checkpoint(recipe.folder / "pretrained")
    (texts,), _ = read_all(recipe, begun)
    model = classifier_from(begun.model, recipe.finetune, 1)
    task, progress = ClassificationTask(model, texts, begun.tokenizer, recipe.finetune, 1), Progress()
    seen: list[int] = []
    while len(seen) < len(texts):
        (batch,) = task.micro_batches(progress, 0.0)
        seen += batch.labels.tolist()
    assert progress.epoch == 0
    assert len(seen) == len(texts)
    assert sorted(seen) == sorted(int(target.argmax()) for target in texts.targets)
    task.micro_batches(progress, 0.0)
    assert progress.epoch == 1


def test_micro_batches_are_the_texts_of_a_batch(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.batch=8"))
    begun = load_checkpoint(recipe.folder / "pretrained")
    (texts,), _ = read_all(recipe, begun)
    model = classifier_from(begun.model, recipe.finetune, 1).eval()

    def step(size: int | None) -> tuple[list[int], list[float]]:
        config = recipe.finetune.model_copy(update={"micro_batch": size})
        task = ClassificationTask(model, texts, begun.tokenizer, config, 1)
        batches = task.micro_batches(Progress(), 0.0)
        sizes = [len(batch.targets) for batch in batches]
        return sizes, sum(task.losses(batch, [sum(sizes)]) for batch in batches).tolist()

    (whole, loss), (parts, same) = step(None), step(3)
    assert (whole, parts) == ([8], [3, 3, 2])
    assert same == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("times", [0, 3])
def test_an_epoch_has_a_repeated_source_so_often(make_recipe: MakeRecipe, times: int) -> None:
    recipe = with_pretrained(make_recipe())
    begun = load_checkpoint(recipe.folder / "pretrained")
    once, dev = read_all(recipe, begun)
    often = recipe.finetune.model_copy(update={"repeat": {once[0].name: times}})
    again, same_dev = read_all(recipe.model_copy(update={"finetune": often}), begun)
    assert len(joined(again, "train")) == times * len(joined(once, "train"))
    assert [len(part) for part in same_dev] == [len(part) for part in dev]


def test_long_texts_are_masked_otherwise_each_time(make_recipe: MakeRecipe) -> None:
    recipe = with_pretrained(make_recipe("finetune.masked_fraction=0.5", "finetune.batch=8"))
    begun = load_checkpoint(recipe.folder / "pretrained")
    model, tokenizer = classifier_from(begun.model, recipe.finetune, 1), begun.tokenizer
    words = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids][:60]
    whole = [np.array([tokenizer.cls_id, *words[:length], tokenizer.sep_id]) for length in (60, SHORT - 2)]
    texts = LabelledTexts("both", whole, [np.zeros_like(ids) for ids in whole], [np.array([0.0, 1.0])] * 2)
    task = ClassificationTask(model, texts, tokenizer, recipe.finetune, 1)

    def long_text(progress: Progress) -> list[int]:
        (batch,) = task.micro_batches(progress, 0.0)
        long, short = batch.packed.input_ids.split(batch.packed.lengths)
        assert short.tolist() == whole[1].tolist()
        assert {long[0].item(), long[-1].item()} == {tokenizer.cls_id, tokenizer.sep_id}
        changed = long != torch.from_numpy(whole[0])
        assert set(long[changed].tolist()) <= {tokenizer.mask_id}
        return long.tolist()

    progress = Progress()
    drawn = [long_text(progress) for _ in range(20)]
    assert [long_text(Progress()) for _ in range(2)] == drawn[:1] * 2  # resumed runs draw the same
    shares = [ids.count(tokenizer.mask_id) / len(ids) for ids in drawn]
    assert len(set(map(tuple, drawn))) > 15
    assert 0.15 < np.mean(shares) < 0.35
    assert max(shares) < 0.65


@pytest.mark.parametrize(("texts", "steps"), [(33, 4), (32, 2), (31, 2)])
def test_an_epoch_reads_every_text(make_recipe: MakeRecipe, texts: int, steps: int) -> None:
    recipe = with_pretrained(make_recipe("finetune.dev_fraction=0", "finetune.batch=32"))
    few = recipe.finetune.train[0].model_copy(update={"limit": texts})
    tested = {"train": (few,), "test": ()}
    recipe = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=tested)})
    assert finetune(recipe)
    assert list(RunLog(seed_folder(recipe, 1) / "log.jsonl"))[-1]["step"] == steps


@pytest.mark.parametrize("wrong", [0, 1, 4, 12, 16])
def test_too_few_wrong_or_right_answers_do_not_calibrate(
    finished: Recipe, caplog: pytest.LogCaptureFixture, wrong: int
) -> None:
    loaded = load_checkpoint(finished.folder / "sentiment")
    assert isinstance(loaded.model, BertForSequenceClassification)
    _, (dev,) = read_all(finished, loaded)
    dev = dev.sample(16)
    answers = predict_classification(loaded.model, dev.batches())[0].argmax(1)
    for number, text in enumerate(dev.longest_first):
        dev.targets[text] = np.eye(2, dtype=np.float32)[int(answers[number]) ^ (number < wrong)]
    before = loaded.model.classifier.weight.detach().clone()
    calibrate(loaded.model, [dev])
    assert torch.equal(loaded.model.classifier.weight, before)
    assert f"not calibrated: {len(dev) - wrong} of {len(dev)} answers on dev are right" in caplog.text


def test_calibration_lowers_the_loss_on_dev_and_changes_no_answer(finished: Recipe) -> None:
    loaded = load_checkpoint(finished.folder / "sentiment")
    assert isinstance(loaded.model, BertForSequenceClassification)
    loaded.model.classifier.weight.data *= 500  # sure of itself, and often wrong
    _, (dev,) = read_all(finished, loaded)
    weight = loaded.model.classifier.weight.detach().clone()
    before, labels = predict_classification(loaded.model, dev.batches())
    calibrate(loaded.model, [dev])
    after, _ = predict_classification(loaded.model, dev.batches())
    assert F.cross_entropy(after, labels) < F.cross_entropy(before, labels)
    assert torch.equal(after.argmax(1), before.argmax(1))
    assert weight.norm() > 1.5 * loaded.model.classifier.weight.norm()


def test_a_source_with_many_texts_does_not_decide_how_sure_the_others_are(
    finished: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (dev,) = read_all(finished, load_checkpoint(finished.folder / "sentiment"))
    few, many = dev.sample(len(dev) // 3), joined([dev] * 3, "many")
    monkeypatch.setattr("training.finetune.run.CALIBRATION_TEXTS", len(few))
    temperatures = []
    for parts in ([few, dev], [few, many], [joined([few, many], "all")]):
        loaded = load_checkpoint(finished.folder / "sentiment")
        assert isinstance(loaded.model, BertForSequenceClassification)
        before = (loaded.model.classifier.weight.data * 500).norm()
        loaded.model.classifier.weight.data *= 500
        calibrate(loaded.model, parts)
        temperatures.append(float(before / loaded.model.classifier.weight.detach().norm()))
    each, again, pooled = temperatures
    assert each == pytest.approx(again)
    assert each != pytest.approx(pooled)
