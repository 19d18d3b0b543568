"""Checkpoints of a run: whole, newest first, of this run only."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from torch import nn
from training.loop.average import RunningMean

from tests.training.commands import occupied
from training.errors import RunError
from training.loop.checkpoint import Progress, RunState, alone, identity
from training.runtime.distributed import Processes

IDENTITY = {"seed": 1, "pretrain.batch": 32}


def trained(steps: int) -> tuple[nn.Linear, torch.optim.AdamW, RunningMean]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer, mean = torch.optim.AdamW(model.parameters(), lr=0.1), RunningMean(model)
    for _ in range(steps):
        model(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        mean.add()
    return model, optimizer, mean


def save(folder: Path, step: int) -> Path:
    return RunState(folder, IDENTITY).save(Progress(step=step, tokens=10 * step), *trained(step))


def test_a_resumed_state_is_the_saved_one(tmp_path: Path) -> None:
    model, optimizer, mean = trained(3)
    progress = Progress(step=3, tokens=30, seconds=1.5, phase=1, epoch=2, position=7)
    RunState(tmp_path, IDENTITY).save(progress, model, optimizer, mean)
    wanted = torch.rand(3)
    fresh, other, again = trained(0)
    assert RunState(tmp_path, IDENTITY).resume(fresh, other, again) == progress
    assert torch.equal(torch.rand(3), wanted)
    assert torch.equal(fresh.weight, model.weight)
    mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert all(torch.equal(mine[i][key], theirs[i][key]) for i in mine for key in mine[i])
    mean.exchange()
    again.exchange()
    assert torch.equal(fresh.weight, model.weight)
    assert again.count == 3


def test_nothing_to_resume_is_the_beginning(tmp_path: Path) -> None:
    assert RunState(tmp_path, IDENTITY).resume(*trained(0)) == Progress()


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10):
        save(tmp_path, step)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state-000000009.pt", "state-000000010.pt"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_newest_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    os.truncate(newest, int(share * newest.stat().st_size))
    assert RunState(tmp_path, IDENTITY).resume(*trained(0)).step == 1
    assert f"{newest} cannot be read" in caplog.text
    assert "falling back" in caplog.text


def test_a_leftover_of_an_interrupted_write_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "state-000000002.part").write_bytes(b"half")
    assert RunState(tmp_path, IDENTITY).resume(*trained(0)).step == 1


def test_a_write_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(state: object, stream: BinaryIO) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    save(tmp_path, 1)
    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["state-000000001.pt"]


def test_another_recipe_is_refused_with_the_key_that_differs(tmp_path: Path) -> None:
    save(tmp_path, 1)
    state = RunState(tmp_path, IDENTITY | {"pretrain.batch": 64})
    with pytest.raises(RunError, match=r"pretrain\.batch was 32, is 64.*delete .* to start anew"):
        state.resume(*trained(0))


def test_a_key_that_is_newer_than_a_run_had_its_default_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    default = IDENTITY | {"finetune.masked_fraction": 0.0}
    assert RunState(tmp_path, default).resume(*trained(0)).step == 1
    with pytest.raises(RunError, match=r"finetune\.masked_fraction was 0\.0, is 0\.3\. Restore"):
        RunState(tmp_path, default | {"finetune.masked_fraction": 0.3}).resume(*trained(0))


def test_other_weights_to_begin_with_are_no_fault_of_the_recipe(tmp_path: Path) -> None:
    RunState(tmp_path, IDENTITY | {"pretrained": "a"}).save(Progress(step=1), *trained(1))
    state = RunState(tmp_path, IDENTITY | {"pretrained": "b"})
    with pytest.raises(RunError, match=r"It began with other weights: delete .* to start anew") as raised:
        state.resume(*trained(0))
    assert "Restore" not in str(raised.value)


def test_an_unwritable_folder_is_a_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError, match="could not be written"):
        RunState(blocked, IDENTITY).save(Progress(), *trained(0))


def test_a_full_disk_is_a_clear_error_and_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    earlier = save(tmp_path, 1)
    model = nn.Linear(400, 400)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        parts = model, torch.optim.AdamW(model.parameters()), RunningMean(model)
        with pytest.raises(RunError, match=r"could not be written.*make room and run the same command again"):
            RunState(tmp_path, IDENTITY).save(Progress(step=2), *parts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == [earlier]
    assert RunState(tmp_path, IDENTITY).resume(*trained(0)).step == 1


def test_a_folder_is_one_process_s_until_it_ends_even_if_its_workers_do_not(tmp_path: Path) -> None:
    with occupied(tmp_path / "pretrain") as other:
        with pytest.raises(RunError, match="another process"), alone(tmp_path / "pretrain", Processes()):
            pass
        with alone(tmp_path / "pretrain", Processes(rank=1, world=2)):  # its first process has the lock
            pass
        other.kill()
        other.wait()
        with alone(tmp_path / "pretrain", Processes()):
            pass


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", unsupported)
    with alone(tmp_path, Processes()):
        assert "cannot be locked ([Errno 37] No locks available)" in caplog.text


def test_identity_names_every_setting_by_its_key() -> None:
    flat = identity(seed=1, pretrain={"batch": 2, "examples": {"whole_word": False}})
    assert flat == {"seed": 1, "pretrain.batch": 2, "pretrain.examples.whole_word": False}
