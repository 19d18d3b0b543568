"""The training loop with a small regression: exact resumes, longer runs, signals, what is saved and logged."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ports import free_port
from tests.training.commands import ENVIRONMENT, PATIENCE, ROOT
from training.errors import RunError
from training.examples.batches import BatchShape
from training.loop.log import RunLog
from training.loop.trainer import FIRST_WARMUP_STEPS, UNTIMED_STEPS, TrainConfig, Trainer, TrainingLoss
from training.runtime.distributed import DistContext

MICRO_BATCH = 16
STEP = 2 * MICRO_BATCH
STEPS = 40
FIRST_STEPS = UNTIMED_STEPS + 2  # the session's fixture sets TIMED_STEPS
EVERY_STEP = 1e-12
"""Minutes between checkpoints, so that each step is followed by one."""


@dataclass
class Points:
    """A micro-batch: inputs (points, 4) and what to predict (points, 1)."""

    inputs: Tensor
    values: Tensor

    @property
    def tokens(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Points:
        return self

    def pin_memory(self) -> Points:
        return self


class PointStream:
    """Points, each of which counts as one token."""

    tokens = 1000

    def __init__(self, micro_batch: int = MICRO_BATCH) -> None:
        self.shape = BatchShape(micro_batch, micro_batch + 1)
        self.made: list[int] = []

    def windows(self) -> Iterator[PointStream]:
        yield self

    def __len__(self) -> int:
        return 10**9

    def batch(self, number: int, progress: float) -> Points:
        size = self.shape.tokens
        seeds = range(number * size, (number + 1) * size)
        self.made += seeds
        inputs = torch.stack([torch.randn(4, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        return Points(inputs, inputs.sum(1, keepdim=True))


class Regression(TrainingLoss):
    """Learns a sum. `on_batch` is called before each forward pass with the number of micro-batches so far, and may
    change the loss."""

    metric_names = ("loss",)

    def __init__(self, dropout: float = 0.0, on_batch: Callable[[int], float] = lambda _: 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))
        self.on_batch, self.seen = on_batch, 0

    def forward(self, batch: Points) -> tuple[Tensor, Tensor]:
        factor = self.on_batch(self.seen)
        self.seen += 1
        errors = (self.model(batch.inputs).float() - batch.values).square()
        total = torch.stack([errors.sum(), torch.tensor(float(len(errors)))]).detach()[None]
        return errors.mean() * factor, total


Evaluate = Callable[[Any], dict[str, Any]]


def trainer(
    folder: Path,
    loss: Regression,
    *,
    steps: int = STEPS,
    evaluate: Evaluate | None = None,
    dist: DistContext = DistContext(),  # noqa: B008
    stream: PointStream | None = None,
    **changes: Any,
) -> Trainer:
    settings: dict[str, Any] = {
        "budget_tokens": steps * STEP,
        "batch_tokens": STEP,
        "micro_batch_tokens": MICRO_BATCH,
        "learning_rate": 0.05,
        "warmup_fraction": 0.1,
        "decay_fraction": 0.5,
        "max_evaluations": 4,
    }
    return Trainer(
        loss,
        stream or PointStream(),
        TrainConfig(**(settings | changes)),
        folder,
        evaluate=evaluate,
        dist=dist,
    )


def at_step(step: int, action: Callable[[], object]) -> Callable[[int], float]:
    """Call `action` in the first micro-batch after so many steps."""

    def on_batch(seen: int) -> float:
        if seen == 2 * step:
            action()
        return 1.0

    return on_batch


def send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


class Killed(BaseException):
    """Stands for SIGKILL: nothing is saved any more."""


def kill() -> None:
    raise Killed


def lines(folder: Path, *events: str) -> list[dict[str, Any]]:
    """Lines of the log without what depends on the clock."""
    clock = ("minutes", "tokens_per_second", "batch_wait")
    kept = (line for line in RunLog(folder / "log.jsonl") if line["event"] in (events or ("train", "evaluation")))
    return [{key: value for key, value in line.items() if key not in clock} for line in kept]


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    for name, weight in one.loss.model.state_dict().items():
        assert torch.equal(weight, other.loss.model.state_dict()[name]), name


def weight_of(task: Regression) -> float:
    return next(task.model.parameters()).flatten()[0].item()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path]:
    """An uninterrupted run with dropout, and its folder."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    done = trainer(folder, Regression(dropout=0.2), evaluate=lambda state: {"at": state.step})
    assert done.run()
    return done, folder


