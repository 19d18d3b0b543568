"""The training loop that pretraining and fine-tuning share: budget, rate, clipping, log, checkpoints.

What is trained comes in as a `Task`; the loop knows no text and no labels. With several processes (`Processes`)
every one runs this loop over its share of each step, and all take the same decisions.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from training.errors import RunError
from training.loop.advice import Advisor
from training.loop.average import RunningMean
from training.loop.checkpoint import Progress, RunState
from training.loop.log import ProgressBar, RunLog, Window
from training.loop.optimizer import rate_factor, set_rate
from training.runtime.device import autocast, synchronise
from training.runtime.distributed import Processes

logger = logging.getLogger(__name__)

MEAN_STEPS = 8
"""From one state that the mean of weights counts in to the next: to count one in is to read all weights."""


class Countable(Protocol):
    """A micro-batch as far as the loop looks into it."""

    @property
    def tokens(self) -> int: ...

    @property
    def counts(self) -> tuple[int, ...]:
        """What the losses are means over."""
        ...


B = TypeVar("B", bound=Countable)


class Task(Protocol[B]):
    """What one step is made of."""

    model: nn.Module
    figures: tuple[str, ...]
    """Names of what `losses` returns; the first is minimised."""

    def micro_batches(self, progress: Progress, spent: float) -> Sequence[B]:
        """This process's micro-batches of the next step, at least one: a pure function of the position, which
        it advances. `spent` is the share of the budget that is spent."""
        ...

    def losses(self, batch: B, counts: Sequence[float]) -> Tensor:
        """This micro-batch's part of the step's figures: (len(figures),). `counts` are those of all the step's
        micro-batches in all processes, summed, so that the parts sum to means."""
        ...

    def flops(self, batch: B) -> int:
        """Of the forward and backward pass."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """When a run is over."""

    minutes: float | None = None
    tokens: int | None = None
    steps: int | None = None

    def spent(self, progress: Progress) -> float:
        """Share of the budget that is spent, of whichever limit is nearest; 1 or more at the end."""
        shares = [
            progress.seconds / (60 * self.minutes) if self.minutes else 0.0,
            progress.tokens / self.tokens if self.tokens else 0.0,
            progress.step / self.steps if self.steps else 0.0,
        ]
        return max(shares)


@dataclass(slots=True)
class Loop(Generic[B]):
    """One run of a task until its budget is spent or somebody stops it."""

    task: Task[B]
    optimizer: torch.optim.Optimizer
    budget: Budget
    learning_rate: float
    warmup_fraction: float
    clip_norm: float
    precision: torch.dtype
    """Of the forward pass: bfloat16 under autocast, or float32."""
    log: RunLog
    decay_fraction: float = 1.0
    average_fraction: float = 0.0
    """Share of the budget at the end, the mean of whose weights is looked at, and is what the run ends with"""
    log_steps: int = 50
    state: RunState | None = None
    checkpoint_minutes: float = 5.0
    evaluate: Callable[[Progress], dict[str, Any]] | None = None
    evaluate_minutes: float = 10.0
    evaluate_steps: int | Fraction | None = None
    """Evaluate every so many steps instead; a part of a step is a whole one."""
    enough: Callable[[], bool] = lambda: False
    """Ends the run before its budget is spent; asked after each step, of the first process."""
    advisor: Advisor = field(default_factory=Advisor)
    peak_flops: float | None = None
    """Of one device, per second; without it no share of the peak is reported."""
    processes: Processes = field(default_factory=Processes)
    progress: Progress = field(default_factory=Progress)
    mean: RunningMean = field(init=False)
    _stop: int = 0
    _window: Window = field(init=False)
    _saved: Progress = field(init=False)
    _evaluated: Progress = field(init=False)
    _paused: bool = False
    _lasted: float = 0.0
    """Seconds of the last step that was not paused"""

    def __post_init__(self) -> None:
        self.mean = RunningMean(self.task.model)

    def run(self) -> bool:
        """Train. False if a signal ended it early; the state is saved in either case."""
        self._saved = self.progress.copy()
        self._evaluated = Progress() if self._was_stopped_at_the_end() else self.progress.copy()
        self._window = Window(self.task.figures, self.progress, self.peak_flops)
        began_at = self.progress.step
        with self._signals(), ProgressBar(self.spent, shown=self.processes.first) as bar:
            while self._goes_on():
                began, self._paused = time.perf_counter(), False
                self.step()
                self._lasted = self._lasted if self._paused else time.perf_counter() - began
                self.progress.seconds += self._lasted
                self._look(bar)
            if self._window.steps:
                bar.update(self.spent, self._read())
        if self._evaluated.step < self.progress.step or self.progress.step > began_at:
            self._finish()
        if self._stop:
            logger.warning("stopped by %s at step %d", signal.Signals(self._stop).name, self.progress.step)
        else:
            self.mean.exchange()
        return not self._stop

    def resume(self) -> None:
        """Go to where an earlier run of the same identity stopped, if there was one.

        Raises:
            RunError: there was one of another identity.
        """
        if self.state is None:
            return
        self.progress = self.state.resume(self.task.model, self.optimizer, self.mean)
        if not self.average_fraction:
            self.mean.clear()
        if self.processes.first:
            self.log.rewind(self.progress.step)
        else:  # dropout of its own
            torch.manual_seed(hash((torch.initial_seed(), self.processes.rank, self.progress.step)))

    def step(self) -> None:
        """One optimizer step."""
        middle = self.spent + (0.5 / self.budget.steps if self.budget.steps else 0.0)  # of the step, if known
        rate = self.learning_rate * rate_factor(middle, self.warmup_fraction, self.decay_fraction)
        set_rate(self.optimizer, rate)
        phase = self.progress.phase
        batches = self.task.micro_batches(self.progress, self.spent)
        if self.progress.phase != phase:
            self.mean.clear()  # what only long examples teach would be diluted by states that never saw any
        own = [sum(column) for column in zip(*(batch.counts for batch in batches), strict=True)]
        tokens, *counts = self.processes.sums([sum(batch.tokens for batch in batches), *own])
        figures = self._backward(batches, counts)
        norm = nn.utils.clip_grad_norm_(self.task.model.parameters(), self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += int(tokens)
        self._average()
        self._window.add(figures, norm, sum(map(self.task.flops, batches)), rate)

    def _backward(self, batches: Sequence[B], counts: Sequence[float]) -> Tensor:
        """Gradients of the whole step on every process; its figures: (len(task.figures),)"""
        parameters = [p for p in self.task.model.parameters() if p.requires_grad]
        total = torch.zeros(len(self.task.figures), device=parameters[0].device)
        for batch in batches:
            with autocast(self.task.model, self.precision):
                figures = self.task.losses(batch, counts)
            figures[0].backward()
            total += figures.detach()
        if self.processes.world > 1:
            self.processes.sum_([*(p.grad for p in parameters if p.grad is not None), total])
        return total

    def _average(self) -> None:
        if self.spent < 1 - self.average_fraction:
            self.mean.clear()  # of an earlier run with a smaller budget
        elif self.average_fraction and self.progress.step % MEAN_STEPS == 0:
            self.mean.add()

    @property
    def spent(self) -> float:
        """Share of the budget."""
        return self.budget.spent(self.progress)

    def _goes_on(self) -> bool:
        """Decided alike in all processes: the first's clock and word count, and a signal to any stops all."""
        enough = float(self.processes.first and self.enough())
        if self.processes.world > 1:
            clock = self.progress.seconds * self.processes.first
            self.progress.seconds, stop, enough = self.processes.sums([clock, self._stop, enough])
            self._stop = self._stop or (signal.SIGTERM if stop else 0)
        return self.spent < 1 and not enough and not self._stop

    def _look(self, bar: ProgressBar) -> None:
        """Whatever is due after a step. Figures are read now and then only: to read is to wait for the GPU."""
        if bar.due:
            bar.update(self.spent, self._read())
        if self.progress.step % self.log_steps == 0:
            self._log()
        if self._evaluation_is_due():
            self._evaluate()
        if self.progress.seconds - self._saved.seconds >= 60 * self.checkpoint_minutes:
            self._save()  # after the evaluation: a resumed run will not make up for it

    def _read(self) -> dict[str, float]:
        """The window's figures.

        Raises:
            RunError: the gradient is not finite any more.
        """
        self._wait()
        figures = self._window.read(self.progress)
        if not math.isfinite(figures["gradient_norm"]):
            raise RunError(
                f"by step {self.progress.step} the gradient's norm is {figures['gradient_norm']}: start anew, "
                "under another name, with a lower learning_rate or a higher warmup_fraction"
            )
        return figures

    def _wait(self) -> None:
        """A GPU is some steps behind, and until it has caught up is training time too."""
        began = time.perf_counter()
        synchronise(next(self.task.model.parameters()).device)
        self.progress.seconds += time.perf_counter() - began

    def _log(self) -> None:
        figures, norms = self._read(), self._window.norms
        self._window = Window(self.task.figures, self.progress, self.peak_flops)
        if self.processes.first:
            self.log.write("train", self.progress, figures)
            for event, text in self.advisor.look(figures, norms, self.spent):
                self.log.write(event, self.progress, {"text": text})
                logger.warning("%s", text)

    def _evaluation_is_due(self) -> bool:
        if self.evaluate_steps is not None:
            step = self.progress.step
            return step // self.evaluate_steps > (step - 1) // self.evaluate_steps
        return self.progress.seconds - self._evaluated.seconds >= 60 * self.evaluate_minutes

    def _was_stopped_at_the_end(self) -> bool:
        """Whether the run that is resumed had spent its budget, but was ended before the evaluation."""
        return self.spent >= 1 and not any(
            line["event"] == "evaluation" and line["step"] == self.progress.step for line in self.log
        )

    def _evaluate(self) -> None:
        self._wait()
        if self.evaluate is not None and self.processes.first:
            with self.mean.in_place():
                self.log.write("evaluation", self.progress, self.evaluate(self.progress))
        self._evaluated = self.progress.copy()

    def _save(self) -> None:
        if self._window.steps:
            self._read()  # never save what is not finite
        if self.state is not None and self.processes.first:
            self.state.save(self.progress, self.task.model, self.optimizer, self.mean)
        self._saved = self.progress.copy()

    def _finish(self) -> None:
        if not self._stop and self._evaluated.step < self.progress.step:
            self._evaluate()
        if self._saved.step < self.progress.step:
            self._save()
        if self._window.steps:
            self._log()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C let the current step finish; then the state is saved. A second ends at once. A run
        that was paused (Ctrl-Z, SIGSTOP) does not count the pause as training."""
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGCONT)
        before = {number: signal.getsignal(number) for number in handled}

        def stop(number: int, _frame: FrameType | None) -> None:
            self._stop = number
            signal.signal(number, before[signal.Signals(number)])

        def go_on(_number: int, _frame: FrameType | None) -> None:
            self._paused = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGCONT, go_on)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
