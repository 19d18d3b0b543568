"""`bert`, run as a command against a real port."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bert_client.command import file_job
from bert_client.command.file_job import FIRST_ROWS, PROCESS_ENDED, read_ahead
from bert_client.command.main import run
from bert_tables import Row
from tests.client.echo import CUT, Refuse, invalid_inputs, problem_document, process_ended, serve, serve_tls
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
Bert = Callable[..., tuple[int, str, str]]
PATIENCE = 120  # seconds; other jobs may hold the processor
TIMEOUT = 600
"""Seconds that a client waits for an answer: longer than a test waits for the client."""
MAIN = "from bert_client.command.main import main; main()"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
NO_JSON = "the line is not JSON (Expecting value); write one object per line (jq -c .)"

# Nothing may be imported but the standard library, the packages of client/, and httpx with what it needs.
LIGHT = """
import sys

ALLOWED = {"bert_client", "bert_tables"}
ALLOWED |= {"httpx", "httpcore", "h11", "anyio", "sniffio", "certifi", "idna", "typing_extensions"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED | sys.stdlib_module_names:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
"""


@dataclass(frozen=True)
class Holding:
    """A service that takes one input at once, and does not answer the text "hold" while the gate is closed."""

    url: str
    entered: threading.Event
    gate: threading.Event


@pytest.fixture
def bert(url: str, capsys: pytest.CaptureFixture[str]) -> Bert:
    """Run a command line; its exit code, output and complaints."""

    def command(*arguments: str, **environ: str) -> tuple[int, str, str]:
        try:
            code = run(arguments, {"BERT_URL": url} | environ)
        except SystemExit as end:  # argparse's
            code = int(end.code or 0)
        output, complaints = capsys.readouterr()
        return code, output, complaints

    return command


@dataclass
class Job:
    """`bert` with a file and an output: its exit code and complaints."""

    bert: Bert
    source: Path
    target: Path

    def __call__(self, *flags: str, task: str = "sentiment", **environ: str) -> tuple[int, str]:
        files = ("--file", str(self.source), "--output", str(self.target))
        code, output, complaints = self.bert(task, *files, *flags, **environ)
        assert output == ""
        return code, complaints

    def number_texts(self, count: int) -> list[str]:
        """Write as many rows, and return their texts."""
        texts = [f"text {n}" for n in range(count)]
        self.source.write_text("\n".join(texts))
        return texts

    def rows(self, delimiter: str = ",") -> list[dict[str, Any]]:
        """The rows of the output."""
        content = self.target.read_bytes()
        text = (gzip.decompress(content) if self.target.suffix == ".gz" else content).decode()
        if ".jsonl" in self.target.name:
            return [json.loads(line) for line in text.splitlines()]
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))

    def answers(self) -> list[tuple[str, str, str]]:
        """Text, label and error of each row of the output."""
        return [(row["text"], row["label"] or "", row["error"] or "") for row in self.rows()]


@pytest.fixture
def job(bert: Bert, tmp_path: Path) -> Job:
    return Job(bert, tmp_path / "a.txt", tmp_path / "scored.csv")


Score = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def score(bert: Bert, tmp_path: Path) -> Score:
    """Run a command on a new file: its exit code, its rows of JSON and its complaints."""

    def answer(content: str | bytes, *flags: str, name: str = "a.jsonl", task: str = "sentiment") -> Any:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        code, output, complaints = bert(task, "--file", str(tmp_path / name), "--json", *flags)
        return code, [json.loads(line) for line in output.splitlines()], complaints

    return answer


def json_lines(*rows: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, rows))


def labels_and_errors(rows: list[dict[str, Any]]) -> list[tuple[str | None, str | None]]:
    return [(row["label"], row["error"]) for row in rows]


def broken_at(text: str) -> Refuse:
    """Refusals of the requests with this text, which end a job."""
    return lambda inputs: problem_document(500, "internal_error", "broken", {}) if text in inputs else None


def light(program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in an interpreter that has httpx only."""
    command = [sys.executable, "-W", "error", "-c", LIGHT + program, *arguments]
    return subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=120, check=False)


def buffered() -> dict[str, str]:
    """The environment of a command whose standard output is buffered."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@contextmanager
def started(url: str, *arguments: str, setup: str = "", **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """`bert sentiment` as a process that can be interrupted. It is killed at the end, or if the test hangs."""
    command = [sys.executable, "-c", setup + _INTERRUPTIBLE, "sentiment", "--url", url, "--timeout", str(TIMEOUT)]
    with subprocess.Popen([*command, *arguments], cwd=ROOT, env=buffered(), text=True, **streams) as process:
        guard = threading.Timer(2 * PATIENCE, process.kill)
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def write_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def test_bert_file_waits_for_an_absent_service_and_says_so() -> None:
    port = free_port()
    host = f"127.0.0.1:{port}"
    with started(f"http://user:secret@{host}", "--file", "-", **PIPES, stderr=subprocess.PIPE) as process:
        assert process.stderr
        write_line(process, "hello")
        reason = "(ConnectError); trying again for 10 minutes"
        assert process.stderr.readline() == f"http://{host} is busy or away {reason}\n"
        with serve(port=port):
            assert process.communicate()[0].endswith("\nhello\thello\t1\tfalse\t\n")
    assert process.returncode == 0


def test_client_works_where_only_httpx_is_installed(url: str) -> None:
    program = """
import asyncio
from bert_client import AsyncBertClient, BertClient

async def ask():
    async with AsyncBertClient(sys.argv[1]) as client:
        return await client.sentiment(["good"])

with BertClient(sys.argv[1]) as client:
    print(client.sentiment(["good"]) == asyncio.run(ask()))