# --- a run


def test_trainer_seed_decides_which_units_are_dropped(tmp_path: Path) -> None:
    first, second = (trainer(tmp_path / str(seed), Regression(dropout=0.5), steps=4, seed=seed) for seed in (1, 2))
    second.loss.model.load_state_dict(first.loss.model.state_dict())
    assert first.run()
    assert second.run()
    assert weight_of(first.loss) != weight_of(second.loss)  # type: ignore[arg-type]


def test_trainer_log_of_a_run_killed_before_its_first_checkpoint_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"event": "left_plateau", "step": 30}\n{"event": "train", "step": 31}\n')
    assert trainer(tmp_path, Regression()).run()
    assert [line["step"] for line in lines(tmp_path, "train")] == list(range(1, STEPS + 1))
    assert not lines(tmp_path, "left_plateau")


def test_trainer_learns_until_its_budget_is_spent(whole: tuple[Trainer, Path]) -> None:
    done, folder = whole
    assert (done.state.step, done.state.tokens) == (STEPS, STEPS * STEP)
    train = lines(folder, "train")
    assert [line["step"] for line in train] == list(range(1, STEPS + 1))
    assert [line["tokens"] for line in train] == [STEP * (n + 1) for n in range(STEPS)]
    losses = [line["loss"] for line in train]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert next(iter(done.log))["event"] == "machine"


def test_trainer_rate_warms_up_stays_level_and_falls(whole: tuple[Trainer, Path]) -> None:
    rates = [line["learning_rate"] / 0.05 for line in lines(whole[1], "train")]
    assert rates[:4] == pytest.approx([0.125, 0.375, 0.625, 0.875]), "a step has the rate of its middle"
    assert rates[4:20] == [1.0] * 16
    assert rates[20:] == pytest.approx([1 - (n + 0.5) / 20 for n in range(20)])


@pytest.mark.parametrize(("steps", "most", "expected"), [(20, 6, [4, 7, 10, 14, 17, 20]), (3, 20, [1, 2, 3])])
def test_trainer_evaluates_in_even_steps_and_at_the_end(
    tmp_path: Path, steps: int, most: int, expected: list[int]
) -> None:
    trainer(tmp_path, Regression(), steps=steps, max_evaluations=most, evaluate=lambda state: {"at": state.step}).run()
    assert [line["at"] for line in lines(tmp_path, "evaluation")] == expected


def test_trainer_refuses_ranks_that_cannot_share_a_step(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"batch_tokens \(32\) is not a multiple of micro_batch_tokens \(16\) times 3 processes"
    ):
        trainer(tmp_path, Regression(), dist=DistContext(world_size=3))


def test_trainer_prints_some_lines_of_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer(tmp_path, Regression(), steps=200, evaluate=lambda _: {"dev": {"loss": 1.0}, "dev_loss": 0.25}).run()
    logged = [line["loss"] for line in lines(tmp_path, "train")]
    assert len(logged) == 100
    printed = capsys.readouterr().out.splitlines()
    evaluations = [line.split("  ", 1)[1].split() for line in printed if line.startswith("evaluation")]
    assert [words[0] for words in evaluations] == ["25%,", "50%,", "75%,", "100%"]
    assert evaluations[0][2:] == ["left", "dev_loss", "0.25"]
    words = [line.split() for line in printed if line.startswith("train")]
    assert [line[1].rstrip(",") for line in words] == [f"{share}%" for share in range(5, 101, 5)]
    assert [float(line[line.index("loss") + 1]) for line in words] == pytest.approx(logged[4::5], rel=1e-3)
    assert not any("gradient_norm" in line for line in printed)


def test_trainer_saves_its_state_before_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "%" in text:
                printed.append(max(tmp_path.glob("state-*.pt")).name)
            return len(text)

    printed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Screen())
        trainer(tmp_path, Regression(), steps=20, checkpoint_minutes=EVERY_STEP).run()
    assert printed == [f"state-{step:09d}.pt" for step in range(1, 21)]


# --- a budget in minutes


