"""The training loop of pretraining, adapting, fine-tuning and distilling.

What is trained comes in as a `Task`; the loop knows no text and no labels. Each rank runs this loop over its share of
the micro-batches, and all ranks decide alike.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from training.errors import RunError
from training.examples.loader import Batch, ExampleStream, LoaderConfig, MicroBatch, load
from training.loop.advice import Advisor
from training.loop.checkpoint import Checkpointer
from training.loop.log import ProgressBar, RunLog
from training.loop.metrics import MetricWindow
from training.loop.optimizer import make_optimizer, set_learning_rate
from training.loop.schedule import Schedule
from training.loop.state import TrainState
from training.loop.weight_average import WeightAverage
from training.runtime.device import autocast, choose_precision, machine_description, matmul_peak, synchronize
from training.runtime.distributed import DistContext

AVERAGE_EVERY = 8
"""Steps between updates of the weight average, because an update reads all weights."""

CLIP_NORM = 1.0
"""The gradient's norm is clipped to this (Devlin et al. 2018, published code)."""

MAX_LOG_STEPS, MIN_LOG_LINES = 50, 100
"""Steps per line of the log; a short run has at least so many lines."""

logger = logging.getLogger(__name__)

B = TypeVar("B", bound="TrainBatch")


class TrainBatch(Batch, Protocol):
    """What the loop needs of a micro-batch."""

    @property
    def tokens(self) -> int: ...

    def to(self: B, device: torch.device) -> B: ...