"""
    done = light(program, url)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_bert_works_where_only_httpx_is_installed(url: str) -> None:
    done = light(MAIN, "sentiment", "--url", url, "--file", "-", given="good\n\nbad\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "text\tlabel\tscore\ttruncated\terror",
        "good\tPOSITIVE\t0.75\tfalse\t",
        "\t\t\t\tthe field 'text' is empty",
        "bad\tPOSITIVE\t0.75\tfalse\t",
    ]
    assert done.stderr.startswith("3 rows, 1 with an error")


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_bert_prints_utf_8_wherever_it_runs(url: str, json_flag: list[str]) -> None:
    command = [sys.executable, "-c", MAIN, "fill-mask", "the [MASK] 映画", "--url", url, *json_flag]
    environ = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environ, capture_output=True, timeout=120, check=True)
    assert "映画" in done.stdout.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="has no such device")
@pytest.mark.parametrize(
    ("redirection", "file", "code", "output", "complaint"),
    [
        (">/dev/full", "", 1, "", "bert: [Errno 28] No space left on device\n"),
        (">/dev/full", "in.txt", 1, "", "bert: [Errno 28] No space left on device\n"),
        (">&-", "in.txt", 1, "", "bert: standard output is closed"),
        (">&-", "", 1, "", "bert: standard output is closed\n"),
        ("2>&-", "in.txt", 0, "good\tPOSITIVE", ""),
        ("2>&-", "absent.txt", 1, "", ""),
        ("<&-", "-", 1, "", "bert: standard input: cannot be read (Bad file descriptor)\n"),
    ],
)
def test_bert_standard_streams_may_be_closed_or_full(
    url: str, tmp_path: Path, redirection: str, file: str, code: int, output: str, complaint: str
) -> None:
    (tmp_path / "in.txt").write_text("good\n")
    arguments = ["--file", str(tmp_path / file) if file != "-" else file] if file else ["good"]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", MAIN, "sentiment", *arguments]
    done = subprocess.run([*shell, "--url", url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert complaint in done.stderr
    assert output in done.stdout


def test_bert_answers_before_an_error_are_printed(url: str, tmp_path: Path) -> None:
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"good\n" * 9)[:-9])
    for arguments, answers in ((["good", ""], 1), (["--file", str(tmp_path / "cut.txt.gz")], 9)):
        command = [sys.executable, "-c", MAIN, "sentiment", "--url", url, *arguments]
        done = subprocess.run(command, env=buffered(), capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout.count("POSITIVE")) == (1, answers), done.stderr


def test_bert_fill_mask_prints_words_and_texts(bert: Bert) -> None:
    code, output, _ = bert("fill-mask", "the [MASK] was good", "--targets", "film", "movie")
    assert code == 0
    assert [line.split(maxsplit=2) for line in output.splitlines()] == [
        ["0.5000", "film", "the film was good"],
        ["0.3333", "movie", "the movie was good"],
    ]


def test_bert_next_sentence_takes_two_texts(bert: Bert) -> None:
    code, output, _ = bert("next-sentence", "a film", "it was good")
    assert (code, output.split()) == (0, ["0.7500", "NOT_NEXT", "0.2500", "IS_NEXT"])
    assert bert("next-sentence", "a film")[0] == 2


def test_bert_json_is_the_result_of_the_service_and_its_model(bert: Bert) -> None:
    code, output, _ = bert("sentiment", "good", "bad film", "--json", "--top-k", "1")
    assert code == 0
    assert [json.loads(line) for line in output.splitlines()] == [
        {
            "predictions": [{"label": "POSITIVE", "score": 0.75}],
            "tokens": tokens,
            "truncated": False,
            "unknown_tokens": 0,
            "model": "fake-sentiment",
        }
        for tokens in (3, 4)
    ]


def test_bert_tells_of_texts_that_are_mostly_unknown(bert: Bert, score: Score) -> None:
    code, output, _ = bert("sentiment", "映画")
    assert (code, output.splitlines()[0]) == (0, "mostly [UNK]: the answer says little about it")
    *_, complaints = score("映画\ngood\n", name="a.txt")
    assert complaints.endswith("\n1 rows are mostly [UNK]: their answers say little about them\n")


@pytest.mark.parametrize("url", [{"max_client_batch": 3, "api_keys": "secret"}], indirect=True)
def test_bert_file_is_answered_row_by_row(job: Job, tmp_path: Path) -> None:
    job.source = tmp_path / "reviews.csv"
    long = "a " * 100
    job.source.write_text(f'id,review,label\n1,good,1\n2,,0\n3,{long},1\n4,"b ""c"",\nd",0\n5,x,y,z\n6,bad,0\n')
    code, complaints = job("--column", "review", BERT_API_KEY="secret")
    assert (code, complaints.partition(" error")[0]) == (0, "6 rows, 3 with an")
    rows = job.rows()
    assert [row["id"] for row in rows] == list("123456")
    assert [row["label"] for row in rows] == ["1", "0", "1", "0", "y", "0"]  # the file's own
    assert [row["predicted_label"] for row in rows] == ["POSITIVE", "", "", "POSITIVE", "", "POSITIVE"]
    assert [row["error"].split(",")[0] for row in rows] == [
        *("", "the field 'review' is empty", "the input has 102 tokens", ""),
        *("the row has 4 cells", ""),
    ]
    assert rows[3]["review"] == 'b "c",\nd'


def test_bert_last_lines_say_why_rows_failed_and_which_option_helps(score: Score) -> None:
    code, _, complaints = score("a " * 100 + "\n" + "a " * 200 + "\n\ngood\n", name="a.txt")
    summary, long, empty = complaints.splitlines()
    assert (code, summary.partition(" error")[0]) == (0, "4 rows, 3 with an")
    assert long.startswith("  2 such as: the input has 102 tokens")
    assert long.endswith("; shorten it or give --truncate")
    assert empty == "  1 such as: the field 'text' is empty"


@pytest.mark.parametrize(("content", "code"), [("\n\n", 1), ("\ngood\n", 0), ("", 0)])
def test_bert_job_in_which_every_row_failed_ends_with_1(score: Score, content: str, code: int) -> None:
    assert score(content, name="a.txt")[0] == code


def test_bert_exit_code_counts_the_rows_of_earlier_runs(job: Job) -> None:
    stop_job(job)
    with serve(lambda inputs: invalid_inputs(dict.fromkeys(range(len(inputs)), "no mask"))) as echo:
        code, complaints = job("--url", echo.url)
    assert (code, "100 rows, 44 with an error" in complaints) == (0, True)


def test_bert_headers_are_sent_with_every_request(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good\n" * 20)
    with serve() as echo:
        headers = ("sentiment", "--header", "X-Key: s3cret:é", "--header", "Accept-Language:")
        files = ("--file", str(tmp_path / "a.txt"), "--url", echo.url)
        command = ("--api-key", "k", "--header", "x-tenant:blue", *headers, *files)
        assert bert(*command)[0] == 0
    for sent in echo.headers:
        given = sent["X-Tenant"], sent["X-Key"].encode("latin-1").decode(), sent["Accept-Language"]
        assert given == ("blue", "s3cret:é", "")
        assert sent["Authorization"] == "Bearer k"
    assert len(echo.headers) == 3


@pytest.mark.parametrize("header", ["s3cret", "X Key: s3cret", ": s3cret", "X-Key: s3cret\n", "X-Key: s3cret\udce9"])
def test_bert_header_of_another_form_is_refused_and_not_shown(bert: Bert, header: str) -> None:
    code, output, complaint = bert("sentiment", "good", "--header", header)
    assert (code, output, "s3cret" in complaint) == (2, "", False)
    assert "--header: give it as 'Name: value'" in complaint


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_bert_certificates_are_used(bert: Bert, tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    with serve_tls(tmp_path) as echo:
        command = ("sentiment", "good", "--url", echo.url, "--cacert", cert)
        code, output, _ = bert(*command, "--cert", cert, "--key", key)
        assert (code, output) == (0, "  1.0000  good\n")
        code, _, complaint = bert(*command, "--cert", cert)
    assert code == 3
    assert complaint.startswith(f"bert: --cert {cert} cannot be read as PEM ([SSL] PEM lib")
    assert bert("sentiment", "good", "--cacert", key)[2].startswith(
        f"bert: --cacert {key} cannot be read as PEM ([X509"
    )


def test_bert_truncate_cuts_long_texts(score: Score) -> None:
    (row,) = score("a " * 100, "--truncate", name="a.txt")[1]
    assert (row["label"], row["truncated"], row["error"]) == ("POSITIVE", True, None)


def test_bert_pairs_are_read_from_two_fields(score: Score) -> None:
    pairs = json_lines({"text": "a", "text_pair": "b"}, {"text": "a"}, {"text": "a", "text_pair": 5})
    code, rows, _ = score(pairs, task="next-sentence")
    assert code == 0
    assert labels_and_errors(rows) == [
        ("NOT_NEXT", None),
        (None, "the field 'text_pair' is not there"),
        (None, "the field 'text_pair' is not text"),
    ]


def test_bert_review_without_a_title_or_a_body_is_one_text(score: Score) -> None:
    reviews = json_lines(
        {"title": "a", "body": "b"},
        {"title": "", "body": "b"},
        {"title": "a", "body": None},
        {"body": "b"},
        {"title": " ", "body": ""},
        {"title": None},
        {"title": 5, "body": "b"},
    )
    with serve() as echo:
        _, rows, _ = score(reviews, "--column", "title", "--pair-column", "body", "--url", echo.url)
    assert labels_and_errors(rows) == [
        ("a|b", None),
        ("b", None),
        ("a", None),
        ("b", None),
        (None, "the field 'title' is empty"),
        (None, "the field 'title' is empty"),
        (None, "the field 'title' is not text"),
    ]


def test_bert_missing_text_is_not_sent(score: Score) -> None:
    with serve() as echo:
        columns = ("--column", "title", "--pair-column", "body", "--url", echo.url)
        _, rows, _ = score("title,body\n\\N,good\n\\N,\\N\ngood, \nNA,-\n", *columns, name="a.csv")
        assert labels_and_errors(rows) == [
            ("good", None),
            (None, "the field 'title' is empty"),
            ("good", None),
            ("NA|-", None),  # these may be answers
        ]
        words = "text\nNULL\nnan\n#REF!\n#DIV/0!\nNULL\ngood\n"
        _, *notes = score(words, "--url", echo.url, name="words.csv")[2].splitlines()
        counts = {"NULL": 2, "nan": 1, "#REF!": 1, "#DIV/0!": 1}
        found = [note.split("; it is read as a text")[0] for note in notes]
        assert found == [f"{n} of 6 rows have {word!r} in the column 'text'" for word, n in counts.items()]
        missing = '{"text": NaN}\n{"text": " \\\\N "}\n{"text": null}\n{"text": ""}\n'
        code, rows, _ = score(missing, "--url", echo.url)
        assert (code, echo.paths.count("/sentiment")) == (1, 2)
    assert labels_and_errors(rows) == [(None, "the field 'text' is empty")] * 4


def test_bert_list_of_tokens_is_a_text_and_names_of_fields_are_alike(score: Score) -> None:
    texts = json_lines({"Text": ["a", "good", "film"]}, {"Text": ["Good film.", "Bad."]}, {"Text": [1]})
    with serve() as echo:
        _, rows, _ = score(texts, "--url", echo.url)
    answers = [("a good film", None), ("Good film.\nBad.", None), (None, "the field 'Text' is not text")]
    assert labels_and_errors(rows) == answers


def test_bert_column_that_is_not_read_decides_nothing(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfid,text,city,city\n1,good,M\xfcnchen,x\n2,bad,Rom,y\n")
    code, output, complaints = bert("sentiment", "--file", str(tmp_path / "a.csv"))
    header, *rows = csv.reader(io.StringIO(output))
    assert (code, header) == (0, ["\ufeffid", "text", "3", "4", "label", "score", "truncated", "error"])
    assert [(row[2], row[4], row[7]) for row in rows] == [("M\\udcfcnchen", "POSITIVE", ""), ("Rom", "POSITIVE", "")]
    assert "a.csv: several columns are called 'city'; here they are called 3, 4\n" in complaints
    assert "a.csv, line 2: in the column '3', byte 0xfc is not UTF-8" in complaints


def test_bert_lone_surrogate_costs_its_row_only(score: Score) -> None:
    code, (good, half), _ = score('{"text": "good"}\n{"text": "\\ud83d"}\n')
    assert (code, good["label"], half["text"], half["label"]) == (0, "POSITIVE", "\ud83d", None)
    assert "half of a surrogate pair" in half["error"]


def test_bert_new_columns_are_those_of_the_first_rows(job: Job, tmp_path: Path) -> None:
    job.source = tmp_path / "a.jsonl"

    def scored(*rows: dict[str, object]) -> list[list[str]]:
        job.source.write_text(json_lines(*rows))
        code, complaints = job("--overwrite")
        assert (code, complaints.split(" rows")[0]) == (0, str(len(rows)))
        return list(csv.reader(job.target.read_text().splitlines()))

    header, good, *_, clash = scored(*FIRST_ROWS * [{"text": "good"}], {"text": "bad", "label": "5 stars"})
    assert header == ["text", "label", "score", "truncated", "error"]
    assert good == ["good", "POSITIVE", "0.75", "false", ""]
    assert clash[:4] == ["bad", "5 stars", "", ""]
    assert "'label' is not in the first rows" in clash[4]
    header, bare, good = scored({"text": "bad"}, {"text": "good", "label": "5 stars"})
    assert header == ["text", "label", "predicted_label", "score", "truncated", "error"]
    assert good == ["good", "5 stars", "POSITIVE", "0.75", "false", ""]
    assert bare == ["bad", "", "POSITIVE", "0.75", "false", ""]


def test_bert_cells_of_a_row_are_not_overwritten(score: Score) -> None:
    own = [{"text": "a", "predicted_label": 1, "label": 2, "predicted_error": 3}, {"text": "b", "label": 4}]
    code, rows, complaints = score(json_lines(*own))
    assert (code, complaints.partition(" with")[0]) == (0, "2 rows, 0")
    answer = {"predicted_predicted_label": "POSITIVE", "score": 0.75, "truncated": False, "error": None}
    assert rows == [cells | answer for cells in own]


def test_bert_label_belongs_to_the_file_in_all_rows_or_in_none(score: Score) -> None:
    texts = '{"text": "good"}\n' * FIRST_ROWS + '{"text": "bad", "label": "gold"}\n'
    _, (first, *_, last), _ = score(texts)
    assert (first["label"], last["label"], last["score"]) == ("POSITIVE", "gold", None)
    assert "so the answers have its name: give --prefix" in last["error"]
    _, (first, *_, last), _ = score(texts, "--prefix", "our_")
    assert (first["our_label"], last["our_label"], last["label"]) == ("POSITIVE", "POSITIVE", "gold")
    assert list(last) == ["text", "label", "our_label", "our_score", "our_truncated", "our_error"]


def test_bert_first_rows_may_be_broken(score: Score) -> None:
    code, rows, _ = score('broken {\n{"review": "good"}\n{"text": "good", "late": 1}\n')
    assert code == 0
    assert [row["error"] for row in rows] == [NO_JSON, "the field 'text' is not there", None]


def test_bert_columns_of_a_table_are_the_fields_of_the_first_rows(job: Job, score: Score, tmp_path: Path) -> None:
    job.source = tmp_path / "a.jsonl"
    job.source.write_text('broken {\n{"review": "good"}\n{"text": "good", "late": 1}\n')
    assert "not written" not in job()[1]
    assert list(job.rows()[0]) == ["review", "text", "late", "label", "score", "truncated", "error"]
    lines = ['{"id": 1}', *['{"text": "good", "label": "A"}'] * FIRST_ROWS, '{"text": "bad", "late": 1}']
    _, in_json, _ = score("\n".join(lines))
    assert "not written, as the first rows have no such column: 'late'" in job("--overwrite")[1]
    for rows in (in_json, job.rows()):
        assert [row.get("label") or None for row in rows] == [None, *["A"] * FIRST_ROWS, None]
        assert [row["predicted_label"] or None for row in rows] == [None, *["POSITIVE"] * (FIRST_ROWS + 1)]
        assert rows[0]["error"] == "the field 'text' is not there"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"review": "good"}\n' * 2, ": it has no column 'text'; its columns are 'review'"),
        ('{"review": "good"}\nno JSON\n', ": it has no column 'text'; its columns are 'review'"),
        ("{}\n", ", line 1: the first rows have no fields"),
        ("no JSON\n" * 200, f", line 1: {NO_JSON}"),
    ],
)
def test_bert_first_rows_without_the_column_end_the_job(
    score: Score, tmp_path: Path, content: str, complaint: str
) -> None:
    assert score(content) == (1, [], f"bert: {tmp_path}/a.jsonl{complaint}\n")


@pytest.mark.parametrize("name", ["texts.txt.gz", "texts.csv.gz", "texts.jsonl.gz"])
def test_bert_file_that_is_cut_off_keeps_what_is_answered_and_goes_on(job: Job, tmp_path: Path, name: str) -> None:
    job.source = tmp_path / name
    content = {"texts.txt.gz": b"good\n" * 9, "texts.csv.gz": b"text\n" + b"good\n" * 9}.get(name)
    whole = gzip.compress(content or b'{"text": "good"}\n' * 9)
    job.source.write_bytes(whole[:-9])
    code, complaints = job()
    kept, cut = complaints.splitlines()
    assert (code, job.target.exists()) == (1, False)
    assert kept == f"9 rows are kept in {job.target}.partial; the same command goes on after them"
    assert cut.startswith(f"bert: {job.source}: the file is cut off after line {9 + (name == 'texts.csv.gz')} ")
    assert len(Path(f"{job.target}.partial").read_text().splitlines()) == 10
    job.source.write_bytes(whole)
    code, complaints = job()
    assert (code, complaints.splitlines()[0]) == (0, f"{job.target}.partial: going on after 9 rows")
    assert job.target.read_text() == "text,label,score,truncated,error\n" + "good,POSITIVE,0.75,false,\n" * 9
    assert sorted(file.name for file in tmp_path.iterdir()) == ["scored.csv", name]


def test_bert_warnings_come_with_their_rows(holding: Holding, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;text\n1;good\n2;hold\n")
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with started(holding.url, "--file", str(tmp_path / "a.csv"), **streams) as process:
        assert holding.entered.wait(PATIENCE)
        process.kill()
        assert "semicolon" in process.communicate()[1]


@pytest.mark.parametrize(
    ("content", "flags", "texts"),
    [
        (
            '"2","Great","Loved it"\n"1","Bad","Hated"\n',
            ("--no-header", "--column", "3"),
            ["Loved it", "Hated"],
        ),
        ("good\nbad\n", ("--no-header",), ["good", "bad"]),
        ("id;text\n1;a, b\n", (), ["a, b"]),
        ("id^text\n1^a; b\n", ("--delimiter", "^"), ["a; b"]),
        ("id\ttext\n1\ta; b\n", ("--delimiter", "\\t", "--column", "2"), ["a; b"]),
        ("id\x01text\n1\x01a; b\n", ("--delimiter", r"\x01"), ["a; b"]),
        ("May\nid,text\n1,good\n", ("--first-line", "2"), ["good"]),
        ('id,text\n1,"a \\"b\\", c"\n', ("--escape", "\\"), ['a "b", c']),
        ("id,text\n1,'a, b'\n2,\"c\n", ("--quote", "'"), ["a, b", '"c']),
        ('id,text\n1,"a\n', ("--quote", ""), ['"a']),
        ("id,text\n1,sch\xf6n\n", ("--encoding", "latin-1"), ["schön"]),
    ],
)
def test_bert_dialect_is_stated(score: Score, content: str, flags: tuple[str, ...], texts: list[str]) -> None:
    code, rows, _ = score(content.encode("latin-1"), *flags, name="a.csv")
    assert (code, [row["error"] for row in rows]) == (0, [None] * len(texts))
    assert [text for row, text in zip(rows, texts, strict=True) if text not in row.values()] == []


def test_bert_dialect_that_cannot_be_is_misuse(bert: Bert) -> None:
    code, _, complaint = bert("sentiment", "--file", "a.csv", "--delimiter", ";;")
    assert (code, complaint.splitlines()[-1]) == (
        *(2, r"bert: error: delimiter is ';;': give one character, such as ; or \t or \x01"),
    )


def test_bert_does_not_replace_the_file_that_it_reads(bert: Bert, tmp_path: Path) -> None:
    file, link = tmp_path / "a.csv", tmp_path / "link.csv"
    file.write_text("text\ngood\n")
    link.symlink_to(file)
    code, _, complaint = bert("sentiment", "--file", str(file), "--output", str(link))
    assert (code, file.read_text()) == (2, "text\ngood\n")
    assert f"the output is the file that is read ({file}): write to another one" in complaint


@pytest.mark.parametrize("given", ["a.csv", "-"])
def test_bert_does_not_read_what_it_writes_to_standard_output(url: str, tmp_path: Path, given: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text\ngood\n")
    command = [sys.executable, "-c", MAIN, "sentiment", "--url", url]
    shell = ["sh", "-c", f'exec "$@" --file {given} < a.csv >> a.csv', "sh", *command]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "client")))}
    done = subprocess.run(shell, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, file.read_text()) == (2, "text\ngood\n")
    assert "the output is the file that is read" in done.stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_bert_prints_no_control_characters_of_a_service(bert: Bert, form: list[str]) -> None:
    with serve() as echo:  # its label is the text
        code, output, _ = bert("sentiment", "a\x1b[2J\x9b\u202eb", "--url", echo.url, *form)
    assert (code, output.count("\\u001b[2J\\u009b\\u202eb")) == (0, 1)
    assert not set("\x1b\x9b\u202e") & set(output)


def test_bert_text_that_is_not_in_the_encoding_of_the_terminal_is_misuse(bert: Bert) -> None:
    code, _, complaint = bert("sentiment", "good", os.fsdecode(b"caf\xe9"))
    assert code == 2
    assert "text 2 is not in the encoding of this terminal (utf-8)" in complaint


def test_bert_json_lines_of_a_pipe_have_the_fields_of_the_first_rows(job: Job, tmp_path: Path) -> None:
    job.source = tmp_path / "pipe.jsonl"
    os.mkfifo(job.source)
    lines = '{"text": "good"}\n{"text": "bad", "stars": 5}\n'
    threading.Thread(target=job.source.write_text, args=(lines,)).start()
    assert job()[0] == 0
    assert [row["stars"] for row in job.rows()] == ["", "5"]


def test_bert_parquet_is_read_and_answered_as_json_lines(bert: Bert, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"text": "good", "when": datetime.date(2024, 1, 2)}, {"text": None, "when": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    code, output, _ = bert("sentiment", "--file", str(tmp_path / "a.parquet"))
    first, second = map(json.loads, output.splitlines())
    assert (code, first["label"], first["when"]) == (0, "POSITIVE", "2024-01-02")
    assert second["error"] == "the field 'text' is empty"
    rows = [{"text": b"good", "score": float("nan"), "mix": [float("inf")]}, {"text": b"\xff", "score": 1.5}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "bytes.parquet")
    _, output, _ = bert("sentiment", "--file", str(tmp_path / "bytes.parquet"), "--prefix", "our_")
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in output.splitlines())
    assert (first["text"], first["our_label"], first["score"], first["mix"]) == ("good", "POSITIVE", None, [None])
    assert (second["our_error"], second["score"]) == ("the field 'text' is not text", 1.5)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ('{"text": "good"}\n{"text": "bad"}\n', "JSON"),
        ("id\ttext\r\n1\tgood\r\n", "a table with the column 'text'"),
        ('"id","text"\n1,good\n', "a table with the column 'text'"),
        ("id;text;stars\n1;good;5\n", "a table with the column 'text'"),
        ('[{"text": "good"},\n {"text": "bad"}]\n', "JSON"),
        ('{\n  "text": "good"\n}\n', "JSON"),
    ],
)
def test_bert_lines_that_seem_to_be_a_table_are_refused(bert: Bert, tmp_path: Path, lines: str, what: str) -> None:
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "a.txt").write_text(lines, encoding=encoding)
        code, _, complaints = bert("sentiment", "--file", str(tmp_path / "a.txt"))
        assert (code, f"holds {what}; state its format, or lines to read each" in complaints) == (1, True), complaints
    code, output, _ = bert("sentiment", "--file", str(tmp_path / "a.txt"), "--format", "lines")
    assert (code, len(output.splitlines())) == (0, 1 + len(lines.splitlines()))


@pytest.mark.parametrize(
    ("source", "flags", "target", "delimiter"),
    [
        ("a.csv", (), "out.csv", ";"),
        ("a.csv", ("--delimiter", ";"), "out.csv.gz", ";"),
        ("a.csv", (), "out.tsv", "\t"),
        ("a.tsv", (), "out.csv", ","),
    ],
)
def test_bert_csv_output_has_the_delimiter_of_a_csv_input(
    bert: Bert, tmp_path: Path, source: str, flags: tuple[str, ...], target: str, delimiter: str
) -> None:
    job = Job(bert, tmp_path / source, tmp_path / target)
    job.source.write_text('id;text\n1;"a; b"\n2;c, d\n')
    assert job(*flags)[0] == 0
    rows = [list(row.items())[:3] for row in job.rows(delimiter)]
    texts = {"1": "a; b", "2": "c, d"}
    assert rows == [[("id", n), ("text", text), ("label", "POSITIVE")] for n, text in texts.items()]


def test_bert_semicolon_file_goes_on_and_sends_rows_again(job: Job, tmp_path: Path, pauses: list[float]) -> None:
    job.source = tmp_path / "a.csv"
    job.source.write_text("id;text\n" + "".join(f"{n};text {n}\n" for n in range(20)))
    with serve(broken_at("text 10")) as echo:
        command = ("--concurrency", "1", "--url", echo.url)
        assert job(*command)[0] == 1
        echo.refuse = lambda inputs: process_ended() if "text 12" in inputs and inputs[1:] else None
        code, complaints = job(*command)
    assert (code, "going on after 8 rows" in complaints, len(pauses)) == (0, True, 1)
    assert [row["label"] for row in job.rows(";")] == [f"text {n}" for n in range(20)]


def test_bert_all_labels_of_a_table_are_columns(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\ngood\n\n")
    command = ("sentiment", "--file", str(tmp_path / "a.csv"), "--all-labels", "--prefix", "our_")
    code, output, _ = bert(*command)
    header, good, empty = csv.reader(output.splitlines())
    assert (code, header[5:]) == (0, ["our_NEGATIVE", "our_POSITIVE"])
    assert good == ["good", "POSITIVE", "0.75", "false", "", "0.25", "0.75"]
    assert empty[4:] == ["the field 'text' is empty", "", ""]


def test_bert_all_labels_in_json_lines_are_an_object(score: Score) -> None:
    flags = ("--all-labels", "--prefix", "our_")
    code, (good, empty), _ = score("text\ngood\n\n", *flags, name="a.csv", task="classify")
    assert (code, list(good)) == (0, ["text", "our_label", "our_score", "our_truncated", "our_error", "our_scores"])
    assert (good["our_label"], good["our_scores"]) == ("POSITIVE", {"POSITIVE": 0.75, "NEGATIVE": 0.25})
    assert empty["our_scores"] is None


def test_bert_label_with_the_name_of_a_column_gets_another(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nerror\n")
    with serve() as echo:
        echo.models = [{"name": "m", "tasks": ["sentiment"], "labels": ["text", "error"]}]
        _, output, _ = bert("sentiment", "--file", str(tmp_path / "a.csv"), "--all-labels", "--url", echo.url)
    assert list(csv.reader(output.splitlines())) == [
        ["text", "label", "score", "truncated", "error", "predicted_text", "predicted_error"],
        ["error", "error", "1", "false", "", "", "1"],
    ]


def test_bert_all_labels_of_a_service_that_does_not_tell_them_are_refused(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\ngood\n")
    command = ("sentiment", "--file", str(tmp_path / "a.csv"), "--all-labels")
    with serve() as echo:
        code, _, complaint = bert(*command, "--url", echo.url)
        assert (code, complaint) == (
            1,
            "bert: /info does not tell the labels, which become columns; write JSON lines (--json)\n",
        )
        code, output, _ = bert(*command, "--json", "--url", echo.url)
    assert (code, json.loads(output)["scores"]) == (0, {"good": 1})


@pytest.mark.parametrize(("flags", "notices"), [((), 1), (("--all-labels",), 0)])
def test_bert_file_says_that_labels_of_a_multi_label_model_are_left_out(
    job: Job, flags: tuple[str, ...], notices: int
) -> None:
    job.number_texts(2)
    model = {"name": "m", "tasks": ["sentiment"], "labels": ["A"], "problem_type": "multi_label_classification"}
    with serve() as echo:
        echo.models = [model]
        code, complaints = job("--url", echo.url, *flags, task="classify")
    assert (code, complaints.count("only the best is written; --all-labels writes all")) == (0, notices)


@pytest.mark.parametrize(("task", "is_named"), [("sentiment", True), ("fill-mask", False)])
def test_bert_top_k_with_a_file_names_all_labels(bert: Bert, task: str, is_named: bool) -> None:
    code, _, complaint = bert(task, "--file", "a.csv", "--top-k", "2")
    assert (code, "for the scores of all labels, give --all-labels" in complaint) == (2, is_named)


def test_bert_several_files_and_folders_become_files_of_a_folder(bert: Bert, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    (data / "sub").mkdir(parents=True)
    (data / "a.csv").write_text("text\ngood\n")
    (data / "sub" / "a.jsonl").write_text('{"text": "good"}\n')
    (tmp_path / "b.txt").write_text("good\n")
    command = ("sentiment", "--file", str(tmp_path / "b.txt"), str(data), "--output", str(out))
    code, output, complaints = bert(*command)
    assert (code, output) == (0, "")
    assert complaints.count("1 rows, 0 with an error") == 3
    assert {str(file.relative_to(out)): file.read_text() for file in out.rglob("*.*")} == {
        "a.csv": "text,label,score,truncated,error\ngood,POSITIVE,0.75,false,\n",
        "b.tsv": "text\tlabel\tscore\ttruncated\terror\ngood\tPOSITIVE\t0.75\tfalse\t\n",
        "sub/a.jsonl": '{"text": "good", "label": "POSITIVE", "score": 0.75, "truncated": false, "error": null}\n',
    }


def test_bert_file_of_several_that_cannot_be_read_leaves_the_others(bert: Bert, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for file, content in zip(files, ("text\ngood\n", "body\n", "text\ngood\n"), strict=True):
        file.write_text(content)
    command = ("sentiment", "--file", *map(str, files), "--output", str(tmp_path / "out"))
    code, _, complaints = bert(*command)
    assert (code, f"bert: {files[1]}: it has no column 'text'" in complaints) == (1, True)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a.csv", "c.csv"]
    files[1].write_text("text\ngood\n")
    code, _, complaints = bert(*command)
    assert (code, complaints.count("rows/s"), complaints.count("skipped, because")) == (0, 1, 2)
    assert f"{files[0]}: skipped, because {tmp_path}/out/a.csv exists\n" in complaints
    code, _, complaints = bert(*command, "--overwrite")
    assert (code, complaints.count("rows/s")) == (0, 3)


def test_bert_files_with_the_same_output_are_refused(bert: Bert, tmp_path: Path) -> None:
    files = [str(tmp_path / folder / "a.csv") for folder in ("x", "y")]
    code, _, complaint = bert("sentiment", "--file", files[0], "--file", files[1], "--output", str(tmp_path / "out"))
    assert (code, f"have the same output {tmp_path}/out/a.csv: rename one of them" in complaint) == (2, True)
    assert not (tmp_path / "out").exists()


def test_bert_job_of_several_files_goes_on_where_it_stopped(bert: Bert, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    for file in files:
        file.write_text("".join(f"{file.stem} {n}\n" for n in range(20)))
    command = ("sentiment", "--file", *map(str, files), "--output", f"{tmp_path}/out/", "--concurrency", "1")
    with serve(broken_at("b 10")) as echo:
        assert bert(*command, "--url", echo.url)[0] == 1
        echo.refuse = lambda _: None
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "b.tsv.partial: going on after 8 rows" in complaints) == (0, True)
    assert [len((tmp_path / "out" / name).read_text().splitlines()) for name in ("a.tsv", "b.tsv")] == [21, 21]


def test_bert_masks_of_a_file_are_filled(job: Job, tmp_path: Path) -> None:
    job.source = tmp_path / "a.tsv"
    job.source.write_text("text\nthe [MASK] was [MASK]\nno mask\n")
    job("--targets", "film", task="fill-mask")
    first, second = job.rows()
    assert (first["words"], first["scores"]) == ("film film", "0.5 0.5")
    assert "no [MASK]" in second["error"]


@pytest.mark.parametrize("url", [{"api_keys": "secret"}], indirect=True)
def test_bert_without_a_key_says_how_to_give_one(bert: Bert) -> None:
    code, _, complaint = bert("sentiment", "good")
    assert code == 1
    assert complaint.endswith("(401 unauthorized); check --api-key or BERT_API_KEY\n")


def test_bert_exit_codes(bert: Bert, tmp_path: Path) -> None:
    code, _, complaint = bert("sentiment", "")
    assert (code, complaint) == (1, "bert: the text is empty (422 empty_text)\n")
    code, output, complaint = bert("sentiment", "good", "", "bad")
    assert (code, complaint) == (1, "bert: text 2: the text is empty (422 empty_text)\n")
    assert [line for line in output.splitlines() if line in ("good", "bad")] == ["good", "bad"]
    code, _, complaint = bert("sentiment", "good", "--url", "http://user:secret@127.0.0.1:9")
    assert code == 3
    assert complaint.startswith("bert: http://127.0.0.1:9: ")
    assert bert("sentiment", "--file", str(tmp_path / "nowhere.csv"))[0] == 1
    for misuse in (
        [],
        ["--json", "--file", "a.csv", "--output", "a.csv.bz2"],
        ["good", "--file", "a.csv"],
        ["good", "--output", "a.csv"],
        ["good", "--all-labels"],
        ["--format", "xml"],
    ):
        assert bert("sentiment", *misuse)[0] == 2
    assert bert("next-sentence", "--file", "pairs.txt")[0] == 2
    code, _, complaint = bert("fill-mask", "--targets", "good", "bad", "It was [MASK].")
    assert code == 2
    assert "give the text before it" in complaint


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--url", "http://localhost:80x"), "'http://localhost:80x' is not an address of a service: Invalid port: "),
        (("--url", "http://user:secret@a..b"), "'http://a..b' is not an address of a service: "),
        (("--url", "http://localhost:73950"), "'http://localhost:73950' is not an address of a service: a port is a"),
        (("--url", "localhost:80"), "'localhost:80' is not an address of a service; it must begin with http://"),
        (("--api-key", "a\nb"), "the API key has characters that are not printable"),
        (("--concurrency", "0"), "concurrency is 0: give 1 or more"),
        (("--timeout", "0"), "timeout is 0.0: give seconds"),
        (("--timeout", "nan"), "timeout is nan: give seconds"),
        (("--timeout", "inf"), "timeout is inf: give seconds"),
    ],
)
def test_bert_impossible_argument_is_misuse(bert: Bert, arguments: tuple[str, str], complaint: str) -> None:
    code, output, complaints = bert("sentiment", "good", *arguments)
    assert (code, output) == (2, "")
    assert complaints.splitlines()[-1].startswith(f"bert: error: {complaint}")


@pytest.fixture
def holding() -> Iterator[Holding]:
    entered, gate = threading.Event(), threading.Event()

    def hold(inputs: list[str]) -> tuple[int, str] | None:
        if inputs != ["hold"]:
            return None
        entered.set()
        gate.wait(2 * PATIENCE)
        return CUT

    with serve(hold) as echo:
        echo.limits["max_client_batch"] = 1
        yield Holding(echo.url, entered, gate)
        gate.set()


_INTERRUPTIBLE = """
import signal
import socket
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and under nohup this one
from bert_client.command.main import main
main()
"""


def until_it_waits(holding: Holding, process: subprocess.Popen[Any]) -> None:
    """Until the service holds a request, and no thread of the client has run between two looks.

    Before that, its main thread may be in `Thread.start`, where a signal can end as a RuntimeError of Python's own.
    """
    assert holding.entered.wait(PATIENCE)
    until, before = time.monotonic() + PATIENCE, None
    while (now := threads_of(process)) != before or any(state != "S" for state, _ in now):
        assert time.monotonic() < until
        before = now
        time.sleep(0.02)


def threads_of(process: subprocess.Popen[Any]) -> list[tuple[str, str]]:
    """The state of each thread, and how often it has waited, as Linux tells."""
    found = []
    for status in sorted(Path(f"/proc/{process.pid}/task").glob("*/status")):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            values = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
            found.append((values["State"][0], values["voluntary_ctxt_switches"]))
    return found


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_bert_signal_leaves_no_half_file(holding: Holding, tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "texts.txt").write_text("hold\n")
    files = ("--file", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "scored.tsv"))
    with started(holding.url, *files) as process:
        until_it_waits(holding, process)
        process.send_signal(end)
        assert process.wait(PATIENCE) == 130
    assert [file.name for file in tmp_path.iterdir()] == ["texts.txt"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_bert_answers_before_a_signal_are_printed(holding: Holding, tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "texts.txt").write_text("good\n" * 3 + "hold\n")
    command = ("--concurrency", "1", "--file", str(tmp_path / "texts.txt"))
    with started(holding.url, *command, stdout=subprocess.PIPE) as process:
        until_it_waits(holding, process)
        process.send_signal(end)
        assert process.communicate(timeout=PATIENCE)[0].count("good\tgood") == 3
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "line"), [([], "{}"), (["--format", "jsonl"], '{{"text": "{}"}}'), (["--json"], "{}")]
)
def test_bert_rows_of_a_pipe_are_answered_when_it_pauses(arguments: list[str], line: str) -> None:
    with serve() as echo, started(echo.url, "--file", "-", *arguments, **PIPES) as process:
        if not arguments:
            write_line(process, "first")
            assert read_line(process).startswith("text\tlabel")
            assert read_line(process).startswith("first\tfirst\t1")
        for texts in (["one"], ["two", "three"], [""], ["four"]):
            for text in texts:
                write_line(process, line.format(text))
            for text in texts:  # the pipe is open, and each request has room for five more rows
                assert text in read_line(process)
        process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("given", [[], ["good"]])
def test_bert_interrupt_while_it_waits_for_a_pipe_ends_it(given: list[str]) -> None:
    with serve() as echo, started(echo.url, "--file", "-", **PIPES) as process:
        write_line(process, "first")
        assert read_line(process).startswith("text")
        assert read_line(process).startswith("first")
        for text in given:
            write_line(process, text)
            assert read_line(process).startswith(text)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130  # while the pipe is open


def test_bert_file_is_sent_in_full_requests(tmp_path: Path, bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_job, "MAX_WAIT_SECONDS", PATIENCE)  # on a busy machine, the reader may wait
    (tmp_path / "texts.txt").write_text("good\n" * 1000)
    with serve() as echo:
        code, out, _ = bert("--url", echo.url, "sentiment", "--file", str(tmp_path / "texts.txt"))
    assert (code, out.count("good\tgood")) == (0, 1000)
    assert echo.paths.count("/sentiment") == 1000 / echo.limits["max_client_batch"]


def test_read_ahead_raises_the_error_of_the_rows_after_them() -> None:
    def rows() -> Iterator[Row]:
        yield Row(1, {})
        raise MemoryError

    ahead = read_ahead(rows())
    assert next(ahead)
    with pytest.raises(MemoryError):
        list(ahead)


def test_read_ahead_that_is_left_ends_its_thread() -> None:
    ahead = read_ahead(Row(n, {}) for n in itertools.count())
    assert next(ahead)
    (reader,) = (thread for thread in threading.enumerate() if thread.name == "bert-reader")
    ahead.close()  # type: ignore[attr-defined]
    reader.join(PATIENCE)
    assert not reader.is_alive()


def test_bert_signal_while_a_thread_starts_is_an_interrupt(
    bert: Bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()  # as `threading.Condition.wait` may do then

    (tmp_path / "texts.txt").write_text("good\n")
    monkeypatch.setattr(threading.Thread, "start", start)
    assert bert("sentiment", "--file", str(tmp_path / "texts.txt"))[0] == 130


def test_client_interrupt_does_not_wait_for_answers(holding: Holding) -> None:
    program = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from bert_client import BertClient
BertClient(sys.argv[1], timeout=float(sys.argv[2])).sentiment(["hold"] * 3000)
"""
    command = [sys.executable, "-c", program, holding.url, str(TIMEOUT)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            until_it_waits(holding, process)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=PATIENCE)[1].splitlines()[-1] == "KeyboardInterrupt"
        finally:
            process.kill()