def test_trainer_budget_in_minutes_becomes_tokens_after_the_first_steps(tmp_path: Path) -> None:
    run = trainer(tmp_path, Regression(), steps=10**6, minutes=0.02, evaluate=lambda state: {"at": state.step})
    assert run.run()
    assert run.state.budget_tokens is not None
    steps = round(run.state.budget_tokens / STEP)
    assert FIRST_STEPS < steps < 10**6
    assert (run.state.step, run.state.tokens) == (steps, steps * STEP)
    (budget,) = lines(tmp_path, "budget")
    assert budget["step"] == FIRST_STEPS
    assert budget["text"].startswith(f"{steps:,} steps of 32 tokens, which read the text ")
    assert "passes would be better, and take" in lines(tmp_path, "advice")[-1]["text"]
    assert lines(tmp_path, "train")[-1]["learning_rate"] < 0.05 * 4 / steps, "it falls to 0 at the end"
    assert len(lines(tmp_path, "evaluation")) == 4


def test_trainer_rate_rises_slowly_until_the_budget_is_known(tmp_path: Path) -> None:
    rates: list[float] = []
    task = Regression(on_batch=lambda _: rates.append(run.optimizer.param_groups[0]["lr"]) or 1.0)  # type: ignore[func-returns-value]
    run = trainer(tmp_path, task, minutes=1000)
    assert run.run()
    assert run.state.step == STEPS, "the time is enough"
    first = [0.05 * (n + 0.5) / FIRST_WARMUP_STEPS for n in range(FIRST_STEPS)]
    assert rates[1 : 2 * FIRST_STEPS : 2] == pytest.approx(first)
    assert rates[2 * FIRST_STEPS + 1] == 0.05


