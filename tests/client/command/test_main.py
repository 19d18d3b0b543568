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
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bert_client.command import file_job
from bert_client.command.file_job import FIRST_ROWS, PROCESS_ENDED, read_ahead
from bert_client.command.main import run
from bert_tables import Row
from tests.client.echo import CUT, invalid_inputs, problem_document, process_ended, serve, serve_tls
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
Bert = Callable[..., tuple[int, str, str]]
PATIENCE = 120  # seconds; other jobs may hold the processor
TIMEOUT = 600
"""Seconds that a client waits for an answer: longer than a test waits for the client."""

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


class Holding(ThreadingHTTPServer):
    """Takes one input at once, and answers the text "hold" when the gate is open."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        super().__init__(("127.0.0.1", 0), HoldingRequest)


class HoldingRequest(BaseHTTPRequestHandler):
    server: Holding

    def do_GET(self) -> None:
        sizes = dict.fromkeys(("max_batch_tokens", "max_queue_tokens", "max_body_bytes"), 100_000)
        self.answer({"status": "ready", "limits": sizes | {"max_client_batch": 1, "request_timeout_ms": 30_000}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["inputs"] == ["hold"]:
            self.server.entered.set()
            self.server.gate.wait(2 * PATIENCE)
            return
        result = {"predictions": [{"label": "A", "score": 1}], "tokens": 3, "truncated": False}
        self.answer({"model": "m", "results": [result]})

    def answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *arguments: object) -> None:
        pass


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


def light(program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in an interpreter that has httpx only."""
    command = [sys.executable, "-W", "error", "-c", LIGHT + program, *arguments]
    return subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=120, check=False)


