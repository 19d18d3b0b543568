from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.attention.cpu_training import _MOST_TOKENS, MatmulAttention, _Grid, recurring
from model.attention.dispatch import Attention, PaddedAttention, VarlenAttention, attention_for, can_use_varlen
from model.attention.length_buckets import PADDING_TOLERANCE, RUN_TOKENS, similar_runs
from model.packing import Segments

CPU = torch.device("cpu")
HEADS, HEAD_DIM = 2, 4

Lengths = Sequence[int]


def reference(query: Tensor, key: Tensor, value: Tensor, queries: Lengths, keys: Lengths) -> Tensor:
    """The definition, one sequence at a time."""
    outs = []
    parts = zip(query.split(list(queries)), key.split(list(keys)), value.split(list(keys)), strict=True)
    for q, k, v in parts:
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        outs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    return torch.cat(outs)


def tensors(
    queries: Lengths, keys: Lengths, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = (sum(queries), sum(keys), sum(keys))
    return [torch.randn(n, HEADS, HEAD_DIM, generator=generator, dtype=dtype).requires_grad_() for n in rows]


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attention(kind: str, queries: Lengths, keys: Lengths) -> Attend:
    """Of query, key and value apart from each other, (rows, heads, head_dim) each."""
    segments = Segments.of(keys)
    asked = segments if queries is keys else Segments.of(queries)
    if kind.startswith("padded"):
        return of_three(PaddedAttention(asked, segments, CPU, invariant=kind.endswith("any neighbours")))
    attend = MatmulAttention(asked, segments)
    if kind == "matmul, every token asks":
        return lambda *inputs: attend.within(torch.stack(inputs, 1))
    return of_three(attend)


def of_three(attend: Attention) -> Attend:
    return lambda query, key, value: attend(query, torch.stack([key, value], 1))


KINDS = ["padded", "padded among any neighbours", "matmul", "matmul, every token asks"]


def some_lengths(seed: int) -> tuple[list[int], list[int]]:
    """Keys of several runs, and fewer queries; some sequences ask nothing."""
    rng = random.Random(seed)
    keys = [rng.choice([1, 2, 7, 60, 61, 64, 300]) for _ in range(rng.randint(2, 16))]
    return [rng.randint(0, min(n, 3)) for n in keys], keys


CASES = {
    "one": ([5], [5]),
    "one token each": ([1, 1, 1], [1, 1, 1]),
    "equal lengths": ([6, 6, 6], [6, 6, 6]),
    "ragged": ([3, 1, 8], [3, 1, 8]),
    "fewer queries": ([1, 1, 2], [3, 1, 8]),
    "nobody asks in the first": ([0, 1, 2], [3, 1, 8]),
    "nobody asks in equal lengths": ([0, 0, 3], [4, 4, 4]),
    "several runs": ([300, 290, 300, 5, 4, 5], [300, 290, 300, 5, 4, 5]),
    "several runs, fewer queries": ([1, 0, 2, 1, 0, 1], [300, 290, 300, 5, 4, 5]),
    "a run where nobody asks": ([1, 2, 1, 0, 0, 0], [300, 290, 300, 5, 4, 5]),
    **{f"random {seed}": some_lengths(seed) for seed in range(6)},
}
cases = pytest.mark.parametrize(("queries", "keys"), CASES.values(), ids=CASES.keys())
everywhere = pytest.mark.parametrize(
    ("kind", "queries", "keys"),
    [
        pytest.param(kind, *case, id=f"{kind}: {name}")
        for kind in KINDS
        for name, case in CASES.items()
        if kind in KINDS[:3] or case[0] == case[1]
    ],
)


@everywhere
def test_attention_is_that_of_each_sequence_alone(kind: str, queries: Lengths, keys: Lengths) -> None:
    inputs = tensors(queries, keys)
    expected = reference(*inputs, queries, keys)
    learning = attention(kind, queries, keys)(*inputs)
    with torch.no_grad():
        serving = attention(kind, queries, keys)(*inputs)
    torch.testing.assert_close(learning, expected)
    torch.testing.assert_close(serving, expected)


@everywhere
def test_gradients_are_those_of_each_sequence_alone(kind: str, queries: Lengths, keys: Lengths) -> None:
    inputs = tensors(queries, keys)
    weights = torch.randn(sum(queries), HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1)).double()
    ours = torch.autograd.grad((attention(kind, queries, keys)(*inputs) * weights).sum(), inputs)
    theirs = torch.autograd.grad((reference(*inputs, queries, keys) * weights).sum(), inputs)
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("kind", ["padded", "matmul"])
@pytest.mark.parametrize(("queries", "keys"), [([2, 1, 3], [2, 1, 3]), ([0, 1, 2], [2, 1, 3])])
def test_gradients_agree_with_finite_differences(kind: str, queries: Lengths, keys: Lengths) -> None:
    assert torch.autograd.gradcheck(attention(kind, queries, keys), tensors(queries, keys))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_leaks_into_a_gradient(kind: str) -> None:
    """A huge first row stands in for all padding: it must not be seen in any other sequence."""
    keys = [2, 5, 3]
    query, key, value = tensors(keys, keys)
    with torch.no_grad():
        value[0], key[0] = 1e9, 1e3
    out = attention(kind, keys, keys)(query, key, value)
    assert out[2:].abs().max() < 100
    (grad,) = torch.autograd.grad(out[2:].sum(), value)
    assert not grad[:2].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_keeps_the_precision_it_is_given(kind: str, dtype: torch.dtype) -> None:
    inputs = tensors([3, 5], [3, 5], dtype=dtype)
    expected = reference(*(x.double() for x in inputs), [3, 5], [3, 5])
    with torch.no_grad():
        out = attention(kind, [3, 5], [3, 5])(*inputs)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reads", [None, 1, 3])
