"""Data sets of the hub: every error of the library is told with the data set's name."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.errors import SourceError
from training.recipe import SourceConfig
from training.sources.documents import Document, documents

ROOT = Path(__file__).parents[3]
Key = tuple[str, str | None, str]


class FakeHub:
    """Stands for the `datasets` library: data sets by name, one row at a time."""

    def __init__(self, rows: dict[Key, list[dict[str, Any]]], fault: Exception | None = None) -> None:
        self.rows = rows
        self.fault = fault
        self.taken = 0
        self.streaming: bool | None = None

    def load_dataset(self, name: str, configuration: str | None, *, split: str, streaming: bool) -> Iterator[Any]:
        self.streaming = streaming
        if (name, configuration, split) not in self.rows:
            raise self.fault or FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        return self._stream(self.rows[name, configuration, split])

    def _stream(self, rows: list[dict[str, Any]]) -> Iterator[Any]:
        for row in rows:
            self.taken += 1
            yield row
        if self.fault is not None:
            raise self.fault


UseHub = Callable[..., FakeHub]


@pytest.fixture
def use_hub(monkeypatch: pytest.MonkeyPatch) -> UseHub:
    def use(rows: list[dict[str, Any]], key: Key = ("owner/set", None, "train"), **options: Any) -> FakeHub:
        hub = FakeHub({key: rows}, **options)
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=hub.load_dataset))  # type: ignore[arg-type]
        return hub

    return use


def read(**settings: Any) -> list[Document]:
    return list(documents(SourceConfig(hub="owner/set", **settings), Path()))


def test_hub_rows_up_to_a_limit_are_streamed_by_name_configuration_and_split(use_hub: UseHub) -> None:
    rows = [{"title": "T", "content": f"{i}", "label": i} for i in range(9)]
    hub = use_hub(rows, ("owner/set", "plain", "test"))
    source = SourceConfig(hub="owner/set:plain", split="test", text=("title", "content"), label="label", limit=2)
    found = list(documents(source, Path()))
    assert found == [Document(("T", "0"), "0"), Document(("T", "1"), "1")]
    assert found[1].place == "hub data set owner/set:plain, split test, row 2"
    assert (hub.taken, hub.streaming) == (2, True)


def test_hub_rows_without_a_limit_are_downloaded_once_by_the_library(use_hub: UseHub) -> None:
    hub = use_hub([{"text": f"text {n}"} for n in range(50)])
    assert len(read()) == 50
    assert hub.streaming is False


# --- errors


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            RuntimeError("Dataset scripts are no longer supported, but found set.py"),
            "Dataset scripts .* found set.py; look for a copy",
        ),
        (ValueError("Unknown split \"train\". Should be one of ['test']."), 'Unknown split "train"'),
        (ConnectionError("Couldn't reach the Hub\n(offline)"), r"Couldn't reach the Hub \(offline\)$"),
        (KeyError("train"), "'train'"),
        (AssertionError(), "AssertionError"),
        (type("DatasetNotFoundError", (Exception,), {})("gated: ask for access"), "gated: ask for access"),
        (UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"), "'utf-8' codec can't decode"),
    ],
)
@pytest.mark.parametrize("rows", [None, [{"text": "good"}]])
def test_hub_any_error_of_the_library_names_the_data_set(
    use_hub: UseHub, fault: Exception, message: str, rows: list[dict[str, Any]] | None
) -> None:
    use_hub(rows or [], ("owner/set" if rows else "other", None, "train"), fault=fault)
    with pytest.raises(SourceError, match=f"hub data set owner/set, split train: {message}"):
        read()


def test_hub_error_of_a_caller_is_not_the_librarys(use_hub: UseHub) -> None:
    use_hub([{"text": "good"}] * 3)
    stream = documents(SourceConfig(hub="owner/set"), Path())
    next(stream)
    with pytest.raises(ZeroDivisionError):
        stream.throw(ZeroDivisionError)  # type: ignore[attr-defined]


def test_hub_missing_column_names_those_there_are(use_hub: UseHub) -> None:
    use_hub([{"review": "x", "stars": 1}])
    with pytest.raises(SourceError, match="owner/set, split train, row 1: no column 'text'; there are review, stars"):
        read()
    with pytest.raises(SourceError, match="row 1: no column 'label'; there are review, stars"):
        read(text=("review",), label="label")


def test_hub_missing_library_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SourceError, match="run `pip install datasets`"):
        read()


PROGRAM = """
import sys
from pathlib import Path
from training.recipe import SourceConfig
from training.sources.documents import documents
from training.errors import SourceError
for name in sys.argv[1:]:
    try:
        next(documents(SourceConfig(hub=name), Path()))
    except SourceError as error:
        print(error)
"""


def test_hub_errors_of_the_real_library_are_told(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").write_text("")
    names = [str(tmp_path / "script"), "owner/name", str(tmp_path / "nowhere")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, line in itertools.zip_longest(names, done.stdout.splitlines()):
        assert line.startswith(f"hub data set {name}, split train: ")