@pytest.mark.parametrize("settings", [{"minutes": 1e-9}, {"minutes": 1, "tokens_after": 10**12}])
def test_trainer_without_time_for_its_first_steps_ends_after_them(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = trainer(tmp_path, Regression(), evaluate=lambda state: {"at": state.step}, **settings)
    assert run.run()
    assert [line["at"] for line in lines(tmp_path, "evaluation")] == [run.state.step] == [FIRST_STEPS]


@pytest.mark.parametrize("step", [FIRST_STEPS - 1, FIRST_STEPS, 20])
def test_trainer_with_minutes_killed_ends_with_the_same_weights(tmp_path: Path, step: int) -> None:
    whole = trainer(tmp_path / "whole", Regression(0.2), minutes=1000)
    assert whole.run()
    with pytest.raises(Killed):
        trainer(tmp_path, Regression(0.2, at_step(step, kill)), minutes=1000, checkpoint_minutes=EVERY_STEP).run()
    resumed = trainer(tmp_path, Regression(0.2), minutes=1000)
    assert resumed.state.step == (step if step >= FIRST_STEPS else 0), "no state before the budget is known"
    assert resumed.run()
    assert_same_weights(resumed, whole)
    assert lines(tmp_path, "train") == lines(tmp_path / "whole", "train")


def test_trainer_keeps_the_measured_budget_when_resumed(tmp_path: Path) -> None:
    first, settings = tmp_path / "first", {"steps": 10**6, "minutes": 0.02}
    with pytest.raises(Killed):
        trainer(first, Regression(on_batch=at_step(6, kill)), checkpoint_minutes=EVERY_STEP, **settings).run()
    shutil.copytree(first, tmp_path / "second")
    runs = [trainer(tmp_path / name, Regression(), **settings) for name in ("first", "second")]
    assert all(run.run() for run in runs)
    assert runs[0].state.budget_tokens == runs[1].state.budget_tokens
    assert_same_weights(*runs)


# --- resumes


@pytest.mark.parametrize("step", [1, 2, 9, 10, 20, 21, 33, 39])
def test_trainer_stopped_at_any_step_resumes_bit_identically(
    tmp_path: Path, whole: tuple[Trainer, Path], step: int
) -> None:
    stopped = trainer(
        tmp_path,
        Regression(0.2, at_step(step - 1, send(signal.SIGTERM))),
        evaluate=lambda state: {"at": state.step},
    )
    assert not stopped.run()
    assert stopped.state.step == step
    resumed = trainer(tmp_path, Regression(0.2), evaluate=lambda state: {"at": state.step})
    assert resumed.state.step == step
    assert resumed.run()
    assert_same_weights(resumed, whole[0])
    assert lines(tmp_path, "train") == lines(whole[1], "train")
    assert [line["at"] for line in lines(tmp_path, "evaluation")] == [10, 20, 30, 40]


@pytest.mark.parametrize("micro_batch", [4, 8, 32])
def test_trainer_goes_on_with_other_micro_batches_and_sees_no_example_twice(tmp_path: Path, micro_batch: int) -> None:
    first, then = PointStream(), PointStream(micro_batch)
    task = Regression(on_batch=at_step(9, send(signal.SIGTERM)))
    assert not trainer(tmp_path, task, stream=first).run()
    after = trainer(tmp_path, Regression(), stream=then, micro_batch_tokens=micro_batch)
    assert after.state.step == 10
    assert after.run()
    assert (after.state.step, after.state.tokens) == (STEPS, STEPS * STEP)
    assert first.made + then.made == list(range(STEPS * STEP))


def test_trainer_killed_again_and_again_ends_with_the_same_weights(tmp_path: Path, whole: tuple[Trainer, Path]) -> None:
    killed_at = [0]
    for step in (7, 8, 26):
        start = killed_at[-1]
        task = Regression(0.2, at_step(step - start, kill))
        run = trainer(tmp_path, task, checkpoint_minutes=EVERY_STEP)
        assert run.state.step == start, "no more than one interval is lost"
        with pytest.raises(Killed):
            run.run()
        killed_at.append(step)
    resumed = trainer(tmp_path, Regression(0.2))
    assert resumed.run()
    assert_same_weights(resumed, whole[0])
    assert lines(tmp_path, "train") == lines(whole[1], "train"), "no line twice, none missing"


def test_trainer_resumed_log_drops_later_and_incomplete_lines(tmp_path: Path) -> None:
    trainer(tmp_path, Regression(), steps=5).run()
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event": "train", "step": 99}\n{"event": "tr')
    trainer(tmp_path, Regression(), steps=5)
    assert max(line["step"] for line in lines(tmp_path)) == 5


def test_trainer_stopped_in_its_last_step_is_evaluated_once_when_started_again(tmp_path: Path) -> None:
    tasks = Regression(on_batch=at_step(4, send(signal.SIGTERM))), Regression(), Regression()
    settings: dict[str, Any] = {"steps": 5, "max_evaluations": 1, "evaluate": lambda state: {"at": state.step}}
    finished = [trainer(tmp_path, task, **settings).run() for task in tasks]
    assert finished == [False, True, True]
    assert tasks[2].seen == 0, "no step is repeated"
    assert [line["at"] for line in lines(tmp_path, "evaluation")] == [5]


def test_trainer_killed_in_its_last_evaluation_evaluates_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 5, "max_evaluations": 1, "checkpoint_minutes": EVERY_STEP}
    with pytest.raises(Killed):
        trainer(tmp_path, Regression(), evaluate=lambda _: kill(), **settings).run()  # type: ignore[func-returns-value]
    assert trainer(tmp_path, Regression(), evaluate=lambda state: {"at": state.step}, **settings).run()
    assert [line["at"] for line in lines(tmp_path, "evaluation")] == [5]


# --- what is never kept


def test_trainer_never_saves_or_evaluates_what_is_not_finite(tmp_path: Path) -> None:
    evaluated: list[int] = []
    task = Regression(on_batch=lambda seen: float("nan") if seen >= 2 * 11 else 1.0)

    def evaluate(state: Any) -> dict[str, Any]:
        evaluated.append(state.step)
        assert all(weight.isfinite().all() for weight in task.model.state_dict().values())
        return {}

    broken = trainer(tmp_path, task, evaluate=evaluate, max_evaluations=20, checkpoint_minutes=EVERY_STEP)
    with pytest.raises(RunError, match=r"norm is nan by step 15, as in 3 steps before.*with a lower learning_rate"):
        broken.run()
    assert evaluated == [2, 4, 6, 8, 10, 12, 14]
    states = [torch.load(file, weights_only=True) for file in tmp_path.glob("state-*.pt")]
    assert {state["state"]["step"] for state in states} == {13, 14}
    assert all(weight.isfinite().all() for state in states for weight in state["model"].values())


