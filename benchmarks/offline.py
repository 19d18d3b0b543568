"""Without HTTP: `python -m benchmarks.offline`. Texts to scores, tokenization included, side by side.

This model through the service's own backend, sorted by length or as the texts come, against `transformers`,
ONNX Runtime and OpenVINO in padded batches of 64. They take turns, so a busy machine slows all: read the
ratios. With `--processes 2` each has two processes that share the texts and the threads, as the service has on
two cores. The share of the matmul peak counts only arithmetic that the answers need.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from app.inference.torch_backend import TorchBackend
from app.inference.types import Query, Task
from benchmarks import checkpoints, texts
from model import Encoding, PackedBatch, load_checkpoint
from model.inference.cpu_features import has_native_bfloat16
from training.loop.flops import encoder_flops
from training.runtime.device import matmul_peak

Scorer = Callable[[Sequence[str]], list[list[float]]]
"""Texts to probabilities of the labels, in the same order."""

_BATCH = 64


def ours(directories: tuple[Path, Path], dtype: str, *, sort: bool = True, threads: int = 0) -> Scorer:
    """The backend that serves, given its largest batches."""
    backend = TorchBackend(*directories, device="cpu", dtype=dtype, threads=threads)
    backend.load()
    lane, served = next((key, m) for key, m in backend.models.items() if Task.SENTIMENT in m.tasks)
    limit = served.config.max_position_embeddings

    def score(given: Sequence[str]) -> list[list[float]]:
        read = partial(served.tokenizer.encode, max_length=limit, truncate=True, spans=False)
        encodings = [read(text) for text in given]
        order = sorted(range(len(given)), key=lambda i: len(encodings[i])) if sort else range(len(given))
        scores: list[list[float]] = [[]] * len(given)
        for chunk in _by_tokens(order, encodings, backend.max_useful_tokens):
            answers = backend.run(lane, [Query(Task.SENTIMENT, encodings[i]) for i in chunk])
            for i, answer in zip(chunk, answers, strict=True):
                if isinstance(answer, Exception):
                    raise answer
                scores[i] = answer.scores[0]
        return scores

    return score


def _by_tokens(order: Sequence[int], encodings: Sequence[Encoding], budget: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    room = budget
    for i in order:
        if chunk and len(encodings[i]) > room:
            yield chunk
            chunk, room = [], budget
        chunk.append(i)
        room -= len(encodings[i])
    if chunk:
        yield chunk


def padded(directory: Path, forward: Callable[[dict[str, Any]], np.ndarray], *, sort: bool = True) -> Scorer:
    """Padded batches of 64 through `forward`, which takes NumPy arrays to logits."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)

    def score(given: Sequence[str]) -> list[list[float]]:
        ids = tokenizer(list(given), truncation=True)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i])) if sort else list(range(len(ids)))
        scores: list[list[float]] = [[]] * len(ids)
        for first in range(0, len(order), _BATCH):
            chunk = order[first : first + _BATCH]
            batch = tokenizer.pad({"input_ids": [ids[i] for i in chunk]}, return_tensors="np")
            batch["token_type_ids"] = np.zeros_like(batch["input_ids"])
            logits = torch.from_numpy(np.asarray(forward(dict(batch)), dtype=np.float32))
            for i, row in zip(chunk, logits.softmax(-1).tolist(), strict=True):
                scores[i] = row
        return scores

    return score


def transformers_forward(directory: Path, dtype: str) -> Callable[[dict[str, Any]], np.ndarray]:
    from transformers import AutoModelForSequenceClassification

    network = AutoModelForSequenceClassification.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def forward(batch: dict[str, Any]) -> np.ndarray:
        return network(**{name: torch.from_numpy(array) for name, array in batch.items()}).logits.float().numpy()

    return forward


