"""Each attention beside its definition: values, precision, gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from model.attention.bucketed import BucketedAttention
from model.attention.cpu_training import MatmulAttention
from model.attention.padded import PaddedAttention
from model.packing import SequenceBounds
from tests.model.attention.cases import Lengths, MakeAttention, attend_with, cases, cross, inputs_for, reference

TRAINED: dict[str, MakeAttention] = {"matmul": MatmulAttention, "padded": PaddedAttention}
KINDS: dict[str, MakeAttention] = TRAINED | {
    "bucketed": BucketedAttention,
    "batch invariant": partial(BucketedAttention, batch_invariant=True),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
trained = pytest.mark.parametrize("make", TRAINED.values(), ids=TRAINED.keys())


@kinds
@cases
def test_values_are_those_of_the_definition(make: MakeAttention, queries: Lengths, keys: Lengths) -> None:
    inputs = inputs_for(queries, keys)
    with torch.no_grad():
        torch.testing.assert_close(attend_with(make, queries, keys)(*inputs), reference(*inputs, queries, keys))


@trained
@cases
def test_values_and_gradients_are_those_of_the_definition(make: MakeAttention, queries: Lengths, keys: Lengths) -> None:
    inputs = inputs_for(queries, keys)
    expected = reference(*inputs, queries, keys)
    out = attend_with(make, queries, keys)(*inputs)
    torch.testing.assert_close(out, expected)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((result * weights).sum(), inputs) for result in (out, expected))
    for mine, expected_grad in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected_grad)


@trained
def test_padding_passes_no_gradient(make: MakeAttention) -> None:
    """Padding repeats the first row: with a huge first row, it would be seen in other sequences."""
    keys = [2, 5, 3]
    query, key, value = inputs_for(keys, keys)
    with torch.no_grad():
        value[0], key[0] = 1e9, 1e3
    out = attend_with(make, keys, keys)(query, key, value)
    assert out[2:].abs().max() < 100
    (grad,) = torch.autograd.grad(out[2:].sum(), value)
    assert not grad[:2].any()


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_result_has_the_precision_of_the_inputs(make: MakeAttention, dtype: torch.dtype) -> None:
    inputs = inputs_for([3, 5], [3, 5], dtype=dtype)
    expected = reference(*(x.double() for x in inputs), [3, 5], [3, 5])
    with torch.no_grad():
        out = attend_with(make, [3, 5], [3, 5])(*inputs)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=3e-2, rtol=3e-2)


@trained
@pytest.mark.parametrize(("queries", "keys"), [([2, 1, 3], [2, 1, 3]), ([0, 1, 2], [2, 1, 3])])
def test_gradients_agree_with_finite_differences(make: MakeAttention, queries: Lengths, keys: Lengths) -> None:
    assert torch.autograd.gradcheck(attend_with(make, queries, keys), inputs_for(queries, keys))


@kinds
def test_rows_of_no_sequence_get_zeros(make: MakeAttention) -> None:
    query, key, value = (x.detach() for x in inputs_for([5], [7]))
    out = cross(make(SequenceBounds.of([1, 2]), SequenceBounds.of([2, 3])))(query, key, value)
    torch.testing.assert_close(out[:3], reference(query[:3], key[:5], value[:5], [1, 2], [2, 3]))
    assert not out[3:].any()


@trained
def test_rows_of_no_sequence_get_no_gradient(make: MakeAttention) -> None:
    inputs = inputs_for([5], [7])
    out = cross(make(SequenceBounds.of([1, 2]), SequenceBounds.of([2, 3])))(*inputs)
    gradients = torch.autograd.grad(out.sum(), inputs)
    assert [grad.shape for grad in gradients] == [x.shape for x in inputs]
    assert not any(grad[rows:].any() for grad, rows in zip(gradients, (3, 5, 5), strict=True))
