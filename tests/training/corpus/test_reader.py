"""Prepared folders, read a window of shards at a time."""

from __future__ import annotations

import resource
from copy import copy
from pathlib import Path

import numpy as np
import pytest

from model.tokenizer import SPECIAL_TOKENS, Tokenizer
from training.corpus import inputs, reader
from training.corpus.prepare import prepare
from training.corpus.reader import WINDOW_SHARDS, PreparedText
from training.errors import CorpusError
from training.recipe import Recipe

LETTERS = "abcdefghij"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, *LETTERS])
SHARDS = 40


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> PreparedText:
    """One document per shard, more shards than a window has."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "SHARD_CHARACTERS", 1)
        rows = (" ".join([LETTERS[n % 10]] * (n + 1)) + f"\n{LETTERS[n % 7]}" for n in range(SHARDS))
        (folder / "a.txt").write_text("\n\n".join(rows))
        corpus = {"sources": [{"path": "a.txt"}], "heldout_fraction": 0}
        made = prepare(Recipe(name="r", data=folder, corpus=corpus), TOKENIZER, folder / "c")  # type: ignore[arg-type]
        return PreparedText(folder / "c", made)


def mapped_files(folder: Path) -> int:
    """Files below a folder that this process has mapped into memory."""
    return len({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line})


def test_window_maps_the_files_of_its_shards_only(text: PreparedText) -> None:
    assert len(text.shards) == SHARDS > WINDOW_SHARDS
    before = mapped_files(text.folder)
    window = next(text.windows(seed=1, pass_number=0))
    assert len(window.shards) == WINDOW_SHARDS
    assert mapped_files(text.folder) - before == WINDOW_SHARDS
    assert not window.tokens(0, 1).flags.writeable
    del window
    assert mapped_files(text.folder) == before


def test_window_that_may_not_open_more_files_names_the_file_and_the_remedy(text: PreparedText) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(CorpusError, match=r"npz: cannot be read: Too many open files; .* raise its limit"):
            text.window([0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_window_offsets_have_the_size_of_the_window(text: PreparedText) -> None:
    window = text.window([3, 1])
    assert len(window.document_starts) == 3
    assert window.sentence_starts.tolist() == [0, 4, 5, 7, 8]
    assert [TOKENIZER.token(i) for i in window.tokens(5, 8).tolist()] == ["b", "b", "b"]
    assert text.window().shards == text.shards[:WINDOW_SHARDS]


def test_column_in_a_file_of_all_documents(text: PreparedText) -> None:
    np.save(text.folder / "extra.npy", np.arange(SHARDS))
    assert text.window([7, 3]).column("extra").tolist() == [7, 3]
    assert text.column("extra").tolist() == list(range(SHARDS))
    (text.folder / "extra.npy").unlink()


def names(text: PreparedText, seed: int, pass_number: int) -> list[list[str]]:
    return [[shard.name for shard in window.shards] for window in text.windows(seed, pass_number)]


def test_windows_hold_every_shard_once_and_differ_by_pass_and_seed(text: PreparedText) -> None:
    windows = [names(text, seed, number) for seed, number in ((1, 0), (1, 1), (2, 0))]
    for found in windows:
        assert [len(part) for part in found] == [WINDOW_SHARDS, SHARDS - WINDOW_SHARDS]
        assert sorted(name for part in found for name in part) == [shard.name for shard in text.shards]
    assert windows[0] == names(text, 1, 0)
    assert windows[0] != windows[1]
    assert windows[0] != windows[2]


def test_windows_mix_shards_across_the_corpus(text: PreparedText, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_SHARDS", 4)
    first = sorted(map(int, names(text, 1, 0)[0]))
    assert first[-1] - first[0] > 4


def test_checksum_is_that_of_the_text(text: PreparedText) -> None:
    again = copy(text)
    again.shards = text.shards[:]
    assert again.checksum == text.checksum
    again.shards.reverse()
    assert again.checksum != text.checksum
