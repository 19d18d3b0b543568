"""The training loop of pretraining and fine-tuning.

The caller supplies a `TrainingLoss` and a stream of batches; the loop knows no text and no labels. Each rank runs this
loop over its share of the micro-batches, and all ranks make the same decisions.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
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
from training.loop.advice import LEFT_PLATEAU, Advice, Advisor
from training.loop.checkpoint import Checkpointer, TrainState
from training.loop.log import RunLog, line_of
from training.loop.metrics import MetricWindow
from training.loop.optimizer import make_optimizer, update_weights
from training.loop.schedule import rate_factor
from training.runtime.device import autocast, choose_precision, machine_description, synchronize
from training.runtime.distributed import DistContext
from training.runtime.signals import stop_signals

MAX_LOG_STEPS, MIN_LOG_LINES = 50, 100
"""Steps per line of the log, and minimum number of lines, which a short run needs."""

UNTIMED_STEPS, TIMED_STEPS = 2, 10
"""First steps of a process: those that compile kernels and start the loader, and those that measure the speed."""

FIRST_WARMUP_STEPS = 100
"""Steps in which the learning rate would rise to its peak, while a budget in minutes is not yet converted to tokens."""

NO_LIMIT = 10**15
"""Budget in tokens until one in minutes is converted: more than any run has."""

CONSOLE_LINES = 20
"""Lines of the log that the console shows too."""

logger = logging.getLogger(__name__)


class TrainingLoss(nn.Module):
    """The loss of a model. It is called with a micro-batch, and returns the () loss to minimise, and (metrics, 2) sum
    and count of each metric, without a gradient."""

    model: nn.Module
    """Its weights are trained and saved."""
    metric_names: tuple[str, ...]
    """Names of the metrics; the first is the loss."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a run."""

    budget_tokens: int | None
    """Tokens of the whole run; None if only `minutes` limit it."""
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
    max_evaluations: int = 1
    """Maximum number of evaluations, evenly spaced over the budget, with `tokens_per_evaluation` or more for each."""
    tokens_per_evaluation: int = 1
    minutes: float | None = None
    """Time of the run, at most. The tokens that fit are computed once, from the speed of the first steps. Until then
    the learning rate rises by `1 / FIRST_WARMUP_STEPS` of its peak a step, and nothing is evaluated."""
    step_share: float = 1.0
    """Share of the time that steps get; evaluations and checkpoints take the rest."""
    tokens_after: int = 0
    """Tokens to evaluate after the last step, within `minutes`; each takes about half the time of a token of a step."""

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
        advisor: Advisor | None = None,
    ) -> None:
        """Start a new run, or resume an earlier one at the step where it stopped.

        Args:
            folder: folder of the log and the checkpoints.
            evaluate: returns figures for the log. All ranks call it, so that none waits for another. It must not use a
                collective.
            advisor: comments on the figures.

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
        self.log = RunLog(folder / "log.jsonl")
        resumed = self.checkpointer.resume()
        # A log without a checkpoint belongs to a run that was killed before its first checkpoint.
        if dist.is_main and (resumed or self.log.file.is_file()):
            self.log.rewind(resumed.step if resumed else -1)
        self.state = resumed or TrainState()
        self._asked_tokens = max(config.batch_tokens, config.budget_tokens or NO_LIMIT)  # a step or more
        if config.minutes is None:
            self.state.budget_tokens = self._asked_tokens
        self.advisor = advisor or Advisor()
        self.advisor.left_plateau = any(line["event"] == LEFT_PLATEAU for line in self.log)
        self._synchronized_loss = dist.wrap(loss)
        self._window = MetricWindow(loss.metric_names, self.state)
        self._began = time.monotonic(), self.state.step
        self._timed_from = self.state.tokens, self.state.seconds
        self._saved_seconds, self._stop_signal = self.state.seconds, 0

    @property
    def budget_tokens(self) -> int:
        """Tokens of the whole run, as far as known."""
        return self.state.budget_tokens or NO_LIMIT

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return max(1, round(self.budget_tokens / self.config.batch_tokens))

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent."""
        return self.state.step >= self.steps

    @property
    def _micro_batches_done(self) -> int:
        """Number of micro-batches before this step, as if all had their present size."""
        return self.state.step * self.config.micro_batches

    def run(self) -> bool:
        """Train. False if a signal stopped the run early. Its state is saved in both cases, unless a budget in minutes
        is not yet converted: then the run starts again, so that its first steps are timed whole."""
        if not self.is_finished:
            self._describe_machine()
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
        state = self.state
        self._began = time.monotonic(), state.step
        hidden = None if self.dist.is_main else True  # None: shown on a terminal only
        batches: Iterator[Any] = iter(())
        made_for = -1
        with tqdm(initial=state.step, unit="step", mininterval=1, disable=hidden) as bar:
            while not self.is_finished:
                if made_for != self.budget_tokens:  # at first, and once it is known: masks depend on its spent share
                    made_for, bar.total = self.budget_tokens, self.steps if state.budget_tokens else None
                    total = self.steps * self.config.micro_batches
                    micro_batches = MicroBatches(self.stream, total, self._micro_batches_done, self.dist)
                    batches = made_ahead(micro_batches, self.device)
                began = time.perf_counter()
                self._step(batches)
                state.seconds += time.perf_counter() - began
                bar.update()
                if self._after_step():
                    break

    def _step(self, batches: Iterator[Any]) -> None:
        """Take one optimizer step."""
        config, state = self.config, self.state
        budget = self.budget_tokens
        warmup = FIRST_WARMUP_STEPS * config.batch_tokens
        if state.budget_tokens is not None:
            warmup = round(config.warmup_fraction * budget)
        middle = state.tokens + config.batch_tokens / 2
        rate = config.learning_rate * rate_factor(middle, budget, warmup, config.decay_fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        own = config.micro_batches // self.dist.world_size
        metrics, waited = torch.zeros(len(self.loss.metric_names), 2, device=self.device), 0.0
        for i in range(own):
            began = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - began
            torch.manual_seed(self._dropout_seed(i))
            with self._no_sync() if i < own - 1 else nullcontext():
                metrics += self._backward(batch.to(self.device), own)
        norm = update_weights(self.loss.model, self.optimizer)
        state.step += 1
        state.tokens += config.batch_tokens
        self._window.add(metrics, norm, rate, waited)

    def _dropout_seed(self, i: int) -> int:
        """Seed for this rank's micro-batch `i` of the step. It depends on the micro-batch's number in the run, so
        dropout is the same after a resume and on any number of ranks."""
        number = self._micro_batches_done + i * self.dist.world_size + self.dist.rank
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
        lines = list(self._time_first_steps())
        is_last, is_known = bool(stop) or self.is_finished, state.budget_tokens is not None
        show = is_known and (is_last or self._is_due(CONSOLE_LINES))
        log = is_last or show or self._is_due(max(MIN_LOG_LINES, -(-self.steps // MAX_LOG_STEPS)))
        evaluate = self._is_due(max(1, min(config.max_evaluations, self.budget_tokens // config.tokens_per_evaluation)))
        save = is_known and (is_last or bool(save))
        if log or evaluate or save:
            self._synchronize()
            self._window.count_skipped(state)
        lines += [*(self._log(show=show) if log else ()), *(self._evaluate() if evaluate else ())]
        if save:
            self.checkpointer.save(state)
            self._saved_seconds = state.seconds
        for line in lines:  # after the state is saved, because the console may block
            tqdm.write(line)
        return bool(stop)

    def _time_first_steps(self) -> Iterator[str]:
        """After the first steps of this process, convert a budget in minutes to tokens, unless an earlier process did.
        Yields lines about the length of the run. A run of fewer steps is timed at its end."""
        state, config, asked = self.state, self.config, self._asked_tokens
        taken, is_last = state.step - self._began[1], state.step >= round(asked / config.batch_tokens)
        if taken == UNTIMED_STEPS + TIMED_STEPS or (is_last and taken < UNTIMED_STEPS + TIMED_STEPS):
            self._synchronize()
            tokens, seconds = state.tokens - self._timed_from[0], state.seconds - self._timed_from[1]
            speed, spent = self.dist.all_gather((tokens / seconds, state.seconds))[0]
            if state.budget_tokens is None:
                left = 60 * (config.minutes or 0) * config.step_share - spent - config.tokens_after / 2 / speed
                state.budget_tokens = min(asked, state.tokens + round(speed * max(0.0, left)))
            if self.dist.is_main:
                budget, minutes = state.budget_tokens, spent / 60 / config.step_share
                minutes += (budget - state.tokens) / speed / 60 / config.step_share
                sizes = budget, config.budget_tokens or budget, config.batch_tokens, self.stream.tokens
                yield from self._advice_lines(self.advisor.on_length(*sizes, speed, minutes))
        elif taken == UNTIMED_STEPS:
            self._synchronize()
            self._timed_from = state.tokens, state.seconds

    def _advice_lines(self, advice: Iterable[Advice]) -> Iterator[str]:
        """Write advice to the log. Yields its lines for the console."""
        for event, text in advice:
            self.log.write(event, self.state, {"text": text})
            yield f"{event:10s}  {text}"

    def _is_due(self, count: int) -> bool:
        """Whether one of `count` equal parts of the run ends with this step."""
        step, steps = self.state.step, self.steps
        return step * count // steps > (step - 1) * count // steps

    def _log(self, *, show: bool) -> Iterator[str]:
        """Write figures to the log. Yields lines for the console: the figures only on request."""
        window = self._window
        figures = window.summary(self.state, self.dist.all_reduce_scalars(window.sums()))
        self._window = MetricWindow(window.names, self.state)
        if self.dist.is_main:
            self.log.write("train", self.state, figures)
            if show:
                shown = {name: value for name, value in figures.items() if name in (*window.names, "tokens_per_second")}
                yield line_of("train", self._progress(), shown)
            yield from self._advice_lines(self.advisor.on_figures(figures, self.state.step / self.steps))

    def _progress(self) -> str:
        """Finished share of the run, and remaining time at the mean speed of this process, evaluations and checkpoints
        included."""
        step, steps = self.state.step, self.steps
        if self.is_finished:
            return "100%"
        began, first = self._began
        left = (time.monotonic() - began) / (step - first) * (steps - step)
        return f"{100 * step // steps}%, {tqdm.format_interval(left)} left"

    def _evaluate(self) -> Iterator[str]:
        """Evaluate and log. Yields lines for the console."""
        if self.evaluate is None:
            return
        figures = self.evaluate(self.state)
        if self.dist.is_main:
            self.log.write("evaluation", self.state, figures)
            yield line_of("evaluation", self._progress(), figures)

    def _describe_machine(self) -> None:
        if self.dist.is_main:
            self.log.write("machine", self.state, {"machine": machine_description(self.device)})
            parameters = sum(p.numel() for p in self.loss.model.parameters())
            logger.info(f"{parameters:,} parameters, {choose_precision(self.device)}")

    def _synchronize(self) -> None:
        """Wait for the GPU, which is some steps behind. The wait is training time."""
        began = time.perf_counter()
        synchronize(self.device)
        self.state.seconds += time.perf_counter() - began
