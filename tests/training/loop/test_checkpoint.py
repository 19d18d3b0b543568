"""Checkpoints of a run: whole, newest first, of this run only."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch import nn

from training.errors import RunError
from training.loop.checkpoint import BEFORE_DECAY, FINISHED, Checkpointer, TrainState, close_run, weights_hash
from training.loop.weight_average import WeightAverage
from training.runtime.distributed import DistContext

IDENTITY = {"seed": 1, "pretrain.batch_tokens": 32}

Parts = tuple[nn.Linear, torch.optim.AdamW, WeightAverage]


def trained(steps: int, width: int = 4) -> Parts:
    torch.manual_seed(0)
    model = nn.Linear(width, width)
    optimizer, average = torch.optim.AdamW(model.parameters(), lr=0.1), WeightAverage(model)
    for _ in range(steps):
        model(torch.randn(2, width)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
    return model, optimizer, average


def checkpointer(folder: Path, parts: Parts, budget: int = 100, **changes: Any) -> Checkpointer:
    names = ("model", "optimizer", "average")
    return Checkpointer(folder, IDENTITY | changes, budget, dict(zip(names, parts, strict=True)), DistContext())


def save(folder: Path, step: int, *, width: int = 4, budget: int = 100, **options: bool) -> Path:
    state, before_decay = TrainState(step=step, tokens=10 * step), options.get("before_decay", False)
    checkpointer(folder, trained(step, width), budget).save(state, **options)
    return folder / (BEFORE_DECAY if before_decay else f"state-{step:09d}.pt")


def resumed_step(folder: Path, budget: int = 100, **changes: Any) -> int | None:
    state = checkpointer(folder, trained(0), budget, **changes).resume()
    return None if state is None else state.step


def test_checkpointer_resumes_what_it_saved(tmp_path: Path) -> None:
    model, optimizer, average = trained(3)
    state = TrainState(3, 30, 6, 1.5, warmup_tokens=10, lanes={0: (1, 2, 48), 7: (0, 3, 7)})
    checkpointer(tmp_path, (model, optimizer, average)).save(state)
    fresh, other, again = trained(0)
    assert checkpointer(tmp_path, (fresh, other, again)).resume() == state
    assert torch.equal(fresh.weight, model.weight)
    mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert all(torch.equal(mine[i][key], theirs[i][key]) for i in mine for key in mine[i])
    average.swap()
    again.swap()
    assert torch.equal(fresh.weight, model.weight)
    assert again.count == 3


def test_checkpointer_without_a_checkpoint_has_nothing_to_resume(tmp_path: Path) -> None:
    assert resumed_step(tmp_path) is None


def test_checkpointer_keeps_the_newest_two(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10):
        save(tmp_path, step)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state-000000009.pt", "state-000000010.pt"]


def test_checkpointer_of_a_continued_run_drops_later_states_of_the_shorter_run(tmp_path: Path) -> None:
    for step in (5, 9, 10):
        save(tmp_path, step)
    save(tmp_path, 6, budget=200)
    assert [file.name for file in tmp_path.iterdir()] == ["state-000000006.pt"]


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


def test_checkpointer_ignores_what_an_interrupted_write_left(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "state-000000002.part").write_bytes(b"half")
    assert resumed_step(tmp_path) == 1


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


# --- another run


def test_checkpointer_of_another_recipe_names_every_key_that_differs(tmp_path: Path) -> None:
    save(tmp_path, 1)
    message = r"pretrain\.batch_tokens was 32, is 64, seed was 1, is 2\. Restore that, delete the folder"
    with pytest.raises(RunError, match=message):
        resumed_step(tmp_path, **{"pretrain.batch_tokens": 64, "seed": 2})


def test_checkpointer_of_a_closed_run_compares_its_identity(tmp_path: Path) -> None:
    save(tmp_path, 1)
    close_run(tmp_path)
    state = checkpointer(tmp_path, trained(0)).finished()
    assert state is not None
    assert state.step == 1
    with pytest.raises(RunError, match=r"belongs to another run: seed was 1, is 2\."):
        checkpointer(tmp_path, trained(0), seed=2).finished()


def test_checkpointer_names_a_key_that_only_one_run_has(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(RunError, match=r"teacher_weight was None, is 0\.5"):
        resumed_step(tmp_path, teacher_weight=0.5)


def test_fingerprint_tells_weights_apart() -> None:
    one, other = trained(1)[0], trained(2)[0]
    assert weights_hash(one) == weights_hash(trained(1)[0])
    assert weights_hash(one) != weights_hash(other)


def test_checkpointer_removes_what_a_kill_left_unfinished(tmp_path: Path) -> None:
    (tmp_path / "state-000000002.part").write_bytes(b"half")
    save(tmp_path, 3)
    assert [file.name for file in tmp_path.iterdir()] == ["state-000000003.pt"]


# --- a larger budget


@pytest.mark.parametrize(("budget", "step"), [(100, 10), (101, 5), (300, 5), (90, 10)])
def test_checkpointer_continues_before_the_decay_with_a_larger_budget_only(
    tmp_path: Path, budget: int, step: int
) -> None:
    save(tmp_path, 5, before_decay=True)
    save(tmp_path, 10)
    assert resumed_step(tmp_path, budget) == step


def test_closed_run_keeps_its_newest_state_where_the_rate_has_not_fallen(tmp_path: Path) -> None:
    for step in (5, 8):
        save(tmp_path, step, has_decayed=False)
    close_run(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["state-000000008.pt"]


def test_closed_run_that_goes_on_is_not_finished(tmp_path: Path) -> None:
    save(tmp_path, 5, before_decay=True)
    save(tmp_path, 10)
    close_run(tmp_path)
    assert checkpointer(tmp_path, trained(0), budget=200).finished() is None
    assert resumed_step(tmp_path, 200) == 5
    save(tmp_path, 6, budget=200)
    assert not (tmp_path / FINISHED).exists()


def test_checkpointer_that_has_not_begun_to_decay_continues_from_its_newest_state(tmp_path: Path) -> None:
    save(tmp_path, 5, before_decay=True)
    save(tmp_path, 5)
    save(tmp_path, 8, budget=200, has_decayed=False)
    assert resumed_step(tmp_path, 200) == 8
    assert resumed_step(tmp_path, 400) == 8, "the state before the decay is of the smaller budget"


def test_checkpointer_of_an_unfinished_larger_run_refuses_a_budget_that_is_spent(tmp_path: Path) -> None:
    save(tmp_path, 15, budget=200)
    assert resumed_step(tmp_path, 200) == 15
    assert resumed_step(tmp_path, 160) == 15
    with pytest.raises(RunError, match=r"trained 150 of 200 tokens.* Continue with the larger budget"):
        resumed_step(tmp_path, 100)
    save(tmp_path, 20, budget=204)  # finished: one more step would be further from the budget
    assert resumed_step(tmp_path, 100) == 20


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