def buffered() -> dict[str, str]:
    """The environment of a command whose standard output is buffered."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_bert_file_waits_for_an_absent_service_and_says_so() -> None:
    port = free_port()
    host = f"127.0.0.1:{port}"
    program = "from bert_client.command.main import main; main()"
    command = [sys.executable, "-c", program, "sentiment", "--file", "-", "--url", f"http://user:secret@{host}"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("hello\n")
        process.stdin.close()
        try:
            assert process.stderr.readline() == f"http://{host} is busy or away; trying again for 10 minutes\n"
            with serve(port=port):
                assert process.stdout.read().endswith("\nhello\thello\t1\tfalse\t\n")
                assert process.wait(timeout=120) == 0
        finally:
            process.kill()


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
    done = light(
        "from bert_client.command.main import main; main()",
        "sentiment",
        "--url",
        url,
        "--file",
        "-",
        given="good\n\nbad\n",
    )
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
    program = "from bert_client.command.main import main; main()"
    command = [sys.executable, "-c", program, "fill-mask", "the [MASK] 映画", "--url", url, *json_flag]
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
    command = [sys.executable, "-c", "from bert_client.command.main import main; main()", "sentiment", *arguments]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command, "--url", url]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert complaint in done.stderr
    assert output in done.stdout


def test_bert_answers_before_an_error_are_printed(url: str, tmp_path: Path) -> None:
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"good\n" * 9)[:-9])
    program = "from bert_client.command.main import main; main()"
    for arguments in (["good", ""], ["--file", str(tmp_path / "cut.txt.gz")]):
        command = [sys.executable, "-c", program, "sentiment", "--url", url, *arguments]
        done = subprocess.run(command, env=buffered(), capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, "POSITIVE" in done.stdout) == (1, True), done.stderr
    assert done.stdout.count("POSITIVE") == 9


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


def test_bert_tells_of_texts_that_are_mostly_unknown(bert: Bert, tmp_path: Path) -> None:
    code, output, _ = bert("sentiment", "映画")
    assert (code, output.splitlines()[0]) == (0, "mostly [UNK]: the answer says little about it")
    (tmp_path / "texts.txt").write_text("映画\ngood\n")
    *_, last = bert("sentiment", "--file", str(tmp_path / "texts.txt"))[2].splitlines()
    assert last == "1 rows are mostly [UNK]: their answers say little about them"


@pytest.mark.parametrize("url", [{"max_client_batch": 3, "api_keys": "secret"}], indirect=True)
def test_bert_file_is_answered_row_by_row(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "reviews.csv", tmp_path / "scored.csv"
    long = "a " * 100
    source.write_text(f'id,review,label\n1,good,1\n2,,0\n3,{long},1\n4,"b ""c"",\nd",0\n5,x,y,z\n6,bad,0\n')
    command = ("sentiment", "--file", str(source), "--column", "review", "--output", str(target))
    code, output, complaints = bert(*command, BERT_API_KEY="secret")
    assert (code, output) == (0, "")
    assert complaints.startswith("6 rows, 3 with an error")
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [row["id"] for row in rows] == list("123456")
    assert [row["label"] for row in rows] == ["1", "0", "1", "0", "y", "0"]  # the file's own
    assert [row["predicted_label"] for row in rows] == ["POSITIVE", "", "", "POSITIVE", "", "POSITIVE"]
    assert [row["error"].split(",")[0] for row in rows] == [
        *("", "the field 'review' is empty", "the input has 102 tokens", ""),
        *("the row has 4 cells", ""),
    ]
    assert rows[3]["review"] == 'b "c",\nd'


def test_bert_last_lines_say_why_rows_failed_and_which_option_helps(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a " * 100 + "\n" + "a " * 200 + "\n\ngood\n")
    code, _, complaints = bert("sentiment", "--file", str(tmp_path / "texts.txt"))
    summary, long, empty = complaints.splitlines()
    assert (code, summary.partition(" error")[0]) == (0, "4 rows, 3 with an")
    assert long.startswith("  2 such as: the input has 102 tokens")
    assert long.endswith("; shorten it or give --truncate")
    assert empty == "  1 such as: the field 'text' is empty"


def test_bert_job_in_which_every_row_failed_ends_with_1(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "texts.txt", tmp_path / "scored.csv"
    command = ("sentiment", "--file", str(source), "--output", str(target), "--overwrite")
    for content, expected in (("\n\n", 1), ("\ngood\n", 0), ("", 0)):
        source.write_text(content)
        assert bert(*command)[0] == expected


def test_bert_exit_code_counts_the_rows_of_earlier_runs(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    stop_job(bert, source, target)
    with serve(lambda inputs: invalid_inputs(dict.fromkeys(range(len(inputs)), "no mask"))) as echo:
        code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target), "--url", echo.url)
    assert (code, "100 rows, 44 with an error" in complaints) == (0, True)


def test_bert_headers_are_sent_with_every_request(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good\n" * 20)
    with serve() as echo:
        files = ("--file", str(tmp_path / "a.txt"), "--output", str(tmp_path / "scored.csv"))
        headers = ("sentiment", "--header", "X-Key: s3cret:é", "--header", "Accept-Language:")
        assert bert("--header", "x-tenant:blue", *headers, *files, "--url", echo.url)[0] == 0
    for sent in echo.headers:
        given = sent["X-Tenant"], sent["X-Key"].encode("latin-1").decode(), sent["Accept-Language"]
        assert given == ("blue", "s3cret:é", "")
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


def test_bert_truncate_cuts_long_texts(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a " * 100)
    _, output, _ = bert("sentiment", "--file", str(tmp_path / "texts.txt"), "--truncate", "--json")
    row = json.loads(output)
    assert (row["label"], row["truncated"], row["error"]) == ("POSITIVE", True, None)


def test_bert_pairs_are_read_from_two_fields(bert: Bert, tmp_path: Path) -> None:
    lines = [{"text": "a", "text_pair": "b"}, {"text": "a"}, {"text": "a", "text_pair": 5}]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, output, _ = bert("next-sentence", "--file", str(tmp_path / "pairs.jsonl"))
    assert code == 0
    assert [(row["label"], row["error"]) for row in map(json.loads, output.splitlines())] == [
        ("NOT_NEXT", None),
        (None, "the field 'text_pair' is not there"),
        (None, "the field 'text_pair' is not text"),
    ]


def test_bert_review_without_a_title_or_a_body_is_one_text(bert: Bert, tmp_path: Path) -> None:
    source = tmp_path / "reviews.jsonl"
    reviews = [
        {"title": "a", "body": "b"},
        {"title": "", "body": "b"},
        {"title": "a", "body": None},
        {"body": "b"},
        {"title": " ", "body": ""},
        {"title": None},
        {"title": 5, "body": "b"},
    ]
    source.write_text("\n".join(map(json.dumps, reviews)))
    with serve() as echo:
        columns = ("--column", "title", "--pair-column", "body")
        _, output, _ = bert("sentiment", "--file", str(source), *columns, "--url", echo.url)
        answers = [(row["label"], row["error"]) for row in map(json.loads, output.splitlines())]
    assert answers == [
        ("a|b", None),
        ("b", None),
        ("a", None),
        ("b", None),
        (None, "the field 'title' is empty"),
        (None, "the field 'title' is empty"),
        (None, "the field 'title' is not text"),
    ]


def test_bert_missing_text_is_not_sent(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title,body\n\\N,good\n\\N,\\N\ngood, \nNA,-\n")
    (tmp_path / "a.jsonl").write_text('{"text": NaN}\n{"text": " \\\\N "}\n{"text": null}\n{"text": ""}\n')
    with serve() as echo:
        columns = ("--column", "title", "--pair-column", "body", "--json", "--url", echo.url)
        _, output, _ = bert("sentiment", "--file", str(tmp_path / "a.csv"), *columns)
        assert [(row["label"], row["error"]) for row in map(json.loads, output.splitlines())] == [
            ("good", None),
            (None, "the field 'title' is empty"),
            ("good", None),
            ("NA|-", None),  # these may be answers
        ]
        (tmp_path / "words.csv").write_text("text\nNULL\nnan\n#REF!\n#DIV/0!\nNULL\ngood\n")
        _, *notes = bert("sentiment", "--file", str(tmp_path / "words.csv"), "--url", echo.url)[2].splitlines()
        words = [note.split("; it is read as a text")[0] for note in notes]
        counts = {"NULL": 2, "nan": 1, "#REF!": 1, "#DIV/0!": 1}
        assert words == [f"{n} of 6 rows have {word!r} in the column 'text'" for word, n in counts.items()]
        code, output, _ = bert("sentiment", "--file", str(tmp_path / "a.jsonl"), "--url", echo.url)
        assert (code, echo.paths.count("/sentiment")) == (1, 2)
    assert {json.loads(line)["error"] for line in output.splitlines()} == {"the field 'text' is empty"}


def test_bert_list_of_tokens_is_a_text_and_names_of_fields_are_alike(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"Text": ["a", "good", "film"]}\n{"Text": ["Good film.", "Bad."]}\n{"Text": [1]}\n'
    )
    with serve() as echo:
        _, output, _ = bert("sentiment", "--file", str(tmp_path / "a.jsonl"), "--url", echo.url)
    answers = [(row["label"], row["error"]) for row in map(json.loads, output.splitlines())]
    assert answers == [("a good film", None), ("Good film.\nBad.", None), (None, "the field 'Text' is not text")]


def test_bert_column_that_is_not_read_decides_nothing(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfid,text,city,city\n1,good,M\xfcnchen,x\n2,bad,Rom,y\n")
    code, output, complaints = bert("sentiment", "--file", str(tmp_path / "a.csv"))
    header, *rows = csv.reader(io.StringIO(output))
    assert (code, header) == (0, ["\ufeffid", "text", "3", "4", "label", "score", "truncated", "error"])
    assert [(row[2], row[4], row[7]) for row in rows] == [("M\\udcfcnchen", "POSITIVE", ""), ("Rom", "POSITIVE", "")]
    assert "a.csv: several columns are called 'city'; here they are called 3, 4\n" in complaints
    assert "a.csv, line 2: in the column '3', byte 0xfc is not UTF-8" in complaints


def test_bert_lone_surrogate_costs_its_row_only(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "texts.jsonl", tmp_path / "scored.jsonl"
    source.write_text('{"text": "good"}\n{"text": "\\ud83d"}\n')
    for output in ("-", str(target)):
        code, printed, _ = bert("sentiment", "--file", str(source), "--output", output)
        assert code == 0
        good, half = map(json.loads, (printed or target.read_text()).splitlines())
        assert (good["label"], half["text"], half["label"]) == ("POSITIVE", "\ud83d", None)
        assert "half of a surrogate pair" in half["error"]


def test_bert_new_columns_are_those_of_the_first_rows(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "texts.jsonl", tmp_path / "scored.csv"

    def scored(*rows: dict[str, object]) -> list[list[str]]:
        source.write_text("\n".join(map(json.dumps, rows)))
        code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target), "--overwrite")
        assert (code, complaints.split(" rows")[0]) == (0, str(len(rows)))
        return list(csv.reader(target.read_text().splitlines()))

    header, good, *_, clash = scored(*FIRST_ROWS * [{"text": "good"}], {"text": "bad", "label": "5 stars"})
    assert header == ["text", "label", "score", "truncated", "error"]
    assert good == ["good", "POSITIVE", "0.75", "false", ""]
    assert clash[:4] == ["bad", "5 stars", "", ""]
    assert "'label' is not in the first rows" in clash[4]
    header, bare, good = scored({"text": "bad"}, {"text": "good", "label": "5 stars"})
    assert header == ["text", "label", "predicted_label", "score", "truncated", "error"]
    assert good == ["good", "5 stars", "POSITIVE", "0.75", "false", ""]
    assert bare == ["bad", "", "POSITIVE", "0.75", "false", ""]


def test_bert_cells_of_a_row_are_not_overwritten(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(
        '{"text": "a", "predicted_label": 1, "label": 2, "predicted_error": 3}\n{"text": "b", "label": 4}\n'
    )
    code, output, complaints = bert("sentiment", "--file", str(tmp_path / "texts.jsonl"))
    assert (code, complaints.partition(" with")[0]) == (0, "2 rows, 0")
    answer = {"score": 0.75, "truncated": False, "error": None}
    assert [json.loads(line) for line in output.splitlines()] == [
        {"text": "a", "predicted_label": 1, "label": 2, "predicted_error": 3}
        | {"predicted_predicted_label": "POSITIVE"}
        | answer,
        {"text": "b", "label": 4, "predicted_predicted_label": "POSITIVE"} | answer,
    ]


def test_bert_label_belongs_to_the_file_in_all_rows_or_in_none(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "good"}\n' * FIRST_ROWS + '{"text": "bad", "label": "gold"}\n')
    command = ("sentiment", "--file", str(tmp_path / "texts.jsonl"))
    first, *_, last = map(json.loads, bert(*command)[1].splitlines())
    assert (first["label"], last["label"], last["score"]) == ("POSITIVE", "gold", None)
    assert "so the answers have its name: give --prefix" in last["error"]
    first, *_, last = map(json.loads, bert(*command, "--prefix", "our_")[1].splitlines())
    assert (first["our_label"], last["our_label"], last["label"]) == ("POSITIVE", "POSITIVE", "gold")
    assert list(last) == ["text", "label", "our_label", "our_score", "our_truncated", "our_error"]


def test_bert_first_rows_may_be_broken(bert: Bert, tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text('broken {\n{"review": "good"}\n{"text": "good", "late": 1}\n')
    code, output, _ = bert("sentiment", "--file", str(source), "--output", str(tmp_path / "out"))
    assert code == 0
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row["error"] for row in rows] == [
        no_json := "the line is not JSON (Expecting value); write one object per line (jq -c .)",
        "the field 'text' is not there",
        None,
    ]
    _, output, complaints = bert("sentiment", "--file", str(source), "--output", str(tmp_path / "out.csv"))
    assert "not written" not in complaints
    columns = ["review", "text", "late", "label", "score", "truncated", "error"]
    assert next(csv.reader((tmp_path / "out.csv").read_text().splitlines())) == columns
    lines = ['{"id": 1}', *['{"text": "good", "label": "A"}'] * FIRST_ROWS, '{"text": "bad", "late": 1}']
    source.write_text("\n".join(lines))
    for output in ("-", "csv"):
        target = "-" if output == "-" else str(tmp_path / "out.csv")
        code, printed, complaints = bert("sentiment", "--file", str(source), "--output", target, "--overwrite")
        rows = (
            [json.loads(line) for line in printed.splitlines()]
            if output == "-"
            else list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
        )
        assert [row.get("label") or None for row in rows] == [None, *["A"] * FIRST_ROWS, None]
        assert [row["predicted_label"] or None for row in rows] == [None, *["POSITIVE"] * (FIRST_ROWS + 1)]
        assert rows[0]["error"] == "the field 'text' is not there"
    assert "not written, as the first rows have no such column: 'late'" in complaints
    source.write_text('{"review": "good"}\n' * 2)
    code, output, complaint = bert("sentiment", "--file", str(source))
    assert (code, output, complaint) == (1, "", f"bert: {source}: it has no column 'text'; its columns are 'review'\n")
    source.write_text('{"review": "good"}\nno JSON\n')
    assert bert("sentiment", "--file", str(source))[2] == complaint
    command = ("sentiment", "--file", str(source), "--column", "review", "--json")
    assert bert(*command, "--output", str(tmp_path / "out.json"))[0] == 0
    source.write_text("{}\n")
    assert bert("sentiment", "--file", str(source))[2] == f"bert: {source}, line 1: the first rows have no fields\n"
    source.write_text("no JSON\n" * 200)
    code, output, complaint = bert("sentiment", "--file", str(source))
    assert (code, output, complaint) == (
        1,
        "",
        f"bert: {source}, line 1: {no_json}\n",
    )


@pytest.mark.parametrize("name", ["texts.txt.gz", "texts.csv.gz", "texts.jsonl.gz"])
def test_bert_file_that_is_cut_off_keeps_what_is_answered_and_goes_on(bert: Bert, tmp_path: Path, name: str) -> None:
    source, target = tmp_path / name, tmp_path / "scored.csv"
    content = {"texts.txt.gz": b"good\n" * 9, "texts.csv.gz": b"text\n" + b"good\n" * 9}.get(name)
    whole = gzip.compress(content or b'{"text": "good"}\n' * 9)
    source.write_bytes(whole[:-9])
    command = ("sentiment", "--file", str(source), "--output", str(target))
    code, _, complaints = bert(*command)
    kept, cut = complaints.splitlines()
    assert (code, target.exists()) == (1, False)
    assert kept == f"9 rows are kept in {target}.partial; the same command goes on after them"
    assert cut.startswith(f"bert: {source}: the file is cut off after line {9 + (name == 'texts.csv.gz')} ")
    assert len(Path(f"{target}.partial").read_text().splitlines()) == 10
    source.write_bytes(whole)
    code, _, complaints = bert(*command)
    assert code == 0
    assert complaints.splitlines()[0] == f"{target}.partial: going on after 9 rows"
    assert target.read_text() == "text,label,score,truncated,error\n" + "good,POSITIVE,0.75,false,\n" * 9
    assert sorted(file.name for file in tmp_path.iterdir()) == ["scored.csv", name]


def test_bert_late_fault_costs_its_row_only(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "big.csv", tmp_path / "scored.csv"
    source.write_text("id,text\n" + "1,good\n" * 2000 + '2,"open quote\n3,good\n4,short,long\n5,good\n')
    code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target))
    assert code == 0
    assert complaints.startswith("2,004 rows, 2 with")
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [row["id"] for row in rows[-4:]] == ["2", "3", "4", "5"]
    assert [bool(row["error"]) for row in rows[-4:]] == [True, False, True, False]
    assert "opens in line 2002 never closes" in rows[-4]["error"]


def test_bert_swallowed_rows_give_a_warning(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text,stars\n2,"Five stars!,5\n3,good,5\n6,Monitor of 27",4\n')
    code, _, complaints = bert("sentiment", "--file", str(tmp_path / "a.csv"))
    warning = "a.csv, line 2: a quoted cell up to line 4 holds what seem to be whole rows; "
    assert (code, warning in complaints.splitlines()[0]) == (0, True)


def test_bert_warnings_come_with_their_rows(holding: Holding, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;text\n1;good\n2;hold\n")
    url = f"http://127.0.0.1:{holding.server_port}"
    command = [sys.executable, "-c", _INTERRUPTIBLE, "sentiment", "--url", url, "--file", str(tmp_path / "a.csv")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        entered = holding.entered.wait(PATIENCE)
        process.kill()
        assert (entered, "semicolon" in process.communicate()[1]) == (True, True)


def test_bert_file_of_an_unknown_format_says_what_it_is(bert: Bert, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.csv.zip", "w") as packed:
        packed.writestr("a.csv", "text\ngood\n")
    code, _, complaint = bert("sentiment", "--file", str(tmp_path / "a.csv.zip"))
    assert (code, complaint) == (
        1,
        f"bert: {tmp_path}/a.csv.zip: is an archive, such as zip, or compressed; unpack it, and give the file inside\n",
    )
    (tmp_path / "a.dat").write_text("text\ngood\n")
    code, _, complaint = bert("sentiment", "--file", str(tmp_path / "a.dat"))
    assert (code, "state the format (csv, tsv" in complaint) == (1, True)


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
def test_bert_dialect_is_stated(
    bert: Bert, tmp_path: Path, content: str, flags: tuple[str, ...], texts: list[str]
) -> None:
    (tmp_path / "a.csv").write_bytes(content.encode("latin-1"))
    code, output, _ = bert("sentiment", "--file", str(tmp_path / "a.csv"), "--json", *flags)
    rows = [json.loads(line) for line in output.splitlines()]
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
    command = [sys.executable, "-c", "from bert_client.command.main import main; main()", "sentiment", "--url", url]
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


def test_bert_json_lines_of_a_pipe_have_the_fields_of_the_first_rows(bert: Bert, tmp_path: Path) -> None:
    pipe, target = tmp_path / "pipe.jsonl", tmp_path / "out.csv"
    os.mkfifo(pipe)
    lines = '{"text": "good"}\n{"text": "bad", "stars": 5}\n'
    threading.Thread(target=pipe.write_text, args=(lines,)).start()
    assert bert("sentiment", "--file", str(pipe), "--output", str(target))[0] == 0
    assert [row["stars"] for row in csv.DictReader(target.read_text().splitlines())] == ["", "5"]


def test_bert_one_column_has_as_many_rows_out_as_in(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\ngood\n\nbad\n\n")
    _, output, _ = bert("sentiment", "--file", str(tmp_path / "a.csv"))
    rows = list(csv.DictReader(io.StringIO(output)))
    assert [(row["text"], row["error"]) for row in rows] == [
        ("good", ""),
        ("", "the field 'text' is empty"),
        ("bad", ""),
        ("", "the field 'text' is empty"),
    ]


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
    (tmp_path / source).write_text('id;text\n1;"a; b"\n2;c, d\n')
    command = ("sentiment", "--file", str(tmp_path / source), "--output", str(tmp_path / target), *flags)
    assert bert(*command)[0] == 0
    content = (tmp_path / target).read_bytes()
    text = (gzip.decompress(content) if target.endswith("gz") else content).decode()
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    assert [row[:3] for row in rows] == [["id", "text", "label"], ["1", "a; b", "POSITIVE"], ["2", "c, d", "POSITIVE"]]


def test_bert_semicolon_file_goes_on_and_sends_rows_again(bert: Bert, tmp_path: Path, pauses: list[float]) -> None:
    source, target = tmp_path / "a.csv", tmp_path / "scored.csv"
    source.write_text("id;text\n" + "".join(f"{n};text {n}\n" for n in range(20)))
    command = ("sentiment", "--file", str(source), "--output", str(target), "--concurrency", "1")
    broken = problem_document(500, "internal_error", "broken", {})
    with serve(lambda inputs: broken if "text 10" in inputs else None) as echo:
        assert bert(*command, "--url", echo.url)[0] == 1
        echo.refuse = lambda inputs: process_ended() if "text 12" in inputs and inputs[1:] else None
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "going on after 8 rows" in complaints, len(pauses)) == (0, True, 1)
    rows = list(csv.DictReader(io.StringIO(target.read_text()), delimiter=";"))
    assert [row["label"] for row in rows] == [f"text {n}" for n in range(20)]


def test_bert_all_labels_of_a_table_are_columns(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\ngood\n\n")
    command = ("sentiment", "--file", str(tmp_path / "a.csv"), "--all-labels", "--prefix", "our_")
    code, output, _ = bert(*command)
    header, good, empty = csv.reader(output.splitlines())
    assert (code, header[5:]) == (0, ["our_NEGATIVE", "our_POSITIVE"])
    assert good == ["good", "POSITIVE", "0.75", "false", "", "0.25", "0.75"]
    assert empty[4:] == ["the field 'text' is empty", "", ""]


def test_bert_all_labels_in_json_lines_are_an_object(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\ngood\n\n")
    command = ("classify", "--file", str(tmp_path / "a.csv"), "--all-labels", "--prefix", "our_", "--json")
    code, output, _ = bert(*command)
    good, empty = map(json.loads, output.splitlines())
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
    bert: Bert, tmp_path: Path, flags: tuple[str, ...], notices: int
) -> None:
    (tmp_path / "a.csv").write_text("text\ngood\nbad\n")
    with serve() as echo:
        echo.models = [
            {"name": "m", "tasks": ["sentiment"], "labels": ["A"], "problem_type": "multi_label_classification"}
        ]
        command = ("classify", "--file", str(tmp_path / "a.csv"), "--url", echo.url, *flags)
        code, _, complaints = bert(*command)
    assert (code, complaints.count("only the best is written; --all-labels writes all")) == (0, notices)


def test_bert_top_k_with_a_file_names_all_labels(bert: Bert) -> None:
    code, _, complaint = bert("sentiment", "--file", "a.csv", "--top-k", "2")
    assert (code, "for the scores of all labels, give --all-labels" in complaint) == (2, True)
    code, _, complaint = bert("fill-mask", "--file", "a.csv", "--top-k", "2")
    assert (code, "--all-labels" in complaint) == (2, False)
    assert bert("sentiment", "good", "--all-labels")[0] == 2


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
    for file, column in zip(files, ("text", "body", "text"), strict=True):
        file.write_text(f"{column}\ngood\n")
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
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text("text\ngood\n")
    code, _, complaint = bert(
        *("sentiment", "--file", str(tmp_path / "x/a.csv"), "--file", str(tmp_path / "y/a.csv")),
        *("--output", str(tmp_path / "out")),
    )
    assert (code, f"have the same output {tmp_path}/out/a.csv: rename one of them" in complaint) == (2, True)
    assert not (tmp_path / "out").exists()


def test_bert_job_of_several_files_goes_on_where_it_stopped(bert: Bert, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    for file in files:
        file.write_text("".join(f"{file.stem} {n}\n" for n in range(20)))
    command = ("sentiment", "--file", *map(str, files), "--output", f"{tmp_path}/out/", "--concurrency", "1")
    broken = problem_document(500, "internal_error", "broken", {})
    with serve(lambda inputs: broken if "b 10" in inputs else None) as echo:
        assert bert(*command, "--url", echo.url)[0] == 1
        echo.refuse = lambda _: None
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "b.tsv.partial: going on after 8 rows" in complaints) == (0, True)
    assert [len((tmp_path / "out" / name).read_text().splitlines()) for name in ("a.tsv", "b.tsv")] == [21, 21]


def test_bert_masks_of_a_file_are_filled(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("text\nthe [MASK] was [MASK]\nno mask\n")
    _, output, _ = bert("fill-mask", "--file", str(tmp_path / "texts.tsv"), "--targets", "film")
    first, second = csv.DictReader(io.StringIO(output), delimiter="\t")
    assert (first["words"], first["scores"]) == ("film film", "0.5 0.5")
    assert "no [MASK]" in second["error"]


@pytest.mark.parametrize("url", [{"api_keys": "secret"}], indirect=True)
def test_bert_without_a_key_says_how_to_give_one(bert: Bert) -> None:
    code, _, complaint = bert("sentiment", "good")
    assert code == 1
    assert complaint.endswith("(401 unauthorized); give --api-key or BERT_API_KEY\n")


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
        ["--format", "xml"],
    ):
        assert bert("sentiment", *misuse)[0] == 2
    assert bert("next-sentence", "--file", "pairs.txt")[0] == 2
    assert bert("sentiment", "--file", "a.csv", "--top-k", "2")[0] == 2
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
    service = Holding()
    threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05}).start()
    try:
        yield service
    finally:
        service.gate.set()
        service.shutdown()
        service.server_close()


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
    url = f"http://127.0.0.1:{holding.server_port}"
    command = [sys.executable, "-c", _INTERRUPTIBLE, "sentiment", "--url", url, "--timeout", str(TIMEOUT)]
    command += ["--file", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "scored.tsv")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        try:
            until_it_waits(holding, process)
            process.send_signal(end)
            process.wait(PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130
    assert [file.name for file in tmp_path.iterdir()] == ["texts.txt"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_bert_answers_before_a_signal_are_printed(holding: Holding, tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "texts.txt").write_text("good\n" * 3 + "hold\n")
    url = f"http://127.0.0.1:{holding.server_port}"
    command = [
        sys.executable,
        "-c",
        _INTERRUPTIBLE,
        "sentiment",
        "--url",
        url,
        "--concurrency",
        "1",
        "--timeout",
        str(TIMEOUT),
    ]
    command += ["--file", str(tmp_path / "texts.txt")]
    with subprocess.Popen(command, cwd=ROOT, env=buffered(), stdout=subprocess.PIPE, text=True) as process:
        try:
            until_it_waits(holding, process)
            process.send_signal(end)
            assert process.communicate(timeout=PATIENCE)[0].count("good") == 3
        finally:
            process.kill()
    assert process.returncode == 130


@contextmanager
def bert_on_a_pipe(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command with the test's pipes as standard input and output. It is killed if the test hangs."""
    command = [sys.executable, "-c", _INTERRUPTIBLE, "sentiment", "--url", url, "--file", "-", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=buffered(), stdin=pipe, stdout=pipe, text=True) as process:
        guard = threading.Timer(PATIENCE, process.kill)
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            process.kill()