@pytest.mark.parametrize(("end", "code"), [("interrupt", 130), ("broken pipe", 1)])
def test_bert_does_not_wait_for_answers_when_it_ends_early(
    holding: Holding, tmp_path: Path, end: str, code: int
) -> None:
    # The first row fills the pipe while the third is on its way, and the second finds it broken.
    rows = [{"text": text, "more": "x" * 100_000} for text in ("good", "good", "hold", "good")]
    (tmp_path / "texts.jsonl").write_text(json_lines(*rows))
    command = ("--concurrency", "3", "--file", str(tmp_path / "texts.jsonl"))
    reader, writer = os.pipe()
    stdout = subprocess.DEVNULL if end == "interrupt" else writer
    with started(holding.url, *command, stdout=stdout, stderr=subprocess.PIPE) as process:
        os.close(writer)
        try:
            until_it_waits(holding, process)
        finally:
            os.close(reader)
        if end == "interrupt":
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == code
        assert process.communicate()[1] == ""


def test_bert_goes_on_after_a_kill(holding: Holding, job: Job) -> None:
    """Killed (-9) while the last rows are on their way, and given again, with another address."""
    job.source.write_text("good\n" * 20 + "hold\n" + "good\n" * 5)
    setup = "from bert_client.command import output; output.SAVE_SECONDS = -1"
    files = ("--file", str(job.source), "--output", str(job.target))
    with started(holding.url, *files, "--concurrency", "1", setup=setup):
        assert holding.entered.wait(PATIENCE)
        assert '"rows": 20' in Path(f"{job.target}.partial.json").read_text()
        assert not job.target.exists()
    kept = Path(f"{job.target}.partial").read_text().splitlines()
    assert kept == ["text,label,score,truncated,error", *["good,good,1,false,"] * 20]
    code, complaints = job()
    assert (code, complaints.splitlines()[0]) == (0, f"{job.target}.partial: going on after 20 rows")
    assert job.target.read_text().splitlines()[:21] == kept
    assert job.answers()[20:] == [("hold", "POSITIVE", ""), *[("good", "POSITIVE", "")] * 5]


