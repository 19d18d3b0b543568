"""Throughput without HTTP: `python -m benchmarks.offline`. Texts to scores, tokenization included, side by side.

This model runs through the service's own backend, with texts sorted by length or in their order. Other engines compute
padded batches, sorted by length. They take turns, so a busy machine slows all: read the ratios. With `--processes 2`
each has two processes that share the texts and the threads, as the service has on two cores.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from app.inference.contract import BackendConfig, Head, Part, Query
from app.inference.frames import read_batch, write_batch
from app.inference.torch_backend import TorchBackend
from benchmarks import checkpoints, results, texts
from model import Encoding
from model.inference.cpu_features import available_cpus, has_native_bfloat16

Scorer = Callable[[Sequence[str]], list[list[float]]]
"""Texts to probabilities of the labels, in the same order."""
Batch = dict[str, np.ndarray]
Name = tuple[str, str, int]
"""Engine, precision, and texts in a batch (0: ours, which counts tokens)"""
Forward = Callable[[Batch], np.ndarray]
"""A padded batch to logits (texts, labels)."""

PACKAGES = ("transformers", "openvino", "nncf", "onnxruntime", "ctranslate2")
_CALIBRATION_TEXTS = 300
_BATCHES = (4, 8, 16, 32)
"""Numbers of texts in a batch of a peer, of which the fastest is measured."""


@cache
def _backend(directories: tuple[Path, Path], dtype: str, threads: int) -> TorchBackend:
    backend = TorchBackend(BackendConfig(*directories, "cpu", dtype, threads or available_cpus()))
    backend.load()
    return backend


def ours(directories: tuple[Path, Path], dtype: str, *, sort: bool = True, threads: int = 0) -> Scorer:
    """The backend that serves, given its largest batches."""
    backend = _backend(directories, dtype, threads)
    number, served = next((i, m) for i, m in enumerate(backend.info.models.values()) if Head.LABELS in m.heads)
    limit, labels = served.config.max_position_embeddings, len(served.config.labels)

    def score(given: Sequence[str]) -> list[list[float]]:
        read = partial(served.tokenizer.encode, max_length=limit, truncate=True, spans=False)
        encodings = [read(text) for text in given]
        order = sorted(range(len(given)), key=lambda i: len(encodings[i])) if sort else range(len(given))
        scores: list[list[float]] = [[]] * len(given)
        for chunk in _by_tokens(order, encodings, backend.info.max_useful_tokens):
            query = Query([encodings[i] for i in chunk], labels)
            batch = read_batch(bytearray(write_batch(number, [Part(query, 0, len(chunk))])))
            found = memoryview(backend.launch(batch)()).cast("f").tolist()
            for at, i in enumerate(chunk):
                scores[i] = found[at * labels : (at + 1) * labels]
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


@dataclass(frozen=True, slots=True)
class Peer:
    """A checkpoint for another engine. Converted files are made once, in a folder for all processes."""

    directory: Path
    folder: Path
    threads: int

    def network(self, dtype: str, **options: Any) -> Any:
        from transformers import AutoModelForSequenceClassification

        load = AutoModelForSequenceClassification.from_pretrained
        return load(self.directory, dtype=getattr(torch, dtype), **options).eval()

    def file(self, name: str, make: Callable[[Path], object]) -> str:
        """The path of a converted file; `make` writes it."""
        path = self.folder / name
        if not path.exists():
            make(path)
        return str(path)

    def onnx(self) -> str:
        """The network in float32."""
        import onnx  # noqa: F401 (the exporter needs it, and its own error is no ImportError)

        names = ["input_ids", "attention_mask", "token_type_ids"]
        arguments = self.network("float32", attn_implementation="eager"), tuple(torch.ones(3, 2, 8).long())
        axes = {name: {0: "batch", 1: "length"} for name in names}
        options = {"input_names": names, "dynamic_axes": axes, "opset_version": 17, "dynamo": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from the older exporter, which needs no further package
            return self.file("model.onnx", lambda path: torch.onnx.export(*arguments, str(path), **options))

    def batches(self, given: Sequence[str], size: int) -> Iterator[tuple[list[int], Batch]]:
        """Indices of texts of similar lengths, and these texts padded."""
        tokenizer = _tokenizer(self.directory)
        ids = tokenizer(list(given), truncation=True)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for first in range(0, len(order), size):
            chunk = order[first : first + size]
            batch = dict(tokenizer.pad({"input_ids": [ids[i] for i in chunk]}, return_tensors="np"))
            yield chunk, batch | {"token_type_ids": np.zeros_like(batch["input_ids"])}

    def scorers(self, engine: Engine, dtype: str) -> dict[int, Scorer]:
        """Scorers by the number of texts in a batch."""
        forward = engine.make(self, dtype)

        def score(given: Sequence[str], size: int) -> list[list[float]]:
            scores: list[list[float]] = [[]] * len(given)
            for chunk, batch in self.batches(given, size):
                logits = torch.from_numpy(np.asarray(forward(batch), dtype=np.float32))
                for i, row in zip(chunk, logits.softmax(-1).tolist(), strict=True):
                    scores[i] = row
            return scores

        return {size: partial(score, size=size) for size in _BATCHES}


@cache
def _tokenizer(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def with_transformers(peer: Peer, dtype: str) -> Forward:
    network = peer.network(dtype)

    @torch.inference_mode()
    def forward(batch: Batch) -> np.ndarray:
        return network(**{name: torch.from_numpy(array) for name, array in batch.items()}).logits.float().numpy()

    return forward


def with_onnx_runtime(peer: Peer, dtype: str) -> Forward:
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    exact = file = peer.onnx()
    if dtype == "int8":
        file = peer.file("int8.onnx", lambda path: quantize_dynamic(exact, path, per_channel=True, reduce_range=True))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = peer.threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, batch)[0]


def with_openvino(peer: Peer, dtype: str) -> Forward:
    import openvino

    def quantize(path: Path) -> None:
        import nncf

        examples = [batch for _, batch in peer.batches(texts.generated(_CALIBRATION_TEXTS), 1)]
        network = openvino.Core().read_model(peer.onnx())
        openvino.save_model(nncf.quantize(network, nncf.Dataset(examples), model_type=nncf.ModelType.TRANSFORMER), path)

    native = "bf16" if has_native_bfloat16() else "f32"
    settings = {
        "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16", "float32": "f32", "int8": native}[dtype],
        "INFERENCE_NUM_THREADS": peer.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # it would pin all processes to the same core
    }
    file = peer.file("int8.xml", quantize) if dtype == "int8" else peer.onnx()
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return lambda batch: compiled(batch)[0]


def with_ctranslate2(peer: Peer, dtype: str) -> Forward:
    """NumPy computes the classifier, which CTranslate2 lacks."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    converter = TransformersConverter(str(peer.directory))
    folder = peer.file(f"ctranslate2-{dtype}", lambda path: converter.convert(str(path), quantization=dtype))
    encoder = ctranslate2.Encoder(folder, compute_type=dtype, intra_threads=peer.threads)
    weight, bias = (part.detach().numpy() for part in peer.network("float32").classifier.parameters())

    def forward(batch: Batch) -> np.ndarray:
        view, lengths = ctranslate2.StorageView.from_array, batch["attention_mask"].sum(1).astype(np.int32)
        pooled = encoder.forward_batch(view(batch["input_ids"].astype(np.int32)), view(lengths)).pooler_output
        return np.array(pooled) @ weight.T + bias

    return forward


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that computes the padded batches of a peer."""

    make: Callable[[Peer, str], Forward]
    dtypes: Sequence[str]
    settings: str
    int8_settings: str = ""

    def described(self, dtype: str, batch: int) -> str:
        parts = (f"batches of {batch}", self.settings, self.int8_settings if dtype == "int8" else "")
        return "; ".join(filter(None, parts))


ENGINES = {
    "OpenVINO": Engine(
        with_openvino, ("float32", "bfloat16", "int8"), "no pinning", f"NNCF, {_CALIBRATION_TEXTS} sentences"
    ),
    "ONNX Runtime": Engine(with_onnx_runtime, ("float32", "int8"), "", "dynamic, per channel, 7-bit weights"),
    "CTranslate2": Engine(with_ctranslate2, ("float32", "int8"), "head by NumPy"),
    "transformers": Engine(with_transformers, ("float32", "bfloat16"), "its default attention"),
}


def contestants(
    directories: tuple[Path, Path], dtypes: Sequence[str], folder: Path
) -> tuple[dict[Name, Scorer], list[str]]:
    """Scorers by name, and a line for each engine that is left out because a package is not installed."""
    peer = Peer(directories[1], folder, torch.get_num_threads())
    made: dict[Name, Scorer] = {}
    left_out = []
    for dtype in dtypes:
        made["ours", dtype, 0] = ours(directories, dtype, threads=peer.threads)
        made["ours, not sorted", dtype, 0] = ours(directories, dtype, sort=False, threads=peer.threads)
        for name, engine in ENGINES.items():
            if dtype in engine.dtypes:
                try:
                    scorers = peer.scorers(engine, dtype)
                except ImportError as error:
                    left_out.append(f"left out: {name}, {dtype}: {error}; to install it: pip install '.[bench]'")
                else:
                    made |= {(name, dtype, size): scorer for size, scorer in scorers.items()}
    return made, left_out


class ScorerProcesses:
    """Processes that score together, each a share of the texts with a share of the threads."""

    def __init__(self, processes: int, threads: int, *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.ends: list[Connection] = []
        for _ in range(processes):
            end, other = spawn.Pipe()
            spawn.Process(target=_work, args=(other, threads, *arguments), daemon=True).start()
            other.close()  # so that the end of a process is noticed
            self.ends.append(end)
            names, left_out = end.recv()  # the next process uses the files that this one has made
        print("\n".join(left_out))
        self.scorers: dict[Name, Scorer] = {name: partial(self._score, name) for name in names}

    def _score(self, name: Name, given: Sequence[str]) -> list[list[float]]:
        scores: list[list[float]] = [[]] * len(given)
        for i, end in enumerate(self.ends):
            end.send((name, given[i :: len(self.ends)]))
        for i, end in enumerate(self.ends):
            scores[i :: len(self.ends)] = end.recv()
        return scores


def _work(end: Connection, threads: int, *arguments: Any) -> None:
    torch.set_num_threads(threads)
    scorers, left_out = contestants(*arguments)
    end.send((list(scorers), left_out))
    while True:
        name, given = end.recv()
        end.send(scorers[name](given))


def fastest_batches(scorers: dict[Name, Scorer], given: Sequence[str]) -> dict[Name, Scorer]:
    """For each engine and precision, the batch size with the shortest of two calls."""
    best: dict[tuple[str, str], tuple[float, Name]] = {}
    for name, score in scorers.items():
        seconds = min(_seconds(score, given) for _ in range(2))
        best[name[:2]] = min(best.get(name[:2], (math.inf, name)), (seconds, name))
    return {name: scorers[name] for _, name in best.values()}


def _seconds(score: Scorer, given: Sequence[str]) -> float:
    began = time.perf_counter()
    score(given)
    return time.perf_counter() - began


def take_turns(
    scorers: dict[Name, Scorer], given: Sequence[str], rounds: int
) -> tuple[dict[Name, list[float]], dict[Name, tuple[float, float]]]:
    """Sentences per second of each scorer in each round. Also the differences from the first one's scores: the share of
    texts with another class, and the largest difference."""
    scores = {name: np.array(score(given)) for name, score in scorers.items()}
    first = next(iter(scores.values()))
    differences = {
        name: (float((own.argmax(1) != first.argmax(1)).mean()), float(np.abs(own - first).max()))
        for name, own in scores.items()
    }
    speeds: dict[Name, list[float]] = {name: [] for name in scorers}
    for _ in range(rounds):
        for name, score in scorers.items():
            speeds[name].append(len(given) / _seconds(score, given))
    return speeds, differences


def native_dtypes() -> list[str]:
    """Precisions that this processor multiplies in hardware, fastest last. Emulated bfloat16 takes 100 times as
    long."""
    return ["float32", "bfloat16"] if has_native_bfloat16() else ["float32"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, help="folder with pretrained/ and sentiment/")
    parser.add_argument("--texts", type=Path, help="JSON Lines file of reviews; else sentences are generated")
    parser.add_argument("--sentences", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", nargs="+", default=[*native_dtypes(), "int8"])
    parser.add_argument("--processes", type=int, default=1, help="of each contestant; 1 unless set")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    given = texts.load(options.texts, options.sentences)
    directories = checkpoints.directories(options.checkpoints)
    threads = max(1, torch.get_num_threads() // options.processes)
    with tempfile.TemporaryDirectory() as folder:
        processes = ScorerProcesses(options.processes, threads, directories, options.dtypes, Path(folder))
        speeds, differences = take_turns(fastest_batches(processes.scorers, given), given, options.rounds)
    rows = {}
    for (name, dtype, batch), own in speeds.items():
        faster = results.ratio(speeds["ours", dtype, 0], own)
        engine = ENGINES.get(name)
        settings = engine.described(dtype, batch) if engine else ""
        rows[f"{name}, {dtype}"] = [median(own), faster, *differences[name, dtype, batch], settings]
    columns = {"sentences/s": ",.0f", "ours ÷ this row": "", "other answers": ".1%", "largest difference": ".4f"}
    notes = f"{len(given)} sentences, {options.rounds} rounds, {options.processes} processes"
    notes += f"; threads in each: {threads}."
    made = results.result(columns | {"settings": ""}, rows, notes, PACKAGES)
    results.publish(made, options.json)


if __name__ == "__main__":
    main()
