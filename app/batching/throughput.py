"""Measures the speed of batches, and derives the batch size and the work that can be done in time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThroughputPolicy:
    """How the measured speed is used."""

    batch_seconds: float = 0.1
    """Target duration of a batch, because requests that arrive during a batch wait for its end."""
    min_batch_tokens: int = 1024
    """Lower bound of a batch: with fewer tokens, the processor is not fully used."""
    batch_token_step: int = 256
    """Batch sizes are multiples of it. With steps of a factor of two, a small slowdown halved the batches, which then
    became slower still."""
    averaged_batches: int = 10
    """The measured speed is an average over about N batches, and is trusted after N batches."""
    uncalibrated_speed_factor: float = 4.0
    """Until the speed is trusted, requests are refused as if it were N times as high, because the first batches are
    slow."""
    oom_recovery_batches: int = 100
    """Batches after which the limit that an out-of-memory error set is doubled."""
    max_queue_fraction: float = 0.6
    """Fraction of the time until its deadline that a request may wait in the queue, because the speed may fall."""

    min_queue_tokens: int = 262_144
    """Lower bound of the queue: 512 texts of 512 tokens."""
    max_queue_tokens: int = 8_000_000
    """Upper bound of the queue, because a waiting token takes 80 bytes, or 170 with fill-mask."""

    def queue_tokens(self, tokens_per_second: float, timeout: float) -> int:
        """Tokens that may wait: those that are computed within `timeout` seconds, the server's deadline.

        >>> ThroughputPolicy().queue_tokens(52_000, timeout=30)
        1560000
        """
        return max(min(int(tokens_per_second * timeout), self.max_queue_tokens), self.min_queue_tokens)

    def batch_tokens(self, tokens_per_second: float, max_useful_tokens: int) -> int:
        """Tokens of a batch. `tokens_per_second` is the measured speed of one process, 0 if it is not known yet.

        >>> ThroughputPolicy().batch_tokens(52_000, max_useful_tokens=16_384)
        5120
        >>> ThroughputPolicy().batch_tokens(52_000, max_useful_tokens=2048)
        2048
        """
        in_time = int(tokens_per_second * self.batch_seconds) // self.batch_token_step * self.batch_token_step
        return max(min(in_time, max_useful_tokens), self.min_batch_tokens)


class Throughput:
    """The measured speed of one process, and of all together.

    Batches of less than half size, and batches on a partly idle machine, may only raise it: they are slow for other
    reasons.
    """

    def __init__(self, policy: ThroughputPolicy = ThroughputPolicy(), fixed_batch_tokens: int = 0) -> None:
        """Make an estimate. `fixed_batch_tokens`: tokens of a full batch; 0 derives them from the measured speed."""
        self.tokens_per_second = 0.0
        """Speed of all processes together; 0 before any batch was measured."""
        self.batch_tokens = fixed_batch_tokens or policy.min_batch_tokens
        """Tokens of a full batch, now."""
        self._per_process = 0.0
        self._processes = 1
        self._max_useful_tokens = 0
        self._samples = 0
        self._fixed_batch_tokens = fixed_batch_tokens
        self.policy = policy
        self._memory_limit = math.inf
        """Tokens of a batch that are assumed to fit into memory, after more did not."""
        self._since_out_of_memory = 0

    def set(self, tokens_per_second: float, processes: int, max_useful_tokens: int) -> None:
        """Start again from a newly loaded backend's speed (all processes together) and the tokens beyond which a larger
        batch gets no faster."""
        self.tokens_per_second = tokens_per_second
        self._processes = max(processes, 1)
        self._per_process = tokens_per_second / self._processes
        self._max_useful_tokens = max_useful_tokens
        self._samples = 0
        self._memory_limit = math.inf
        self._update_batch_tokens()

    def record_batch(self, tokens: int, seconds: float, concurrent: int) -> None:
        """Record that a batch took `seconds` while `concurrent` batches were computed, itself included. A process
        computes one batch at a time, however many it has in flight."""
        self._memory_limit = max(self._memory_limit, tokens)
        concurrent = min(concurrent, self._processes)
        speed = tokens / max(seconds, 1e-6)
        is_faster = 0 < self.tokens_per_second < speed * concurrent
        if 2 * tokens < self.batch_tokens and not is_faster:
            return
        weight = 1 / self.policy.averaged_batches if self.tokens_per_second else 1.0
        if is_faster or concurrent >= self._processes or not self.tokens_per_second:
            self.tokens_per_second += weight * (speed * concurrent - self.tokens_per_second)
        if concurrent > 1 or self._processes == 1:  # a batch alone may have used the threads of all processes
            self._per_process += weight * (speed - self._per_process)
        self._samples += 1
        self._since_out_of_memory += 1
        if self._since_out_of_memory % self.policy.oom_recovery_batches == 0:
            self._memory_limit *= 2
        self._update_batch_tokens()

    def record_out_of_memory(self, tokens: int) -> None:
        """Record that a batch of `tokens` did not fit into memory. Later batches have at most half as many, or as many
        as a later batch that fits."""
        self._memory_limit = max(tokens // 2, 1)
        self._since_out_of_memory = 0
        self._update_batch_tokens()

    def _update_batch_tokens(self) -> None:
        wanted = self._fixed_batch_tokens or self.policy.batch_tokens(self._per_process, self._max_useful_tokens)
        self.batch_tokens = int(min(wanted, self._memory_limit))

    def max_backlog(self, seconds: float) -> float:
        """Maximum tokens of unanswered requests with which a request that has `seconds` left is answered in time."""
        if not self.tokens_per_second:
            return math.inf
        trusted = self._samples >= self.policy.averaged_batches
        speed = self.tokens_per_second * (1 if trusted else self.policy.uncalibrated_speed_factor)
        return speed * self.policy.max_queue_fraction * max(seconds, 0.0)

    def seconds_for(self, tokens: int) -> int:
        """Whole seconds, from 1 to 60, until `tokens` are computed."""
        if not self.tokens_per_second:
            return 1
        return min(max(math.ceil(tokens / self.tokens_per_second), 1), 60)
