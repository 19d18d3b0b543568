"""Checkpoints of a run: whole, newest first."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from torch import nn

from training.errors import RunError
from training.loop.checkpoint import Checkpointer, TrainState
from training.runtime.distributed import DistContext

Parts = tuple[nn.Linear, torch.optim.AdamW]


def trained(steps: int, width: int = 4) -> Parts:
    torch.manual_seed(0)
    model = nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(2, width)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def checkpointer(folder: Path, parts: Parts) -> Checkpointer:
    return Checkpointer(folder, dict(zip(("model", "optimizer"), parts, strict=True)), DistContext())


def save(folder: Path, step: int, *, width: int = 4) -> Path:
    checkpointer(folder, trained(step, width)).save(TrainState(step=step, tokens=10 * step))
    return folder / f"state-{step:09d}.pt"


def resumed_step(folder: Path) -> int | None:
    state = checkpointer(folder, trained(0)).resume()
    return None if state is None else state.step


def test_checkpointer_resumes_what_it_saved(tmp_path: Path) -> None:
    model, optimizer = trained(3)
    state = TrainState(3, 30, 1.5, 1)
    checkpointer(tmp_path, (model, optimizer)).save(state)
    fresh, other = trained(0)
    assert checkpointer(tmp_path, (fresh, other)).resume() == state
    assert torch.equal(fresh.weight, model.weight)
    mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert all(torch.equal(mine[i][key], theirs[i][key]) for i in mine for key in mine[i])


def test_checkpointer_keeps_the_newest_two(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10):
        save(tmp_path, step)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state-000000009.pt", "state-000000010.pt"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_checkpointer_with_a_truncated_newest_file_resumes_the_one_before(
    tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    os.truncate(newest, int(share * newest.stat().st_size))
    assert resumed_step(tmp_path) == 1
    assert f"{newest} cannot be read" in caplog.text
    assert "trying the checkpoint before" in caplog.text


def test_checkpointer_ignores_and_removes_what_an_interrupted_write_left(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    (tmp_path / "state-000000002.part").write_bytes(b"half")
    assert resumed_step(tmp_path) == 1
    assert {save(tmp_path, 3), first} == {*tmp_path.iterdir()}


def test_checkpointer_interrupted_while_it_writes_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(state: object, stream: BinaryIO) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    save(tmp_path, 1)
    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["state-000000001.pt"]


# --- the disk


def test_checkpointer_in_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError, match="cannot write the checkpoint"):
        save(blocked, 1)


def test_checkpointer_on_a_full_disk_keeps_the_earlier_checkpoint(tmp_path: Path) -> None:
    earlier = save(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"Earlier checkpoints are unchanged: free some space and run the same"):
            save(tmp_path, 2, width=400)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == [earlier]
    assert resumed_step(tmp_path) == 1
