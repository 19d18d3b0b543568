"""What prepared text was made from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from training.corpus import fingerprint
from training.corpus.fingerprint import file_hashes
from training.recipe import SourceConfig

SOURCES = [SourceConfig(path="a.txt"), SourceConfig(path="b.txt")]


@pytest.fixture
def hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read to be hashed; `a.txt` and `b.txt` are in `tmp_path`."""
    names: list[str] = []
    original = fingerprint._sha256
    monkeypatch.setattr(fingerprint, "_sha256", lambda file: names.append(file.name) or original(file))
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
