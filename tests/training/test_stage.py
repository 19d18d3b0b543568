"""A stage of a run: its key, its folder, `done.json`, its links, and what is said of a result that is not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.commands import occupied
from training.errors import RunError
from training.runtime.distributed import DistContext
from training.runtime.files import DONE
from training.stage import RUNNING, Made, Stage, follow

ALONE = DistContext()


class Maker:
    """Writes the number of the call into `text.npy` and `inner/text.npy`. `outcome` is returned, or called first."""

    def __init__(self, outcome: Made | Callable[[], Made] = None) -> None:
        self.outcome: Made | Callable[[], Made] = {} if outcome is None else outcome
        self.calls = 0

    def __call__(self, folder: Path, _dist: DistContext) -> Made:
        self.calls += 1
        (folder / "inner").mkdir(parents=True, exist_ok=True)
        for file in (folder / "text.npy", folder / "inner" / "text.npy"):
            file.write_text(str(self.calls))
        return self.outcome() if callable(self.outcome) else self.outcome


def stage(run: Path, settings: dict[str, Any] | None = None, make: Any = None, **more: Any) -> Stage:
    named = {"name": "corpus", "command": "prepare", "links": {"corpus": "", "inside": "inner"}} | more
    return Stage(run_folder=run, settings=settings or {"size": 1}, make=make or Maker(), **named)


def test_stage_is_found_by_a_readable_path_while_it_is_made(tmp_path: Path) -> None:
    def look() -> Made:
        assert (tmp_path / RUNNING).resolve() == begun.folder
        return None

    begun = stage(tmp_path, make=Maker(look))
    assert not begun.ensure(ALONE)
    assert (tmp_path / RUNNING).resolve() == begun.folder, "it was stopped"
    finished = stage(tmp_path)
    assert finished.ensure(ALONE)
    assert not (tmp_path / RUNNING).is_symlink()


def test_stage_that_is_there_leaves_the_readable_path_of_another_that_is_made(tmp_path: Path) -> None:
    finished = stage(tmp_path)
    assert finished.ensure(ALONE)
    begun = stage(tmp_path, {"size": 2}, Maker(lambda: None))
    assert not begun.ensure(ALONE)
    assert finished.ensure(ALONE)
    assert (tmp_path / RUNNING).resolve() == begun.folder


@pytest.mark.parametrize("fault", [OSError(errno.EOPNOTSUPP, "not supported"), PermissionError("not permitted"), None])
def test_follow_leads_from_a_readable_path_to_the_result_with_and_without_symbolic_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: OSError | None
) -> None:
    symlink = os.symlink

    def symlink_or_fault(*arguments: Any, **more: Any) -> None:
        if fault:
            raise fault
        symlink(*arguments, **more)

    def look() -> Made:
        assert follow(tmp_path / "run" / RUNNING / "log.jsonl") == second.folder / "log.jsonl"
        return {}

    monkeypatch.setattr(os, "symlink", symlink_or_fault)
    links = {"corpus": "", "pretrained": "inner"}
    first, second = (stage(tmp_path / "run", {"size": size}, links=links) for size in (1, 2))
    second.make.outcome = look  # type: ignore[attr-defined]
    for present in (first, second, first):
        assert present.ensure(ALONE)
        assert follow(tmp_path / "run" / "corpus") == present.folder
        assert follow(tmp_path / "run" / "pretrained" / "text.npy") == present.folder / "inner" / "text.npy"
        assert (present.folder / "text.npy").read_text() == "1", "made once"
    (tmp_path / "run").rename(tmp_path / "moved")
    assert follow(tmp_path / "moved" / "corpus") == tmp_path / "moved" / "stages" / first.folder.name
    assert len([message for message in caplog.messages if "no symbolic links here" in message]) == bool(fault)
    assert [path.name for path in tmp_path.glob("moved/*")].count(RUNNING) == 0
    assert not list(tmp_path.glob("moved/.*"))


def test_follow_leaves_other_paths_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("stages/corpus")
    (tmp_path / "corpus").mkdir()
    for path in (tmp_path / "notes", tmp_path / "corpus", tmp_path / "corpus" / "train", Path("pretrained")):
        assert follow(path) == path


# --- the key


def test_stage_key_is_that_of_its_name_its_settings_and_the_stages_that_it_needs(tmp_path: Path) -> None:
    first = stage(tmp_path)
    assert stage(tmp_path / "elsewhere").key == first.key
    others = [
        stage(tmp_path, {"size": 2}),
        stage(tmp_path, name="labelled"),
        stage(tmp_path, needs=(first,)),
        stage(tmp_path, needs=(stage(tmp_path, {"size": 2}),)),
    ]
    assert len({first.key, *(other.key for other in others)}) == 5


def test_stage_settings_that_only_show_are_in_its_folder_and_not_in_the_key_for_later_stages(tmp_path: Path) -> None:
    plain, named = stage(tmp_path), stage(tmp_path, shown={"names": ["a"]})
    assert named.key == plain.key
    assert named.folder not in (plain.folder, stage(tmp_path, shown={"names": ["b"]}).folder)
    assert named.ensure(ALONE)
    with pytest.raises(RunError, match=r"has names \['a'\] \(now \['b'\]\)"):
        stage(tmp_path, shown={"names": ["b"]}).check()


# --- ensure


def test_stage_ensure_makes_the_result_once_and_records_it(tmp_path: Path) -> None:
    need, make = stage(tmp_path, name="tokenizer"), Maker({"result": {"loss": 0.5}})
    need.ensure(ALONE)
    one = stage(tmp_path, {"size": 3}, make, needs=(need,))
    assert one.record is None
    assert one.ensure(ALONE)
    assert one.ensure(ALONE)
    assert make.calls == 1
    assert one.folder == tmp_path / "stages" / f"corpus-{one.key}"
    assert one.record == {
        "result": {"loss": 0.5},
        "settings": {"size": 3},
        "needs": [need.folder.name],
        "files": {"text.npy": 1, "inner/text.npy": 1},
    }


def test_stage_that_was_stopped_is_not_complete_and_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    make = Maker(lambda: None)
    stopped = stage(tmp_path, make=make)
    assert not stopped.ensure(ALONE)
    assert stopped.record is None
    assert not (tmp_path / "corpus").exists()
    make.outcome = {}
    assert stopped.ensure(ALONE)
    assert (stopped.folder / "text.npy").read_text() == "2"
    assert [folder.name for folder in (tmp_path / "stages").iterdir()] == [stopped.folder.name]


def test_stage_that_fails_is_not_complete(tmp_path: Path) -> None:
    def fail() -> Made:
        raise KeyboardInterrupt

    failed = stage(tmp_path, make=Maker(fail))
    with pytest.raises(KeyboardInterrupt):
        failed.ensure(ALONE)
    assert failed.record is None
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize("name", ["text.npy", "inner/text.npy", DONE])
@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: os.truncate(file, 0)])
def test_stage_with_a_missing_or_cut_off_file_is_made_again(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    make = Maker()
    damaged = stage(tmp_path, make=make)
    assert damaged.ensure(ALONE)
    damage(damaged.folder / name)
    assert damaged.record is None
    assert damaged.ensure(ALONE)
    assert make.calls == 2
    assert damaged.record is not None


def test_stage_removes_its_states_once_it_is_complete(tmp_path: Path) -> None:
    make = Maker(lambda: None)
    trained = stage(tmp_path, make=make)
    assert not trained.ensure(ALONE)
    (trained.folder / "state-000000001.pt").touch()
    assert not trained.ensure(ALONE)
    assert [file.name for file in trained.folder.glob("*.pt")] == ["state-000000001.pt"]
    make.outcome = {}
    assert trained.ensure(ALONE)
    assert not list(trained.folder.glob("*.pt"))


def test_stage_in_the_folder_of_another_process_is_refused(tmp_path: Path) -> None:
    make = Maker()
    one = stage(tmp_path, make=make)
    with occupied(one.folder), pytest.raises(RunError, match=rf"another process works in \S*{one.folder.name}: wait"):
        one.ensure(ALONE)
    assert make.calls == 0


# --- a result that is not there


def test_stage_whose_need_is_not_there_names_the_command(tmp_path: Path) -> None:
    make = Maker()
    need = stage(tmp_path, name="tokenizer", command="tokenizer")
    with pytest.raises(RunError, match="has no tokenizer of these settings; run tokenizer first"):
        stage(tmp_path, make=make, needs=(need,)).ensure(ALONE)
    assert make.calls == 0


def test_stage_check_names_what_other_results_were_made_with(tmp_path: Path) -> None:
    settings = {"pretrain": {"tokens": 5, "rate": 0.1}, "files": {"a.txt": "abc"}, "fractions": (0.1, 0.2)}
    other = stage(tmp_path, settings)
    other.ensure(ALONE)
    other.check()
    with pytest.raises(RunError) as error:
        stage(tmp_path, settings | {"pretrain": {"tokens": 7, "rate": 0.1}, "seed": 2}).check()
    there = f"{other.folder.name} has pretrain.tokens 5 (now 7), seed None (now 2)"
    assert str(error.value) == f"{tmp_path} has no corpus of these settings; {there}; run prepare first"


def test_stage_check_of_other_needs_says_nothing_of_equal_settings(tmp_path: Path) -> None:
    stage(tmp_path).ensure(ALONE)
    with pytest.raises(RunError, match=r"has no corpus of these settings; run prepare first$"):
        stage(tmp_path, needs=(stage(tmp_path, name="tokenizer"),)).check()
