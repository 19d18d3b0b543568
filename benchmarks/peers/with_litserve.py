"""LitServe as in its documentation: a model of `transformers`, with dynamic batches of up to 32.

python -m benchmarks.peers.with_litserve <checkpoint> <port> <dtype> [<workers>]
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Sentiment(litserve.LitAPI):
    def __init__(self, directory: str, dtype: str, workers: int) -> None:
        super().__init__(max_batch_size=32, batch_timeout=0.005)
        self.directory, self.dtype, self.workers = directory, dtype, workers

    def setup(self, device: str) -> None:
        if self.workers > 1:
            torch.set_num_threads(max(torch.get_num_threads() // self.workers, 1))
        self.tokenizer = AutoTokenizer.from_pretrained(self.directory)
        self.network = AutoModelForSequenceClassification.from_pretrained(
            self.directory, dtype=getattr(torch, self.dtype)
        )
        self.network.to(device).eval()
        self.labels = self.network.config.id2label

    def decode_request(self, request: dict[str, str]) -> str:
        return request["inputs"]

    @torch.inference_mode()
    def predict(self, texts: list[str]) -> list[list[float]]:
        batch = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        return self.network(**batch).logits.float().softmax(-1).tolist()

    def encode_response(self, scores: list[float]) -> dict[str, Any]:
        return {"predictions": [{"label": self.labels[i], "score": p} for i, p in enumerate(scores)]}


if __name__ == "__main__":
    directory, port, dtype, *given = sys.argv[1:]
    workers = int(given[0]) if given else 1
    api = Sentiment(directory, dtype, workers)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers)
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False)
