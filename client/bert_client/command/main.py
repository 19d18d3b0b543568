"""The command `bert`: asks a running service from a shell."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import io
import json
import os
import re
import signal
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from bert_client.command import file_job, inputs, output
from bert_client.command.output import printable
from bert_client.errors import BertServiceError, ConnectionFailedError, ProblemError, UnauthorizedError
from bert_client.http.base import DEFAULT_URL, open_http, service_url
from bert_client.http.client import BertClient
from bert_client.http.environment import trusted_tls
from bert_client.http.exchange import Outcome, Send, Wait
from bert_client.http.retry import RetryPolicy
from bert_client.results import FillMaskResult, LabelResult
from bert_tables import FORMATS, LINE, Dialect, TableError, format_of
from bert_tables.dialect import add_dialect_options, stated_dialect

REFUSED, UNREACHABLE, INTERRUPTED = 1, 3, 130

_EPILOG = """\
exit codes: 0 answered (some rows of a file may have an `error`), 1 the service refused, a file cannot be used or all
its rows have an `error`, 2 wrong usage, 3 the service cannot be reached, 130 interrupted"""
_FILE_HELP = (
    "answer every row of CSV, TSV, JSONL, Parquet or text files, compressed or not, or of the files in folders; "
    "- is standard input"
)
_OUTPUT_HELP = (
    "output file, or a folder for several inputs; FILE.partial until complete, resumed by the same command "
    "[standard output]"
)
_OVERWRITE_HELP = "replace an existing output, and FILE.partial if the job cannot go on with it (for scheduled jobs)"
_HEADER_HELP = "HTTP header of every request, as 'Name: value' (repeatable)"
_COLUMN_HELP = "column or field to read: its name or its number [text]"

INTERACTIVE_RETRY = RetryPolicy(attempts=3)
FILE_RETRY = RetryPolicy(attempts=1000, deadline=600)
"""A restarting service may be unavailable for minutes, after which a job of hours continues."""


def main() -> None:
    """Run the command line. Ends the process with a documented exit code."""
    for name in ("SIGTERM", "SIGHUP"):  # these act like Ctrl-C, unless nohup has made the process ignore them
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    sys.stderr = sys.stderr or io.StringIO()  # None if it is closed
    try:
        code = run(sys.argv[1:], os.environ)
    except BrokenPipeError:  # `bert ... | head`
        os._exit(REFUSED)  # `sys.exit` would flush standard output again
    if code:
        with suppress(OSError, ValueError, KeyboardInterrupt):  # the stream is full or closed, or a second Ctrl-C
            print(end="", flush=True)
        os._exit(code)  # `sys.exit` would flush again, and report the suppressed error
    sys.exit(0)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Answer a command line.

    Args:
        environ: Environment variables, of which `BERT_URL` and `BERT_API_KEY` are read.

    Returns:
        The exit code.

    Raises:
        SystemExit: with 2, for wrong usage; with 0, after `--help`.
    """
    parser = _parser(environ)
    given = parser.parse_args(arguments)
    try:
        _check_arguments(given)
        jobs = _jobs(given) if given.file else []
        http = _http(given)
        options: Any = {"api_key": given.api_key, "timeout": given.timeout, "concurrency": given.concurrency}
        kind, retry = (_JobClient, FILE_RETRY) if jobs else (BertClient, INTERACTIVE_RETRY)
        client = kind(given.url, retry=retry, http=http, **options)
    except ValueError as error:
        parser.error(str(error))
    except ConnectionFailedError as error:
        return _fail(str(error), UNREACHABLE)
    try:
        with http or nullcontext(), client:
            code = _answer_files(client, given, jobs) if jobs else _answer_texts(client, given)
        print(end="", flush=True)
    except ConnectionFailedError as error:
        return _fail(str(error), UNREACHABLE)
    except UnauthorizedError as error:
        return _fail(f"{error}{'; check --api-key or BERT_API_KEY' * (error.status == 401)}", REFUSED)
    except BrokenPipeError:
        raise
    except (BertServiceError, TableError, OSError) as error:
        return _fail(str(error), REFUSED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RuntimeError as error:  # a signal within `Thread.start` makes Python release a lock that is not held
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        return INTERRUPTED
    return code


def _fail(message: str, code: int) -> int:
    print(f"bert: {printable(message)}", file=sys.stderr)
    return code


class _JobClient(BertClient):
    """A client with a notice at its first long pause, because a silent job seems to hang."""

    _has_noticed = False

    def _perform(self, step: Send | Wait, ended: threading.Event | None) -> Outcome:
        if isinstance(step, Wait) and step.seconds >= 1 and not self._has_noticed:
            self._has_noticed = True
            end = f"({step.reason}); trying again for {FILE_RETRY.deadline / 60:g} minutes"
            print(f"{self._base_url} is busy or away {end}", file=sys.stderr)
        return super()._perform(step, ended)


def _http(given: argparse.Namespace) -> httpx.Client | None:
    """Connections with the headers and certificates of the command line; None without any.

    Raises:
        ValueError: a header has another form.
        ConnectionFailedError: a file of certificates cannot be read.
    """
    headers = [_header(header) for header in given.headers + given.task_headers]
    if not (headers or given.cert or given.cacert):
        return None
    url = service_url(given.url)
    tls = _tls(given) if given.cert or given.cacert else None
    return open_http(httpx.Client, url, tls, headers)


def _tls(given: argparse.Namespace) -> ssl.SSLContext:
    files = f"--cacert {given.cacert}"
    try:
        tls = ssl.create_default_context(cafile=given.cacert) if given.cacert else trusted_tls()
        if given.cert:
            files = f"--cert {given.cert}" + (f" --key {given.key}" if given.key else "")
            tls.load_cert_chain(given.cert, given.key)
    except OSError as error:
        raise ConnectionFailedError(f"{files} cannot be read as PEM ({error.strerror})") from error
    return tls


def _header(given: str) -> tuple[bytes, bytes]:
    """Parse the value of `--header`. The ValueError does not show it, because it may be secret."""
    found = re.fullmatch(r"([\w!#$%&'*+.^`|~-]+):[ \t]*(.*)", given, re.ASCII)
    if not (found and found[2].isprintable()):
        raise ValueError("--header: give it as 'Name: value', in printable characters")
    return found[1].encode(), found[2].encode()


def _ask(client: BertClient, given: argparse.Namespace) -> file_job.Ask:
    """The client's stream for the task, with its options."""
    stream = getattr(client, f"{given.task.replace('-', '_')}_stream")
    options = {name: getattr(given, name) for name in given.options}
    if given.file and "top_k" in options:
        options["top_k"] = None if getattr(given, "all_labels", False) else 1
    return functools.partial(stream, **options)


def _answer_files(client: BertClient, given: argparse.Namespace, jobs: Sequence[file_job.FileJob]) -> int:
    """Answer the rows of each file, and continue after a file that cannot be used. Returns the exit code."""
    code = 0
    in_folder = inputs.writes_folder(given.file, given.output)
    for job in jobs:
        if in_folder and not _begin_file(job):
            continue
        try:
            is_answered = file_job.run(job, _ask(client, given), functools.partial(client.model, given.task))
            code = code if is_answered else REFUSED
        except TableError as error:
            code = _fail(str(error), REFUSED)
    return code


def _begin_file(job: file_job.FileJob) -> bool:
    """Announce the next of several files, and make the folder of its output. Returns whether to answer its rows."""
    target = Path(job.target)
    is_done = not job.overwrite and target.is_file() and target.stat().st_size > 0
    print(f"{job.source}:" + f" skipped, because {target} exists" * is_done, file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    return not is_done


def _answer_texts(client: BertClient, given: argparse.Namespace) -> int:
    """Print the answers, and refusals to standard error. Returns the exit code."""
    output.use_utf_8()
    texts = [tuple(given.texts)] if given.task == "next-sentence" else given.texts
    code = 0
    for number, (text, result) in enumerate(zip(texts, _ask(client, given)(texts), strict=True), 1):
        if isinstance(result, ProblemError):
            place = f"text {number}: " if len(texts) > 1 else ""
            is_refused = not isinstance(result, ConnectionFailedError)
            code = _fail(f"{place}{result.at(None)}", REFUSED if is_refused else UNREACHABLE)
            continue
        if given.json:
            print(printable(json.dumps(asdict(result), ensure_ascii=False)))
            continue
        if len(texts) > 1:
            print(text)
        note = ["mostly [UNK]: the answer says little about it"] * (result.unknown_tokens > 0)
        print(*note, *_lines(result), sep="\n")
    return code


def _lines(result: FillMaskResult | LabelResult) -> list[str]:
    """The lines that show a result to a person."""
    if isinstance(result, LabelResult):
        return [f"{entry.score:8.4f}  {printable(entry.label)}" for entry in result.predictions]
    entries = [entry for mask in result.masks for entry in mask.predictions]
    return [f"{entry.score:8.4f}  {printable(entry.token_str):<16}  {printable(entry.sequence)}" for entry in entries]


def _check_arguments(given: argparse.Namespace) -> None:
    """Raise ValueError if the arguments do not fit together."""
    if getattr(given, "targets", None) and not given.texts and not given.file:
        raise ValueError("--targets takes all words that follow it: give the text before it")
    if bool(given.texts) == bool(given.file):
        raise ValueError("give texts or --file, one of them")
    for number, text in enumerate(given.texts, 1):
        if any("\udc80" <= character <= "\udcff" for character in text):  # Python's stand-ins for undecodable bytes
            raise ValueError(f"text {number} is not in the encoding of this terminal ({sys.getfilesystemencoding()})")
    if given.texts and getattr(given, "all_labels", False):
        raise ValueError("--all-labels goes with --file")
    if given.texts and given.output != "-":
        raise ValueError("--output goes with --file")
    if given.texts and given.task == "next-sentence" and len(given.texts) != 2:
        raise ValueError("next-sentence takes two texts")


def _jobs(given: argparse.Namespace) -> list[file_job.FileJob]:
    """The jobs of `--file`, one per file. Raises ValueError if the arguments do not fit together."""
    if not inputs.writes_folder(given.file, given.output):
        return [_job(given, given.file[0], given.output)]
    jobs: dict[str, file_job.FileJob] = {}
    for source, path in inputs.input_files(given.file, given.output, given.format):
        target = str(Path(given.output, f"{path}.{_target_format(given, source, '-')}"))
        if target in jobs:
            raise ValueError(f"{jobs[target].source} and {source} have the same output {target}: rename one of them")
        jobs[target] = _job(given, source, target)
    return list(jobs.values())


def _job(given: argparse.Namespace, source: str, target: str) -> file_job.FileJob:
    """The job of a file. Raises ValueError if the arguments do not fit together."""
    if getattr(given, "top_k", None) is not None:
        advice = "; for the scores of all labels, give --all-labels" * hasattr(given, "all_labels")
        raise ValueError(f"--top-k goes with texts{advice}")
    if given.task == "next-sentence" and (given.format or format_of(source, _dialect(given))) == "lines":
        raise ValueError("pairs need a file with two columns: CSV, TSV, JSONL or Parquet; see --format")
    if Path(target).suffix and not output.has_output_suffix(target):
        raise ValueError(f"{target} cannot be written: end it in .csv, .tsv or .jsonl, or in one of these and .gz")
    read = "/dev/stdin" if source == "-" else source
    written = "/dev/stdout" if target == "-" else target
    # Unlike pathlib's, these do not raise if a path may not be read; opening it does, with a message.
    if os.path.isfile(read) and os.path.exists(written) and os.path.samefile(read, written):  # noqa: PTH110, PTH113, PTH121
        raise ValueError(f"the output is the file that is read ({source}): write to another one")
    target_format = _target_format(given, source, target)
    pair_column = getattr(given, "pair_column", None)
    all_labels = getattr(given, "all_labels", None) or None  # a partial file's note of an older version lacks it
    new_columns = file_job.MASK_COLUMNS if given.task == "fill-mask" else file_job.LABEL_COLUMNS
    options = {"targets": getattr(given, "targets", None), "truncate": given.truncate, "all_labels": all_labels}
    return file_job.FileJob(
        source=source,
        target=target,
        source_format=given.format,
        target_format=target_format,
        columns=(given.column, pair_column) if pair_column else (given.column,),
        new_columns=(*new_columns, file_job.SCORES) if all_labels and target_format == "jsonl" else new_columns,
        prefix=given.prefix,
        dialect=_dialect(given),
        question={"task": given.task, **options},
        overwrite=given.overwrite,
    )


def _target_format(given: argparse.Namespace, source: str, target: str) -> str:
    """The format of `--json`, else of the output's name, else of the input."""
    named = None if target == "-" else format_of(target)
    found = "jsonl" if given.json else named or given.format or format_of(source, _dialect(given)) or "jsonl"
    return {"lines": "tsv", "parquet": "jsonl"}.get(found, found)


def _dialect(given: argparse.Namespace) -> Dialect:
    return Dialect(**stated_dialect(given))


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(message=importlib.metadata.version("bert-service-client") + "\n")


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert",
        description="Ask a running BERT service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    _add_service(parser, "headers", environ.get("BERT_URL") or DEFAULT_URL, environ.get("BERT_API_KEY"), None)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    common = _common()

    def add(name: str, summary: str, texts: str, *options: str) -> argparse.ArgumentParser:
        task: argparse.ArgumentParser = tasks.add_parser(name, help=summary, description=summary, parents=[common])
        task.add_argument("texts", nargs="*", metavar="TEXT", help=texts)
        task.set_defaults(options=("truncate", *options))
        if "top_k" in options:
            task.add_argument("--top-k", type=int, metavar="N", help="predictions to print")
        return task

    task = add("fill-mask", "the likely words for [MASK]", "a text with one or more [MASK]", "top_k", "targets")
    task.add_argument("--targets", nargs="+", metavar="WORD", help="score these words only")
    task = add("next-sentence", "does the second text follow the first?", "two texts")
    task.add_argument("--pair-column", default="text_pair", metavar="NAME", help="column of second texts [text_pair]")
    for name, summary in {"sentiment": "are texts positive or negative?", "classify": "which label fits?"}.items():
        task = add(name, summary, "a text", "top_k")
        task.add_argument("--all-labels", action="store_true", help="with --file: the scores of all labels")
        task.add_argument("--pair-column", metavar="NAME", help="column of the body, if --column is the title")
    return parser


def _add_service(parser: argparse.ArgumentParser, headers: str, url: str, key: str | None, file: str | None) -> None:
    """Add the options that say how to reach the service, with the default values of a URL, an API key and files."""
    parser.add_argument("--url", default=url, help=f"URL of the service [BERT_URL, {DEFAULT_URL}]")
    parser.add_argument("--api-key", default=key, metavar="KEY", help="API key [BERT_API_KEY]")
    parser.add_argument("--header", dest=headers, action="append", default=[], metavar="HEADER", help=_HEADER_HELP)
    parser.add_argument("--cert", default=file, metavar="FILE", help="client certificate in PEM, with its key")
    parser.add_argument("--key", default=file, metavar="FILE", help="key of --cert, if it is in another file")
    parser.add_argument("--cacert", default=file, metavar="FILE", help="trusted certificates in PEM")


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    _add_service(common, "task_headers", *[argparse.SUPPRESS] * 3)  # these options may also stand before the task
    common.add_argument("--json", action="store_true", help="print JSON, one answer per line")
    common.add_argument("--truncate", action="store_true", help="cut texts that are too long")
    common.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="seconds for one request [60]")
    files = common.add_argument_group("files")
    files.add_argument("--file", nargs="+", action="extend", metavar="FILE", help=_FILE_HELP)
    files.add_argument("--output", default="-", metavar="FILE", help=_OUTPUT_HELP)
    files.add_argument("--overwrite", action="store_true", help=_OVERWRITE_HELP)
    files.add_argument("--format", choices=FORMATS, help="format of the input [by its name]")
    files.add_argument("--column", default=LINE, metavar="NAME", help=_COLUMN_HELP)
    files.add_argument("--prefix", default="", metavar="TEXT", help="prefix of the new columns")
    add_dialect_options(files.add_argument)
    files.add_argument("--concurrency", type=int, default=4, metavar="N", help="requests at the same time [4]")
    return common


if __name__ == "__main__":
    main()
