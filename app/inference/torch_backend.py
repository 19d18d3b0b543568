"""Batches in PyTorch: weights onto the device, one forward pass per batch, probabilities out.

The only file of `app` that imports torch.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from app.errors import BackendDiedError, OutOfMemoryError, SettingsError
from app.inference.contract import BackendConfig, BackendInfo, Head, Part, Query, ServedModel
from app.inference.frames import Batch, PartOfBatch, read_batch, write_batch
from model import (
    BertForPreTraining,
    BertForSequenceClassification,
    Checkpoint,
    Encoding,
    PackedBatch,
    load_checkpoint,
)
from model.attention.varlen import can_use_varlen
from model.errors import CheckpointError, UnsupportedInt8Error
from model.inference.cpu_features import bfloat16_is_fast
from model.inference.cuda_graphs import GraphedEncoder
from model.inference.malloc import keep_freed_memory
from model.inference.prepack import prepack, warm_up_attention, warm_up_linear
from model.inference.quantization import quantize_encoder
from model.packing import ranges, round_up_to_bucket, starts_of

logger = logging.getLogger(__name__)

Network = BertForPreTraining | BertForSequenceClassification


@dataclass(frozen=True, slots=True)
class ComputePolicy:
    """Sizes and times of batches, each from a measurement."""

    max_gpu_tokens: int = 16_384
    """Tokens of a batch beyond which a GPU computes no faster."""
    max_cpu_tokens: int = 2048
    """Tokens of a batch beyond which a CPU computes no faster. oneDNN makes a kernel for each number of rows at its
    first use, so start-up makes the kernels of up to this many rows."""
    max_cpu_tokens_alone: int = 512
    """Maximum tokens of a text for which start-up makes the kernels for all threads."""
    warm_up_seconds: float = 5.0
    """Time for making kernels at start-up; the others are made at their first use."""
    min_seconds_for_all_threads: float = 0.004
    """Duration of a batch with one thread above which several threads are faster."""
    heads_in_graph: bool = False
    """Whether CUDA graphs compute the classifier's head too. Off until a GPU has run it."""
    masks_per_projection: int = 512
    """Masks that are projected onto the vocabulary together: 512 rows of 30,522 float32 take 60 MB."""
    speed_text_tokens: int = 32
    """Tokens of each text in the measurement of speed at start-up."""
    speed_batches: tuple[int, ...] = (8, 8, 32, 32, 64, 64, 128, 128)
    """Number of texts of each batch in this measurement."""
    speed_seconds: float = 0.25
    """Seconds after which this measurement begins no further batch."""


POLICY = ComputePolicy()
_NEEDED_HEADS = {
    "pretrained": (Head.WORDS, "is a sequence classifier; BERT_PRETRAINED needs a checkpoint of pretraining"),
    "sentiment": (Head.LABELS, "has no classification head; BERT_SENTIMENT needs a fine-tuned checkpoint"),
}
"""The head that each checkpoint must have, and the fault of one that lacks it."""