def export_onnx(directory: Path, file: Path) -> None:
    """The `transformers` network as an ONNX file."""
    from transformers import AutoModelForSequenceClassification

    network = AutoModelForSequenceClassification.from_pretrained(directory, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
    axes = {name: {0: "batch", 1: "length"} for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter, which needs no further package
        torch.onnx.export(
            network, example, str(file), input_names=names, dynamic_axes=axes, opset_version=17, dynamo=False
        )


def onnx_forward(file: Path, threads: int) -> Callable[[dict[str, Any]], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, batch)[0]


def openvino_forward(file: Path, dtype: str, threads: int) -> Callable[[dict[str, Any]], np.ndarray]:
    import openvino

    precision = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # all processes to the same core
    }
    compiled = openvino.Core().compile_model(str(file), "CPU", settings)
    return lambda batch: compiled(batch)[0]


def contestants(directories: tuple[Path, Path], dtypes: Sequence[str], folder: Path) -> dict[str, Scorer]:
    """By name; those whose package is not installed are left out with a line."""
    sentiment, threads = directories[1], torch.get_num_threads()
    makers: dict[str, Callable[[], Scorer]] = {}
    for dtype in dtypes:
        makers |= {
            f"ours, sorted, {dtype}": lambda d=dtype: ours(directories, d, threads=threads),
            f"ours, unsorted, {dtype}": lambda d=dtype: ours(directories, d, sort=False, threads=threads),
        }
        if dtype == "int8":
            continue
        makers |= {
            f"transformers, sorted, {dtype}": lambda d=dtype: padded(sentiment, transformers_forward(sentiment, d)),
            f"transformers, unsorted, {dtype}": lambda d=dtype: padded(
                sentiment, transformers_forward(sentiment, d), sort=False
            ),
            f"OpenVINO, sorted, {dtype}": lambda d=dtype: padded(
                sentiment, openvino_forward(_exported(sentiment, folder), d, threads)
            ),
        }
    if "float32" in dtypes:
        makers["ONNX Runtime, sorted, float32"] = lambda: padded(
            sentiment, onnx_forward(_exported(sentiment, folder), threads)
        )
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except ImportError as error:
            print(f"left out: {name} ({error})")
    return made


def _exported(sentiment: Path, folder: Path) -> Path:
    file = folder / f"model-{os.getpid()}.onnx"
    if not file.exists():
        export_onnx(sentiment, file)
    return file


class Crew:
    """Processes that score alike, each a share of the texts with a share of the threads."""

    def __init__(self, processes: int, threads: int, *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.ends: list[Connection] = []
        for _ in range(processes):
            end, other = spawn.Pipe()
            share = max(1, threads // processes)
            spawn.Process(target=_work, args=(other, share, *arguments), daemon=True).start()
            other.close()  # so that the death of a process is seen
            self.ends.append(end)
        names = [end.recv() for end in self.ends]
        self.scorers: dict[str, Scorer] = {name: partial(self._score, name) for name in names[0]}

    def _score(self, name: str, given: Sequence[str]) -> list[list[float]]:
        scores: list[list[float]] = [[]] * len(given)
        for i, end in enumerate(self.ends):
            end.send((name, given[i :: len(self.ends)]))
        for i, end in enumerate(self.ends):
            scores[i :: len(self.ends)] = end.recv()
        return scores


def _work(end: Connection, threads: int, *arguments: Any) -> None:
    torch.set_num_threads(threads)
    scorers = contestants(*arguments)
    end.send(list(scorers))
    while True:
        name, given = end.recv()
        end.send(scorers[name](given))


def take_turns(scorers: dict[str, Scorer], given: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Sentences per second of each in each round; a first round, in which kernels are made, does not count."""
    speeds: dict[str, list[float]] = {name: [] for name in scorers}
    reference: list[list[float]] | None = None
    for turn in range(-1, rounds):
        for name, score in scorers.items():
            began = time.perf_counter()
            scores = score(given)
            if turn >= 0:
                speeds[name].append(len(given) / (time.perf_counter() - began))
                continue
            reference = reference or scores
            apart = np.abs(np.array(scores) - np.array(reference)).max()
            print(f"{name}: scores within {apart:.4f} of the first", flush=True)
    return speeds


def useful_flops(sentiment: Path, given: Sequence[str]) -> float:
    """Of the encoder, per sentence: no padding, and in the last layer `[CLS]` only."""
    checkpoint = load_checkpoint(sentiment)
    limit = checkpoint.config.max_position_embeddings
    ids = [checkpoint.tokenizer.encode(text, max_length=limit, truncate=True).input_ids for text in given]
    return encoder_flops(checkpoint.config, PackedBatch.pack(ids, outputs=[(0,)] * len(ids))) / len(ids)


def native_dtypes() -> list[str]:
    """What this processor multiplies in hardware, fastest first: emulated, bfloat16 takes 100 times as long."""
    return ["bfloat16", "float32"] if has_native_bfloat16() else ["float32"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--texts", type=Path, help="JSON Lines file of reviews; else sentences are generated")
    parser.add_argument("--sentences", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", nargs="+", default=native_dtypes())
    parser.add_argument("--processes", type=int, default=1, help="of each contestant; 1 unless set")
    options = parser.parse_args()
    given = texts.load(options.texts, options.sentences)
    directories = checkpoints.directories(options.checkpoints)
    with tempfile.TemporaryDirectory() as folder:
        threads = torch.get_num_threads()
        crew = Crew(options.processes, threads, directories, options.dtypes, Path(folder))
        peaks = {d: matmul_peak(torch.device("cpu"), getattr(torch, d), 1.0) for d in options.dtypes if d != "int8"}
        speeds = take_turns(crew.scorers, given, options.rounds)
    flops = useful_flops(directories[1], given)
    shown = ", ".join(f"{d} {peak / 1e9:,.0f} GFLOP/s" for d, peak in peaks.items())
    print(f"\n{len(given)} sentences of {flops / 1e6:.0f} MFLOP, {threads} threads in {options.processes} process(es)")
    print(f"matmul peak {shown}\n")
    print("| | sentences/s | ours is faster (lowest to highest round) | share of peak |\n|---|---|---|---|")
    for name, own in speeds.items():
        dtype = name.rsplit(" ", 1)[1]
        ratios = [a / b for a, b in zip(speeds[f"ours, sorted, {dtype}"], own, strict=True)]
        share = f"{median(own) * flops / peaks[dtype]:.0%}" if dtype in peaks else ""
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {median(own):,.0f} | {spread} | {share} |")


if __name__ == "__main__":
    main()
