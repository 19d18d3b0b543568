"""Groups of neighbouring sequences of similar length, which attention on a CPU pads together."""

from __future__ import annotations

PADDING_TOLERANCE = 0.125
"""Maximum share of padding in a bucket of more than `SMALL_BUCKET_TOKENS`."""

SMALL_BUCKET_TOKENS = 512
"""Smaller buckets may be padded more, up to this number of tokens: a product of few rows keeps no core busy."""


def length_buckets(
    lengths: tuple[int, ...],
    *,
    equal_above: int | None = None,
    max_tokens: int | None = None,
) -> list[range]:
    """Split a batch into ranges of neighbouring sequences that need little padding to their longest.

    Args:
        lengths: tokens of each sequence.
        equal_above: sequences longer than this share a bucket only with sequences of equal length.
        max_tokens: a bucket has at most this many tokens, padding included, or is a single sequence.
    """
    buckets: list[range] = []
    start = tokens = longest = 0
    for i, length in enumerate(lengths):
        padded = max(longest, length) * (i - start + 1)
        waste = padded - tokens - length
        differs = tokens and longest != length
        too_long = equal_above is not None and max(longest, length) > equal_above
        full = max_tokens is not None and tokens and padded > max_tokens
        wasteful = waste > PADDING_TOLERANCE * padded and (tokens >= SMALL_BUCKET_TOKENS or waste > SMALL_BUCKET_TOKENS)
        if (differs and too_long) or full or wasteful:
            buckets.append(range(start, i))
            start, tokens, longest = i, 0, 0
        tokens += length
        longest = max(longest, length)
    buckets.append(range(start, len(lengths)))
    return buckets
