"""Hashes of what a stage depends on."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from training.corpus import fingerprint
from training.corpus.fingerprint import checkpoint_hash, file_hashes
from training.errors import MissingTextError, RunError
from training.recipe import SourceConfig

SOURCES = [SourceConfig(path="a.txt"), SourceConfig(path="b.txt")]


@pytest.fixture
def hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read to be hashed; `a.txt` and `b.txt` are in `tmp_path`."""
    names: list[str] = []
    original = fingerprint._sha256
    monkeypatch.setattr(
        fingerprint, "_sha256", lambda path, *stat: names.append(Path(path).name) or original(path, *stat)
    )
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    return names


def test_file_hashes_of_unchanged_files_come_from_the_cache(tmp_path: Path, hashed: list[str]) -> None:
    cache = tmp_path / "run" / "file-hashes.json"
    first = file_hashes(SOURCES, tmp_path, cache)
    assert first["a.txt"] == hashlib.sha256(b"text a").hexdigest()
    assert hashed == ["a.txt", "b.txt"]
    assert file_hashes(SOURCES, tmp_path, cache) == first
    assert hashed == ["a.txt", "b.txt"]


def test_file_hashes_of_a_changed_file_are_new(tmp_path: Path, hashed: list[str]) -> None:
    cache = tmp_path / "file-hashes.json"
    first = file_hashes(SOURCES, tmp_path, cache)
    (tmp_path / "b.txt").write_text("other")
    second = file_hashes(SOURCES, tmp_path, cache)
    assert (second["a.txt"], second["b.txt"]) == (first["a.txt"], hashlib.sha256(b"other").hexdigest())
    assert hashed[2:] == ["b.txt"]


def test_file_hashes_notice_a_change_of_the_same_size(tmp_path: Path, hashed: list[str]) -> None:
    cache = tmp_path / "file-hashes.json"
    file_hashes(SOURCES, tmp_path, cache)
    (tmp_path / "a.txt").write_text("tEXT a")
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert file_hashes(SOURCES, tmp_path, cache)["a.txt"] == hashlib.sha256(b"tEXT a").hexdigest()


def test_file_hashes_notice_a_file_of_the_same_size_and_time_in_another_folder(
    tmp_path: Path, hashed: list[str]
) -> None:
    file_hashes(SOURCES, tmp_path, tmp_path / "file-hashes.json")
    other = tmp_path / "other"
    other.mkdir()
    for name, text in (("a.txt", "tEXT a"), ("b.txt", "text b")):
        (other / name).write_text(text)
        shutil.copystat(tmp_path / name, other / name)
    found = file_hashes(SOURCES, other, tmp_path / "file-hashes.json")
    assert found["a.txt"] == hashlib.sha256(b"tEXT a").hexdigest()


def test_file_hashes_of_a_source_that_is_on_the_hub_too_are_kept_where_its_file_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text a")
    sources, cache = [SourceConfig(path="a.txt", hub="owner/set")], tmp_path / "file-hashes.json"
    first = file_hashes(sources, tmp_path, cache)
    (tmp_path / "a.txt").unlink()
    assert file_hashes(sources, tmp_path, cache) == first != {}


def test_file_hashes_keep_what_other_sources_have_in_the_cache(tmp_path: Path, hashed: list[str]) -> None:
    cache = tmp_path / "file-hashes.json"
    file_hashes(SOURCES[:1], tmp_path, cache)
    file_hashes(SOURCES[1:], tmp_path, cache)
    file_hashes(SOURCES, tmp_path, cache)
    assert hashed == ["a.txt", "b.txt"]


def test_file_hashes_with_a_damaged_cache_hash_again(tmp_path: Path, hashed: list[str]) -> None:
    cache = tmp_path / "file-hashes.json"
    first = file_hashes(SOURCES, tmp_path, cache)
    cache.write_text("{")
    assert file_hashes(SOURCES, tmp_path, cache) == first


def test_file_hashes_of_absent_files_are_those_of_the_cache(
    tmp_path: Path, hashed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "file-hashes.json"
    first = file_hashes(SOURCES, tmp_path, cache)
    (tmp_path / "b.txt").unlink()
    assert file_hashes(SOURCES, tmp_path, cache) == first
    assert "b.txt" in caplog.text
    assert "what was prepared from it is used" in caplog.text
    cache.unlink()
    with pytest.raises(MissingTextError, match=r"b\.txt"):
        file_hashes(SOURCES, tmp_path, cache)


def test_file_hashes_of_a_pattern_are_those_of_the_files_that_are_there(tmp_path: Path, hashed: list[str]) -> None:
    cache, sources = tmp_path / "file-hashes.json", [SourceConfig(path="*.txt")]
    assert list(file_hashes(sources, tmp_path, cache)) == ["a.txt", "b.txt"]
    (tmp_path / "b.txt").unlink()
    assert list(file_hashes(sources, tmp_path, cache)) == ["a.txt"]


def test_file_hashes_of_two_ranks_at_the_same_time(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, replace = tmp_path / "file-hashes.json", Path.replace
    others = iter([lambda: file_hashes(SOURCES, tmp_path, cache)])

    def replace_after_the_other(file: Path, target: Path) -> Path:
        for other in others:
            other()
        return replace(file, target)

    monkeypatch.setattr(Path, "replace", replace_after_the_other)
    first = file_hashes(SOURCES, tmp_path, cache)
    assert len(hashed) == 4
    assert file_hashes(SOURCES, tmp_path, cache) == first
    assert len(hashed) == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "b.txt", "file-hashes.json"]


def test_checkpoint_hash_is_that_of_what_the_network_computes_with(tmp_path: Path, pretrained: Path) -> None:
    folder = tmp_path / "network"
    shutil.copytree(pretrained, folder)
    first = checkpoint_hash(pretrained)
    assert checkpoint_hash(folder) == first
    (folder / "README.md").write_text("A model card.")
    assert checkpoint_hash(folder) == first
    with (folder / "config.json").open("a") as file:
        file.write("\n")
    assert checkpoint_hash(folder) != first


def test_checkpoint_hash_of_another_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="none is missing, or is not a checkpoint directory"):
        checkpoint_hash(tmp_path / "none")
