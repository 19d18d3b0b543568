"""Fake tensors on a fake GPU: helpers of these tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VARLEN = "torch_attn._varlen_attn.default"
"""The operator of the variable-length attention kernel."""

T = TypeVar("T")


def on_cuda(make: Callable[[], T], dtype: torch.dtype = torch.float32) -> T:
    """What `make` builds, with its parameters on the fake GPU. (A module of fake tensors cannot be moved.)"""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return make()
    finally:
        torch.set_default_dtype(before)


def as_fake(mode: FakeTensorMode, value: Any) -> Any:
    """A batch whose tensors, on the host, are fake: it was made by numpy, which makes real ones."""
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: as_fake(mode, getattr(value, f.name)) for f in fields(value)})
    return value


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors of a batch."""
    if isinstance(value, torch.Tensor):
        return [value]
    if is_dataclass(value) and not isinstance(value, type):
        return [tensor for f in fields(value) for tensor in tensors_of(getattr(value, f.name))]
    return []


class CudaOnly(TorchDispatchMode):
    """Raises at an operator that takes or gives a tensor on the CPU, and records the names of operators.

    Fake tensors alone do not notice all: the fake variable-length kernel, for one, looks at the queries only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operators.add(str(func))
        for value in tree_leaves((args, kwargs, out)):
            if isinstance(value, torch.Tensor) and not value.is_cuda:
                raise AssertionError(f"{func} has a tensor on the CPU: {value}")
        return out


class Graphs:
    """A backend of torch.compile that keeps the traced graphs and runs them without a compiler."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        self.graphs.append(graph)
        return graph.forward

    def calls(self, operator: str) -> int:
        """How often the only graph calls an operator whose name contains this."""
        (graph,) = self.graphs
        return sum(operator in str(node.target) for node in graph.graph.nodes)

    def tensors_on_cpu(self) -> list[torch.Tensor]:
        values = [node.meta.get("example_value") for graph in self.graphs for node in graph.graph.nodes]
        return [value for value in values if isinstance(value, torch.Tensor) and not value.is_cuda]
