"""What the clients take as inputs, and what they do with an input that is not a text."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_client import AsyncBertClient, BertClient, InvalidInputError, LabelResult, ProblemError, UnauthorizedError
from bert_client.http.calls import FLUSH, PairDict
from tests.client.echo import problem_document, serve

pd = pytest.importorskip("pandas")
ROOT = Path(__file__).parents[3]


Client = BertClient | AsyncBertClient
clients = pytest.mark.parametrize("make", [BertClient, AsyncBertClient])


def label(outcome: LabelResult | ProblemError) -> str:
    assert isinstance(outcome, LabelResult), outcome
    return outcome.predictions[0].label


async def stream(client: Client, inputs: Iterable[Any]) -> AsyncIterator[LabelResult | ProblemError]:
    """Outcomes of the client's stream. An asynchronous client gets the inputs asynchronously, from another thread."""
    if isinstance(client, BertClient):
        with client:
            for outcome in client.sentiment_stream(inputs):
                yield outcome
        return
    remaining = iter(inputs)

    async def texts() -> AsyncIterator[Any]:
        while (text := await asyncio.to_thread(next, remaining, END)) is not END:
            yield text

    async with client:
        async for outcome in client.sentiment_stream(texts()):
            yield outcome


async def answer(client: Client, inputs: Iterable[Any], answered: list[str]) -> None:
    """Append the label of each outcome as soon as it is there."""
    async for outcome in stream(client, inputs):
        answered.append(label(outcome))  # noqa: PERF401 (the inputs read it)


END = object()
"""Ends the inputs of an asynchronous client."""
ROWS = ["good", float("nan"), "bad", None, "so so", 5, b"bytes", ("a", None), "last"]
WRONG = [1, 3, 5, 6, 7]


@clients
async def test_client_stream_has_an_error_in_place_of_what_is_no_text(make: Callable[..., Client]) -> None:
    with serve() as echo:
        outcomes = [outcome async for outcome in stream(make(echo.url), ROWS)]
        many = [outcome async for outcome in stream(make(echo.url), ["text"] * 1000 + [None] + ["text"] * 1000)]
    errors = {n: outcome for n, outcome in enumerate(outcomes) if isinstance(outcome, ProblemError)}
    assert list(errors) == WRONG
    assert [error.input_index for error in errors.values()] == WRONG
    assert [label(outcomes[n]) for n in (0, 2, 4, 8)] == ["good", "bad", "so so", "last"]
    assert [n for n, outcome in enumerate(many) if isinstance(outcome, ProblemError)] == [1000]


@clients
async def test_client_stream_answers_what_a_generator_gave_before_its_error(make: Callable[..., Client]) -> None:
    def texts() -> Iterator[str]:
        yield from ["good"] * 20
        raise LookupError("the database is away")

    answered: list[str] = []
    with serve() as echo, pytest.raises(LookupError, match="the database is away"):
        await answer(make(echo.url), texts(), answered)
    assert answered == ["good"] * 20


@clients
async def test_client_stream_answers_what_is_before_a_flush_before_it_takes_more(make: Callable[..., Client]) -> None:
    answered: list[str] = []

    def texts() -> Iterator[Any]:
        for text in ("a", "b", "c"):
            yield text
            yield FLUSH
            assert answered[-1:] == [text]
        yield FLUSH

    with serve() as echo:
        await answer(make(echo.url), texts(), answered)
    assert answered == ["a", "b", "c"]


