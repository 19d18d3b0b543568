"""Products of rows in chunks that all sum in the same order, so that a row's result does not depend on other rows.

A rounded sum depends on the order of its terms. With AMX, oneDNN chooses this order by the number of rows if sums
have more than 256 terms. In 16 bits the last bit of a row's result then depends on the rest of the batch, and the
difference grows from layer to layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from model.packing import round_up_to_bucket

ChunkSizes = tuple[int, ...]
"""Numbers of rows, ascending"""
Multiply = Callable[[Tensor], Tensor]
_Product = tuple[float, ...]

MAX_CHUNK_ROWS = 2048

_PROBE_SIZES = (8, 40, 64, 128, 256, 704, 1536, 2048)
"""Sizes that are tried first. If they all sum in the same order, all sizes are taken to do so."""

_MIN_COSTED_ROWS = 192
"""Sizes are compared for at least N rows, because smaller batches take little time in any case."""


def find_chunk_sizes(
    multiply: Multiply, row: Tensor, columns: int, threads: Sequence[int]
) -> dict[int, ChunkSizes] | None:
    """Numbers of rows whose products add their terms in the same order, for each number of threads.

    If there are several such groups, the one with the lowest cost over all numbers of rows is taken.

    Args:
        multiply: rows (n, inner) -> (n, columns).
        row: (1, inner), a row whose product changes with the order of its sums; see `cancelling_operands`.
        columns: number of columns of the product.
        threads: numbers of threads that torch will use.

    Returns:
        None if all numbers of rows sum in the same order, so that nothing needs to be split, or if splitting does not
        help.
    """
    probes = _groups(multiply, row, _PROBE_SIZES, threads)
    if len({*chain(*probes)}) == 1 and all([*groups.values()] == [_PROBE_SIZES] for groups in probes):
        return None
    sizes = sorted({round_up_to_bucket(number) for number in range(1, MAX_CHUNK_ROWS + 1)})
    call = _call_cost(row.shape[1] * columns)
    groups_by_threads = _groups(multiply, row, sizes, threads)

    def cost(product: _Product) -> float:
        return sum(
            _costs(groups[product], call)[n] / max(n, _MIN_COSTED_ROWS) for groups in groups_by_threads for n in sizes
        )

    if not all(groups_by_threads):
        return None
    shared = set.intersection(*map(set, groups_by_threads))
    if shared:
        best = [min(shared, key=cost)] * len(threads)
    else:  # a row's result depends on the number of threads, but still not on other rows
        best = [max(groups, key=lambda product: len(groups[product])) for groups in groups_by_threads]
    return {count: groups[product] for count, groups, product in zip(threads, groups_by_threads, best, strict=True)}


def cancelling_operands(inner: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A row (1, inner) and a weight (columns, inner) whose exact product is 0. A computed product consists of rounding
    errors, which differ with the order of summation."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(2 * (inner // 2), generator=generator)
    half, weight = (torch.randn(n, inner // 2, generator=generator) for n in (1, columns))
    row, weight = (torch.cat(halves, 1)[:, order] for halves in ((half, -half), (weight, weight)))
    return F.pad(row, (0, inner % 2)).to(dtype), F.pad(weight, (0, inner % 2)).to(dtype)


def multiply_in_chunks(multiply: Multiply, rows: Tensor, sizes: ChunkSizes, columns: int) -> Tensor:
    """`multiply(rows)`, (n, inner) -> (n, columns), in chunks of these sizes."""
    chunks = split_rows(rows.shape[0], sizes, rows.shape[1] * columns)
    if chunks == (rows.shape[0],):
        return multiply(rows)
    rest = rows.shape[0] - sum(chunks[:-1])
    *parts, last = rows.split([*chunks[:-1], rest])
    if rest < chunks[-1]:
        last = F.pad(last, (0, 0, 0, chunks[-1] - rest))
    return torch.cat([*map(multiply, parts), multiply(last)[:rest]])


@cache
def split_rows(rows: int, sizes: ChunkSizes, products: int) -> ChunkSizes:
    """Sizes of the chunks for a number of rows, descending. The last may be larger than the remaining rows.

    Args:
        rows: at least 1.
        sizes: sizes that chunks may have.
        products: number of multiplications for one row.

    >>> split_rows(100, (4, 32, 256), products=1_000_000)
    (32, 32, 32, 4)
    >>> split_rows(250, (4, 32, 256), products=1_000_000)
    (256,)
    """
    whole, rest = divmod(rows, sizes[-1])
    call = _call_cost(products)
    costs = _costs(sizes, call)
    chunks = [sizes[-1]] * whole
    while rest > 0:
        size = min(sizes, key=lambda size: size + call + costs[max(0, rest - size)])
        chunks.append(size)
        rest -= size
    return tuple(sorted(chunks, reverse=True))


def _groups(
    multiply: Multiply, row: Tensor, sizes: Iterable[int], threads: Sequence[int]
) -> list[dict[_Product, ChunkSizes]]:
    """Sizes grouped by the row's product, for each number of threads. Sizes that compute different products for equal
    rows are left out."""
    before = torch.get_num_threads()
    found = []
    try:
        for count in threads:
            torch.set_num_threads(count)
            groups = defaultdict(list)
            for size in sizes:
                product = multiply(row.repeat(size, 1))
                if torch.equal(product, product[:1].expand_as(product)):
                    groups[tuple(product[0].tolist())].append(size)
            found.append({product: tuple(group) for product, group in groups.items()})
    finally:
        torch.set_num_threads(before)
    return found


def _call_cost(products: int) -> int:
    """Cost of one more call, about 20 million multiplications, in rows of `products` multiplications."""
    return max(1, 20_000_000 // products)


@cache
def _costs(sizes: ChunkSizes, call: int) -> tuple[int, ...]:
    """Lowest cost of 0, 1, ..., MAX_CHUNK_ROWS rows in chunks of these sizes, in rows. A call counts as `call` rows."""
    costs = [0]
    for rows in range(1, MAX_CHUNK_ROWS + 1):
        costs.append(min(size + call + costs[max(0, rows - size)] for size in sizes))
    return tuple(costs)
