"""The highest throughput of a device: `python -m benchmarks.ceiling`.

Texts of equal length go through the service's own backend, in batches of growing size, with random weights. Beside it,
the encoder alone computes the same batches, which are on the device already. On a GPU, a `GraphedEncoder` computes
them too: it copies each batch to the GPU in each call, and runs large ones without a graph. The share of the matmul
peak counts only necessary operations: in the last layer `[CLS]` only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from app.inference.contract import BackendConfig, Head, Part, Query
from app.inference.frames import read_batch, write_batch
from app.inference.torch_backend import TorchBackend
from benchmarks import texts
from benchmarks.flops import encoder_flops, matmul_peak
from model import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    Encoding,
    PackedBatch,
    Tokenizer,
    load_checkpoint,
    save_checkpoint,
)
from model.inference.cuda_graphs import GraphedEncoder
from training.runtime.device import synchronize


def backend_of(preset: str, device: str, dtype: str, folder: Path) -> TorchBackend:
    """The backend with random weights of this shape."""
    tokenizer = Tokenizer.train(texts.generated(2000), 1000)
    config = BertConfig.preset(preset, vocab_size=tokenizer.vocab_size)
    for name, kind in (("pretrained", BertForPreTraining), ("sentiment", BertForSequenceClassification)):
        network = kind(config)
        network.initialise(torch.Generator().manual_seed(0))
        save_checkpoint(folder / name, network, tokenizer)
    backend = TorchBackend(BackendConfig(folder / "pretrained", folder / "sentiment", device=device, dtype=dtype))
    backend.load()
    return backend


def seconds(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Median of some rounds, after a first one that is not counted."""
    taken = []
    for _ in range(rounds + 1):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - began)
    return median(taken[1:])


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="base")
    parser.add_argument("--length", type=int, default=128, help="tokens of each text")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384, 65536], help="of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    length = options.length
    with tempfile.TemporaryDirectory() as folder:
        backend = backend_of(options.preset, options.device, options.dtype, Path(folder))
        encoder = load_checkpoint(Path(folder) / "sentiment").model.encoder.eval()
    device, dtype = torch.device(backend.info.device), getattr(torch, backend.info.dtype)
    encoder.to(device, dtype)
    graphed = GraphedEncoder(encoder) if device.type == "cuda" else None
    number = next(i for i, served in enumerate(backend.info.models.values()) if Head.LABELS in served.heads)
    peak = matmul_peak(device, dtype, 1.0)
    print(f"{options.preset}, texts of {length} tokens, {dtype} on {device}; peak {peak / 1e12:.1f} TFLOP/s")
    titles = ["batch", "texts/s served", "of peak", "encoder alone, texts/s", "of peak"]
    titles += ["by graphs, texts/s", "of peak"] if graphed else []
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    ids = [list(backend.info.models.values())[number].tokenizer.cls_id] * length
    encoding = Encoding(array("i", ids), length, [], truncated=False)
    for tokens in options.tokens:
        count = max(1, tokens // length)
        batch = PackedBatch.pack([ids] * count, outputs=[(0,)] * count)
        on_device = batch.to(device)
        flops = encoder_flops(encoder.config, batch) / count
        query = Query([encoding] * count)
        frame = bytearray(write_batch(number, [Part(query, 0, count)]))
        works = [lambda f=frame: backend.launch(read_batch(f))(), lambda b=on_device: encoder(b)]
        if graphed:
            works.append(lambda b=batch: graphed(b))
        cells = []
        for work in works:
            speed = count / seconds(work, device, options.rounds)
            cells += [f"{speed:,.0f}", f"{speed * flops / peak:.0%}"]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
