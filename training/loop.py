"""The training loop that pretraining and fine-tuning share: budget, rate, clipping, log, checkpoints.

What is trained comes in as a `Task`; the loop knows no text and no labels.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from training.errors import RunError
from training.optimizer import rate_factor, set_rate
from training.run_state import Progress, RunState
from training.watch import ProgressBar, RunLog, Window

logger = logging.getLogger(__name__)


class Sized(Protocol):
    """A micro-batch as far as the loop looks into it."""

    @property
    def tokens(self) -> int: ...


B = TypeVar("B", bound=Sized)


class Task(Protocol[B]):
    """What one step is made of."""

    model: nn.Module

    def micro_batches(self, progress: Progress, spent: float) -> Sequence[B]:
        """The micro-batches of the next step, a pure function of the position, which it advances. `spent`
        is the share of the budget that is spent."""
        ...

    def loss(self, batch: B, of: Sequence[B]) -> tuple[Tensor, dict[str, float]]:
        """This micro-batch's part of the step's loss, and figures for the log (summed over the step)."""
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
    log_steps: int = 50
    state: RunState | None = None
    checkpoint_minutes: float = 5.0
    evaluate: Callable[[Progress], dict[str, Any]] | None = None
    evaluate_minutes: float = 10.0
    progress: Progress = field(default_factory=Progress)
    _stop: int | None = None

    def run(self) -> bool:
        """Train. False if a signal ended it early; the state is saved in either case."""
        saved = evaluated = self.progress.seconds
        window = Window(self.progress)
        with self._signals(), ProgressBar(self.budget.spent(self.progress), self.progress) as bar:
            while self.budget.spent(self.progress) < 1 and self._stop is None:
                began = time.perf_counter()
                figures = self.step()
                self.progress.seconds += time.perf_counter() - began
                window.add(figures)
                bar.update(self.budget.spent(self.progress), self.progress, figures)
                if self.progress.step % self.log_steps == 0:
                    self.log.write("train", self.progress, window.means(self.progress))
                    window = Window(self.progress)
                if self.progress.seconds - saved >= 60 * self.checkpoint_minutes:
                    self._save()
                    saved = self.progress.seconds
                if self.evaluate and self.progress.seconds - evaluated >= 60 * self.evaluate_minutes:
                    self.log.write("evaluation", self.progress, self.evaluate(self.progress))
                    evaluated = self.progress.seconds
        self._save()
        if self._stop is not None:
            logger.warning("stopped by %s at step %d", signal.Signals(self._stop).name, self.progress.step)
        return self._stop is None

    def step(self) -> dict[str, float]:
        """One optimizer step; the figures of its micro-batches summed."""
        spent = self.budget.spent(self.progress)
        rate = self.learning_rate * rate_factor(spent, self.warmup_fraction)
        set_rate(self.optimizer, rate)
        batches = self.task.micro_batches(self.progress, spent)
        figures: dict[str, float] = {}
        for batch in batches:
            with autocast(self.task.model, self.precision):
                loss, parts = self.task.loss(batch, batches)
            loss.backward()
            for name, value in parts.items():
                figures[name] = figures.get(name, 0.0) + value
        norm = nn.utils.clip_grad_norm_(self.task.model.parameters(), self.clip_norm).item()
        if not norm < float("inf"):
            raise RunError(
                f"the gradient's norm is {norm} at step {self.progress.step}: lower learning_rate, or train in "
                "float32; the last checkpoint is intact"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += sum(batch.tokens for batch in batches)
        return figures | {"gradient_norm": norm, "learning_rate": rate}

    def _save(self) -> None:
        if self.state is not None:
            self.state.save(self.progress, self.task.model, self.optimizer)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C let the current step finish; then the state is saved."""

        def stop(number: int, _frame: FrameType | None) -> None:
            self._stop = number

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def autocast(model: nn.Module, precision: torch.dtype) -> torch.autocast:
    """Mixed precision for a forward pass on the model's device."""
    device = next(model.parameters()).device.type
    return torch.autocast(device, dtype=torch.bfloat16, enabled=precision is torch.bfloat16)


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_precision(device: torch.device) -> torch.dtype:
    """bfloat16 where the chip multiplies it natively; it needs no loss scaling."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32