def test_client_stream_that_is_left_does_not_close_what_it_reads(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("good\n" * 100)
    with serve() as echo, BertClient(echo.url, concurrency=1) as client, (tmp_path / "texts").open() as file:
        stream = client.sentiment_stream(file)
        next(stream)
        stream.close()
        assert next(file) == "good\n"


@clients
async def test_client_stream_answers_what_it_read_before_an_error_of_info(make: Callable[..., Client]) -> None:
    """The request of "a" and "b" is refused as too large, so the client asks for `/info` again, which is refused."""
    is_divided = threading.Event()

    def refuse(inputs: list[str]) -> dict[str, Any] | None:
        if inputs == ["a", "b"]:
            echo.info_problem = problem_document(401, "unauthorized", "the key was changed", {})
            return problem_document(413, "too_large", "send fewer inputs", {})
        is_divided.set()  # the client sends the parts of the refused request
        return None

    def texts() -> Iterator[str]:
        yield from "abc"
        assert is_divided.wait(120)
        yield "not sent"

    answered: list[str] = []
    with serve(refuse) as echo:
        echo.limits["max_client_batch"] = 2
        with pytest.raises(UnauthorizedError, match="the key was changed"):
            await answer(make(echo.url), texts(), answered)
    assert answered == ["a", "b", "c"]


async def test_async_client_calls_wait_for_a_connection_as_long_as_others_have_it() -> None:
    def slow(_: list[Any]) -> None:  # two of them take longer than the timeout
        time.sleep(1.6)

    with serve(slow) as echo:
        async with AsyncBertClient(echo.url, timeout=3.0) as client:
            answers = await asyncio.gather(*(client.sentiment("good") for _ in range(250)))
    assert {label(answer) for answer in answers} == {"good"}


@pytest.mark.parametrize("wrong", [None, float("nan"), 5, b"good"])
async def test_client_input_that_is_no_text_raises(wrong: Any) -> None:
    texts = ["text"] * 20 + [wrong]
    with serve() as echo, BertClient(echo.url) as client:
        with pytest.raises(InvalidInputError, match="an input is a string or a pair of two strings, not ") as raised:
            client.sentiment(texts)
        assert raised.value.input_index == 20
        assert str(raised.value).startswith("input 20: an input is a string")
        async with AsyncBertClient(echo.url) as asynchronous:
            with pytest.raises(InvalidInputError, match="input 20: an input is a string"):
                await asynchronous.sentiment(texts)
        with pytest.raises(InvalidInputError, match=f"^an input is a string.* not {type(wrong).__name__}") as raised:
            client.sentiment(wrong)
    assert raised.value.status is None  # because it was not sent
    assert str(raised.value).endswith(f"not {type(wrong).__name__} (invalid_input)")


@pytest.mark.parametrize(
    "inputs",
    [
        ["a", "b", "c"],
        ("a", "b", "c"),
        np.array(["a", "b", "c"]),
        np.array(["a", "b", "c"], dtype=object),
        pd.Series(["a", "b", "c"], index=[7, 8, 9]),
        {"a": 1, "b": 2, "c": 3}.keys(),
        deque("abc"),
    ],
)
async def test_client_any_iterable_of_texts_is_a_list_of_inputs(inputs: Any) -> None:
    with serve() as echo:
        with BertClient(echo.url) as client:
            assert [label(result) for result in client.sentiment(inputs)] == ["a", "b", "c"]
            assert [label(result) for result in client.sentiment_stream(inputs)] == ["a", "b", "c"]
            assert [label(result) for result in client.sentiment(text for text in inputs)] == ["a", "b", "c"]
        async with AsyncBertClient(echo.url) as asynchronous:
            assert [label(result) for result in await asynchronous.sentiment(inputs)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "inputs",
    [
        [["a", "b"], ["c", "d"]],
        [("a", "b"), ["c", "d"]],
        (("a", "b"), ("c", "d")),
        np.array([["a", "b"], ["c", "d"]]),
        pd.DataFrame({"title": ["a", "c"], "body": ["b", "d"]}).to_numpy(),
        zip("ac", "bd", strict=True),
        pd.DataFrame({"title": ["a", "c"], "body": ["b", "d"]}).itertuples(index=False),
    ],
)
def test_client_any_iterable_of_pairs_is_a_list_of_inputs(inputs: Any) -> None:
    with serve() as echo, BertClient(echo.url) as client:
        assert [label(result) for result in client.next_sentence(inputs)] == ["a|b", "c|d"]


def test_client_column_of_arrow_is_a_list_of_inputs() -> None:
    pa = pytest.importorskip("pyarrow")
    with serve() as echo, BertClient(echo.url) as client:
        for column in (pa.array(["a", "b"]), pa.chunked_array([["a"], ["b"]])):
            assert [label(result) for result in client.sentiment(column)] == ["a", "b"]


def test_client_pair_may_be_a_dict_as_in_json() -> None:
    pair: PairDict = {"text": "a", "text_pair": "b"}
    with serve() as echo, BertClient(echo.url) as client:
        assert label(client.next_sentence(pair)) == "a|b"
        assert [label(result) for result in client.sentiment([pair, "c"])] == ["a|b", "c"]
        with pytest.raises(TypeError, match="inputs is a dict"):
            client.sentiment({"text": "a", "title": "b"})  # type: ignore[call-overload]


def test_client_types_accept_the_documented_inputs(tmp_path: Path) -> None:
    program = """
from typing import assert_type
from bert_client import AsyncBertClient, BertClient, FillMaskResult, LabelResult
def ask(client: BertClient, lists: list[list[str]], dicts: list[dict[str, str]]) -> list[LabelResult]:
    assert_type(client.fill_mask("[MASK]", targets=["a"]), FillMaskResult)
    assert_type(client.classify(("a", "b"), top_k=1), LabelResult)
    client.sentiment("a", topk=1)  # type: ignore[call-overload]
    one: LabelResult = client.next_sentence(("a", "b"))
    client.next_sentence_stream(lists)
    client.sentiment_stream(dicts)
    return [one, *client.next_sentence([["a", "b"]]), *client.next_sentence(dicts), *client.sentiment(["a", *lists])]
async def ask_async(client: AsyncBertClient, dicts: list[dict[str, str]]) -> list[LabelResult]:
    assert_type(await client.fill_mask("[MASK]", truncate=True), FillMaskResult)
    return [*await client.next_sentence([["a", "b"]]), *await client.sentiment(dicts)]
"""
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


async def test_async_client_list_may_be_an_async_iterable() -> None:
    async def texts() -> AsyncIterator[str]:
        for text in "abc":
            yield text

    with serve() as echo:
        async with AsyncBertClient(echo.url) as client:
            assert [label(result) for result in await client.sentiment(texts())] == ["a", "b", "c"]


@pytest.mark.parametrize("inputs", ["good", b"good", {"text": "good"}, pd.DataFrame({"text": ["good"]})])
async def test_client_iterable_whose_items_are_not_its_texts_is_refused(inputs: Any) -> None:
    with pytest.raises(TypeError, match="give a list, a column or another iterable of texts"):
        list(BertClient().sentiment_stream(inputs))
    with pytest.raises(TypeError, match="give a list, a column or another iterable of texts"):
        _ = [outcome async for outcome in AsyncBertClient().sentiment_stream(inputs)]


async def test_client_fill_mask_takes_a_tuple_of_two_texts_as_two_inputs(url: str) -> None:
    texts = ("a [MASK].", "b [MASK].")
    with BertClient(url) as client:
        assert len(client.fill_mask(texts)) == 2
    async with AsyncBertClient(url) as client:
        assert len(await client.fill_mask(texts)) == 2