def test_bert_file_without_rows_gives_a_header(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\n")
    code, output, _ = bert("sentiment", "--file", str(tmp_path / "reviews.csv"))
    assert (code, output) == (0, "text,label,predicted_label,score,truncated,error\n")


def test_bert_proxy_that_cannot_be_used_is_named(bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    assert bert("sentiment", "good")[0] == 0  # a loopback address has no proxy
    code, _, complaint = bert("sentiment", "good", "--url", "http://bert.example")
    assert code == 3
    assert complaint.startswith("bert: http://bert.example: the proxy in ALL_PROXY cannot be used: ")


def test_bert_rows_that_are_broken_cost_no_request(job: Job, tmp_path: Path) -> None:
    job.source = tmp_path / "a.csv"
    job.source.write_text("id,text\n" + "1,good\n2\n3,bad\n" * 10)
    with serve() as echo:
        code, complaints = job("--url", echo.url)
    assert (code, complaints.partition(" error")[0]) == (0, "30 rows, 10 with an")
    assert [row["label"] for row in job.rows()] == ["good", "", "bad"] * 10
    assert len(echo.paths) == 1 + 4  # /info, and 30 rows in requests of 8


def test_bert_file_of_invalid_rows_costs_few_requests(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_job, "MAX_WAIT_SECONDS", PATIENCE)  # on a busy machine, the reader may wait
    texts = job.number_texts(3000)
    with serve(lambda inputs: invalid_inputs({i: f"{one}: no mask" for i, one in enumerate(inputs)})) as echo:
        echo.limits |= {"max_client_batch": 512, "max_batch_tokens": 65536, "max_queue_tokens": 1_000_000}
        code, complaints = job("--url", echo.url)
    assert (code, complaints.partition(" error")[0]) == (1, "3,000 rows, 3,000 with an")
    assert [row["error"] for row in job.rows()] == [f"{text}: no mask" for text in texts]
    assert len(echo.paths) == 1 + 5 * 6 + 5  # /info; five requests of 512 texts, and one of 440


def test_bert_job_through_a_gateway_that_misbehaves_has_all_answers(job: Job) -> None:
    """The gateway spoils the first answer to each request, and always refuses three texts and cuts off one."""
    html = "<html>log in</html>"
    ways = [(200, html), (200, '{"model": "m", "resu'), (200, ""), (302, html), (403, html), (413, html), (429, "")]
    ways += [(500, html), (501, html), (502, html), (503, html), (504, html), (599, ""), CUT]
    refused: dict[str, Any] = {
        "text 50": (403, html),
        "text 111": (302, html),
        "text 222": CUT,
        "text 299": (200, html),
    }
    seen: dict[str, Any] = {}

    def spoil(inputs: list[str]) -> Any:
        if always := next((refused[one] for one in inputs if one in refused), None):
            return always
        if (key := "|".join(inputs)) in seen:
            return None
        seen[key] = ways[len(seen) % len(ways)]
        return seen[key]

    texts = job.number_texts(300)
    with serve(spoil) as echo:
        code, complaints = job("--url", echo.url)
    assert (code, complaints.partition(" error")[0]) == (0, "300 rows, 4 with an")
    assert set(seen.values()) == set(ways)
    answers = job.answers()
    assert [(text, label) for text, label, _ in answers] == [(one, "" if one in refused else one) for one in texts]
    errors = [error for _, _, error in answers if error]
    reset = errors.pop(2)
    assert reset.startswith(f"{echo.url}: Server disconnected without sending a response.")
    url = f"{echo.url}/sentiment: responded"
    assert errors == [f"{url} {status}, not as bert-service: '{html}'" for status in (403, 302, 200)]


@pytest.mark.parametrize("refusal", [200, 404, 501])
def test_bert_job_at_a_wrong_address_ends_soon_and_shows_the_answer(job: Job, tmp_path: Path, refusal: int) -> None:
    job.number_texts(200)
    with serve(lambda _: refusal) as echo:
        echo.hides_info = True
        code, complaint = job("--url", echo.url)
    assert code == 1
    shown = f"/sentiment: responded {refusal}, not as bert-service: '<html>refused</html>' ({refusal} "
    assert (shown if refusal != 404 else f"there is no bert-service at {echo.url}, because ") in complaint
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def stop_job(job: Job) -> list[str]:
    """Answer the first 56 of 100 rows of a new file, and return their texts."""
    texts = job.number_texts(100)
    with serve(broken_at("text 60")) as echo:
        code, complaints = job("--concurrency", "1", "--overwrite", "--url", echo.url)
    assert (code, "56 rows are kept in" in complaints) == (1, True)
    return texts


@pytest.mark.parametrize(
    ("change", "flags", "fault"),
    [
        ("input", (), "its 56 rows are not those that the input begins with"),
        ("options", ("--truncate",), "has 56 rows of a command with another truncate (False, now True)"),
        ("columns", ("--prefix", "our_"), "has 56 rows of a command with another prefix ('', now 'our_')"),
        ("note", (), "is not a partial file of this command"),
    ],
)
def test_bert_overwrite_replaces_a_stale_partial_file_and_an_old_output(
    job: Job, tmp_path: Path, change: str, flags: tuple[str, ...], fault: str
) -> None:
    job.target.write_text("old\n")
    texts = stop_job(job)
    if change == "input":
        texts = ["new"] * 3
        job.source.write_text("\n".join(texts))
    if change == "note":
        Path(f"{job.target}.partial.json").unlink()
    with serve() as echo:
        command = (*flags, "--url", echo.url)
        assert job(*command) == (1, f"bert: {job.target}: exists already; give --overwrite to replace it\n")
        assert echo.paths == []
        job.target.unlink()
        code, complaints = job(*command)
        assert (code, "are kept in" in complaints) == (1, False)
        assert complaints.endswith(f"bert: {job.target}.partial: {fault}; give --overwrite to begin again\n")
        assert "/sentiment" not in echo.paths
        code, complaints = job(*command, "--overwrite")
    assert (code, f"{job.target}.partial: {fault}; beginning again\n" in complaints) == (0, True)
    assert [row["text"] for row in job.rows()] == texts
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "scored.csv"]


def test_bert_another_model_does_not_go_on_with_a_partial_file(job: Job) -> None:
    texts = job.number_texts(20)
    with serve(broken_at("text 10")) as echo:
        command = ("--concurrency", "1", "--url", echo.url)
        echo.models = [{"name": "old", "tasks": ["sentiment"], "sha256": "a" * 64}]
        assert job(*command, task="classify")[0] == 1
        echo.models = [{"name": "new", "tasks": ["sentiment"], "sha256": "b" * 64}]
        code, complaints = job(*command, task="classify")
        model = f"another model ('old', sha256 {'a' * 12}; now 'new', {'b' * 12})"
        fault = f"{job.target}.partial: has 8 rows of {model}"
        assert (code, complaints.splitlines()[-1]) == (1, f"bert: {fault}; give --overwrite to begin again")
        echo.refuse = lambda _: None
        code, complaints = job(*command, "--overwrite", task="classify")
    assert (code, f"{fault}; beginning again" in complaints) == (0, True)
    assert job.answers() == [(text, text, "") for text in texts]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "a"),
        ("a", None),
        ("a", "a"),
    ],
    ids=["older note", "older service", "same model"],
)
def test_bert_goes_on_if_the_model_is_the_same_or_unknown(job: Job, before: str | None, after: str | None) -> None:
    job.number_texts(20)
    with serve(broken_at("text 10")) as echo:
        command = ("--concurrency", "1", "--url", echo.url)
        echo.models = [{"name": "m", "tasks": ["sentiment"], "sha256": before}]
        assert job(*command)[0] == 1
        echo.models = [{"name": "m", "tasks": ["sentiment"], "sha256": after}] if after else []
        echo.refuse = lambda _: None
        code, complaints = job(*command)
    assert (code, "going on after 8 rows" in complaints) == (0, True)