def test_served_attention_in_16_bits_is_the_same_among_any_neighbours(
    dtype: torch.dtype, reads: int | None
) -> None:
    rng = random.Random(0)
    keys = [*range(3, 130, 7), *(rng.randrange(130, 512) for _ in range(12))]
    rng.shuffle(keys)
    queries = keys if reads is None else [reads] * len(keys)
    generator = torch.Generator().manual_seed(0)
    rows = (sum(queries), sum(keys), sum(keys))
    query, key, value = (torch.randn(n, HEADS, 64, generator=generator).to(dtype) for n in rows)

    def attend(asked: Lengths, known: Lengths, *inputs: Tensor) -> Tensor:
        segments = Segments.of(known)
        asking = segments if reads is None else Segments.of(asked)
        return of_three(attention_for(asking, segments, CPU, dtype, 64))(*inputs)

    with torch.no_grad():
        together = attend(queries, keys, query, key, value)
        parts = zip(query.split(queries), key.split(keys), value.split(keys), queries, keys, strict=True)
        alone = torch.cat([attend([asked], [known], *inputs) for *inputs, asked, known in parts])
    assert (together != alone).float().mean() < 1e-4  # without care, it is 1% of the numbers


@pytest.mark.parametrize("kind", [partial(PaddedAttention, device=CPU), MatmulAttention])
def test_dropout_thins_the_weights_and_keeps_their_mean(kind: Callable[..., Attention]) -> None:
    segments = Segments.of([4, 6])
    torch.manual_seed(0)
    query, key, value = tensors([4, 6], [4, 6])
    value = torch.ones_like(value)  # every output is the sum of its weights
    drop = of_three(kind(segments, segments, dropout=0.5))
    sums = torch.stack([drop(query, key, value) for _ in range(400)])
    assert sums.std(0).min() > 0.1
    torch.testing.assert_close(sums.mean(0), torch.ones_like(value), atol=0.2, rtol=0)


def test_cpu_never_uses_the_variable_length_kernel() -> None:
    segments = Segments.of([3])
    assert not can_use_varlen(CPU, torch.bfloat16, 64)
    assert isinstance(attention_for(segments, segments, CPU, torch.bfloat16, 64), MatmulAttention)
    with torch.no_grad():
        assert isinstance(attention_for(segments, segments, CPU, torch.bfloat16, 64), PaddedAttention)


# --- runs of similar length ---------------------------------------------------------------------------------

lengths_of_a_batch = st.lists(st.integers(1, 512), min_size=1, max_size=80)