def write_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("arguments", "line"), [([], "{}"), (["--format", "jsonl"], '{{"text": "{}"}}'), (["--json"], "{}")]
)
def test_bert_rows_of_a_pipe_are_answered_when_it_pauses(arguments: list[str], line: str) -> None:
    with serve() as echo, bert_on_a_pipe(echo.url, *arguments) as process:
        assert process.stdout
        if not arguments:
            write_line(process, "first")
            assert process.stdout.readline().startswith("text\tlabel")
            assert process.stdout.readline().startswith("first\tfirst\t1")
        for texts in (["one"], ["two", "three"], [""], ["four"]):
            for text in texts:
                write_line(process, line.format(text))
            for text in texts:  # the pipe is open, and each request has room for five more rows
                assert text in process.stdout.readline()
        process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("given", [[], ["good"]])
def test_bert_interrupt_while_it_waits_for_a_pipe_ends_it(given: list[str]) -> None:
    with serve() as echo, bert_on_a_pipe(echo.url) as process:
        assert process.stdout
        write_line(process, "first")
        assert process.stdout.readline().startswith("text")
        assert process.stdout.readline().startswith("first")
        for text in given:
            write_line(process, text)
            assert process.stdout.readline().startswith(text)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)  # while the pipe is open
    assert process.returncode == 130


