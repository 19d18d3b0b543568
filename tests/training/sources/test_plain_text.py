"""Running text to documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.sources.reading import texts, write
from training.sources import plain_text
from training.sources.plain_text import fasttext_line


def test_a_blank_line_ends_a_document_of_plain_text(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "One line\nand another.\n\n \nSecond.\r\n\r\nThird.")
    assert texts(tmp_path, "a.txt") == ["One line\nand another.", "Second.", "Third."]
    assert texts(tmp_path, "a.txt", lines="wrapped")[0] == "One line and another."


def test_each_file_is_a_document_if_the_source_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.md", "# One\n\nA line<br>\nand another.\r\n \r\nSecond.\n")
    write(tmp_path / "b.txt", "\n")
    assert texts(tmp_path, "*", format="document") == ["# One\n\nA line\nand another.\n \nSecond."]
    assert texts(tmp_path, "*", format="document", lines="wrapped") == ["# One\nA line and another.\nSecond."]
    assert "source: 1 of 2 rows have no text and are skipped" in caplog.text


def test_plain_text_without_an_end_is_cut_to_bound_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_text, "MAX_CHARACTERS", 50)
    write(tmp_path / "lines.txt", "twenty characters...\n" * 10)
    assert [len(text) for text in texts(tmp_path, "lines.txt")] == [62, 62, 62, 20]
    write(tmp_path / "line.txt", "ä" * 100)
    found = texts(tmp_path, "line.txt")
    assert len(found) > 1
    assert "".join(found).replace("\n", "") == "ä" * 100
    write(tmp_path / "document.txt", "twenty characters...\n\n" * 10)
    assert [len(text) for text in texts(tmp_path, "document.txt", format="document")] == [64, 64, 64, 20]


@pytest.mark.parametrize(
    ("boundary", "content"),
    [
        ("<[|]endoftext[|]>", "A b.\n\nC.\n<|endoftext|>\nD.\n"),
        ("</?doc.*>", '<doc id="1" title="A">\nA b.\n\nC.\n</doc>\n<doc id="2">\nD.\n</doc>\n'),
    ],
)
def test_boundary_lines_separate_documents_which_have_blank_lines(tmp_path: Path, boundary: str, content: str) -> None:
    write(tmp_path / "a.txt", content)
    assert texts(tmp_path, "a.txt", boundary=boundary) == ["A b.\n\nC.", "D."]
    assert texts(tmp_path, "a.txt", boundary=boundary, lines="wrapped") == ["A b.\nC.", "D."]


def test_a_line_that_recurs_is_named_with_the_boundary_to_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.txt", "".join(f"Story {i}.\n\nIts end.{i}\n<|endoftext|>\n" for i in range(10)))
    assert len(texts(tmp_path, "a.txt")) == 11
    (message,) = caplog.messages
    assert message.startswith("a: the line '<|endoftext|>' recurs; if it ends a document, set the source's `bound")
    assert message.endswith(r"such as '<\|endoftext\|>'")
    assert len(texts(tmp_path, "a.txt", boundary=r"<\|endoftext\|>")) == 10
    write(tmp_path / "b.txt", "".join(f"Line {i}.\n" for i in range(1000)) + "Yes.\n" * 9)
    assert len(texts(tmp_path, "b.txt")) == 1
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("line", "labels", "text"),
    [
        ("__label__a text\n", ["a"], "text"),
        ("__label__a, __label__b text", ["a", "b"], "text"),
        ("text __label__a", ["a"], "text"),
        ("a __label__b good,  __label__c film\n", ["b", "c"], "a good,  film"),
        ("__label__ text x__label__a", [], "__label__ text x__label__a"),
        ("__label__a", ["a"], ""),
        ("", [], ""),
    ],
)
def test_fasttext_line_has_labels_anywhere(line: str, labels: list[str], text: str) -> None:
    assert fasttext_line(line) == (labels, text)