@given(lengths_of_a_batch)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_runs_cover_every_sequence_once_in_order(lengths: list[int]) -> None:
    assert [i for run in similar_runs(tuple(lengths)) for i in run] == list(range(len(lengths)))


@given(lengths_of_a_batch)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_run_of_some_size_wastes_little_and_a_small_one_is_small(lengths: list[int]) -> None:
    for run in similar_runs(tuple(lengths)):
        own = [lengths[i] for i in run]
        waste = max(own) * len(own) - sum(own)
        small = sum(own[:-1]) < RUN_TOKENS and waste <= RUN_TOKENS
        assert waste <= PADDING_TOLERANCE * max(own) * len(own) or small


@given(lengths_of_a_batch)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_sorted_ribbon_wastes_little(lengths: list[int]) -> None:
    lengths.sort()
    cells = sum(max(lengths[i] for i in run) * len(run) for run in similar_runs(tuple(lengths)))
    assert cells - sum(lengths) <= 0.35 * sum(lengths) + 2 * RUN_TOKENS


def test_a_long_text_does_not_stretch_the_short_ones() -> None:
    assert similar_runs((*[20] * 20, 500)) == [range(20), range(20, 21)]


def test_equal_lengths_are_one_run_without_a_copy() -> None:
    assert similar_runs((128,) * 50) == [range(50)]
    segments = Segments.of([4] * 3)
    run = PaddedAttention(segments, segments, CPU).runs[0]
    assert run.keys.pad_index is None
    assert run.bias is None


@given(lengths_of_a_batch)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_run_stays_small_or_is_a_single_sequence(lengths: list[int]) -> None:
    for run in similar_runs(tuple(lengths), most_tokens=_MOST_TOKENS):
        assert max(lengths[i] for i in run) * len(run) <= _MOST_TOKENS or len(run) == 1


def test_training_meets_few_shapes() -> None:
    """Of a hundred batches that differ, each with matmuls of two shapes forward and four backward."""
    assert all(n <= recurring(n) <= 1.5 * n for n in range(1, 2000))
    rng = random.Random(0)
    shapes = set()
    for _ in range(100):
        lengths = sorted((rng.randint(1, 128) for _ in range(16)), reverse=True)
        segments, reads = Segments.of(lengths), Segments.of([rng.randint(1, 20) for _ in lengths])
        grids = [_Grid.make(segments, segments, HEADS, 3), _Grid.make(reads, segments, HEADS, 2)]
        shapes |= {(run.batch, run.most, run.bias.shape[2]) for grid in grids for run in grid.runs}
    assert len(shapes) < 100


# --- the kernel on CUDA -------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@cases
def test_kernel_equals_padded_attention(queries: Lengths, keys: Lengths, dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the variable-length kernel was not checked")
    device = torch.device("cuda")
    asked, known = Segments.of(queries).to(device), Segments.of(keys).to(device)
    generator = torch.Generator().manual_seed(0)
    rows = (sum(queries), sum(keys), sum(keys))
    inputs = [torch.randn(n, 4, 64, generator=generator).to(device, dtype) for n in rows]
    with torch.no_grad():
        kernel = of_three(VarlenAttention(asked, known))(*inputs)
        ours = of_three(PaddedAttention(asked, known, device))(*(x.float() for x in inputs))
    assert kernel.dtype == dtype
    torch.testing.assert_close(kernel.float(), ours, atol=1e-2, rtol=1e-2)


@pytest.mark.cuda
def test_kernels_gradients_equal_those_of_padded_attention() -> None:
    """Of views of one projection, as the layers have them."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the variable-length kernel was not checked")
    device = torch.device("cuda")
    segments = Segments.of((5, 128, 1, 70)).to(device)
    values = torch.randn(204, 3, 4, 64, generator=torch.Generator().manual_seed(0)).to(device)
    gradients = []
    for attention, dtype in (
        (VarlenAttention(segments, segments), torch.bfloat16),
        (PaddedAttention(segments, segments, device), torch.float32),
    ):
        projected = values.to(dtype).requires_grad_()
        attention.within(projected).float().square().sum().backward()
        assert projected.grad is not None
        gradients.append(projected.grad.float())
    torch.testing.assert_close(*gradients, atol=3e-2, rtol=3e-2)