def test_bert_file_is_sent_in_full_requests(tmp_path: Path, bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_job, "MAX_WAIT_SECONDS", PATIENCE)  # on a busy machine, the reader may wait
    (tmp_path / "texts.txt").write_text("good\n" * 1000)
    with serve() as echo:
        code, out, _ = bert("--url", echo.url, "sentiment", "--file", str(tmp_path / "texts.txt"))
    assert (code, out.count("good\tgood")) == (0, 1000)
    assert echo.paths.count("/sentiment") == 1000 / echo.limits["max_client_batch"]


def test_read_ahead_has_none_where_the_rows_pause() -> None:
    paused = threading.Event()
    first, second = Row(1, {"text": "a"}), Row(2, {"text": "b"})

    def rows() -> Iterator[Row]:
        yield first
        assert paused.wait(PATIENCE)
        yield second

    found = []
    for row in read_ahead(rows()):
        found.append(row)
        if row is None:
            paused.set()
    assert [row for row in found if row] == [first, second]
    assert found[:2] == [first, None]


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("classify", "good"),
        ("classify", "good", "--url", "{url}", "--api-key", "k"),
        ("--url", "{url}", "--api-key", "k", "classify", "good"),
    ],
    ids=["by the environment", "after the task", "before the task"],
)
def test_bert_classify_is_sentiment_and_the_url_stands_on_either_side(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with serve() as echo:
        environ = {"BERT_URL": echo.url if "--url" not in arguments else "http://127.0.0.1:1"}
        assert run([argument.format(url=echo.url) for argument in arguments], environ) == 0
    assert "good" in capsys.readouterr().out


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
    command = [sys.executable, "-c", program, f"http://127.0.0.1:{holding.server_port}", str(TIMEOUT)]
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
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    url = f"http://127.0.0.1:{holding.server_port}"
    command = [
        sys.executable,
        "-c",
        _INTERRUPTIBLE,
        "sentiment",
        "--url",
        url,
        "--concurrency",
        "3",
        "--timeout",
        str(TIMEOUT),
    ]
    command += ["--file", str(tmp_path / "texts.jsonl")]
    reader, writer = os.pipe()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL if end == "interrupt" else writer, stderr=subprocess.PIPE
    ) as process:
        os.close(writer)
        try:
            until_it_waits(holding, process)
        finally:
            os.close(reader)
        if end == "interrupt":
            process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE)
        finally:
            holding.gate.set()
        complaints = process.communicate()[1]
    assert (process.returncode, complaints) == (code, b"")


