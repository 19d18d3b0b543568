"""LitServe as its documentation shows it: a model of `transformers`, dynamic batches of up to 32.

python -m benchmarks.peers.with_litserve <checkpoint> <port> <dtype>
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Sentiment(litserve.LitAPI):
    def __init__(self, directory: str, dtype: str) -> None:
        super().__init__(max_batch_size=32, batch_timeout=0.005)
        self.directory, self.dtype = directory, dtype

    def setup(self, device: str) -> None:
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
    directory, port, dtype = sys.argv[1:]
    server = litserve.LitServer(Sentiment(directory, dtype), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False)
