"""BERT, its tokenizer and its checkpoints, for training and for serving."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.checkpoint import Checkpoint, load, load_checkpoint, save_checkpoint
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
    "load",
    "load_checkpoint",
    "save_checkpoint",
]

_NAMES = {
    "checkpoint": ("Checkpoint", "load", "load_checkpoint", "save_checkpoint"),
    "config": ("BertConfig",),
    "heads": ("BertForPreTraining", "BertForSequenceClassification"),
    "packing": ("PackedBatch",),
    "tokenizer": ("Encoding", "Tokenizer"),
}
"""Public names by the module that defines them."""


def __getattr__(name: str) -> Any:
    """Import a name at its first use: most need torch, which takes two seconds and 140 MB, and the HTTP process does
    not use it."""
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
