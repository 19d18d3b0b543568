"""Batches in PyTorch: weights onto the device, one forward pass per batch, probabilities out.

The only file of `app` that imports torch.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from app.errors import BackendDiedError, InferenceError, OutOfMemoryError, SettingsError
from app.inference.types import Answer, BackendConfig, BackendInfo, Query, ServedModel, Task
from model import (
    BertConfig,
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
from model.inference.quantization import linear_seconds, quantize_encoder
from model.packing import round_up_to_bucket

logger = logging.getLogger(__name__)

Network = BertForPreTraining | BertForSequenceClassification

_NOT_FINITE = "the model computed no finite number for this input; BERT_DTYPE=float32 may mend it"


@dataclass(frozen=True, slots=True)
class ComputePolicy:
    """Sizes and times of batches, each from a measurement."""

    max_gpu_tokens: int = 16_384
    """Tokens of a batch beyond which a GPU computes no faster."""
    max_cpu_tokens: int = 2048
    """The same on a CPU. oneDNN makes a kernel for each number of rows at its first use, so start-up makes those of up
    to this many rows."""
    max_cpu_tokens_alone: int = 512
    """Tokens up to which start-up makes the kernels of a text that is computed with all threads."""
    warm_up_seconds: float = 5.0
    """Time for making kernels at the start; the rest are made when they are needed."""
    min_seconds_for_all_threads: float = 0.004
    """Seconds that a batch takes with one thread, from which on several threads are faster."""
    min_int8_speedup: float = 1.2
    """The log recommends int8 if a linear layer is at least this many times as fast: the rest of the network gains
    nothing."""
    masks_per_projection: int = 512
    """Masks that are projected onto the vocabulary together: 512 rows of 30,522 float32 are 60 MB."""
    speed_text_tokens: int = 32
    """Tokens of each text in the measurement of speed at start-up."""
    speed_batches: tuple[int, ...] = (8, 8, 32, 32, 64, 64, 128, 128)
    """Texts of each batch of this measurement."""
    speed_seconds: float = 0.25
    """Seconds after which this measurement begins no further batch."""


POLICY = ComputePolicy()


class TorchBackend:
    """Our own models on one device, within an inference process; `ProcessPool` is the `Backend` of the service."""

    def __init__(self, config: BackendConfig, *, one_process_per_thread: bool = False) -> None:
        """`one_process_per_thread`: on a CPU, this process will be forked, so that there is one for each thread. It
        then computes a batch with one thread, or with all if the batch is `alone`."""
        self.info = BackendInfo(config.device, config.dtype, config.threads, max_useful_tokens=POLICY.max_gpu_tokens)
        self._one_process_per_thread = one_process_per_thread
        self._threads_each = 0
        self._directories = {"pretrained": config.pretrained, "sentiment": config.sentiment}
        self._networks: dict[str, Network] = {}
        self._encoders: dict[str, Callable[[PackedBatch], Tensor]] = {}

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
        self._threads_each = info.threads // info.processes
        torch.set_num_threads(self._threads_each)
        if (index := torch.device(info.device).index) is not None:
            torch.cuda.set_device(index)  # of this thread: streams and graphs go there
        wanted, info.dtype = info.dtype, _resolve_dtype(info.dtype, info.device)
        checkpoints = {name: load_checkpoint(directory) for name, directory in self._directories.items()}
        _check_architectures(checkpoints["pretrained"], checkpoints["sentiment"])
        if info.device == "cpu" and wanted in ("auto", "int8"):
            _log_int8_speed(checkpoints["sentiment"].config, wanted)
        served = {name: _describe(checkpoint) for name, checkpoint in checkpoints.items()}
        threads = tuple(dict.fromkeys((self._threads_each, info.threads)))
        for name, checkpoint in checkpoints.items():
            self._networks[name] = _place(checkpoint.model, info.device, info.dtype, threads)
            if isinstance(network := self._networks[name], BertForPreTraining):
                _drop_unused_rows(network.masked_lm.decoder, checkpoint.tokenizer.vocab)
            self._encoders[name] = _encoder_of(network)
            self._check(name, served[name])
        if info.device == "cpu":
            self._warm_up(self._threads_each, POLICY.max_cpu_tokens)
        speed = min(self._speed(name, model) for name, model in served.items())
        info.tokens_per_second = speed * info.processes
        info.models = served

    def warm_up_alone(self) -> None:
        """Warm up for batches that are `alone`. After the fork, because forks must not have these threads."""
        info = self.info
        if info.processes > 1:
            shortest = info.tokens_per_second * POLICY.min_seconds_for_all_threads / info.processes
            self._warm_up(info.threads, POLICY.max_cpu_tokens_alone, int(shortest) + 1)

    def run(self, name: str, queries: Sequence[Query], *, alone: bool = False) -> list[Answer | Exception]:
        """Answers in the order of the queries, from one forward pass.

        Args:
            alone: it is one query, and no other batch is being computed, so it may take all threads, if it is long.

        Raises:
            OutOfMemoryError: fewer queries may fit.
            BackendDiedError: no further batch can succeed on this device.
        """
        info = self.info
        if info.processes > 1:
            tokens = sum(len(query.encoding) for query in queries)
            worth = tokens * info.processes > info.tokens_per_second * POLICY.min_seconds_for_all_threads
            torch.set_num_threads(info.threads if alone and worth else self._threads_each)
        order = sorted(range(len(queries)), key=lambda i: len(queries[i].encoding))  # neighbours pad alike
        answers: list[Answer | Exception] = [InferenceError()] * len(queries)
        with _torch_errors(), torch.inference_mode():
            for i, answer in zip(order, self._compute(name, [queries[i] for i in order]), strict=True):
                answers[i] = answer
        return answers

    def _compute(self, name: str, queries: Sequence[Query]) -> list[Answer | Exception]:
        ids = [query.encoding.input_ids for query in queries]
        types = [query.encoding.token_type_ids for query in queries]
        outputs = [query.masks or (0,) for query in queries]  # (0,): [CLS]
        network = self._networks[name]
        hidden = self._encoders[name](PackedBatch.pack(ids, types, outputs))
        hidden = hidden.float()  # (num_outputs, hidden); heads compute in float32
        if isinstance(network, BertForSequenceClassification):
            logits = network.classifier(network.pooler(hidden))
            rows = zip(queries, logits.tolist(), network.scores(logits).tolist(), strict=True)
            return [_class_answer(raw if query.raw_scores else row) for query, raw, row in rows]
        return _pretraining_answers(network, hidden, queries)

    def _warm_up(self, threads: int, most: int, shortest: int = 1) -> None:
        """Compute batches of up to `most` tokens, of texts of at least `shortest` tokens, so that oneDNN makes its
        kernels and takes their memory before the first request."""
        until = time.monotonic() + POLICY.warm_up_seconds
        shapes = {
            (network.config.hidden_size, network.config.intermediate_size): network.encoder
            for network in self._networks.values()
        }
        torch.set_num_threads(threads)
        for network in self._networks.values():
            warm_up_attention(network.encoder, most, shortest)
        numbers = {round_up_to_bucket(number) for number in range(1, most + 1)}
        for rows in sorted(numbers, reverse=True):  # the largest first: its memory is used again
            for encoder in shapes.values():
                if time.monotonic() < until:
                    warm_up_linear(encoder, rows)
        torch.set_num_threads(self._threads_each)

    def _speed(self, name: str, served: ServedModel) -> float:
        """Tokens per second of the best of some batches, which grow as long as there is time."""
        length = min(POLICY.speed_text_tokens, served.config.max_position_embeddings)
        ids = [served.tokenizer.cls_id] * length
        query = Query(served.tasks[-1], Encoding(ids, [0] * length, [(0, 0)] * length, truncated=False))
        best, began = 0.0, time.perf_counter()
        for count in POLICY.speed_batches:
            before = time.perf_counter()
            if before - began > POLICY.speed_seconds or count * length > self.info.max_useful_tokens:
                break
            self.run(name, [query] * count)
            best = max(best, count * length / (time.perf_counter() - before))
        return best

    def _check(self, name: str, served: ServedModel) -> None:
        """One forward pass per task, so that a checkpoint that computes no numbers fails at the start."""
        words = [served.tokenizer.cls_id, served.tokenizer.mask_id, served.tokenizer.sep_id]
        encoding = Encoding(words, [0, 0, 0], [(0, 0)] * 3, truncated=False)
        for task in served.tasks:
            masks, top_k = ((1,), 1) if task is Task.FILL_MASK else ((), 0)
            (answer,) = self.run(name, [Query(task, encoding, masks, top_k)])
            if isinstance(answer, Exception):
                raise CheckpointError(
                    self._directories[name],
                    "its weights give no finite numbers; set BERT_DTYPE=float32, or name another checkpoint",
                )


def _pretraining_answers(
    network: BertForPreTraining, hidden: Tensor, queries: Sequence[Query]
) -> list[Answer | Exception]:
    """hidden (num_outputs, hidden) holds each query's rows: its masks', or the one of [CLS]."""
    rows = hidden.split([len(query.masks) or 1 for query in queries])
    answers: dict[int, Answer | Exception] = {}
    pairs = [i for i, query in enumerate(queries) if query.task is Task.NEXT_SENTENCE]
    if pairs and network.next_sentence is not None:
        scores = network.next_sentence(torch.cat([rows[i] for i in pairs])).softmax(-1).tolist()
        answers |= zip(pairs, map(_class_answer, scores), strict=True)
    texts = [i for i, query in enumerate(queries) if query.task is Task.FILL_MASK]
    for chunk in _chunks(texts, [len(query.masks) for query in queries]):
        logits = network.masked_lm(torch.cat([rows[i] for i in chunk]))  # (masks, vocab)
        answers |= zip(chunk, _mask_answers(logits, [queries[i] for i in chunk]), strict=True)
    return [answers[i] for i in range(len(queries))]


def _chunks(indices: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Consecutive indices whose sizes sum up to at most `POLICY.masks_per_projection`, or single larger ones."""
    chunk: list[int] = []
    masks = 0
    for i in indices:
        if chunk and masks + sizes[i] > POLICY.masks_per_projection:
            yield chunk
            chunk, masks = [], 0
        chunk.append(i)
        masks += sizes[i]
    if chunk:
        yield chunk


