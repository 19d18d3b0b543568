"""BERT, its tokenizer and its checkpoints, for training and for serving."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from model.config import BertConfig
    from model.heads import BertForPreTraining, BertForSequenceClassification
    from model.packing import PackedBatch
    from model.tokenizer import Encoding, Tokenizer

__all__ = [
    "BertConfig",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "Checkpoint",
    "Encoding",
    "PackedBatch",
    "Tokenizer",
    "load_checkpoint",
    "save_checkpoint",
]

_MODULES = {
    "BertConfig": "config",
    "BertForPreTraining": "heads",
    "BertForSequenceClassification": "heads",
    "Checkpoint": "checkpoint",
    "Encoding": "tokenizer",
    "PackedBatch": "packing",
    "Tokenizer": "tokenizer",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: most need torch, which takes two seconds and 140 MB, and the HTTP process
    does not use it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
