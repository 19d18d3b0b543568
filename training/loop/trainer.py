"""The training loop of pretraining and fine-tuning.

The caller supplies a `TrainingLoss` and a stream of batches; the loop knows no text and no labels. Each rank runs this
loop over its share of the micro-batches, and all ranks make the same decisions.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from training.errors import RunError
from training.examples.loader import BatchStream, MicroBatches, made_ahead
from training.loop.advice import LEFT_PLATEAU, Advisor
from training.loop.checkpoint import Checkpointer, TrainState
from training.loop.log import RunLog, line_of, time_left
from training.loop.metrics import MetricWindow, PrintedMetrics
from training.loop.optimizer import make_optimizer, update_weights
from training.loop.schedule import Schedule
from training.runtime.device import autocast, choose_precision, machine_description, matmul_peak, synchronize
from training.runtime.distributed import DistContext
from training.runtime.signals import stop_signals

MAX_LOG_STEPS, MIN_LOG_LINES = 50, 100
"""Maximum steps per line of the log, and minimum number of lines, which a short run needs."""

UNTIMED_STEPS, TIMED_STEPS = 2, 10
"""Steps for measuring the speed: the first ones, which compile kernels and start the loader, and the measured ones."""

CONSOLE_LINES = 20
"""Maximum lines of a run's training on the console; all lines are in `log.jsonl`."""

logger = logging.getLogger(__name__)


class TrainingLoss(nn.Module):
    """The loss of a model. It is called with a micro-batch, and returns the () loss to minimise, and (metrics, 2) sum
    and count of each metric, without a gradient."""

    model: nn.Module
    """Its weights are trained and saved."""
    metric_names: tuple[str, ...]
    """Names of the metrics; the first is the loss."""

    def flops(self, batch: Any) -> int:
        """Floating-point operations of the forward and backward pass over a micro-batch on the host."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a run."""

    budget_tokens: int
    """Tokens of the whole run."""
    batch_tokens: int
    """Tokens of an optimizer step, over all ranks."""
    micro_batch_tokens: int
    """Tokens of a forward pass of one rank."""
    learning_rate: float
    """Peak learning rate of the schedule."""
    warmup_fraction: float
    """Share of the budget in which the learning rate rises."""
    decay_fraction: float = 1.0
    """Share of the budget in which it falls."""
    embedding_factor: float = 1.0
    """Learning rate of the embeddings, relative to that of the other weights."""
    seed: int = 1
    checkpoint_minutes: float = 5.0
    tensorboard: bool = False
    evaluations: int = 1
    """Number of evaluations, evenly spaced over the budget."""

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


