from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model import BertConfig, BertForPreTraining, BertForSequenceClassification, PackedBatch
from model.inference.cuda_graphs import Graph, GraphedEncoder, Replay
from model.packing import OutputPositions, SequenceBounds
from tests.cuda_dry.fake import VARLEN, CudaOnly, Graphs, on_cuda, tensors_of

CONFIG = BertConfig(
    vocab_size=100,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=64,
)


def packed(outputs: list[list[int]] | None = None) -> PackedBatch:
    return PackedBatch.pack([[1, 2, 3, 4], [5, 6], [7, 8, 9]], [[0, 0, 1, 1], [0, 0], [0, 1, 1]], outputs)


def constant_shape(lengths: tuple[int, ...], counts: tuple[int, ...]) -> PackedBatch:
    """64 tokens in at most 6 sequences with 8 output positions, on the GPU."""
    ids = torch.zeros(64, dtype=torch.int64)
    sequences = SequenceBounds.of(lengths, capacity=6, max_seqlen=48)
    outputs = OutputPositions(torch.arange(8), SequenceBounds.of(counts, capacity=6, max_seqlen=8))
    return PackedBatch(ids, ids, ids, sequences, outputs).to("cuda", non_blocking=True)


# --- batches ------------------------------------------------------------------------------------------------


def test_batch_to_cuda_moves_every_tensor_and_drops_the_lengths() -> None:
    batch = packed([[0, 1], [], [2]]).to("cuda", non_blocking=True)
    assert batch.outputs is not None
    assert len(tensors_of(batch)) == 6
    assert all(tensor.is_cuda for tensor in tensors_of(batch))
    assert batch.lengths is batch.outputs.sequences.lengths is None
    assert (batch.sequences.max_seqlen, batch.outputs.sequences.max_seqlen) == (4, 2)


# --- serving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [None, [[0, 1], [], [2]]], ids=["all outputs", "some outputs"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_encoder_serves_in_16_bits_by_the_varlen_kernel(dtype: torch.dtype, outputs: list[list[int]] | None) -> None:
    encoder = on_cuda(lambda: BertForPreTraining(CONFIG).encoder.eval(), dtype)
    batch = packed(outputs).to("cuda")
    with CudaOnly() as seen:
        hidden = encoder(batch)
    assert (hidden.device.type, hidden.dtype, hidden.shape) == (
        "cuda",
        dtype,
        (9 if outputs is None else 3, 64),
    )
    assert VARLEN in seen.operators


@pytest.mark.parametrize(("capability", "dtype"), [((9, 0), torch.float32), ((7, 5), torch.float16)])
@torch.inference_mode()
def test_encoder_serves_without_the_varlen_kernel(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    encoder = on_cuda(lambda: BertForPreTraining(CONFIG).encoder.eval(), dtype)
    batch = packed([[0, 1], [], [2]]).to("cuda")
    with CudaOnly() as seen:
        hidden = encoder(batch)
    assert (hidden.device.type, hidden.dtype, hidden.shape) == ("cuda", dtype, (3, 64))
    assert VARLEN not in seen.operators


@torch.inference_mode()
def test_heads_serve_in_float32_after_a_bfloat16_encoder() -> None:
    encoder = on_cuda(lambda: BertForPreTraining(CONFIG).encoder.eval(), torch.bfloat16)
    pretrained = on_cuda(lambda: BertForPreTraining(CONFIG).eval())
    classifier = on_cuda(lambda: BertForSequenceClassification(CONFIG).eval())
    batch = packed([[0], [0], [0]]).to("cuda")
    with CudaOnly():
        hidden = encoder(batch).float()
        logits = [
            pretrained.masked_lm(hidden),
            pretrained.next_sentence(hidden),
            classifier.classifier(classifier.pooler(hidden)),
        ]
    assert [x.shape for x in logits] == [(3, 100), (3, 2), (3, 2)]
    assert {(x.device.type, x.dtype) for x in logits} == {("cuda", torch.float32)}


def run_once(work: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
    with CudaOnly() as seen:
        out = work()
    assert VARLEN in seen.operators
    return out, lambda: None


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [32, 16_384])
def test_graph_inputs_are_on_the_gpu(tokens: int) -> None:
    encoder = on_cuda(lambda: BertForPreTraining(CONFIG).encoder.eval(), torch.bfloat16)
    graph = Graph.capture(GraphedEncoder(encoder, [], run_once), tokens, run_once)
    out = graph(packed([[0], [0, 1], [0]]))
    assert (out.device.type, out.dtype, out.shape) == ("cuda", torch.bfloat16, (4, 64))


@torch.inference_mode()
def test_graph_with_a_head_computes_it_in_float32() -> None:
    classifier = on_cuda(lambda: BertForSequenceClassification(CONFIG).eval())
    encoder = on_cuda(lambda: BertForSequenceClassification(CONFIG).encoder.eval(), torch.bfloat16)
    graphed = GraphedEncoder(
        encoder, [], run_once, lambda hidden: classifier.classifier(classifier.pooler(hidden.float())).softmax(-1)
    )
    out = Graph.capture(graphed, 32, run_once)(packed([[0], [0], [0]]))
    assert (out.device.type, out.dtype, out.shape) == ("cuda", torch.float32, (3, 2))


@torch.inference_mode()
def test_graphed_encoder_moves_a_batch_that_fits_no_graph() -> None:
    encoder = on_cuda(lambda: BertForPreTraining(CONFIG).encoder.eval(), torch.bfloat16)
    graphed = GraphedEncoder(encoder, [], run_once)
    assert graphed(packed([[0], [0, 1], [0]])).is_cuda


# --- tracing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_encoder_heads_and_loss_are_traced_as_one_graph_for_batches_of_any_lengths(dtype: torch.dtype) -> None:
    """bfloat16 by autocast with the variable-length kernel, float32 with padded attention."""
    model = on_cuda(lambda: BertForPreTraining(CONFIG)).train()
    words = torch.zeros(8, dtype=torch.int64, device="cuda")

    def loss(batch: PackedBatch) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.bfloat16):
            logits = model.masked_lm(model(batch))
        return F.cross_entropy(logits.float(), words)

    backend = Graphs()
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    for lengths, counts in (((40, 24), (3, 5)), ((16, 16, 1, 31), (1, 1, 2, 4))):
        value = compiled(constant_shape(lengths, counts))
        assert (value.device.type, value.dtype, value.requires_grad) == ("cuda", torch.float32, True)
    assert len(backend.graphs) == 1, "the second batch was traced again"
    assert backend.calls("varlen_attn") == (3 if dtype is torch.bfloat16 else 0)
    assert not backend.tensors_on_cpu()


# --- the method itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["input_ids", "token_type_ids", "cu_seqlens", "index"])
@torch.inference_mode()
def test_tensor_left_on_the_cpu_is_an_error(part: str) -> None:
    encoder = on_cuda(lambda: BertForPreTraining(CONFIG).encoder.eval(), torch.bfloat16)
    host, batch = packed([[0], [0], [0]]), packed([[0], [0], [0]]).to("cuda")
    assert host.outputs is not None
    assert batch.outputs is not None
    if part == "cu_seqlens":
        object.__setattr__(batch.sequences, part, host.cu_seqlens)
    elif part == "index":
        object.__setattr__(batch.outputs, part, host.outputs.index)
    else:
        object.__setattr__(batch, part, getattr(host, part))
    with pytest.raises((RuntimeError, AssertionError), match=r"device|on the CPU"), CudaOnly():
        encoder(batch)
