"""Sequences of a batch that are padded together."""

from __future__ import annotations

# A run ends where padding would be a larger share of it than this; but a small run, which keeps no processor
# busy, goes on as long as padding is no more than so many tokens.
PADDING_TOLERANCE = 0.125
RUN_TOKENS = 512


def similar_runs(
    lengths: tuple[int, ...],
    tolerance: float = PADDING_TOLERANCE,
    run_tokens: int = RUN_TOKENS,
    mixed: int | None = None,
    most_tokens: int | None = None,
) -> list[range]:
    """Split a batch into runs of neighbouring sequences that waste little when padded to their longest (if they
    are longer than `mixed`, nothing), and that have at most so many tokens then or are a single sequence."""
    runs: list[range] = []
    start = tokens = longest = 0
    for i, length in enumerate(lengths):
        padded = max(longest, length) * (i - start + 1)
        waste = padded - tokens - length
        apart = mixed is not None and tokens and longest != length and max(longest, length) > mixed
        full = most_tokens is not None and tokens and padded > most_tokens
        wasteful = waste > tolerance * padded and (tokens >= run_tokens or waste > run_tokens)
        if apart or full or wasteful:
            runs.append(range(start, i))
            start, tokens, longest = i, 0, 0
        tokens += length
        longest = max(longest, length)
    runs.append(range(start, len(lengths)))
    return runs
