"""Ways to train the same network faster or in less memory: kept where a trial shows that they pay."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from model.attention.cpu_training import MatmulAttention
from model.attention.dispatch import PaddedAttention, VarlenAttention
from model.bert import BertEncoder
from training.runtime.device import synchronise

logger = logging.getLogger(__name__)

WARMUP, TRIALS = 3, 10
"""Steps before and during a measurement."""

WORTHWHILE = 1.03
"""Speed-up from which compiled layers are kept."""

Trial = Callable[[], None]
"""A forward and backward pass over a typical micro-batch."""


def checkpoint_layers(encoder: BertEncoder) -> None:
    """Keep only each layer's input for the backward pass (Chen et al. 2016); dropout repeats exactly."""
    for layer in encoder.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compile_if_it_pays(encoder: BertEncoder, wanted: bool | Literal["auto"], trial: Trial) -> bool:
    """Compile each layer, for any number of tokens; whether they stay compiled."""
    device = next(encoder.parameters()).device
    if not wanted or (wanted == "auto" and device.type != "cuda"):
        return False
    before = _seconds(trial, device) if wanted == "auto" else float("inf")
    try:
        keep_attention_out_of_graphs()
        for layer in encoder.layers:
            layer.compile(dynamic=True)
        after = _seconds(trial, device)
    except Exception as error:  # a compiler fails in many ways; the layers run without it
        logger.warning("torch.compile does not work here (%s); training without", str(error).split("\n")[0])
        after = before = float("inf")
    if before < WORTHWHILE * after or after == float("inf"):
        for layer in encoder.layers:
            layer._compiled_call_impl = None
        logger.info(
            "layers stay uncompiled: %.1f ms a micro-batch, %.1f ms compiled", 1e3 * before, 1e3 * after
        )
        return False
    return True


@functools.cache  # once is enough
def keep_attention_out_of_graphs() -> None:
    """Attention reads every sequence's length on the host: a compiler would make a graph for each batch."""
    for kind in (VarlenAttention, PaddedAttention, MatmulAttention):
        for name in ("__call__", "within"):
            setattr(kind, name, torch.compiler.disable(getattr(kind, name)))


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Evaluation, and a visit to the CPU, would each compile the layers again, for a few passes."""
    compiled = {part: part._compiled_call_impl for part in model.modules() if part._compiled_call_impl}
    for part in compiled:
        part._compiled_call_impl = None
    try:
        yield
    finally:
        for part, call in compiled.items():
            part._compiled_call_impl = call


def _seconds(trial: Trial, device: torch.device) -> float:
    for _ in range(WARMUP):
        trial()
    synchronise(device)
    began = time.perf_counter()
    for _ in range(TRIALS):
        trial()
    synchronise(device)
    return (time.perf_counter() - began) / TRIALS


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Trials leave no gradients, and dropout draws what it would have drawn without them."""
    cuda = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=cuda):
        yield
    model.zero_grad(set_to_none=True)
