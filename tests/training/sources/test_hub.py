"""Data sets of the hub: streamed once, and every error of the library told with the data set's name."""

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

from tests.training.sources.reading import WIKITEXT
from tests.training.stages import made
from training.errors import SourceError
from training.recipe import CorpusConfig, Recipe, SourceConfig, TokenizerConfig
from training.sources.documents import Document, documents

ROOT = Path(__file__).parents[3]
Key = tuple[str, str | None, str]


class FakeHub:
    """Stands for the `datasets` library: data sets by name, one row at a time."""

    def __init__(self, rows: dict[Key, list[dict[str, Any]]], fault: Exception | None = None) -> None:
        self.rows = rows
        self.fault = fault
        self.taken = self.opened = 0

    def load_dataset(self, name: str, configuration: str | None, *, split: str, streaming: bool) -> Iterator[Any]:
        assert streaming
        self.opened += 1
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


def read(cache: Path | None = None, **settings: Any) -> list[Document]:
    return list(documents(SourceConfig(hub="owner/set", **settings), Path(), hub_cache=cache))


def test_hub_rows_are_streamed_by_name_configuration_and_split(use_hub: UseHub) -> None:
    rows = [{"title": "T", "content": f"{i}", "label": i} for i in range(9)]
    hub = use_hub(rows, ("owner/set", "plain", "test"))
    source = SourceConfig(hub="owner/set:plain", split="test", text=("title", "content"), label="label", limit=2)
    found = list(documents(source, Path()))
    assert found == [Document(("T", "0"), "0"), Document(("T", "1"), "1")]
    assert found[1].place == "hub data set owner/set:plain, split test, row 2"
    assert hub.taken == 2


def test_hub_wikitext_is_a_line_per_row(use_hub: UseHub) -> None:
    use_hub([{"text": line} for line in WIKITEXT.splitlines(keepends=True)])
    assert [document.text.split()[0] for document in read(format="wikitext")] == ["A", "A"]


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
    use_hub: UseHub, tmp_path: Path, fault: Exception, message: str, rows: list[dict[str, Any]] | None
) -> None:
    use_hub(rows or [], ("owner/set" if rows else "other", None, "train"), fault=fault)
    with pytest.raises(SourceError, match=f"hub data set owner/set, split train: {message}"):
        read(tmp_path)
    assert list(tmp_path.iterdir()) == []


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


# --- the copy


def test_hub_cache_is_read_by_later_passes(use_hub: UseHub, tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": n / 2 if n % 3 else None, "other": b"x"} for n in range(50)]
    hub = use_hub([*rows, {"text": None, "label": True, "other": b""}])
    passes = [read(tmp_path, label="label") for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]
    assert [document.place for document in passes[0]] == [document.place for document in passes[2]]
    assert (hub.opened, hub.taken, len(passes[0])) == (1, 51, 50)
    assert [file.suffixes for file in tmp_path.iterdir()] == [[".jsonl", ".gz"]]


def test_hub_cache_holds_no_more_than_the_limit(use_hub: UseHub, tmp_path: Path) -> None:
    hub = use_hub([{"text": None}, *({"text": f"text {n}"} for n in range(50))])
    assert read(tmp_path, limit=3) == read(tmp_path, limit=3)
    assert (hub.opened, hub.taken) == (1, 4)
    assert len(read(tmp_path)) == 50  # of another limit
    assert hub.opened == 2


def test_hub_cache_of_wikitext_is_of_lines(use_hub: UseHub, tmp_path: Path) -> None:
    hub = use_hub([{"text": line} for line in WIKITEXT.splitlines(keepends=True)])
    assert read(tmp_path, format="wikitext") == read(tmp_path, format="wikitext")
    assert hub.opened == 1


def test_hub_cache_that_is_unfinished_is_not_read(use_hub: UseHub, tmp_path: Path) -> None:
    hub = use_hub([{"text": f"text {n}"} for n in range(50)])
    stream = documents(SourceConfig(hub="owner/set"), Path(), hub_cache=tmp_path)
    assert next(stream).text == "text 0"
    stream.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    assert len(read(tmp_path)) == 50
    assert hub.opened == 2


def test_hub_cache_that_is_damaged_is_named(use_hub: UseHub, tmp_path: Path) -> None:
    use_hub([{"text": f"text {n}"} for n in range(5000)])
    read(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"owner-set-.*\.jsonl\.gz: the file is cut off .*; delete the file"):
        read(tmp_path)


def test_hub_cache_lets_a_run_stream_a_data_set_once(use_hub: UseHub, tmp_path: Path) -> None:
    hub = use_hub([{"text": f"The film number {n} was good. I liked it {n} times."} for n in range(200)])
    recipe = Recipe(
        name="hub",
        run=tmp_path,
        tokenizer=TokenizerConfig(vocab_size=200),
        corpus=CorpusConfig(sources=(SourceConfig(hub="owner/set"),), heldout_fraction=0.1),
    )
    assert made(recipe, "tokenizer", "prepare")
    assert hub.opened == 1
    more = recipe.model_copy(update={"corpus": recipe.corpus.model_copy(update={"heldout_fraction": 0.2})})
    assert made(more, "prepare")
    assert hub.opened == 1