class TorchBackend:
    """Our models on one device, within an inference process; `ProcessPool` is the `Backend` of the service."""

    def __init__(self, config: BackendConfig, *, one_process_per_thread: bool = False) -> None:
        """Prepare a backend.

        `one_process_per_thread`: whether this process will be forked on a CPU, so that there is one process for each
        thread. It then computes a batch with one thread, or with all if the batch is `alone`.
        """
        self.info = BackendInfo(config.device, config.dtype, config.threads, max_useful_tokens=POLICY.max_gpu_tokens)
        self._one_process_per_thread = one_process_per_thread
        self._threads_each = 0
        self._directories = {"pretrained": config.pretrained, "sentiment": config.sentiment}
        self._networks: dict[str, Network] = {}
        self._forwards: dict[str, Callable[[PackedBatch], Tensor]] = {}

    def load(self) -> None:
        """Read the weights and compute something with each model.

        Raises:
            CheckpointError: a directory cannot be served; the message names it.
            SettingsError: the device does not exist, or does not compute in this precision.
        """
        info = self.info
        info.device = _resolve_device(info.device)
        if info.device == "cpu":
            keep_freed_memory()
            info.max_useful_tokens = POLICY.max_cpu_tokens
            info.processes = info.threads if self._one_process_per_thread else 1
        else:
            info.in_flight = 2
        self._threads_each = info.threads // info.processes
        torch.set_num_threads(self._threads_each)
        if (index := torch.device(info.device).index) is not None:
            torch.cuda.set_device(index)  # for this thread's streams and graphs
        info.dtype = _resolve_dtype(info.dtype, info.device)
        checkpoints = {name: load_checkpoint(directory) for name, directory in self._directories.items()}
        served = {name: _describe(checkpoint) for name, checkpoint in checkpoints.items()}
        for name, (head, fault) in _NEEDED_HEADS.items():
            if head not in served[name].heads:
                raise CheckpointError(self._directories[name], fault)
        threads = tuple(dict.fromkeys((self._threads_each, info.threads)))
        for name, checkpoint in checkpoints.items():
            self._networks[name] = _place(checkpoint.model, info.device, info.dtype, threads)
            if isinstance(network := self._networks[name], BertForPreTraining):
                _drop_unused_rows(network.masked_lm.decoder, checkpoint.tokenizer.vocab)
            self._forwards[name] = _forward_of(network)
            self._check(len(self._networks) - 1, name, served[name])
        if info.device == "cpu":
            self._warm_up(self._threads_each, POLICY.max_cpu_tokens)
        speed = min(self._speed(number, model) for number, model in enumerate(served.values()))
        info.tokens_per_second = speed * info.processes
        info.models = served

    def warm_up_alone(self) -> None:
        """Warm up for batches that are `alone`. Runs after the fork: the fork server must not have these threads."""
        info = self.info
        if info.processes > 1:
            shortest = info.tokens_per_second * POLICY.min_seconds_for_all_threads / info.processes
            self._warm_up(info.threads, POLICY.max_cpu_tokens_alone, int(shortest) + 1)

    def launch(self, batch: Batch) -> Callable[[], bytes]:
        """Begin to compute a batch in one forward pass; a CPU computes it at once.

        Returns:
            A function that waits for the scores, see `app.inference.frames`. It raises the same errors.

        Raises:
            OutOfMemoryError: the batch does not fit into memory; fewer inputs may.
            BackendDiedError: no further batch can succeed on this device.
        """
        info = self.info
        if info.processes > 1:
            worth = len(batch.ids) * info.processes > info.tokens_per_second * POLICY.min_seconds_for_all_threads
            torch.set_num_threads(info.threads if batch.alone and worth else self._threads_each)
        with _torch_errors(), torch.inference_mode():
            scores = self._scores(batch)
            if not scores.is_cuda:
                return scores.numpy().tobytes
            host = torch.empty(scores.shape, dtype=scores.dtype, pin_memory=True).copy_(scores, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()

        def wait() -> bytes:
            with _torch_errors():
                copied.synchronize()
                return host.numpy().tobytes()

        return wait

    def _scores(self, batch: Batch) -> Tensor:
        """The scores of all parts, one after another, as float32."""
        name = list(self._networks)[batch.encoder]
        network = self._networks[name]
        packed, packed_rows = _packed(batch)
        rows = self._forwards[name](packed)
        if rows.is_cuda:
            packed_rows = packed_rows.pin_memory().to(rows.device, non_blocking=True)
        rows = rows[packed_rows]
        if isinstance(network, BertForSequenceClassification):
            return _class_scores(rows, batch.parts)
        return _pretraining_scores(network, rows, batch)

    def _warm_up(self, threads: int, most: int, shortest: int = 1) -> None:
        """Compute batches of up to `most` tokens, so that oneDNN makes its kernels and takes their memory before the
        first request. Texts have at least `shortest` tokens."""
        until = time.monotonic() + POLICY.warm_up_seconds
        shapes = {
            (network.config.hidden_size, network.config.intermediate_size): network.encoder
            for network in self._networks.values()
        }
        torch.set_num_threads(threads)
        for network in self._networks.values():
            warm_up_attention(network.encoder, most, shortest)
        numbers = {round_up_to_bucket(number) for number in range(1, most + 1)}
        for rows in sorted(numbers, reverse=True):  # the largest first, so that its memory is used again
            for encoder in shapes.values():
                if time.monotonic() < until:
                    warm_up_linear(encoder, rows)
        torch.set_num_threads(self._threads_each)

    def _speed(self, number: int, served: ServedModel) -> float:
        """Tokens per second of the fastest of several batches, which grow as long as there is time."""
        length = min(POLICY.speed_text_tokens, served.config.max_position_embeddings)
        best, began = 0.0, time.perf_counter()
        for count in POLICY.speed_batches:
            before = time.perf_counter()
            if before - began > POLICY.speed_seconds or count * length > self.info.max_useful_tokens:
                break
            self.launch(_trial(number, served.heads[-1], [served.tokenizer.cls_id] * length, count))()
            best = max(best, count * length / (time.perf_counter() - before))
        return best

    def _check(self, number: int, name: str, served: ServedModel) -> None:
        """Compute one forward pass per head, so that a checkpoint without finite scores fails at start-up."""
        ids = [served.tokenizer.cls_id, served.tokenizer.mask_id, served.tokenizer.sep_id]
        for head in served.heads:
            scores = self.launch(_trial(number, head, ids))()
            if not all(map(math.isfinite, memoryview(scores).cast("f"))):
                raise CheckpointError(
                    self._directories[name],
                    "its weights give no finite numbers; set BERT_DTYPE=float32, or name another checkpoint",
                )


def _trial(encoder: int, head: Head, ids: list[int], count: int = 1) -> Batch:
    """A batch of equal texts. A words head computes their second token."""
    encodings = [Encoding(array("i", ids), len(ids), [], truncated=False)] * count
    query = Query(encodings, masks=[(1,)] * count, top_k=1) if head is Head.WORDS else Query(encodings)
    return read_batch(bytearray(write_batch(encoder, [Part(query, 0, count)])))


def _packed(batch: Batch) -> tuple[PackedBatch, Tensor]:
    """The batch with the shortest input first, because attention pads neighbours to one length; and for each output of
    the original batch, its row in the sorted one: (num_outputs,)."""
    lengths, pair_starts, counts, positions, ids = (
        np.frombuffer(part, np.int32)
        for part in (batch.lengths, batch.pair_starts, batch.counts, batch.positions, batch.ids)
    )
    order = lengths.argsort(kind="stable")
    tokens, outputs = (ranges(starts_of(sizes)[order], sizes[order]) for sizes in (lengths, counts))
    packed = PackedBatch.from_arrays(ids[tokens], lengths[order], pair_starts[order], positions[outputs], counts[order])
    return packed, torch.from_numpy(outputs.argsort())


def _rows(network: Network, hidden: Tensor) -> Tensor:
    """The rows of a batch, one for each output position: hidden (rows, hidden) -> a classifier's logits and scores
    (rows, 2 * labels), or another network's hidden states in float32."""
    hidden = hidden.float()
    if isinstance(network, BertForPreTraining):
        return hidden
    logits = network.classifier(network.pooler(hidden))
    return torch.cat([logits, network.scores(logits)], dim=-1)


def _class_scores(rows: Tensor, parts: Sequence[PartOfBatch]) -> Tensor:
    """A row for each input: (inputs, 2 * labels) -> (inputs, labels)."""
    logits, scores = rows.chunk(2, dim=-1)  # changed in place below: indexing made a copy
    first = 0
    for part in parts:
        if part.logits:
            scores[first : first + part.inputs] = logits[first : first + part.inputs]
        first += part.inputs
    return scores


def _pretraining_scores(network: BertForPreTraining, hidden: Tensor, batch: Batch) -> Tensor:
    """Scores of all parts. hidden (num_outputs, hidden) has the rows of each input: its masks', or [CLS]'s."""
    edges = list(accumulate(batch.counts, initial=0))
    found: dict[int, Tensor] = {}
    masked: dict[int, tuple[PartOfBatch, Tensor]] = {}
    first = 0
    for number, part in enumerate(batch.parts):
        rows = hidden[edges[first] : edges[first + part.inputs]]
        first += part.inputs
        if part.top_k:
            masked[number] = (part, rows)
        else:
            assert network.next_sentence is not None
            found[number] = network.next_sentence(rows).softmax(-1).flatten()
    if masked:
        found |= zip(masked, _words(network, list(masked.values())), strict=True)
    return torch.cat([found[number] for number in range(len(batch.parts))])


def _words(network: BertForPreTraining, parts: Sequence[tuple[PartOfBatch, Tensor]]) -> list[Tensor]:
    """For each part, the scores of its words, then their token ids as int32 bits. `parts`: each with the hidden states
    of its masks, (masks, hidden). Masks of all parts are projected onto the vocabulary together."""
    scores: list[list[Tensor]] = [[] for _ in parts]
    ids: list[list[Tensor]] = [[] for _ in parts]
    longest = max((part.top_k for part, _ in parts if not part.targets), default=0)
    edges = list(accumulate((len(rows) for _, rows in parts), initial=0))
    for start, chunk in zip(
        range(0, edges[-1], POLICY.masks_per_projection),
        torch.cat([rows for _, rows in parts]).split(POLICY.masks_per_projection),
        strict=True,
    ):
        logits = network.masked_lm(chunk)  # (masks, vocab)
        normaliser = logits.logsumexp(-1, keepdim=True)  # (masks, 1)
        normaliser = normaliser.masked_fill(~normaliser.isfinite(), math.nan)
        top, tokens = logits.topk(longest)  # (masks, longest)
        for number, (part, _) in enumerate(parts):
            own = slice(max(edges[number] - start, 0), max(edges[number + 1] - start, 0))
            best, best_ids = top[own, : part.top_k], tokens[own, : part.top_k]
            if part.targets:
                targets = torch.tensor(part.targets.tolist(), device=logits.device)
                best, places = logits[own][:, targets].sort(descending=True, stable=True)  # of equal ones the first
                best, best_ids = best[:, : part.top_k], targets[places[:, : part.top_k]]
            scores[number].append((best - normaliser[own]).exp().flatten())
            ids[number].append(best_ids.flatten().to(torch.int32).view(torch.float32))
    return [torch.cat([*own, *own_ids]) for own, own_ids in zip(scores, ids, strict=True)]


@contextmanager
def _torch_errors() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemoryError(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        # From DefaultCPUAllocator, from CUDA outside torch's allocator, from Python.
        lacks = ("can't allocate memory", "not enough memory", "CUDA error: out of memory")
        if isinstance(error, MemoryError) or any(words in str(error) for words in lacks):
            raise OutOfMemoryError(str(error)) from error
        if isinstance(error, torch.AcceleratorError):  # after a device-side fault, every call to the device fails
            raise BackendDiedError(str(error)) from error
        raise


def _describe(checkpoint: Checkpoint) -> ServedModel:
    """What the service serves of a checkpoint. The last head is the cheapest: `_speed` measures the encoder with it."""
    network = checkpoint.model
    if isinstance(network, BertForSequenceClassification):
        heads: tuple[Head, ...] = (Head.LABELS,)
    else:
        heads = (Head.WORDS,) if network.next_sentence is None else (Head.WORDS, Head.NEXT_SENTENCE)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    sha256 = _sha256_of_weights(checkpoint.path.resolve())
    return ServedModel(checkpoint.name, heads, checkpoint.config, checkpoint.tokenizer, parameters, sha256)


def _sha256_of_weights(directory: Path) -> str:
    """SHA-256 of `model.safetensors`, or of all `*.safetensors` in the order of their names."""
    single, digest = directory / "model.safetensors", hashlib.sha256()
    for path in [single] if single.exists() else sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _place(network: Network, device: str, dtype: str, threads: tuple[int, ...]) -> Network:
    """Move the encoder to the device in `dtype`, and the heads in float32: in bfloat16, logits of scores that differ by
    5% would be equal.

    In int8, the encoder's linear layers are quantized, and the rest stays in float32. Raises SettingsError if this
    processor has no exact product of int8.
    """
    heads = {name: copy.deepcopy(head) for name, head in network.named_children() if name != "encoder"}
    network.encoder.to(torch.float32 if dtype == "int8" else getattr(torch, dtype))
    for name, head in heads.items():  # copies, since the decoder shares its weight with the embeddings
        setattr(network, name, head.float())
    nn.Module.requires_grad_(network, False)
    network.to(device)
    if device == "cpu":
        for parameter in network.encoder.parameters():  # copied, because the mapped file may be replaced
            parameter.data = parameter.data.clone()
        if dtype == "int8":
            try:
                quantize_encoder(network.encoder)
            except UnsupportedInt8Error as error:
                raise SettingsError(f"BERT_DTYPE=int8: {error}; set BERT_DTYPE=auto") from error
        else:
            prepack(network.encoder, threads)
    return network


@torch.no_grad()
def _drop_unused_rows(decoder: nn.Linear, vocab: Sequence[str]) -> None:
    """Give output rows without a token no probability: many vocabularies are padded, and some have gaps."""
    decoder.weight = nn.Parameter(decoder.weight[: len(vocab)].clone(), requires_grad=False)
    decoder.bias = nn.Parameter(decoder.bias[: len(vocab)].clone(), requires_grad=False)
    decoder.bias[[i for i, token in enumerate(vocab) if not token]] = -math.inf


@torch.inference_mode()
def _forward_of(network: Network) -> Callable[[PackedBatch], Tensor]:
    """The function that computes `_rows` of a batch whose tensors are on the host."""
    weight, head = network.encoder.embeddings.norm.weight, partial(_rows, network)
    if not can_use_varlen(weight.device, weight.dtype, network.config.head_dim):
        return lambda batch: head(network.encoder(batch.to(weight.device)))
    if POLICY.heads_in_graph:
        return GraphedEncoder(network.encoder, head=head)
    graphed = GraphedEncoder(network.encoder)
    return lambda batch: head(graphed(batch))


def _resolve_device(device: str) -> str:
    fault = "" if device == "cpu" or torch.cuda.is_available() else _cuda_fault()
    if device == "auto":
        if fault and (torch.version.cuda or torch.version.hip):
            logger.warning("torch is built for GPUs, but the CPU is used: %s; BERT_DEVICE=cpu hides this line", fault)
        return "cpu" if fault else "cuda"
    if fault:
        raise SettingsError(f"BERT_DEVICE={device}: no usable CUDA device: {fault}; set auto or cpu")
    if device != "cpu" and (torch.device(device).index or 0) >= (count := torch.cuda.device_count()):
        raise SettingsError(f"BERT_DEVICE={device}: the last CUDA device here is cuda:{count - 1}; set no higher one")
    return device


def _cuda_fault() -> str:
    """The first line of torch's reason why there is no GPU."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return "torch gives no reason"


def _resolve_dtype(dtype: str, device: str) -> str:
    if dtype == "int8" and device != "cpu":
        raise SettingsError("BERT_DTYPE=int8 is for CPUs; set BERT_DTYPE=auto, or BERT_DEVICE=cpu")
    if dtype != "auto":
        return dtype
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "bfloat16" if bfloat16_is_fast() else "float32"
