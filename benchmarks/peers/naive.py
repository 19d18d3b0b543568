"""A typical first service: FastAPI around a `transformers` pipeline, one request at a time.

python -m benchmarks.peers.naive <checkpoint> <port> <dtype>
"""

from __future__ import annotations

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

app = FastAPI()


class Request(BaseModel):
    inputs: str | list[str]


@app.post("/sentiment")
def sentiment(request: Request) -> list[object]:
    """Classify a text. FastAPI runs functions that are not async in a thread of its pool."""
    return app.state.classify(request.inputs, top_k=None)


if __name__ == "__main__":
    directory, port, dtype = sys.argv[1:]
    app.state.classify = pipeline("text-classification", model=directory, device="cpu", dtype=getattr(torch, dtype))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)