def test_bert_goes_on_after_a_kill(holding: Holding, url: str, tmp_path: Path) -> None:
    """Killed (-9) while the last rows are on their way, and given again, with another address."""
    texts, target = tmp_path / "texts.txt", tmp_path / "scored.tsv"
    texts.write_text("good\n" * 20 + "hold\n" + "good\n" * 5)
    program = f"from bert_client.command import output; output.SAVE_SECONDS = -1; {_INTERRUPTIBLE}"
    command = [sys.executable, "-c", program, "sentiment", "--file", str(texts), "--output", str(target)]
    command += ["--concurrency", "1"]
    address = ["--url", f"http://127.0.0.1:{holding.server_port}"]
    with subprocess.Popen(command + address, cwd=ROOT, stderr=subprocess.PIPE) as process:
        try:
            assert holding.entered.wait(PATIENCE)
            assert '"rows": 20' in Path(f"{target}.partial.json").read_text()
            assert not target.exists()
        finally:
            process.kill()
    kept = Path(f"{target}.partial").read_text().splitlines()
    assert kept == ["text\tlabel\tscore\ttruncated\terror", *["good\tA\t1\tfalse\t"] * 20]
    done = subprocess.run(
        [*command, "--url", url], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, f"{target}.partial: going on after 20 rows")
    rows = target.read_text().splitlines()
    assert rows[:21] == kept
    assert [row.split("\t")[:2] for row in rows[21:]] == [["hold", "POSITIVE"], *[["good", "POSITIVE"]] * 5]


