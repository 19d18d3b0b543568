"""The loop with a task of numbers: budgets, sums over micro-batches, signals, what is saved and logged."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model import BertForPreTraining, Tokenizer
from tests.conftest import tiny_config
from tests.training.texts import ribbon_text
from training.errors import RunError
from training.loop.checkpoint import Progress, RunState
from training.loop.log import RunLog
from training.loop.trainer import MEAN_STEPS, Budget, Loop
from training.pretrain.task import PretrainingTask
from training.recipe import ExamplesConfig, PretrainConfig, Recipe


@dataclass
class Numbers:
    values: Tensor

    @property
    def tokens(self) -> int:
        return len(self.values)

    @property
    def counts(self) -> tuple[int]:
        return (len(self.values),)


class Regression:
    """Learns a constant; each step has ten numbers in micro-batches of `size`."""

    figures: tuple[str, ...] = ("loss",)

    def __init__(self, size: int = 10) -> None:
        self.model: nn.Module = nn.Linear(1, 1)
        for parameter in self.model.parameters():
            nn.init.zeros_(parameter)
        self.size = size
        self.seen: list[float] = []

    def micro_batches(self, progress: Progress, spent: float) -> list[Numbers]:
        self.seen.append(spent)
        progress.position += 10
        values = torch.randn(10, generator=torch.Generator().manual_seed(progress.position))
        return [Numbers(part) for part in values.split(self.size)]

    def losses(self, batch: Numbers, counts: Sequence[float]) -> Tensor:
        error = self.model(torch.ones(len(batch.values), 1)).squeeze(1) - batch.values
        return error.square().sum()[None] / counts[0]

    def flops(self, batch: Numbers) -> int:
        return 2 * batch.tokens


def loop_of(task: Regression, folder: Path, budget: Budget, **changes: Any) -> Loop[Numbers]:
    settings: dict[str, Any] = {
        "learning_rate": 0.1,
        "warmup_fraction": 0.1,
        "clip_norm": 1.0,
        "precision": torch.float32,
        "log_steps": 5,
    }
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=0.1)
    log = RunLog(folder / "log.jsonl")
    return Loop(task=task, optimizer=optimizer, budget=budget, log=log, **(settings | changes))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        (Budget(steps=8), 0.5),
        (Budget(tokens=80), 0.5),
        (Budget(minutes=1), 0.25),
        (Budget(minutes=1, steps=8), 0.5),
    ],
)
def test_a_budget_is_spent_by_its_nearest_limit(budget: Budget, spent: float) -> None:
    assert budget.spent(Progress(step=4, tokens=40, seconds=15)) == spent


def test_a_run_ends_with_its_steps(tmp_path: Path) -> None:
    loop = loop_of(Regression(), tmp_path, Budget(steps=12))
    assert loop.run()
    assert (loop.progress.step, loop.progress.tokens) == (12, 120)


def test_a_run_ends_with_its_tokens(tmp_path: Path) -> None:
    loop = loop_of(Regression(), tmp_path, Budget(tokens=95))
    assert loop.run()
    assert loop.progress.tokens == 100


def test_a_run_ends_with_its_minutes(tmp_path: Path) -> None:
    loop = loop_of(Regression(), tmp_path, Budget(minutes=0.05 / 60))
    assert loop.run()
    assert loop.progress.seconds >= 0.05


def test_the_rate_follows_the_budget(tmp_path: Path) -> None:
    task = Regression()
    loop_of(task, tmp_path, Budget(steps=10), log_steps=1).run()
    rates = [line["learning_rate"] for line in lines(tmp_path) if line["event"] == "train"]
    assert rates[0] == pytest.approx(0.1 * 0.5)  # of the middle of the step
    assert rates[1] == pytest.approx(0.1 * 0.85 / 0.9)
    assert rates[-1] == pytest.approx(0.1 * 0.05 / 0.9)
    assert task.seen == [i / 10 for i in range(10)]


def test_a_run_of_one_step_learns(tmp_path: Path) -> None:
    task = Regression()
    loop_of(task, tmp_path, Budget(steps=1)).run()
    assert any(parameter.any() for parameter in task.model.parameters())


def test_looks_that_are_no_whole_steps_apart_do_not_drift(tmp_path: Path) -> None:
    loop = loop_of(
        Regression(), tmp_path, Budget(steps=20), evaluate=lambda _: {}, evaluate_steps=Fraction(10, 3)
    )
    loop.run()
    looks = [line["step"] for line in lines(tmp_path) if line["event"] == "evaluation"]
    assert looks == [4, 7, 10, 14, 17, 20]


def test_micro_batches_compute_what_one_batch_does(tmp_path: Path) -> None:
    whole, parts = Regression(10), Regression(3)
    for task in (whole, parts):
        loop_of(task, tmp_path, Budget(steps=10)).run()
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_every_line_of_the_log_counts_steps_tokens_and_minutes(tmp_path: Path) -> None:
    loop_of(Regression(), tmp_path, Budget(steps=12)).run()
    train = [line for line in lines(tmp_path) if line["event"] == "train"]
    assert [line["step"] for line in train] == [5, 10, 12]
    assert [line["tokens"] for line in train] == [50, 100, 120]
    assert all(line["tokens_per_second"] > 0 and line["loss"] > 0 for line in train)


def test_share_of_peak_is_reported_where_the_peak_is_known(tmp_path: Path) -> None:
    loop_of(Regression(), tmp_path, Budget(steps=5), peak_flops=1e9).run()
    assert 0 < lines(tmp_path)[0]["mfu"] < 1


def test_a_finished_run_is_evaluated(tmp_path: Path) -> None:
    loop_of(Regression(), tmp_path, Budget(steps=5), evaluate=lambda p: {"at": p.step}).run()
    assert lines(tmp_path)[-1]["event"] == "evaluation"
    assert lines(tmp_path)[-1]["at"] == 5


def test_a_finished_run_started_again_does_no_step(tmp_path: Path) -> None:
    for _ in range(2):
        task = Regression()
        loop = loop_of(task, tmp_path, Budget(steps=5), state=RunState(tmp_path, {}))
        loop.resume()
        assert loop.run()
    assert task.seen == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_step_finish_saves_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    class Interrupted(Regression):
        def losses(self, batch: Numbers, counts: Sequence[float]) -> Tensor:
            if len(self.seen) == 3:
                os.kill(os.getpid(), number)
            return super().losses(batch, counts)

    before = signal.getsignal(number)
    loop = loop_of(Interrupted(), tmp_path, Budget(steps=10), state=RunState(tmp_path, {}))
    assert not loop.run()
    assert loop.progress.step == 3
    assert [file.name for file in tmp_path.glob("*.pt")] == ["state-000000003.pt"]
    assert signal.getsignal(number) == before


def test_a_run_that_is_stopped_in_its_last_step_is_evaluated_when_it_is_started_again(tmp_path: Path) -> None:
    class Interrupted(Regression):
        def losses(self, batch: Numbers, counts: Sequence[float]) -> Tensor:
            if len(self.seen) == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().losses(batch, counts)

    finished = []
    for task in (Interrupted(), Regression(), Regression()):
        state = RunState(tmp_path, {})
        loop = loop_of(task, tmp_path, Budget(steps=5), state=state, evaluate=lambda p: {"at": p.step})
        loop.resume()
        finished.append(loop.run())
    assert finished == [False, True, True]
    assert [line["at"] for line in lines(tmp_path) if line["event"] == "evaluation"] == [5]


def test_a_pause_does_not_count_as_training(tmp_path: Path) -> None:
    class Paused(Regression):
        def losses(self, batch: Numbers, counts: Sequence[float]) -> Tensor:
            if len(self.seen) == 3:
                time.sleep(1)
                os.kill(os.getpid(), signal.SIGCONT)  # what ends a pause
            return super().losses(batch, counts)

    loop = loop_of(Paused(), tmp_path, Budget(steps=10))
    loop.run()
    assert 0 < loop.progress.seconds < 1


def test_what_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    class Exploding(Regression):
        def losses(self, batch: Numbers, counts: Sequence[float]) -> Tensor:
            return super().losses(batch, counts) * (float("nan") if len(self.seen) > 7 else 1)

    loop = loop_of(
        Exploding(), tmp_path, Budget(steps=20), state=RunState(tmp_path, {}), checkpoint_minutes=1e-9
    )
    with pytest.raises(RunError, match=r"norm is nan: start anew, .* lower learning_rate"):
        loop.run()
    state = torch.load(max(tmp_path.glob("*.pt")), weights_only=True)
    assert state["progress"]["step"] == 7
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_lines_after_the_checkpoint_are_forgotten_on_resume(tmp_path: Path) -> None:
    loop = loop_of(Regression(), tmp_path, Budget(steps=5), state=RunState(tmp_path, {}))
    loop.run()
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event": "train", "step": 99}\n{"event": "tr')
    again = loop_of(Regression(), tmp_path, Budget(steps=5), state=RunState(tmp_path, {}))
    again.resume()
    assert max(line["step"] for line in lines(tmp_path)) == 5


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_ends_with_the_mean_of_its_weights(tmp_path: Path, interrupted: bool) -> None:
    biases: list[float] = []

    class Watched(Regression):
        def micro_batches(self, progress: Progress, spent: float) -> list[Numbers]:
            if progress.step in range(40, 80, MEAN_STEPS):
                biases.append(self.model.bias.item())
            if interrupted and len(self.seen) == 44:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().micro_batches(progress, spent)

    finished = False
    while not finished:
        task = Watched()
        loop = loop_of(task, tmp_path, Budget(steps=80), state=RunState(tmp_path, {}), average_fraction=0.5)
        loop.resume()
        finished = loop.run()
    saved = torch.load(max(tmp_path.glob("*.pt")), weights_only=True)["model"]["bias"].item()
    assert task.model.bias.item() == pytest.approx(sum([*biases, saved]) / 6, rel=1e-4)
    assert task.model.bias.item() != pytest.approx(saved, rel=1e-3)


def test_evaluations_are_of_the_mean_and_training_goes_on_from_the_weights(tmp_path: Path) -> None:
    tasks = Regression(), Regression()
    looked: list[float] = []
    loop_of(tasks[0], tmp_path, Budget(steps=80), average_fraction=0.5).run()
    loop_of(
        tasks[1],
        tmp_path,
        Budget(steps=80),
        average_fraction=0.5,
        evaluate=lambda _: looked.append(tasks[1].model.bias.item()) or {},
        evaluate_steps=8,
    ).run()
    assert looked[-1] == tasks[1].model.bias.item() == tasks[0].model.bias.item()


def pretraining(tokenizer: Tokenizer, **changes: Any) -> PretrainingTask:
    settings = PretrainConfig(tokens=1, batch=8, examples=ExamplesConfig(sequence_length=32), **changes)
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return PretrainingTask(model, ribbon_text(tokenizer), tokenizer, Recipe(name="test", pretrain=settings))


def gradients(task: PretrainingTask) -> list[Tensor]:
    batches = task.micro_batches(Progress(), 0.0)
    counts = [sum(column) for column in zip(*(batch.counts for batch in batches), strict=True)]
    for batch in batches:
        task.losses(batch, counts)[0].backward()
    return [p.grad for p in task.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("changes", [{"micro_batch": 3}, {"micro_batch": 1}, {"gradient_checkpointing": True}])
def test_pretraining_gradients_do_not_depend_on_how_a_step_is_computed(
    tokenizer: Tokenizer, changes: dict[str, Any]
) -> None:
    whole, other = pretraining(tokenizer), pretraining(tokenizer, **changes)
    other.prepare()
    for one, two in zip(gradients(whole), gradients(other), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