class Trainer:
    """One run, until its budget is spent or a signal stops it. The constructor resumes: it loads the newest checkpoint
    and cuts the log back to it."""

    def __init__(
        self,
        loss: TrainingLoss,
        stream: BatchStream,
        config: TrainConfig,
        folder: Path,
        dist: DistContext,
        evaluate: Callable[[TrainState], dict[str, Any]] | None = None,
        unigram_entropy: float | None = None,
    ) -> None:
        """Start a new run, or resume an earlier one at the step where it stopped.

        Args:
            folder: folder of the log and the checkpoints.
            evaluate: returns figures for the log. All ranks call it, so that none waits for another. It must not use a
                collective.
            unigram_entropy: see `Advisor`.

        Raises:
            RunError: the ranks cannot share the micro-batches.
        """
        if config.batch_tokens % (config.micro_batch_tokens * dist.world_size):
            raise RunError(
                f"batch_tokens ({config.batch_tokens}) is not a multiple of micro_batch_tokens "
                f"({config.micro_batch_tokens}) times {dist.world_size} processes: change one of them"
            )
        self.loss, self.stream, self.config, self.evaluate, self.dist = loss, stream, config, evaluate, dist
        self.device = next(loss.model.parameters()).device
        self.optimizer = make_optimizer(loss.model, config.learning_rate, config.embedding_factor)
        self.checkpointer = Checkpointer(folder, {"model": loss.model, "optimizer": self.optimizer}, dist)
        self.log = RunLog(folder / "log.jsonl", tensorboard=config.tensorboard and dist.is_main)
        resumed = self.checkpointer.resume()
        # A log without a checkpoint belongs to a run that was killed before its first checkpoint.
        if dist.is_main and (resumed or self.log.file.is_file()):
            self.log.rewind(resumed.step if resumed else -1)
        self.state = resumed or TrainState()
        warmup_tokens = round(config.warmup_fraction * config.budget_tokens)
        self.schedule = Schedule(config.budget_tokens, warmup_tokens, config.decay_fraction)
        self.advisor = Advisor(unigram_entropy, any(line["event"] == LEFT_PLATEAU for line in self.log))
        self._synchronized_loss = dist.wrap(loss)
        self._window = MetricWindow(loss.metric_names, self.state)
        self._printed = PrintedMetrics(loss.metric_names, self.state)
        self._began = time.monotonic(), self.state.step
        self._saved_seconds, self._stop_signal = self.state.seconds, 0

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent."""
        return self.state.step >= self.config.steps

    @property
    def _micro_batches(self) -> int:
        """Number of micro-batches before this step, as if all had their present size."""
        return self.state.step * self.config.micro_batches

    def run(self) -> bool:
        """Train. False if a signal stopped the run early. Its state is saved in both cases."""
        if not self.is_finished:
            self._measure_machine()
            with stop_signals(self._stop):
                self._train()
        if self._stop_signal:
            name = signal.Signals(self._stop_signal).name
            logger.warning("stopped by %s at step %d", name, self.state.step)
            return False
        self.optimizer.zero_grad()  # frees the memory of the gradients
        return True

    def _stop(self, number: int, _frame: object) -> None:
        """End the run after the current step."""
        self._stop_signal = number

    def _train(self) -> None:
        state, config = self.state, self.config
        self._began = time.monotonic(), state.step
        total = config.steps * config.micro_batches
        batches = made_ahead(MicroBatches(self.stream, total, self._micro_batches, self.dist), self.device)
        hidden = None if self.dist.is_main else True  # None: shown on a terminal only
        with tqdm(total=config.steps, initial=state.step, unit="step", mininterval=1, disable=hidden) as bar:
            while not self.is_finished:
                began = time.perf_counter()
                self._step(batches)
                state.seconds += time.perf_counter() - began
                bar.update()
                if self._after_step():
                    break

    def _step(self, batches: Iterator[Any]) -> None:
        """Take one optimizer step."""
        config, state = self.config, self.state
        rate = config.learning_rate * self.schedule.factor(state.tokens + config.batch_tokens / 2)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        own = config.micro_batches // self.dist.world_size
        metrics, flops, waited = torch.zeros(len(self.loss.metric_names), 2, device=self.device), 0, 0.0
        for i in range(own):
            began = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - began
            flops += self.loss.flops(batch)
            torch.manual_seed(self._dropout_seed(i))
            with self._no_sync() if i < own - 1 else nullcontext():
                metrics += self._backward(batch.to(self.device), own)
        norm = update_weights(self.loss.model, self.optimizer)
        state.step += 1
        state.tokens += config.batch_tokens
        self._window.add(metrics, norm, flops, rate, waited)

    def _dropout_seed(self, i: int) -> int:
        """Seed for this rank's micro-batch `i` of the step. It depends on the micro-batch's number in the run, so
        dropout is the same after a resume and on any number of ranks."""
        number = self._micro_batches + i * self.dist.world_size + self.dist.rank
        # 32 bits, because torch's generator for CPUs ignores the others.
        return int(np.random.SeedSequence((self.config.seed, number)).generate_state(1)[0])

    def _backward(self, batch: Any, micro_batches: int) -> Tensor:
        """Add the gradients of one of a rank's `micro_batches`. Returns its metrics, (metrics, 2)."""
        with autocast(self.loss.model, choose_precision(self.device)):
            loss, metrics = self._synchronized_loss(batch)
        (loss / micro_batches).backward()
        return metrics

    def _no_sync(self) -> Any:
        """Accumulate gradients on this rank only."""
        ddp = self._synchronized_loss
        return ddp.no_sync() if isinstance(ddp, nn.parallel.DistributedDataParallel) else nullcontext()

    def _after_step(self) -> bool:
        """Log, evaluate, save and print when each is due. Returns whether to stop because of a signal to any rank."""
        state, config = self.state, self.config
        is_save_due = state.seconds - self._saved_seconds >= 60 * config.checkpoint_minutes
        stop, save = self.dist.all_reduce_scalars([bool(self._stop_signal), self.dist.is_main and is_save_due])
        if stop:
            self._stop_signal = self._stop_signal or signal.SIGTERM
        is_last = bool(stop) or self.is_finished
        log, evaluate = is_last or state.step % config.log_steps == 0, self._is_evaluation_due()
        save = is_last or bool(save)
        if log or evaluate or save:
            self._synchronize()
            self._window.count_skipped(state)
        lines = [*(self._log() if log else ()), *(self._evaluate() if evaluate else ())]
        if save:
            self.checkpointer.save(state)
            self._saved_seconds = state.seconds
        for line in lines:  # after the state is saved, because the console may block
            tqdm.write(line)
        return bool(stop)

    def _is_evaluation_due(self) -> bool:
        step, steps, evaluations = self.state.step, self.config.steps, self.config.evaluations
        return step * evaluations // steps > (step - 1) * evaluations // steps

    def _log(self) -> Iterator[str]:
        """Write figures to the log. Yields lines for the console."""
        window = self._window
        sums = self.dist.all_reduce_scalars(window.sums())
        figures = window.summary(self.state, sums)
        self._printed.add(sums)
        self._window = MetricWindow(window.names, self.state, window.peak_flops)
        if self.dist.is_main:
            self.log.write("train", self.state, figures)
            if self._is_printed():
                yield line_of("train", self._progress(), self._printed.take(self.state))
            for event, text in self.advisor.look(figures, self.state.step / self.config.steps):
                self.log.write(event, self.state, {"text": text})
                yield f"{event:10s}  {text}"

    def _progress(self) -> str:
        """Finished share of the run, and remaining time at the mean speed of this process, evaluations and checkpoints
        included."""
        step, steps = self.state.step, self.config.steps
        if self.is_finished:
            return "100%"
        began, first = self._began
        left = (time.monotonic() - began) / (step - first) * (steps - step)
        return f"{100 * step // steps}%, {time_left(left)} left"

    def _is_printed(self) -> bool:
        """Whether the console gets a line after this step."""
        lines = -(-self.config.steps // self.config.log_steps)
        every = self.config.log_steps * -(-lines // CONSOLE_LINES)
        return self.state.step % every == 0 or self.is_finished or bool(self._stop_signal)

    def _evaluate(self) -> Iterator[str]:
        """Evaluate and log. Yields lines for the console."""
        if self.evaluate is None:
            return
        figures = self.evaluate(self.state)
        if self.dist.is_main:
            self.log.write("evaluation", self.state, figures)
            yield line_of("evaluation", self._progress(), figures)

    def _measure_machine(self) -> None:
        precision = choose_precision(self.device)
        self._window.peak_flops = matmul_peak(self.device, precision)
        if self.dist.is_main:
            self.log.write("machine", self.state, {"machine": machine_description(self.device)})
            parameters = sum(p.numel() for p in self.loss.model.parameters())
            steps = f"{self.config.steps:,} steps of {self.config.batch_tokens:,} tokens"
            logger.info(f"{parameters:,} parameters, {steps}, {precision}")

    def _synchronize(self) -> None:
        """Wait for the GPU, which is some steps behind. The wait is training time."""
        began = time.perf_counter()
        synchronize(self.device)
        self.state.seconds += time.perf_counter() - began


def measure_speed(loss: TrainingLoss, stream: BatchStream, micro_batches: int = 1, seconds: float = 10.0) -> float:
    """Tokens per second of one process over whole steps, including the wait for batches. Their learning rate is 0, so
    they change no weight.

    Args:
        micro_batches: micro-batches of this process, in a step.
        seconds: time limit, not counting the first two steps.
    """
    device = next(loss.parameters()).device
    batches = made_ahead(MicroBatches(stream, total=1), device)
    optimizer = make_optimizer(loss.model, 0.0)
    began, ends, tokens = 0.0, math.inf, 0
    for step in range(UNTIMED_STEPS + TIMED_STEPS):
        if step == UNTIMED_STEPS:
            began = time.perf_counter()
            ends, tokens = began + seconds, 0
        for _ in range(micro_batches):
            batch = next(batches).to(device)
            with autocast(loss, choose_precision(device)):
                value, _ = loss(batch)
            value.backward()
            tokens += batch.tokens
        update_weights(loss.model, optimizer)
        synchronize(device)
        if time.perf_counter() > ends:
            break
    return tokens / (time.perf_counter() - began)
