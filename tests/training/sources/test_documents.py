"""Every format, compression and place of text, and the errors a user will make."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.errors import SourceError
from training.recipe import SourceConfig, source_name
from training.sources import documents as sources
from training.sources.documents import Document, documents, files

ROWS = [
    {"title": "One", "text": "First film.\nIt was good.", "label": "1"},
    {"title": "Two", "text": 'The "second", quoted.', "label": "0"},
    {"title": "Três", "text": "Das dritte – schön.", "label": "1"},
]
TEXTS = [row["text"] for row in ROWS]


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(delimiter: str, rows: list[dict[str, Any]] = ROWS) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def read(root: Path, path: str, **settings: Any) -> list[Document]:
    return list(documents(SourceConfig(path=path, **settings), root))


def texts(root: Path, path: str, **settings: Any) -> list[str]:
    return [document.text for document in read(root, path, **settings)]


# --- formats


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", jsonl(ROWS)),
        ("a.ndjson", "\ufeff" + jsonl(ROWS)),
        ("a.json", jsonl(ROWS).replace("\n", "\r\n\n")),
        ("a.csv", table(",")),
        ("a.csv", "\ufeff" + table(",")),
        ("a.tsv", table("\t")),
    ],
)
def test_columns_become_documents(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path / name, content)
    found = read(tmp_path, name, label="label", group="title")
    assert [document.text for document in found] == TEXTS
    assert [document.label for document in found] == ["1", "0", "1"]
    assert [document.group for document in found] == ["One", "Two", "Três"]


def test_parquet_columns_become_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS * 400), tmp_path / "a.parquet")
    assert texts(tmp_path, "a.parquet") == TEXTS * 400
    with pytest.raises(SourceError, match=r"a\.parquet: no column 'body'; there are title, text, label"):
        read(tmp_path, "a.parquet", text=("body",))
    write(tmp_path / "b.parquet", "no parquet at all, but long enough")
    with pytest.raises(SourceError, match=r"b\.parquet: no Parquet file"):
        read(tmp_path, "b.parquet")


def test_several_text_columns_are_paragraphs_and_stay_apart_as_fields(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"title": "T", "text": "Body."}, {"title": None, "text": "Alone."}]))
    found = read(tmp_path, "a.jsonl", text=("title", "text"))
    assert [document.text for document in found] == ["T\nBody.", "Alone."]
    assert [document.fields for document in found] == [("T", "Body."), ("", "Alone.")]


def test_lists_of_strings_are_paragraphs_and_labels_are_strings(tmp_path: Path) -> None:
    rows = [{"text": ["One.", "Two."], "label": 3}, {"text": "x", "label": 1.0}, {"text": "y", "label": None}]
    write(tmp_path / "a.jsonl", jsonl(rows))
    found = read(tmp_path, "a.jsonl", label="label")
    assert [(document.text, document.label) for document in found] == [
        ("One.\nTwo.", "3"),
        ("x", "1"),
        ("y", None),
    ]


def test_a_field_may_be_longer_than_the_csv_default(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", table(",", [{"text": "long " * 100_000}]))
    assert len(texts(tmp_path, "a.csv")[0]) == 499_999


def test_tsv_with_stray_quotation_marks_is_read_literally(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 'text\tlabel\n"quoted" beginning\t1\n" unclosed\t0\n')
    assert texts(tmp_path, "a.tsv") == ['"quoted" beginning', '" unclosed']


@pytest.mark.parametrize("columns", ["{text}\t{n}", "{n}\t{text}", "{n}\t{text}\t{n}"])
def test_tsv_whose_stray_quotation_marks_would_glue_rows_is_an_error(tmp_path: Path, columns: str) -> None:
    rows = [columns.format(text=f"film {n}", n=n) for n in range(2000)]
    rows[1500] = columns.format(text='"film 1500', n=1500)
    rows[1540] = columns.format(text='film 1540"', n=1540)
    header = columns.format(text="text", n="label").replace("label", "other", columns.count("{n}") - 1)
    write(tmp_path / "a.tsv", "\n".join([header, *rows, ""]))
    with pytest.raises(SourceError, match=r"a\.tsv, line 1542: 41 rows are one, .* just text twice"):
        read(tmp_path, "a.tsv")


@pytest.mark.parametrize("text", ["one\ntwo", "one\n\ttwo\n\tthree", "one\ttwo", "a\tb\n\nc\td"])
def test_tsv_cells_may_hold_lines_and_tabs(tmp_path: Path, text: str) -> None:
    rows = [{"text": text, "label": "1"}, {"text": "so\nso", "label": "0"}]
    write(tmp_path / "a.tsv", table("\t", rows))
    assert texts(tmp_path, "a.tsv")[0].split() == text.split()
    write(tmp_path / "b.tsv", table("\t", [{"label": row["label"], "text": row["text"]} for row in rows]))
    assert texts(tmp_path, "b.tsv")[0].split() == text.split()


def test_html_breaks_and_foreign_newlines_become_newlines(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "Good.<br /><br />Bad.<BR> Ugly.\r\nEnd."}]))
    assert texts(tmp_path, "a.jsonl") == ["Good.\nBad.\nUgly.\nEnd."]


def test_labelled_texts_keep_html_breaks_as_callers_send_them(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": "Good.<br />Bad.\r\nEnd.", "label": 1}]))
    (document,) = documents(SourceConfig(path="a.jsonl", label="label"), tmp_path)
    assert document.text == "Good.<br />Bad.\nEnd."


def test_spelled_newlines_become_newlines_if_the_source_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "text\nAn answer.\\n\\nIt ends.\n")
    assert texts(tmp_path, "a.csv") == ["An answer.\\n\\nIt ends."]  # as in $\nabla$, or C:\new
    (document,) = read(tmp_path, "a.csv", escaped_newlines=True)
    assert document.text == "An answer.\n\nIt ends."


def test_tokens_of_the_treebank_are_read_as_people_type_them_if_the_source_says_so(tmp_path: Path) -> None:
    kept = ["it is n't `` fine '' .", "it 's fine ."]
    write(tmp_path / "a.jsonl", jsonl([{"text": text, "label": 1, "film": "It"} for text in kept]))
    assert texts(tmp_path, "a.jsonl") == kept
    assert texts(tmp_path, "a.jsonl", treebank="joined") == ['it isn\'t "fine".', "it's fine."]
    both = read(tmp_path, "a.jsonl", treebank="both", label="label", group="film")
    assert [document.text for document in both] == [*kept, 'it isn\'t "fine".']  # the other would be no news
    assert {(document.label, document.group) for document in both} == {("1", "It")}


def test_half_a_character_in_json_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"text": "half \\ud83d whole \\ud83d\\ude00"}\n')
    assert texts(tmp_path, "a.jsonl") == ["half \ufffd whole 😀"]


def test_rows_without_text_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", jsonl([{"text": " \n"}, {"text": None}, {"text": "x"}]))
    assert texts(tmp_path, "a.jsonl") == ["x"]


def test_a_blank_line_ends_a_document_of_plain_text(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "One line\nand another.\n\n \nSecond.\r\n\r\nThird.")
    assert texts(tmp_path, "a.txt") == ["One line\nand another.", "Second.", "Third."]
    assert texts(tmp_path, "a.txt", lines="wrapped")[0] == "One line and another."


def test_plain_text_without_an_end_is_cut_to_bound_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 50)
    write(tmp_path / "lines.txt", "twenty characters...\n" * 10)
    assert [len(text) for text in texts(tmp_path, "lines.txt")] == [62, 62, 62, 20]
    write(tmp_path / "line.txt", "ä" * 100)
    found = texts(tmp_path, "line.txt")
    assert len(found) > 1
    assert "".join(found).replace("\n", "") == "ä" * 100


WIKITEXT = """
 = Valkyria Chronicles =

 A game of 1 @,@ 000 <unk> .
 It is role @-@ playing .

 = = Gameplay = =

 Players move .

 = Plain maple =
 = = = Deep = = =
 A tree .