def _mask_answers(logits: Tensor, queries: Sequence[Query]) -> list[Answer | Exception]:
    """Probabilities of the whole vocabulary for each query's masks: logits (masks of all queries, vocab)."""
    normaliser = logits.logsumexp(-1, keepdim=True)  # (masks, 1)
    longest = max((query.top_k for query in queries if not query.targets), default=0)
    top_logits, top_ids = logits.topk(min(longest, logits.shape[-1]))  # (masks, longest)
    target_scores = _target_scores(logits, normaliser, queries) if any(query.targets for query in queries) else []
    finite = normaliser.isfinite().flatten().tolist()
    top_scores, top_tokens = (top_logits - normaliser).exp().tolist(), top_ids.tolist()
    answers: list[Answer | Exception] = []
    first = 0
    for query in queries:
        rows = slice(first, first + len(query.masks))
        first = rows.stop
        if not all(finite[rows]):
            answers.append(InferenceError(_NOT_FINITE))
        elif query.targets:
            answers.append(_target_answer(target_scores[rows], query))
        else:
            k = query.top_k
            answers.append(Answer([row[:k] for row in top_scores[rows]], [row[:k] for row in top_tokens[rows]]))
    return answers


def _target_scores(logits: Tensor, normaliser: Tensor, queries: Sequence[Query]) -> list[list[float]]:
    """Probabilities of each query's targets at each mask, followed by those of padding."""
    most = max(len(query.targets) for query in queries)
    padded = [[*query.targets, *[0] * (most - len(query.targets))] for query in queries for _ in query.masks]
    targets = torch.tensor(padded, device=logits.device)  # (masks, most)
    scores: list[list[float]] = (logits.gather(1, targets) - normaliser).exp().tolist()
    return scores