class Task(Protocol[B]):
    """What is trained on what."""

    model: nn.Module
    """Its weights are trained, averaged and saved."""
    loss: nn.Module
    """Called with a micro-batch: () loss to minimise, and (metrics, 2) sum and count of each metric."""

    @property
    def stream(self) -> ExampleStream[Any, B]:
        """The examples of the run."""
        ...

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics; the first is the loss."""
        ...

    def flops(self, batch: B) -> int:
        """Floating-point operations of the forward and backward pass over a micro-batch on the host."""
        ...


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a run."""

    budget_tokens: int
    batch_tokens: int
    micro_batch_tokens: int
    learning_rate: float
    warmup_fraction: float
    decay_fraction: float = 1.0
    average_fraction: float = 0.0
    optimizer: str = "adamw"
    seed: int = 1
    checkpoint_minutes: float = 5.0
    evaluations: int = 1
    """Evenly spaced over the budget."""

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return max(1, round(self.budget_tokens / self.batch_tokens))

    @property
    def log_steps(self) -> int:
        """Steps per line of the log."""
        return max(1, min(MAX_LOG_STEPS, self.steps // MIN_LOG_LINES))

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step, over all ranks."""
        return self.batch_tokens // self.micro_batch_tokens


@dataclass(slots=True)
class Trainer(Generic[B]):
    """One run of a task, until its budget is spent or a signal stops it."""

    task: Task[B]
    config: TrainConfig
    log: RunLog
    checkpointer: Checkpointer
    evaluate: Callable[[TrainState], dict[str, Any]] | None = None
    """Figures for the log. All ranks call it, so that none waits for another; it may use no collective."""
    advisor: Advisor = field(default_factory=Advisor)
    dist: DistContext = field(default_factory=DistContext)
    state: TrainState = field(default_factory=TrainState)
    average: WeightAverage = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    schedule: Schedule = field(init=False)
    _loss: nn.Module = field(init=False)
    _window: MetricWindow = field(init=False)
    _peak_flops: float | None = None
    _saved_seconds: float = 0.0
    _stop_signal: int = 0
    _was_paused: bool = False

    def __post_init__(self) -> None:
        config = self.config
        if config.micro_batches % self.dist.world_size:
            raise RunError(
                f"batch_tokens ({config.batch_tokens}) holds {config.micro_batches} micro-batches, which "
                f"{self.dist.world_size} processes cannot share evenly: change batch_tokens or micro_batch_tokens"
            )
        self.average = WeightAverage(self.task.model)
        self.optimizer = make_optimizer(self.task.model, config.learning_rate, config.optimizer)
        self.schedule = self._make_schedule(round(config.warmup_fraction * config.budget_tokens))
        resumed = self.checkpointer.resume(self.task.model, self.optimizer, self.average, self.schedule)
        if resumed is None:
            self.state.warmup_tokens = self.schedule.warmup_tokens
        else:
            self.state = resumed
            self.schedule = self._make_schedule(resumed.warmup_tokens)
            if self.dist.is_main:
                self.log.rewind(resumed.step)
        self._loss = self.dist.wrap(self.task.loss)
        self._window = MetricWindow(self.task.metric_names, self.state)

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        return self.state.step / self.config.steps

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent."""
        return self.state.step >= self.config.steps

    def run(self) -> bool:
        """Train. False if a signal stopped the run early; its state is saved in either case."""
        self._saved_seconds = self.state.seconds
        if not self.is_finished:
            self._describe()
            with self._signals(), ProgressBar(self.progress, shown=self.dist.is_main) as bar:
                self._train(bar)
        elif self._misses_last_evaluation():
            self._evaluate()
        if self._stop_signal:
            name = signal.Signals(self._stop_signal).name
            logger.warning("stopped by %s at step %d", name, self.state.step)
            return False
        self.average.swap()
        return True

    def _train(self, bar: ProgressBar) -> None:
        batches = self._load()
        stopping = False
        while not (self.is_finished or stopping):
            began, self._was_paused = time.perf_counter(), False
            self._step(batches)
            if not self._was_paused:
                self.state.seconds += time.perf_counter() - began
            stopping = self._after_step(bar)
        self._log()
        if not stopping:
            self._evaluate()
        self._save()

    def _load(self) -> Iterator[MicroBatch[B]]:
        config = self.config
        loader = LoaderConfig(config.steps * config.micro_batches, self.dist.rank, self.dist.world_size)
        device = next(self.task.model.parameters()).device
        return load(self.task.stream, loader, self.state.micro_batches, self.state.lanes, device)

    def _step(self, batches: Iterator[MicroBatch[B]]) -> None:
        """One optimizer step."""
        config, state = self.config, self.state
        rate = config.learning_rate * self.schedule.factor(state.tokens + config.batch_tokens / 2)
        set_learning_rate(self.optimizer, rate)
        own = config.micro_batches // self.dist.world_size
        device = next(self.task.model.parameters()).device
        metrics, flops = torch.zeros(len(self.task.metric_names), 2, device=device), 0
        for i in range(own):
            micro = next(batches)
            state.lanes[micro.lane] = micro.position
            flops += self.task.flops(micro.batch)
            torch.manual_seed(self._dropout_seed(i))
            with self._no_sync() if i < own - 1 else nullcontext():
                metrics += self._backward(micro.batch.to(device), own)
        norm = nn.utils.clip_grad_norm_(self.task.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.micro_batches += config.micro_batches
        state.tokens += config.batch_tokens
        self._update_average()
        self._window.add(metrics, norm, flops, rate)

    def _dropout_seed(self, i: int) -> int:
        """Seed for this rank's micro-batch `i` of the step. It depends on the micro-batch's number in the run, so
        dropout is the same after a resume and on any number of ranks."""
        number = self.state.micro_batches + i * self.dist.world_size + self.dist.rank
        return (self.config.seed * 2**32 + number) % 2**63

    def _backward(self, batch: B, micro_batches: int) -> Tensor:
        """Add the gradients of one of a rank's `micro_batches`; (metrics, 2) its metrics."""
        with autocast(self.task.model, choose_precision(next(self.task.model.parameters()).device)):
            loss, metrics = self._loss(batch)
        (loss / micro_batches).backward()
        detached: Tensor = metrics.detach()
        return detached

    @contextmanager
    def _no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank only."""
        with self._loss.no_sync() if isinstance(self._loss, nn.parallel.DistributedDataParallel) else nullcontext():
            yield

    def _update_average(self) -> None:
        if self.progress < 1 - self.config.average_fraction:
            self.average.reset()
        elif self.config.average_fraction and self.state.step % AVERAGE_EVERY == 0:
            self.average.update()

    def _after_step(self, bar: ProgressBar) -> bool:
        """Log, evaluate and save what is due. Whether to stop because of a signal to any rank."""
        state, config = self.state, self.config
        is_save_due = state.seconds - self._saved_seconds >= 60 * config.checkpoint_minutes
        stop, save = self.dist.all_reduce_scalars([bool(self._stop_signal), self.dist.is_main and is_save_due])
        if stop:
            self._stop_signal = self._stop_signal or signal.SIGTERM
        if self.dist.is_main and bar.is_due:
            self._synchronize()
            bar.update(self.progress, self._window.summary(state, self._window.sums()))
        if state.step % config.log_steps == 0:
            self._log()
        if not self.is_finished and self._is_evaluation_due():
            self._evaluate()
        if self._is_before_decay():
            self._save(before_decay=True)
        if save:
            self._save()
        return bool(stop)

    def _is_evaluation_due(self) -> bool:
        step, steps, evaluations = self.state.step, self.config.steps, self.config.evaluations
        return step * evaluations // steps > (step - 1) * evaluations // steps

    def _is_before_decay(self) -> bool:
        """Whether the next step is the first with a falling rate."""
        half = self.config.batch_tokens / 2  # a step has the rate of its middle
        return self.state.tokens - half <= self.schedule.decay_start < self.state.tokens + half and not self.is_finished

    def _log(self) -> None:
        if not self._window.steps:
            return
        self._synchronize()
        self._window.check_finite(self.state.step)
        figures = self._window.summary(self.state, self.dist.all_reduce_scalars(self._window.sums()))
        norms = self._window.norms
        self._window = MetricWindow(self.task.metric_names, self.state, self._peak_flops)
        if self.dist.is_main:
            self.log.write("train", self.state, figures)
            for event, text in self.advisor.look(figures, norms, self.progress):
                self.log.write(event, self.state, {"text": text})
                logger.warning("%s", text)

    def _evaluate(self) -> None:
        self._window.check_finite(self.state.step)
        if self.evaluate is None:
            return
        self._synchronize()
        with self.average.applied():
            figures = self.evaluate(self.state)
        if self.dist.is_main:
            self.log.write("evaluation", self.state, figures)

    def _save(self, *, before_decay: bool = False) -> None:
        self._window.check_finite(self.state.step)
        budget = self.config.budget_tokens
        objects = (self.task.model, self.optimizer, self.average, budget)
        self.checkpointer.save(self.state, *objects, before_decay=before_decay)
        if not before_decay:
            self._saved_seconds = self.state.seconds

    def _misses_last_evaluation(self) -> bool:
        """Whether the run was killed after its last step and before the evaluation."""
        return not any(line["event"] == "evaluation" and line["step"] == self.state.step for line in self.log)

    def _describe(self) -> None:
        device = next(self.task.model.parameters()).device
        precision = choose_precision(device)
        self._peak_flops = matmul_peak(device, precision)
        self._window.peak_flops = self._peak_flops
        if self.dist.is_main:
            self.log.write("machine", self.state, {"machine": machine_description(device)})
            parameters = sum(p.numel() for p in self.task.model.parameters())
            logger.info(
                "%s parameters, %s steps of %s tokens, %s",
                *(f"{n:,}" for n in (parameters, self.config.steps, self.config.batch_tokens)),
                precision,
            )

    def _synchronize(self) -> None:
        """Wait for the GPU, which is some steps behind; the wait is training time."""
        began = time.perf_counter()
        synchronize(next(self.task.model.parameters()).device)
        self.state.seconds += time.perf_counter() - began

    def _make_schedule(self, warmup_tokens: int) -> Schedule:
        return Schedule(self.config.budget_tokens, warmup_tokens, self.config.decay_fraction)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C let the current step finish; then the state is saved. A second signal ends the process at
        once. The time of a pause (Ctrl-Z, SIGSTOP) is not counted as training."""
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGCONT)
        before = {number: signal.getsignal(number) for number in handled}

        def stop(number: int, _frame: FrameType | None) -> None:
            self._stop_signal = number
            signal.signal(number, before[signal.Signals(number)])

        def resume(_number: int, _frame: FrameType | None) -> None:
            self._was_paused = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGCONT, resume)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def measure_speed(task: Task[B], seconds: float = 10.0) -> float:
    """Tokens per second of one process, timed over forward and backward passes that change no weight."""
    device = next(task.model.parameters()).device
    batch = next(load(task.stream, LoaderConfig(total=1), 0, {}, torch.device("cpu"))).batch
    on_device = batch.to(device)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 4 or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        with autocast(task.model, choose_precision(device)):
            loss, _ = task.loss(on_device)
        loss.backward()
        synchronize(device)
        times.append(time.perf_counter() - started)
    task.model.zero_grad(set_to_none=True)
    return batch.tokens / min(times)  # the first passes compile, and others may wait for work beside the run