def test_bert_missing_column_is_found_before_anything_is_written(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "reviews.csv", tmp_path / "scored.csv"
    source.write_text("id,review\n1,good\n")
    code, _, complaint = bert("sentiment", "--file", str(source), "--output", str(target))
    assert (code, complaint.split("; if")[0]) == (
        1,
        f"bert: {source}: it has no column 'text'; its columns are 'id', 'review'",
    )
    assert not target.exists()
    source.write_text("id,review\n")
    assert bert("sentiment", "--file", str(source), "--output", str(target))[0] == 1


def test_bert_file_without_rows_gives_a_header(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\n")
    code, output, _ = bert("sentiment", "--file", str(tmp_path / "reviews.csv"))
    assert (code, output) == (0, "text,label,predicted_label,score,truncated,error\n")


@pytest.mark.parametrize("url", [{"api_keys": "secret"}], indirect=True)
def test_bert_refused_job_leaves_no_half_file(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("good\n")
    code = bert("sentiment", "--file", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "out.csv"))[0]
    assert code == 1
    assert [file.name for file in tmp_path.iterdir()] == ["texts.txt"]


def test_bert_proxy_that_cannot_be_used_is_named(bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    assert bert("sentiment", "good")[0] == 0  # a loopback address has no proxy
    code, _, complaint = bert("sentiment", "good", "--url", "http://bert.example")
    assert code == 3
    assert complaint.startswith("bert: http://bert.example: the proxy in ALL_PROXY cannot be used: ")


def test_bert_rows_that_are_broken_cost_no_request(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "a.csv", tmp_path / "scored.csv"
    source.write_text("id,text\n" + "1,good\n2\n3,bad\n" * 10)
    with serve() as echo:
        code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target), "--url", echo.url)
    assert (code, complaints.partition(" error")[0]) == (0, "30 rows, 10 with an")
    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert [row["label"] for row in rows] == ["good", "", "bad"] * 10
    assert len(echo.paths) == 1 + 4  # /info, and 30 rows in requests of 8


def test_bert_file_of_invalid_rows_costs_few_requests(
    bert: Bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_job, "MAX_WAIT_SECONDS", PATIENCE)  # on a busy machine, the reader may wait
    source, target = tmp_path / "a.txt", tmp_path / "scored.tsv"
    texts = [f"text {n}" for n in range(3000)]
    source.write_text("\n".join(texts))
    with serve(lambda inputs: invalid_inputs({i: f"{one}: no mask" for i, one in enumerate(inputs)})) as echo:
        echo.limits |= {"max_client_batch": 512, "max_batch_tokens": 65536, "max_queue_tokens": 1_000_000}
        code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target), "--url", echo.url)
    assert (code, complaints.partition(" error")[0]) == (1, "3,000 rows, 3,000 with an")
    rows = csv.DictReader(target.read_text().splitlines(), delimiter="\t")
    assert [row["error"] for row in rows] == [f"{text}: no mask" for text in texts]
    assert len(echo.paths) == 1 + 5 * 6 + 5  # /info; five requests of 512 texts, and one of 440


def test_bert_job_that_is_refused_midway_goes_on(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.tsv"
    source.write_text("".join(f"text {n}\n" for n in range(100)))
    command = ("sentiment", "--file", str(source), "--output", str(target), "--concurrency", "1")
    broken = problem_document(500, "internal_error", "broken", {})
    with serve(lambda inputs: broken if "text 60" in inputs else None) as echo:
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "56 rows are kept in" in complaints) == (1, True)
    with serve() as echo:
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, f"{target}.partial: going on after 56 rows" in complaints) == (0, True)
    assert len(echo.paths) == 1 + 6
    rows = list(csv.DictReader(target.read_text().splitlines(), delimiter="\t"))
    assert [(row["text"], row["label"]) for row in rows] == [(f"text {n}", f"text {n}") for n in range(100)]


