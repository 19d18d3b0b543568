"""A `TorchBackend` without tensors, which answers with fixed scores: importing torch takes two seconds of CPU time."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from app.inference.contract import BackendConfig, BackendInfo, Head, ServedModel
from app.inference.frames import Batch
from model import BertConfig, Tokenizer
from model.errors import CheckpointError

HEADS = {"pretrained": (Head.WORDS, Head.NEXT_SENTENCE), "sentiment": (Head.LABELS,)}


class TorchBackend:
    """Reads the configuration and the tokenizer of each checkpoint, and no weights."""

    def __init__(self, config: BackendConfig, *, one_process_per_thread: bool = False) -> None:
        self.info = BackendInfo("cpu", "float32", config.threads, max_useful_tokens=2048, tokens_per_second=100_000.0)
        self.info.processes = config.threads if one_process_per_thread else 1
        self._directories = {"pretrained": config.pretrained, "sentiment": config.sentiment}

    def load(self) -> None:
        self.info.models = {name: _served(name, directory) for name, directory in self._directories.items()}

    def warm_up_alone(self) -> None:
        pass

    def launch(self, batch: Batch) -> Callable[[], bytes]:
        labels = 2 if batch.encoder == 0 else len(self.info.models["sentiment"].config.labels)
        ends = list(accumulate(batch.counts, initial=0))
        scores, first = b"", 0
        for part in batch.parts:
            masks = ends[first + part.inputs] - ends[first]
            first += part.inputs
            if part.top_k:
                chosen = (part.targets.tolist() or list(range(part.top_k)))[: part.top_k]
                row = [1 / (rank + 2) for rank in range(len(chosen))]
                scores += array("f", row * masks).tobytes() + array("i", chosen * masks).tobytes()
            else:
                scores += array("f", [1 / labels] * labels * part.inputs).tobytes()
        return lambda: scores


def _served(name: str, directory: Path) -> ServedModel:
    file = directory / "config.json"
    if not file.exists():
        raise CheckpointError(file, "is missing")
    config = BertConfig.from_dict(json.loads(file.read_text()))
    return ServedModel(directory.resolve().name, HEADS[name], config, Tokenizer.load(directory), 1, "0" * 64)
