"""`bert`: ask a running service from a shell. Needs httpx only, like `bert_client`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from bert_client import tables
from bert_client.command import file_job, output
from bert_client.errors import BertServiceError, ConnectionFailedError
from bert_client.http.base import DEFAULT_URL
from bert_client.http.client import BertClient
from bert_client.http.retry import RetryPolicy
from bert_client.wire import FillMaskResult, LabelResult

REFUSED, MISUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130

_EPILOG = """\
exit codes: 0 answered (rows of a file may have an `error`), 1 the service refused or a file cannot be used,
2 wrong usage, 3 the service cannot be reached, 130 interrupted"""
_FILE_HELP = "answer every row of a CSV, TSV, JSONL, Parquet or text file, compressed or not; - is standard input"
_OUTPUT_HELP = "until it is complete it is FILE.partial, and the same command goes on from there [-]"
_COLUMN_HELP = "the column or field to read, by its name or its number [text]"

INTERACTIVE_RETRY = RetryPolicy(attempts=3)
FILE_RETRY = RetryPolicy(attempts=1000, deadline=600)
"""A service that starts anew may be away for minutes; a job of hours is not to be lost."""
_LONG_PAUSE = 1.0
"""Seconds; after those of a second altogether"""


def main() -> None:
    """Run the command line; ends the process with a documented exit code."""
    for name in ("SIGTERM", "SIGHUP"):  # end it as Ctrl-C does, without a half file; but not under nohup
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        code = run(sys.argv[1:], os.environ)
        sys.stdout.flush()
    except BrokenPipeError:  # `bert ... | head`
        code = REFUSED
    if code:
        os._exit(code)  # not by `sys.exit`: it waits for requests that are on their way, and flushes once more
    sys.exit(0)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Answer one command line. Returns the exit code."""
    parser = _parser(environ)
    given = parser.parse_args(arguments)
    if fault := _misuse(given):
        parser.error(fault)
    try:
        with _client(given, parser) as client:
            if given.file:
                _answer_file(client, given)
            else:
                _answer_texts(client, given)
    except ConnectionFailedError as error:
        return _fail(f"{given.url}: {error}", UNREACHABLE)
    except BrokenPipeError:
        raise
    except (BertServiceError, tables.TableError, OSError) as error:
        return _fail(str(error), REFUSED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _client(given: argparse.Namespace, parser: argparse.ArgumentParser) -> BertClient:
    """A client as the arguments say; wrong ones end the process."""
    try:
        httpx.URL(given.url).host.encode("idna")  # as connecting will
        return BertClient(
            given.url,
            api_key=given.api_key,
            timeout=given.timeout,
            concurrency=given.concurrency,
            retry=FILE_RETRY if given.file else INTERACTIVE_RETRY,
            sleep=_patiently(given.url) if given.file else time.sleep,
        )
    except (httpx.InvalidURL, UnicodeError) as error:
        parser.error(f"--url {given.url}: {error}")
    except ValueError as error:
        parser.error(str(error))


def _patiently(url: str) -> Callable[[float], None]:
    """Wait, and say so once it takes long: a job that waits for ten minutes looks as if it hung."""
    said = False

    def sleep(seconds: float) -> None:
        nonlocal said
        if seconds >= _LONG_PAUSE and not said:
            said = True
            minutes = FILE_RETRY.deadline / 60
            print(f"{url} does not answer yet; trying again for {minutes:g} minutes", file=sys.stderr)
        time.sleep(seconds)

    return sleep


def _answer_texts(client: BertClient, given: argparse.Namespace) -> None:
    inputs = [tuple(given.texts)] if given.task == "next-sentence" else given.texts
    for text, result in zip(inputs, _ask(client, given)(inputs), strict=True):
        if isinstance(result, BertServiceError):
            raise result
        if given.json:
            print(json.dumps(asdict(result), ensure_ascii=False))
            continue
        if len(inputs) > 1:
            print(text)
        print(*_lines(result), sep="\n")


def _answer_file(client: BertClient, given: argparse.Namespace) -> None:
    dialect = _dialect(given)
    target_format = None if given.output == "-" else tables.format_of(given.output)
    job = file_job.Job(
        given.file,
        given.output,
        given.format,
        "jsonl" if given.json else _writable(target_format or _format(given)),
        (given.column, given.pair_column) if given.pair_column else (given.column,),
        file_job.MASK_COLUMNS if given.task == "fill-mask" else file_job.LABEL_COLUMNS,
        given.prefix,
        dialect,
        {"task": given.task, "targets": given.targets, "truncate": given.truncate},
    )
    file_job.run(job, _ask(client, given))


def _dialect(given: argparse.Namespace) -> tables.Dialect:
    return tables.Dialect(
        header=not given.no_header,
        delimiter=given.delimiter,
        quote=given.quote,
        escape=given.escape,
        encoding=given.encoding,
    )


def _format(given: argparse.Namespace) -> str | None:
    form: str | None = given.format or tables.format_of(given.file, _dialect(given))
    return form


def _writable(form: str | None) -> str:
    """Plain lines with answers are a TSV; Parquet is read only."""
    return {"lines": "tsv", "parquet": "jsonl"}.get(form or "", form or "tsv")


def _ask(client: BertClient, given: argparse.Namespace) -> file_job.Ask:
    """The client's stream for the task, with its options."""
    top_k = 1 if given.file else given.top_k

    def ask(inputs: Any) -> Any:
        if given.task == "fill-mask":
            return client.fill_mask_stream(inputs, top_k=top_k, targets=given.targets, truncate=given.truncate)
        if given.task == "sentiment":
            return client.sentiment_stream(inputs, top_k=top_k, truncate=given.truncate)
        return client.next_sentence_stream(inputs, truncate=given.truncate)

    return ask


def _lines(result: FillMaskResult | LabelResult) -> list[str]:
    """A result for people."""
    if isinstance(result, LabelResult):
        return [f"{entry.score:8.4f}  {entry.label}" for entry in result.predictions]
    return [
        f"{entry.score:8.4f}  {entry.token_str:<16}  {entry.sequence}"
        for mask in result.masks
        for entry in mask.predictions
    ]


def _misuse(given: argparse.Namespace) -> str | None:
    """What is wrong with arguments that are each right."""
    if given.targets and not given.texts and not given.file:
        return "--targets takes all words that follow it: give the text before it"
    if bool(given.texts) == bool(given.file):
        return "give texts or --file, one of them"
    if given.texts and given.output != "-":
        return "--output goes with --file"
    if given.texts:
        two = given.task != "next-sentence" or len(given.texts) == 2
        return None if two else "next-sentence takes two texts"
    return _misuse_of_file(given)


def _misuse_of_file(given: argparse.Namespace) -> str | None:
    if given.top_k is not None:
        return "--top-k goes with texts"
    try:
        form = _format(given)
    except ValueError as error:
        return str(error)
    if form is None:
        return f"the name of {given.file} does not tell its format: give --format {', '.join(tables.FORMATS)}"
    if not given.json and Path(given.output).suffix and not output.is_writable(given.output):
        return f"{given.output} cannot be written: end it in .csv, .tsv or .jsonl, or in one of these and .gz"
    if form == "lines" and given.task == "next-sentence":
        return "pairs need a file with two columns: CSV, TSV, JSONL or Parquet; see --format"
    return None


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert",
        description="Ask a running BERT service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    common = _common(environ)
    for name, summary, texts in (
        ("fill-mask", "words for [MASK]", "a text with one or more [MASK]"),
        ("next-sentence", "does the second text follow the first?", "two texts"),
        ("sentiment", "what texts feel", "a text"),
    ):
        task = tasks.add_parser(name, help=summary, description=summary, parents=[common])
        task.add_argument("texts", nargs="*", metavar="TEXT", help=texts)
        task.set_defaults(top_k=None, targets=None, pair_column=None)
        if name != "next-sentence":
            task.add_argument("--top-k", type=int, metavar="N", help="predictions to print")
        if name == "fill-mask":
            task.add_argument("--targets", nargs="+", metavar="WORD", help="score these words only")
        if name == "sentiment":
            task.add_argument("--pair-column", metavar="NAME", help="a second column: the text is its title")
        if name == "next-sentence":
            task.add_argument("--pair-column", default="text_pair", metavar="NAME", help="the second text [text_pair]")
    return parser


def _common(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    url = environ.get("BERT_URL") or DEFAULT_URL
    common.add_argument("--url", default=url, help=f"of the service [BERT_URL, {DEFAULT_URL}]")
    common.add_argument("--api-key", default=environ.get("BERT_API_KEY"), metavar="KEY", help="[BERT_API_KEY]")
    common.add_argument("--json", action="store_true", help="print JSON, one answer per line")
    common.add_argument("--truncate", action="store_true", help="cut texts that are too long")
    common.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="of one request [60]")
    files = common.add_argument_group("files")
    files.add_argument("--file", metavar="FILE", help=_FILE_HELP)
    files.add_argument("--output", default="-", metavar="FILE", help=_OUTPUT_HELP)
    files.add_argument("--format", choices=tables.FORMATS, help="of the input, if its name does not tell")
    files.add_argument("--column", default=tables.LINE, metavar="NAME", help=_COLUMN_HELP)
    files.add_argument("--prefix", default="", metavar="TEXT", help="before the names of the answers' columns")
    files.add_argument("--delimiter", metavar="CHARACTER", help="between cells [found in the first rows]")
    files.add_argument("--no-header", action="store_true", help="the first row is data: columns have numbers")
    files.add_argument("--quote", metavar="CHARACTER", help='around cells; "": marks are only text ["]')
    files.add_argument("--escape", metavar="CHARACTER", help="before a quotation mark that is only text [none]")
    files.add_argument("--encoding", metavar="NAME", help="of the text [UTF-8, or by its byte order mark]")
    files.add_argument("--concurrency", type=int, default=4, metavar="N", help="requests at once [4]")
    return common


def _fail(message: str, code: int) -> int:
    print(f"bert: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