@pytest.mark.parametrize("step", [1, 12, STEPS])
def test_trainer_skips_a_step_whose_gradient_is_not_finite(tmp_path: Path, step: int) -> None:
    def run(folder: Path, on_batch: Callable[[int], float]) -> Trainer:
        made = trainer(folder, Regression(on_batch=on_batch))
        assert made.run()
        return made

    first = 2 * (step - 1)
    broken = run(tmp_path / "broken", lambda seen: float("inf") if seen == first + 1 else 1.0)
    for line in lines(tmp_path / "broken", "train"):
        assert ("loss" in line, "skipped_steps" in line) == (line["step"] != step, line["step"] == step)
    skipping = trainer(tmp_path / "skipping", Regression())
    update = skipping.optimizer.step

    def update_or_skip() -> None:
        if skipping.state.step + 1 != step:
            update()

    skipping.optimizer.step = update_or_skip  # type: ignore[assignment]
    assert skipping.run()
    assert_same_weights(broken, skipping)


def test_trainer_counts_skipped_steps_in_a_row_over_a_resume(tmp_path: Path) -> None:
    def on_batch(seen: int) -> float:
        return kill() if seen == 2 * 13 else float("nan") if seen >= 2 * 11 else 1.0  # type: ignore[func-returns-value]

    with pytest.raises(Killed):
        trainer(tmp_path, Regression(on_batch=on_batch), checkpoint_minutes=EVERY_STEP).run()
    resumed = trainer(tmp_path, Regression(on_batch=lambda _: float("nan")))
    assert (resumed.state.step, resumed.state.skipped_in_row) == (13, 2)
    with pytest.raises(RunError, match="by step 15"):
        resumed.run()


# --- the memory of gradients


def addresses(task: Regression) -> list[int]:
    return [weight.grad.data_ptr() for weight in task.model.parameters() if weight.grad is not None]


def test_trainer_gradients_stay_where_they_are(tmp_path: Path) -> None:
    task, seen, kill_at = Regression(), list[list[int]](), [2 * 9]

    def on_batch(number: int) -> float:
        seen.append(addresses(task))
        if number in kill_at:
            kill_at.remove(number)
            kill()
        return 1.0

    task.on_batch = on_batch
    with pytest.raises(Killed):
        trainer(tmp_path, task, checkpoint_minutes=EVERY_STEP).run()
    assert trainer(tmp_path, task).run()
    assert len(seen) > 2 * STEPS
    assert all(each == seen[0] for each in seen)
    assert len(seen[0]) == len(list(task.model.parameters()))
    assert not addresses(task), "the memory is free after training"


RANK = """
import os
import sys
from pathlib import Path
from tests.training.loop.test_trainer import MICRO_BATCH, Regression, addresses, trainer
from training.runtime.distributed import distributed

with distributed() as dist:
    seen = []
    def on_batch(number):
        seen.append(addresses(task))
        return float("nan") if number == 6 and dist.rank == 1 else 1.0
    task = Regression(on_batch=on_batch)
    sizes = {"batch_tokens": 4 * MICRO_BATCH}
    made = trainer(Path(sys.argv[1]), task, steps=20, **sizes, dist=dist)
    assert made.run()
    assert len(seen) == 20 and all(each == seen[4] for each in seen[4:]), "buckets are final after two steps"
    timed = trainer(Path(sys.argv[1]) / "timed", Regression(), steps=10**6, minutes=0.02, **sizes, dist=dist)
    assert timed.run()
    weights = [[weight.tolist() for weight in made.loss.model.parameters()] for made in (made, timed)]
    first, second = dist.all_gather((timed.state.budget_tokens, timed.state.step, weights))
    assert first == second
os._exit(0)  # as in `training.__main__`: the interpreter of a rank can abort at its exit
"""
"""Ten steps of two micro-batches on each of two ranks. Rank 1 has a gradient that is not finite in the fourth step.
Then a run with a budget in minutes."""


def test_trainer_ranks_skip_the_same_step_and_decide_alike(tmp_path: Path) -> None:
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)],
            cwd=ROOT,
            env=ENVIRONMENT | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert [line["step"] for line in lines(tmp_path, "train") if "skipped_steps" in line] == [4]


# --- signals


def test_trainer_ends_at_once_at_a_second_signal(tmp_path: Path) -> None:
    def twice() -> None:
        send(signal.SIGINT)()
        send(signal.SIGINT)()

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, Regression(on_batch=at_step(2, twice))).run()
    assert not list(tmp_path.glob("*.pt"))
    assert signal.getsignal(signal.SIGTERM) == before
