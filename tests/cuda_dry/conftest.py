"""CUDA paths without a GPU: fake tensors have a device, a type and a shape, but no memory.

torch's CUDA build runs the forward pass with them, so a tensor left on the CPU or of a wrong type is an error. Values,
the backward pass, kernels and everything that waits for the device need a GPU: such tests are marked `cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cuda_dry" in item.path.parts:
            item.add_marker("cuda_dry")
            item.add_marker(pytest.mark.filterwarnings("default"))  # torch warns of a missing driver
            if torch.version.cuda is None:
                item.add_marker(pytest.mark.skip(reason="torch without CUDA: run make test-cuda-dry"))


@pytest.fixture(autouse=True)
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """Fake tensors, and what a driver would say of an H100."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda *args, **options: True)
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.Event", _Event)
    monkeypatch.setattr("torch.Tensor.pin_memory", torch.Tensor.clone)
    with FakeTensorMode() as mode:
        yield mode
    torch._dynamo.reset()


class _Event:
    def synchronize(self) -> None: ...

    def record(self) -> None: ...