def _target_answer(scores: list[list[float]], query: Query) -> Answer:
    """The targets with the highest of these scores at each mask; of equal ones, those that the caller names first."""
    ranked = [sorted(zip(row, query.targets, strict=False), key=lambda pair: -pair[0])[: query.top_k] for row in scores]
    return Answer([[score for score, _ in row] for row in ranked], [[target for _, target in row] for row in ranked])


def _class_answer(row: list[float]) -> Answer | Exception:
    if not all(map(math.isfinite, row)):
        return InferenceError(_NOT_FINITE)
    return Answer([row])


@contextmanager
def _torch_errors() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemoryError(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        # Of DefaultCPUAllocator, of CUDA outside torch's allocator, of Python.
        lacks = ("can't allocate memory", "not enough memory", "CUDA error: out of memory")
        if isinstance(error, MemoryError) or any(words in str(error) for words in lacks):
            raise OutOfMemoryError(str(error)) from error
        if isinstance(error, torch.AcceleratorError):  # after a device-side fault, every call to the device fails
            raise BackendDiedError(str(error)) from error
        raise


def _check_architectures(pretrained: Checkpoint, sentiment: Checkpoint) -> None:
    if not isinstance(pretrained.model, BertForPreTraining):
        raise CheckpointError(
            pretrained.path, "is a sequence classifier; BERT_PRETRAINED needs a checkpoint of pretraining"
        )
    if not isinstance(sentiment.model, BertForSequenceClassification):
        raise CheckpointError(
            sentiment.path, "has no classification head; BERT_SENTIMENT needs a fine-tuned checkpoint"
        )


def _describe(checkpoint: Checkpoint) -> ServedModel:
    network = checkpoint.model
    if isinstance(network, BertForSequenceClassification):
        tasks: tuple[Task, ...] = (Task.SENTIMENT,)
    else:
        tasks = (Task.FILL_MASK,) if network.next_sentence is None else (Task.FILL_MASK, Task.NEXT_SENTENCE)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    path = checkpoint.path.resolve()
    return ServedModel(path.name, tasks, checkpoint.config, checkpoint.tokenizer, parameters, _sha256_of_weights(path))


def _sha256_of_weights(directory: Path) -> str:
    """SHA-256 of `model.safetensors`, or else of all `*.safetensors` in the order of their names."""
    single, digest = directory / "model.safetensors", hashlib.sha256()
    for path in [single] if single.exists() else sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _place(network: Network, device: str, dtype: str, threads: tuple[int, ...]) -> Network:
    """The encoder in `dtype`, the heads in float32: bfloat16 logits would tie where scores differ by 5%.

    In int8, the encoder's linear layers are quantized, and the rest stays in float32.
    """
    heads = {name: copy.deepcopy(head) for name, head in network.named_children() if name != "encoder"}
    network.encoder.to(torch.float32 if dtype == "int8" else getattr(torch, dtype))
    for name, head in heads.items():  # copies, since the decoder shares its weight with the embeddings
        setattr(network, name, head.float())
    nn.Module.requires_grad_(network, False)
    network.to(device)
    if device == "cpu":
        for parameter in network.encoder.parameters():  # not mapped from a file, which may be replaced
            parameter.data = parameter.data.clone()
        if dtype == "int8":
            quantize_encoder(network.encoder)
        else:
            prepack(network.encoder, threads)
    return network


@torch.no_grad()
def _drop_unused_rows(decoder: nn.Linear, vocab: Sequence[str]) -> None:
    """Give no probability to output rows without a token: many vocabularies are padded, and some have gaps."""
    decoder.weight = nn.Parameter(decoder.weight[: len(vocab)].clone(), requires_grad=False)
    decoder.bias = nn.Parameter(decoder.bias[: len(vocab)].clone(), requires_grad=False)
    decoder.bias[[i for i, token in enumerate(vocab) if not token]] = -math.inf


@torch.inference_mode()
def _encoder_of(network: Network) -> Callable[[PackedBatch], Tensor]:
    """The function that computes a batch whose tensors are on the host."""
    weight = network.encoder.embeddings.norm.weight
    if can_use_varlen(weight.device, weight.dtype, network.config.head_dim):
        return GraphedEncoder(network.encoder)
    return lambda batch: network.encoder(batch.to(weight.device))


def _resolve_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise SettingsError(f"BERT_DEVICE={device}: this machine has no usable CUDA device; set auto or cpu")
        if (torch.device(device).index or 0) >= (count := torch.cuda.device_count()):
            raise SettingsError(
                f"BERT_DEVICE={device}: the last CUDA device here is cuda:{count - 1}; set one up to it"
            )
    return device


def _log_int8_speed(config: BertConfig, wanted: str) -> None:
    """Log how fast int8 is beside what "auto" chooses. `wanted` is `BERT_DTYPE` as set, one of the two.

    Raises:
        SettingsError: int8 is wanted, and this processor has no exact product of int8.
    """
    other = _resolve_dtype("auto", "cpu")
    try:
        seconds, in_int8 = linear_seconds(config.hidden_size, config.intermediate_size, getattr(torch, other))
    except UnsupportedInt8Error as error:
        if wanted == "int8":
            raise SettingsError(f"BERT_DTYPE=int8: {error}; set BERT_DTYPE=auto") from error
        return
    times = f"a linear layer takes {in_int8 * 1e3:.2f} ms in int8 and {seconds * 1e3:.2f} ms in {other}"
    if wanted == "int8" and in_int8 > seconds:
        logger.warning("%s: BERT_DTYPE=auto is faster on this processor", times)
    elif wanted == "int8":
        logger.info("%s", times)
    elif in_int8 * POLICY.min_int8_speedup < seconds:
        logger.info("%s: BERT_DTYPE=int8 is faster on this processor and changes few answers", times)


def _resolve_dtype(dtype: str, device: str) -> str:
    if dtype == "int8" and device != "cpu":
        raise SettingsError("BERT_DTYPE=int8 is for CPUs; set BERT_DTYPE=auto, or BERT_DEVICE=cpu")
    if dtype != "auto":
        return dtype
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "bfloat16" if bfloat16_is_fast() else "float32"
