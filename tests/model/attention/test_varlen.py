from __future__ import annotations

import pytest
import torch

from model.attention.padded import PaddedAttention
from model.attention.varlen import VarlenAttention, can_use_varlen
from model.packing import SequenceBounds
from tests.model.attention.cases import CPU, Lengths, cases, cross


def test_varlen_is_never_used_on_a_cpu() -> None:
    assert not can_use_varlen(CPU, torch.bfloat16, 64)


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the variable-length kernel was not checked")
    return torch.device("cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@cases
def test_varlen_kernel_equals_padded_attention(
    queries: Lengths, keys: Lengths, dtype: torch.dtype, cuda: torch.device
) -> None:
    query_bounds, key_bounds = SequenceBounds.of(queries).to(cuda), SequenceBounds.of(keys).to(cuda)
    generator = torch.Generator().manual_seed(0)
    rows = (sum(queries), sum(keys), sum(keys))
    inputs = [torch.randn(n, 4, 64, generator=generator).to(cuda, dtype) for n in rows]
    with torch.no_grad():
        kernel = cross(VarlenAttention(query_bounds, key_bounds))(*inputs)
        padded = cross(PaddedAttention(query_bounds, key_bounds))(*(x.float() for x in inputs))
    assert kernel.dtype == dtype
    torch.testing.assert_close(kernel.float(), padded, atol=1e-2, rtol=1e-2)


@pytest.mark.cuda
@pytest.mark.parametrize("capacity", [4, 7])
def test_varlen_kernel_gradients_equal_those_of_padded_attention(capacity: int, cuda: torch.device) -> None:
    """Through views of one projection, as in the layers; also with empty sequences and a loose bound."""
    bounds = SequenceBounds.of((5, 128, 1, 70), capacity=capacity, max_seqlen=32 * capacity).to(cuda)
    values = torch.randn(204, 3, 4, 64, generator=torch.Generator().manual_seed(0)).to(cuda)
    gradients = []
    for attention, dtype in (
        (VarlenAttention(bounds, bounds), torch.bfloat16),
        (PaddedAttention(bounds, bounds), torch.float32),
    ):
        projected = values.to(dtype).requires_grad_()
        attention.self_attention(projected).float().square().sum().backward()
        assert projected.grad is not None
        gradients.append(projected.grad.float())
    torch.testing.assert_close(*gradients, atol=3e-2, rtol=3e-2)
