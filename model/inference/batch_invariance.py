"""Rows multiplied in portions that all sum alike, so that no row depends on how many others there are.

A sum of rounded numbers follows from the order of its terms. Where a processor has AMX, oneDNN picks that order
by the number of rows as soon as sums are longer than 256; in 16 bits, the last bit of a row then follows from
its neighbours, and every later layer spreads it.
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

LARGEST = 2048
"""Rows of the largest portion."""
_SOME = (8, 40, 64, 128, 256, 704, 1536, 2048)
_FEW = 192  # what fewer rows cost is soon over anyhow

Sizes = tuple[int, ...]
Product = tuple[float, ...]


def portion_sizes(
    multiply: Callable[[Tensor], Tensor], row: Tensor, outer: int, threads: Sequence[int]
) -> dict[int, Sizes] | None:
    """The numbers of rows that sum alike and cost least to make up any number, for each number of threads that
    torch may have; None if all numbers do, or none do.

    Args:
        multiply: rows (n, inner) -> (n, outer).
        row: (1, inner), whose sums in another order are other numbers; see `cancelling`.
        outer: columns of the product.
    """
    some = _alike(multiply, row, _SOME, threads)
    if len({*chain(*some)}) == 1 and all([*groups.values()] == [_SOME] for groups in some):
        return None
    sizes = sorted({round_up_to_bucket(number) for number in range(1, LARGEST + 1)})
    call = _call(row.shape[1] * outer)
    alike = _alike(multiply, row, sizes, threads)

    def cost(product: Product) -> float:
        return sum(_costs(groups[product], call)[n] / max(n, _FEW) for groups in alike for n in sizes)

    if not all(alike):
        return None
    shared = set.intersection(*map(set, alike))
    if shared:
        best = [min(shared, key=cost)] * len(threads)
    else:  # then a row depends on the number of threads, but still not on its neighbours
        best = [max(groups, key=lambda product: len(groups[product])) for groups in alike]
    return {count: groups[product] for count, groups, product in zip(threads, alike, best, strict=True)}


def cancelling(inner: int, outer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A row (1, inner) and a weight (outer, inner) whose product is 0 but for what rounding leaves of it."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(2 * (inner // 2), generator=generator)
    half, weight = (torch.randn(n, inner // 2, generator=generator) for n in (1, outer))
    row, weight = (torch.cat(halves, 1)[:, order] for halves in ((half, -half), (weight, weight)))
    return F.pad(row, (0, inner % 2)).to(dtype), F.pad(weight, (0, inner % 2)).to(dtype)


def multiply_in_portions(
    multiply: Callable[[Tensor], Tensor], rows: Tensor, sizes: Sizes, outer: int
) -> Tensor:
    """`multiply(rows)`, (n, inner) -> (n, outer), with no more rows at a time than one of `sizes`."""
    cut = portions(rows.shape[0], sizes, rows.shape[1] * outer)
    if cut == (rows.shape[0],):
        return multiply(rows)
    rest = rows.shape[0] - sum(cut[:-1])
    *parts, last = rows.split([*cut[:-1], rest])
    if rest < cut[-1]:
        last = F.pad(last, (0, 0, 0, cut[-1] - rest))
    return torch.cat([*map(multiply, parts), multiply(last)[:rest]])


@cache
def portions(rows: int, sizes: Sizes, products: int) -> Sizes:
    """Sizes of the portions of so many rows: the largest while it fits, and the rest as cheap as can be. The
    last may be larger than what is left for it.

    Args:
        products: multiplications of one row.

    >>> portions(100, (4, 32, 256), products=1_000_000)
    (32, 32, 32, 4)
    >>> portions(250, (4, 32, 256), products=1_000_000)
    (256,)
    """
    whole, rest = divmod(rows, sizes[-1])
    call = _call(products)
    costs = _costs(sizes, call)
    cut = [sizes[-1]] * whole
    while rest > 0:
        size = min(sizes, key=lambda size: size + call + costs[max(0, rest - size)])
        cut.append(size)
        rest -= size
    return tuple(sorted(cut, reverse=True))


def _alike(
    multiply: Callable[[Tensor], Tensor], row: Tensor, sizes: Iterable[int], threads: Sequence[int]
) -> list[dict[Product, Sizes]]:
    """Sizes by what they make of the row, for each number of threads; without those that treat equal rows
    differently."""
    before = torch.get_num_threads()
    alike = []
    try:
        for count in threads:
            torch.set_num_threads(count)
            groups = defaultdict(list)
            for size in sizes:
                product = multiply(row.repeat(size, 1))
                if torch.equal(product, product[:1].expand_as(product)):
                    groups[tuple(product[0].tolist())].append(size)
            alike.append({product: tuple(group) for product, group in groups.items()})
    finally:
        torch.set_num_threads(before)
    return alike


def _call(products: int) -> int:
    """Rows of so many multiplications that take about as long as one more call."""
    return max(1, 20_000_000 // products)


@cache
def _costs(sizes: Sizes, call: int) -> tuple[int, ...]:
    """What 0, 1, ... LARGEST rows cost in portions of these sizes: in rows, each call counting `call` more."""
    costs = [0]
    for rows in range(1, LARGEST + 1):
        costs.append(min(size + call + costs[max(0, rows - size)] for size in sizes))
    return tuple(costs)