def test_bert_job_through_a_gateway_that_misbehaves_has_all_answers(bert: Bert, tmp_path: Path) -> None:
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

    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    texts = [f"text {n}" for n in range(300)]
    source.write_text("\n".join(texts))
    with serve(spoil) as echo:
        code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target), "--url", echo.url)
    assert (code, complaints.partition(" error")[0]) == (0, "300 rows, 4 with an")
    assert set(seen.values()) == set(ways)
    rows = scored_rows(target)
    assert [(text, label) for text, label, _ in rows] == [(one, "" if one in refused else one) for one in texts]
    errors = [error for _, _, error in rows if error]
    reset = errors.pop(2)
    assert reset.startswith(f"{echo.url}: Server disconnected without sending a response.")
    url = f"{echo.url}/sentiment: responded"
    assert errors == [f"{url} {status}, not as bert-service: '{html}'" for status in (403, 302, 200)]


@pytest.mark.parametrize("refusal", [200, 501])
def test_bert_job_at_a_wrong_address_ends_soon_and_shows_the_answer(bert: Bert, tmp_path: Path, refusal: int) -> None:
    (tmp_path / "a.txt").write_text("good\n" * 200)
    command = ("sentiment", "--file", str(tmp_path / "a.txt"), "--output", str(tmp_path / "scored.csv"))
    with serve(lambda _: refusal) as echo:
        echo.hides_info = True
        code, _, complaint = bert(*command, "--url", echo.url)
    assert code == 1
    assert f"/sentiment: responded {refusal}, not as bert-service: '<html>refused</html>' ({refusal} " in complaint
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def stop_job(bert: Bert, source: Path, target: Path) -> None:
    """Answer the first 56 of 100 rows of a new file."""
    source.write_text("".join(f"text {n}\n" for n in range(100)))
    command = ("sentiment", "--file", str(source), "--output", str(target), "--concurrency", "1", "--overwrite")
    broken = problem_document(500, "internal_error", "broken", {})
    with serve(lambda inputs: broken if "text 60" in inputs else None) as echo:
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "56 rows are kept in" in complaints) == (1, True)


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
    bert: Bert, tmp_path: Path, change: str, flags: tuple[str, ...], fault: str
) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.jsonl"
    target.write_text("old\n")
    stop_job(bert, source, target)
    if change == "input":
        source.write_text("new\n" * 3)
    if change == "note":
        Path(f"{target}.partial.json").unlink()
    rows = source.read_text().splitlines()
    with serve() as echo:
        command = ("sentiment", "--file", str(source), "--output", str(target), *flags, "--url", echo.url)
        code, _, complaint = bert(*command)
        assert (code, complaint) == (1, f"bert: {target}: exists already; give --overwrite to replace it\n")
        assert echo.paths == []
        target.unlink()
        code, _, complaints = bert(*command)
        assert code == 1
        assert complaints.endswith(f"bert: {target}.partial: {fault}; give --overwrite to begin again\n")
        assert "/sentiment" not in echo.paths
        code, _, complaints = bert(*command, "--overwrite")
    assert (code, f"{target}.partial: {fault}; beginning again\n" in complaints) == (0, True)
    assert [json.loads(line)["text"] for line in target.read_text().splitlines()] == rows
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "scored.jsonl"]


def test_bert_another_model_does_not_go_on_with_a_partial_file(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    command = ("classify", "--file", str(source), "--output", str(target), "--concurrency", "1")
    source.write_text("".join(f"text {n}\n" for n in range(20)))
    broken = problem_document(500, "internal_error", "broken", {})
    with serve(lambda inputs: broken if "text 10" in inputs else None) as echo:
        echo.models = [{"name": "old", "tasks": ["sentiment"], "sha256": "a" * 64}]
        assert bert(*command, "--url", echo.url)[0] == 1
        echo.models = [{"name": "new", "tasks": ["sentiment"], "sha256": "b" * 64}]
        code, _, complaints = bert(*command, "--url", echo.url)
        fault = f"{target}.partial: has 8 rows of another model ('old', sha256 {'a' * 12}; now 'new', {'b' * 12})"
        assert (code, complaints.splitlines()[-1]) == (1, f"bert: {fault}; give --overwrite to begin again")
        echo.refuse = lambda _: None
        code, _, complaints = bert(*command, "--url", echo.url, "--overwrite")
    assert (code, f"{fault}; beginning again" in complaints) == (0, True)
    assert len(scored_rows(target)) == 20


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "a"),
        ("a", None),
        ("a", "a"),
    ],
    ids=["older note", "older service", "same model"],
)
def test_bert_goes_on_if_the_model_is_the_same_or_unknown(
    bert: Bert, tmp_path: Path, before: str | None, after: str | None
) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    command = ("sentiment", "--file", str(source), "--output", str(target), "--concurrency", "1")
    source.write_text("".join(f"text {n}\n" for n in range(20)))
    broken = problem_document(500, "internal_error", "broken", {})
    with serve(lambda inputs: broken if "text 10" in inputs else None) as echo:
        echo.models = [{"name": "m", "tasks": ["sentiment"], "sha256": before}]
        assert bert(*command, "--url", echo.url)[0] == 1
        echo.models = [{"name": "m", "tasks": ["sentiment"], "sha256": after}] if after else []
        echo.refuse = lambda _: None
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "going on after 8 rows" in complaints) == (0, True)