@pytest.mark.parametrize("flags", [(), ("--overwrite",)])
def test_bert_goes_on_with_a_partial_file_that_fits(job: Job, flags: tuple[str, ...]) -> None:
    texts = stop_job(job)
    with serve() as echo:
        code, complaints = job(*flags, "--url", echo.url)
    assert (code, f"{job.target}.partial: going on after 56 rows" in complaints) == (0, True)
    assert len(echo.paths) == 1 + 6
    assert job.answers() == [(text, text, "") for text in texts]


def test_bert_overwrite_begins_again_with_a_pipe(job: Job, tmp_path: Path) -> None:
    stop_job(job)
    content, job.source = job.source.read_bytes(), tmp_path / "pipe.txt"
    os.mkfifo(job.source)
    threading.Thread(target=job.source.write_bytes, args=(content,)).start()
    with serve() as echo:
        code, complaints = job("--overwrite", "--url", echo.url)
    assert (code, complaints.partition(",")[0]) == (0, "100 rows")
    assert len(job.rows()) == 100


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before rows that are sent again, none of which is waited for."""
    found: list[float] = []
    monkeypatch.setattr(file_job, "sleep", found.append)
    return found


@pytest.mark.parametrize("name", ["scored.csv", "scored.csv.gz", "scored.jsonl"])
def test_bert_rows_whose_request_ended_the_process_are_sent_again_one_by_one(
    job: Job, tmp_path: Path, pauses: list[float], name: str
) -> None:
    job.target = tmp_path / name
    texts = [f"text {n}" for n in range(30)]
    texts[11] = "poison"
    texts[20] = ""
    job.source.write_text("\n".join(texts))
    with serve(lambda inputs: process_ended() if "poison" in inputs else None) as echo:
        code, complaints = job("--url", echo.url)
    assert code == 0
    assert complaints.splitlines()[:2] == [
        "sending again, one by one, the rows whose request ended the inference process",
        "7 of 8 such rows have an answer now",
    ]
    assert complaints.splitlines()[2].startswith("30 rows, 2 with an error")
    expected = [(text, text, "") for text in texts]
    expected[11] = ("poison", "", PROCESS_ENDED)
    expected[20] = ("", "", "the field 'text' is empty")
    assert job.answers() == expected
    assert len(echo.paths) == 1 + 4 + 8  # /info, 30 rows in requests of 8, and 8 rows one by one
    assert pauses == [file_job.RESEND_PAUSE_SECONDS] * 2
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["a.txt", name])


def test_bert_pairs_whose_request_ended_the_process_are_sent_again_as_they_were(
    job: Job, tmp_path: Path, pauses: list[float]
) -> None:
    job.source = tmp_path / "a.csv"
    job.source.write_text('text,body,error\n"a, ""b""\nc",d,own\n,e,own\n')
    with serve(lambda inputs: process_ended() if len(inputs) > 1 else None) as echo:
        assert job("--pair-column", "body", "--url", echo.url)[0] == 0
    assert [(row["label"], row["error"], row["predicted_error"]) for row in job.rows()] == [
        ('a, "b"\nc|d', "own", ""),
        ("e", "own", ""),
    ]
    assert len(pauses) == 1


def test_bert_job_that_is_interrupted_while_it_sends_rows_again_does_so_when_it_goes_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = job.number_texts(20)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with serve(lambda inputs: process_ended() if "text 3" in inputs and inputs[1:] else None) as echo:
        monkeypatch.setattr(file_job, "sleep", interrupt)
        code, complaints = job("--url", echo.url)
        assert (code, "20 rows are kept in" in complaints) == (130, True)
        monkeypatch.setattr(file_job, "sleep", lambda _: None)
        code, complaints = job("--url", echo.url)
    assert (code, "8 of 8 such rows have an answer now" in complaints) == (0, True)
    assert job.answers() == [(text, text, "") for text in texts]


def test_bert_sends_no_more_rows_again_after_three_that_ended_the_process(job: Job, pauses: list[float]) -> None:
    job.number_texts(16)
    with serve(lambda inputs: process_ended() if {"text 8", "text 9", "text 10"} & {*inputs} else None) as echo:
        code, complaints = job("--url", echo.url)
    assert (code, len(echo.paths)) == (0, 1 + 2 + 3)
    assert "0 of 8 such rows have an answer now; stopped: 3 consecutive rows ended the process again" in complaints
    assert [row["error"] for row in job.rows()] == [""] * 8 + [PROCESS_ENDED] * 8
    assert len(pauses) == 3


def test_bert_rows_keep_their_error_if_the_service_is_away_when_they_are_sent_again(
    job: Job, pauses: list[float]
) -> None:
    job.number_texts(16)
    broken = problem_document(500, "internal_error", "broken", {})

    def refuse(inputs: list[str]) -> dict[str, object] | None:
        if "text 8" in inputs:
            return process_ended()
        return broken if len(inputs) == 1 else None

    with serve(refuse) as echo:
        code, complaints = job("--url", echo.url)
    assert (code, len(echo.paths)) == (0, 1 + 2 + 2)
    assert "0 of 8 such rows have an answer now; stopped: 'broken (500" in complaints
    assert [row["error"] for row in job.rows()] == [""] * 8 + [PROCESS_ENDED] * 8


def test_bert_rows_on_standard_output_keep_the_error_of_a_process_that_ended(score: Score) -> None:
    with serve(lambda _: process_ended()) as echo:
        code, rows, _ = score("poison\n", "--url", echo.url, name="a.txt")
    assert (code, labels_and_errors(rows)) == (1, [(None, PROCESS_ENDED)])
    assert len(echo.paths) == 2


def test_bert_columns_that_an_earlier_run_left_out_are_named(job: Job, tmp_path: Path) -> None:
    job.source = tmp_path / "a.jsonl"
    rows = [{"text": f"text {n}", **({"late": 1} if n == 105 else {})} for n in range(130)]
    job.source.write_text(json_lines(*rows))
    with serve(broken_at("text 120")) as echo:
        command = ("--concurrency", "1", "--url", echo.url)
        assert job(*command)[0] == 1
        echo.refuse = lambda _: None
        code, complaints = job(*command)
    assert (code, "going on after 120 rows" in complaints) == (0, True)
    assert "not written, as the first rows have no such column: 'late'" in complaints
