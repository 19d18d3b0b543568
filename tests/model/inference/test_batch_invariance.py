"""A row of a product is the same to the last bit for any number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model.inference.batch_invariance import (
    MAX_CHUNK_ROWS,
    cancelling_operands,
    find_chunk_sizes,
    multiply_in_chunks,
    split_rows,
)
from model.inference.prepack import PrepackedLinear

INNER, OUTER = 512, 8
ROW, WEIGHT = cancelling_operands(INNER, OUTER, torch.float32)


def in_two_orders(few: int) -> Callable[[Tensor], Tensor]:
    """A product that sums from the end if there are fewer rows than `few`."""

    def multiply(rows: Tensor) -> Tensor:
        columns = range(INNER) if len(rows) >= few else reversed(range(INNER))
        out = torch.zeros(len(rows), OUTER)
        for column in columns:
            out += rows[:, column, None] * WEIGHT[:, column]
        return out

    return multiply


def test_cancelling_operands_have_a_product_of_rounding_only() -> None:
    row, weight = cancelling_operands(INNER, OUTER, torch.bfloat16)
    assert (row.double() @ weight.double().T).abs().max() < 1e-9
    forwards, backwards = (in_two_orders(few)(ROW) for few in (0, 2))
    assert (forwards != backwards).float().mean() > 0.5


@pytest.mark.parametrize("inner", [1, 2, 7])
def test_cancelling_operands_may_have_any_width(inner: int) -> None:
    row, weight = cancelling_operands(inner, 3, torch.bfloat16)
    assert (row.shape, weight.shape) == ((1, inner), (3, inner))


def test_find_chunk_sizes_splits_nothing_where_all_sizes_sum_alike() -> None:
    assert find_chunk_sizes(in_two_orders(0), ROW, OUTER, [1, 2]) is None


def test_find_chunk_sizes_splits_nothing_where_it_would_not_help() -> None:
    """Each row is another, by its place."""
    numbered = lambda rows: torch.arange(1.0, len(rows) + 1)[:, None] + rows  # noqa: E731
    assert find_chunk_sizes(numbered, ROW, INNER, [1]) is None


@pytest.mark.parametrize("few", [100, 1500])
def test_find_chunk_sizes_sum_alike_and_add_up_to_any_number(few: int) -> None:
    """The order also follows from the number of threads, as with oneDNN."""

    def multiply(rows: Tensor) -> Tensor:
        return in_two_orders(few * torch.get_num_threads())(rows)

    before = torch.get_num_threads()
    found = find_chunk_sizes(multiply, ROW, OUTER, [1, 2])
    assert torch.get_num_threads() == before
    assert found is not None
    assert set(found) == {1, 2}
    products = set()
    for threads, sizes in found.items():
        torch.set_num_threads(threads)
        try:
            for rows in (1, 8, few - 1, few, few + 1, 2047, 5000):
                product = multiply_in_chunks(multiply, ROW.repeat(rows, 1), sizes, OUTER)
                assert product.shape == (rows, OUTER)
                assert product.equal(product[:1].expand_as(product))
                products.add(tuple(product[0].tolist()))
        finally:
            torch.set_num_threads(before)
    assert len(products) == 1


@pytest.mark.parametrize("sizes", [(4,), (112, 256), (40, 44, 96), (4, 8, 32, 256, MAX_CHUNK_ROWS)])
@pytest.mark.parametrize("rows", [1, 4, 100, 257, MAX_CHUNK_ROWS, 3 * MAX_CHUNK_ROWS + 4])
def test_split_rows_uses_the_sizes_and_covers_all_rows(rows: int, sizes: tuple[int, ...]) -> None:
    cut = split_rows(rows, sizes, products=1_000_000)
    assert set(cut) <= set(sizes)
    assert sum(cut[:-1]) < rows <= sum(cut)


def test_multiply_in_chunks_keeps_the_order_of_rows() -> None:
    rows = torch.arange(10.0)[:, None]
    assert multiply_in_chunks(torch.clone, rows, (4,), 1).equal(rows)


@pytest.mark.parametrize(
    ("inner", "outer", "activation"),
    [(256, 768, None), (512, 1536, None), (512, 2048, "gelu"), (1024, 256, None), (2048, 512, None)],
)
def test_prepacked_linear_in_bfloat16_does_not_depend_on_batch_or_threads(
    inner: int, outer: int, activation: str | None
) -> None:
    row, weight = cancelling_operands(inner, outer, torch.bfloat16)
    try:
        linear = PrepackedLinear(weight, torch.zeros(outer, dtype=torch.bfloat16), activation, (1, 2))
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"oneDNN does not compute bfloat16 here: {error}")
    before, products = torch.get_num_threads(), set()
    with torch.inference_mode():
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for rows in (8, 32, 40, 80, 112, 240, 256, 448, 704, 1024, 1664, 2048, 2176):
                product = linear(row.repeat(rows, 1))
                assert product.equal(product[:1].expand_as(product))
                products.add(tuple(product[0].tolist()))
    torch.set_num_threads(before)
    assert len(products) == 1