def test_bert_overwrite_goes_on_with_a_partial_file_that_fits(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    stop_job(bert, source, target)
    with serve() as echo:
        command = ("sentiment", "--file", str(source), "--output", str(target), "--overwrite", "--url", echo.url)
        code, _, complaints = bert(*command)
    assert (code, f"{target}.partial: going on after 56 rows" in complaints) == (0, True)
    assert len(scored_rows(target)) == 100


def test_bert_overwrite_begins_again_with_a_pipe(bert: Bert, tmp_path: Path) -> None:
    source, target, pipe = tmp_path / "a.txt", tmp_path / "scored.csv", tmp_path / "pipe.txt"
    stop_job(bert, source, target)
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(source.read_bytes(),)).start()
    with serve() as echo:
        command = ("sentiment", "--file", str(pipe), "--output", str(target), "--overwrite", "--url", echo.url)
        code, _, complaints = bert(*command)
    assert (code, complaints.partition(",")[0]) == (0, "100 rows")
    assert len(scored_rows(target)) == 100


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before rows that are sent again, none of which is waited for."""
    found: list[float] = []
    monkeypatch.setattr(file_job, "sleep", found.append)
    return found


Rows = list[tuple[str, str, str]]


def scored_rows(target: Path) -> Rows:
    """Text, label and error of each row."""
    content = gzip.decompress(target.read_bytes()) if target.suffix == ".gz" else target.read_bytes()
    if ".jsonl" in target.name:
        rows = [json.loads(line) for line in content.splitlines()]
    else:
        rows = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    return [(row["text"], row["label"] or "", row["error"] or "") for row in rows]


@pytest.mark.parametrize("name", ["scored.csv", "scored.csv.gz", "scored.jsonl"])
def test_bert_rows_whose_request_ended_the_process_are_sent_again_one_by_one(
    bert: Bert, tmp_path: Path, pauses: list[float], name: str
) -> None:
    source, target = tmp_path / "a.txt", tmp_path / name
    texts = [f"text {n}" for n in range(30)]
    texts[11] = "poison"
    texts[20] = ""
    source.write_text("\n".join(texts))
    with serve(lambda inputs: process_ended() if "poison" in inputs else None) as echo:
        command = ("sentiment", "--file", str(source), "--output", str(target), "--url", echo.url)
        code, _, complaints = bert(*command)
    assert code == 0
    assert complaints.splitlines()[:2] == [
        "sending again, one by one, the rows whose request ended the inference process",
        "7 of 8 such rows have an answer now",
    ]
    assert complaints.splitlines()[2].startswith("30 rows, 2 with an error")
    expected = [(text, text, "") for text in texts]
    expected[11] = ("poison", "", PROCESS_ENDED)
    expected[20] = ("", "", "the field 'text' is empty")
    assert scored_rows(target) == expected
    assert len(echo.paths) == 1 + 4 + 8  # /info, 30 rows in requests of 8, and 8 rows one by one
    assert pauses == [file_job.RESEND_PAUSE_SECONDS] * 2
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["a.txt", name])


def test_bert_pairs_whose_request_ended_the_process_are_sent_again_as_they_were(
    bert: Bert, tmp_path: Path, pauses: list[float]
) -> None:
    source, target = tmp_path / "a.csv", tmp_path / "scored.csv"
    source.write_text('text,body,error\n"a, ""b""\nc",d,own\n,e,own\n')
    command = ("sentiment", "--file", str(source), "--output", str(target), "--pair-column", "body")
    with serve(lambda inputs: process_ended() if len(inputs) > 1 else None) as echo:
        assert bert(*command, "--url", echo.url)[0] == 0
    rows = list(csv.DictReader(io.StringIO(target.read_text(), newline="")))
    assert [(row["label"], row["error"], row["predicted_error"]) for row in rows] == [
        ('a, "b"\nc|d', "own", ""),
        ("e", "own", ""),
    ]
    assert len(pauses) == 1


def test_bert_job_that_is_interrupted_while_it_sends_rows_again_does_so_when_it_goes_on(
    bert: Bert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    texts = [f"text {n}" for n in range(20)]
    source.write_text("\n".join(texts))
    command = ("sentiment", "--file", str(source), "--output", str(target))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with serve(lambda inputs: process_ended() if "text 3" in inputs and inputs[1:] else None) as echo:
        monkeypatch.setattr(file_job, "sleep", interrupt)
        code, _, complaints = bert(*command, "--url", echo.url)
        assert (code, "20 rows are kept in" in complaints) == (130, True)
        monkeypatch.setattr(file_job, "sleep", lambda _: None)
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "8 of 8 such rows have an answer now" in complaints) == (0, True)
    assert scored_rows(target) == [(text, text, "") for text in texts]


def test_bert_sends_no_more_rows_again_after_three_that_ended_the_process(
    bert: Bert, tmp_path: Path, pauses: list[float]
) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    source.write_text("\n".join(f"text {n}" for n in range(16)))
    with serve(lambda inputs: process_ended() if {"text 8", "text 9", "text 10"} & {*inputs} else None) as echo:
        code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target), "--url", echo.url)
    assert (code, len(echo.paths)) == (0, 1 + 2 + 3)
    assert "0 of 8 such rows have an answer now; stopped: 3 consecutive rows ended the process again" in complaints
    assert [error for _, _, error in scored_rows(target)] == [""] * 8 + [PROCESS_ENDED] * 8
    assert len(pauses) == 3


def test_bert_rows_keep_their_error_if_the_service_is_away_when_they_are_sent_again(
    bert: Bert, tmp_path: Path, pauses: list[float]
) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "scored.csv"
    source.write_text("\n".join(f"text {n}" for n in range(16)))

    broken = problem_document(500, "internal_error", "broken", {})

    def refuse(inputs: list[str]) -> dict[str, object] | None:
        if "text 8" in inputs:
            return process_ended()
        return broken if len(inputs) == 1 else None

    with serve(refuse) as echo:
        code, _, complaints = bert("sentiment", "--file", str(source), "--output", str(target), "--url", echo.url)
    assert (code, len(echo.paths)) == (0, 1 + 2 + 2)
    assert "0 of 8 such rows have an answer now; stopped: 'broken (500" in complaints
    assert [error for _, _, error in scored_rows(target)] == [""] * 8 + [PROCESS_ENDED] * 8


def test_bert_rows_on_standard_output_keep_the_error_of_a_process_that_ended(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("poison\n")
    with serve(lambda _: process_ended()) as echo:
        code, output, _ = bert("sentiment", "--file", str(tmp_path / "a.txt"), "--url", echo.url)
    assert (code, output.splitlines()[1:]) == (1, [f"poison\t\t\t\t{PROCESS_ENDED}"])
    assert len(echo.paths) == 2


def test_bert_columns_that_an_earlier_run_left_out_are_named(bert: Bert, tmp_path: Path) -> None:
    source, target = tmp_path / "a.jsonl", tmp_path / "scored.csv"
    rows = [{"text": f"text {n}", **({"late": 1} if n == 105 else {})} for n in range(130)]
    source.write_text("\n".join(map(json.dumps, rows)))
    command = ("sentiment", "--file", str(source), "--output", str(target), "--concurrency", "1")
    broken = problem_document(500, "internal_error", "broken", {})
    with serve(lambda inputs: broken if "text 120" in inputs else None) as echo:
        assert bert(*command, "--url", echo.url)[0] == 1
        echo.refuse = lambda _: None
        code, _, complaints = bert(*command, "--url", echo.url)
    assert (code, "going on after 120 rows" in complaints) == (0, True)
    assert "not written, as the first rows have no such column: 'late'" in complaints