"""


@pytest.mark.parametrize(("name", "settings"), [("wiki.train.tokens", {}), ("a.txt", {"format": "wikitext"})])
def test_level_one_headings_delimit_articles_of_wikitext(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    write(tmp_path / name, WIKITEXT)
    articles = ["A game of 1,000 [UNK] .\nIt is role-playing .\nPlayers move .", "A tree ."]
    assert texts(tmp_path, name, **settings) == articles


# --- compressions and places


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
@pytest.mark.parametrize("inner", ["a.jsonl", "a.csv", "a.tsv"])
def test_compressed_files_read_as_their_contents(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], inner: str
) -> None:
    content = {"a.jsonl": jsonl(ROWS), "a.csv": table(","), "a.tsv": table("\t")}[inner]
    write(tmp_path / f"{inner}{suffix}", compress(content.encode()))
    assert texts(tmp_path, f"{inner}{suffix}") == TEXTS


def test_zstandard_files_read_as_their_contents(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    whole = zstandard.compress(jsonl(ROWS * 1000).encode())
    write(tmp_path / "a.jsonl.zst", whole)
    assert texts(tmp_path, "a.jsonl.zst") == TEXTS * 1000
    write(tmp_path / "two.jsonl.zst", whole + whole)
    assert texts(tmp_path, "two.jsonl.zst") == TEXTS * 2000
    write(tmp_path / "b.jsonl.zst", b"not compressed at all")
    with pytest.raises(SourceError, match=r"b\.jsonl\.zst"):
        read(tmp_path, "b.jsonl.zst")


def test_a_zstandard_file_that_was_cut_is_damaged(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    content = jsonl([{"text": str(number)} for number in range(100_000)])  # several blocks
    write(tmp_path / "a.jsonl.zst", zstandard.compress(content.encode())[:-9])
    with pytest.raises(SourceError, match=r"a\.jsonl\.zst: cannot be read \(the file ends within a frame\)"):
        read(tmp_path, "a.jsonl.zst")


def test_directory_is_read_in_the_order_of_its_names_without_strangers(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.jsonl", "README.md", ".hidden.txt", "b.txt.part"):
        write(tmp_path / "data" / name, jsonl([{"text": name}]) if name.endswith("jsonl") else name)
    assert texts(tmp_path, "data") == ["a/z.jsonl", "b.txt"]


def test_hidden_folders_of_a_directory_are_passed_over(tmp_path: Path) -> None:
    for name in ("b.txt", ".git/a.txt", "deep/.trash/c.txt"):
        write(tmp_path / "data" / name, name)
    assert texts(tmp_path, "data") == ["b.txt"]


def test_a_format_is_that_of_all_files_of_a_directory(tmp_path: Path) -> None:
    for name in ("book", "deep/book.log", ".hidden"):
        write(tmp_path / "data" / name, name)
    with pytest.raises(SourceError, match=r"the directory holds no file ending in"):
        texts(tmp_path, "data")
    assert texts(tmp_path, "data", format="text") == ["book", "deep/book.log"]


def test_globs_choose_files(tmp_path: Path) -> None:
    for name in ("x-1.txt", "x-2.txt", "deep/x-3.txt", "y.txt"):
        write(tmp_path / name, name)
    assert texts(tmp_path, "x-*.txt") == ["x-1.txt", "x-2.txt"]
    assert texts(tmp_path, "**/x-*.txt") == ["deep/x-3.txt", "x-1.txt", "x-2.txt"]
    assert texts(Path("elsewhere"), str(tmp_path / "y.txt")) == ["y.txt"]


def test_limit_counts_documents_of_all_files(tmp_path: Path) -> None:
    for name in ("1.txt", "2.txt"):
        write(tmp_path / name, "a\n\nb\n\nc")
    assert texts(tmp_path, "*.txt", limit=4) == ["a", "b", "c", "a"]


def test_a_source_is_called_by_its_name_file_or_data_set() -> None:
    assert source_name(SourceConfig(path="a/b.jsonl.xz", name="mine")) == "mine"
    assert source_name(SourceConfig(path="a/b.jsonl.xz")) == "b"
    assert source_name(SourceConfig(hub="owner/set:plain")) == "owner-set-plain"
    assert source_name(SourceConfig(path="../*")) == "source"


def test_progress_adds_up_to_the_bytes_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", gzip.compress(jsonl(ROWS * 5000).encode()))
    counts: list[int] = []
    list(documents(SourceConfig(path="a.jsonl.gz"), tmp_path, counts.append))
    assert sum(counts) == (tmp_path / "a.jsonl.gz").stat().st_size


def test_documents_are_streamed_not_collected(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x\n\n" * 500_000)
    counts: list[int] = []
    stream = documents(SourceConfig(path="a.txt"), tmp_path, counts.append)
    assert next(stream).text == "x"
    assert sum(counts) < 1_000_000


# --- errors


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": \n', r"a\.jsonl, line 2: invalid JSON"),
        ("a.jsonl", '[{"text": "x"}]\n', r"a\.jsonl, line 1: a JSON list, not an object; write one object"),
        ("a.jsonl", '{"text": "x"}\n{"body": "x", "id": 1}\n', r"line 2: no column 'text'; there are body, id"),
        ("a.jsonl", '{"text": {"x": 1}}\n', r"line 1: a text column holds dict .* name a column of text"),
        (
            "a.jsonl",
            b'{"text": "x"}\n' + b'{"text": "caf\xe9"}\n',
            r"line 2: byte 0xe9 is no UTF-8; convert",
        ),
        ("a.txt", "text".encode("utf-16"), r"a\.txt, line 1: byte 0xff is no UTF-8"),
        ("a.txt", "cut short: é".encode()[:-1] + b"\nnext", r"a\.txt, line 1: byte 0xc3"),
        ("a.txt", "First.\ncut short: é".encode()[:-1], r"a\.txt, line 2: byte 0xc3"),
        ("a.csv", "", r"a\.csv: holds no text; fill it"),
        ("a.csv", "text,label\n", r"a\.csv: holds no text"),
        ("a.txt", "\n \n", r"a\.txt: holds no text"),
        ("a.csv", "body,label\nx,1\n", r"a\.csv, line 2: no column 'text'; there are body, label"),
        (
            "a.csv",
            "text,label\nx,1\nOh, no,1\n",
            r"line 3: 3 fields, but the header names 2 \(text, label\); quote",
        ),
        ("a.csv", 'text,label\n"x,1\ny,2\n', r"a\.csv, line 3: unexpected end of data; .* written twice"),
        (
            "a.csv",
            "text,label\rx,1\ry,0\r",
            r"a\.csv, line 1: .*its lines end in bare carriage returns: write them",
        ),
        ("a.csv", "text,stars,text\nx,1,y\n", r"a\.csv: two columns are called 'text'; rename one"),
        ("a.tsv", "text\tlabel\nx\n", r"a\.tsv, line 2: 1 fields, but the header names 2"),
        ("a.jsonl.gz", b"not gzip", r"a\.jsonl\.gz: cannot be read \(Not a gzipped file"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "x"}\n' * 999)[:-9],
            r"a\.jsonl\.gz: cannot be read \(Compressed",
        ),
        ("a.jsonl.xz", lzma.compress(b'{"text": "x"}\n' * 999)[:-20], r"a\.jsonl\.xz: cannot be read"),
        ("a.jsonl.bz2", b"not bzip2", r"a\.jsonl\.bz2: cannot be read \(Invalid data stream"),
        ("a.docx", "x", r"a\.docx: unknown suffix; .* one of csv, jsonl, parquet, text, tsv, wikitext"),
    ],
)
def test_error_names_the_place_and_the_remedy(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    write(tmp_path / name, content)
    with pytest.raises(SourceError, match=message):
        read(tmp_path, name)


def test_missing_label_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", table(","))
    with pytest.raises(SourceError, match="line 3: no column 'stars'; there are title, text, label"):
        read(tmp_path, "a.csv", label="stars")


def test_a_place_without_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"empty: the directory holds no file ending in \.jsonl"):
        files(SourceConfig(path="empty"), tmp_path)
    with pytest.raises(SourceError, match=r"no-such-\*: no such file; .* now " + str(tmp_path)):
        files(SourceConfig(path="no-such-*"), tmp_path)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pyarrow.parquet", {"path": "a.parquet"}),
        ("zstandard", {"path": "a.jsonl.zst"}),
        ("datasets", {"hub": "owner/name"}),
    ],
)
def test_a_missing_library_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("a.parquet", "a.jsonl.zst"):
        write(tmp_path / name, "x")
    with pytest.raises(SourceError, match=f"run `pip install {module.partition('.')[0]}`"):
        list(documents(SourceConfig(**source), tmp_path))


# --- the hub


class FakeHub:
    """Stands for the `datasets` library: data sets by name, one row at a time."""

    def __init__(self, rows: dict[tuple[str, str | None, str], list[dict[str, Any]]]) -> None:
        self.rows = rows
        self.taken = 0

    def load_dataset(
        self, name: str, configuration: str | None, *, split: str, streaming: bool
    ) -> Iterator[Any]:
        assert streaming
        if (name, configuration, split) not in self.rows:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        return self._stream(self.rows[name, configuration, split])

    def _stream(self, rows: list[dict[str, Any]]) -> Iterator[Any]:
        for row in rows:
            self.taken += 1
            yield row


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=hub.load_dataset))  # type: ignore[arg-type]


def test_hub_rows_are_streamed_by_name_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(
        {("owner/set", "plain", "test"): [{"title": "T", "content": f"{i}", "label": i} for i in range(9)]}
    )
    use_hub(monkeypatch, hub)
    source = SourceConfig(
        hub="owner/set:plain", split="test", text=("title", "content"), label="label", limit=2
    )
    assert list(documents(source, Path())) == [
        Document("T\n0", ("T", "0"), "0"),
        Document("T\n1", ("T", "1"), "1"),
    ]
    assert hub.taken == 2


def test_hub_wikitext_is_a_line_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": line} for line in WIKITEXT.splitlines(keepends=True)]
    use_hub(monkeypatch, FakeHub({("wikitext", "wikitext-2-raw-v1", "train"): rows}))
    source = SourceConfig(hub="wikitext:wikitext-2-raw-v1", format="wikitext")
    assert [document.text.split()[0] for document in documents(source, Path())] == ["A", "A"]


def test_hub_errors_name_the_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, FakeHub({("owner/set", None, "train"): [{"review": "x", "stars": 1}]}))
    with pytest.raises(SourceError, match="hub data set no/such, split train: Dataset 'no/such' doesn't exist"):
        list(documents(SourceConfig(hub="no/such"), Path()))
    with pytest.raises(
        SourceError, match="owner/set, split train, row 1: no column 'text'; there are review, stars"
    ):
        list(documents(SourceConfig(hub="owner/set"), Path()))
