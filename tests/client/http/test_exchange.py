"""Flows that a test performs, without a network or a clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from bert_client import (
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    LabelResult,
    Model,
    ProblemError,
    RetryPolicy,
    TooBusyError,
    UnexpectedAnswerError,
)
from bert_client.http import calls
from bert_client.http.calls import Chunk
from bert_client.http.exchange import Exchange, FailureCounter, Outcome, Send
from tests.client.echo import invalid_inputs, problem_document, process_ended

Answer = Callable[[list[str]], Outcome]


def perform(flow: Any, answer: Answer) -> tuple[Any, list[Any]]:
    """Drive a flow to its end; the result and the steps it took, sends as the inputs they carried."""
    steps: list[Any] = []
    outcome = None
    while True:
        try:
            step = flow.send(outcome)
        except StopIteration as end:
            return end.value, steps
        if isinstance(step, Send):
            inputs = json.loads(step.body or b"{}").get("inputs")
            steps.append(inputs)
            outcome = answer(inputs)
        else:
            steps.append(step.seconds)
            outcome = None


def ask(
    inputs: list[Any],
    answer: Answer,
    first: int = 0,
    clock: Callable[[], float] = lambda: 0.0,
    failures: FailureCounter | None = None,
    attempts: int = 3,
) -> tuple[Any, list[Any]]:
    policy = RetryPolicy(attempts=attempts, deadline=100, first_pause=1)
    exchange = Exchange(policy, clock, random=lambda: 0.0, base_url="http://bert/root")
    chunk = Chunk(first, [calls.encode(one) for one in inputs])
    flow = exchange.answer(calls.sentiment(), chunk, failures or FailureCounter())
    outcomes, steps = perform(flow, lambda inputs: info("ready", 8) if inputs is None else answer(inputs))
    return outcomes, [step for step in steps if step is not None]


def ok(inputs: list[str]) -> httpx.Response:
    results = [{"predictions": [{"label": one, "score": 1}], "tokens": 3, "truncated": False} for one in inputs]
    return httpx.Response(200, json={"model": "m", "results": results})


def problem(status: int, code: str, *loc: str | int, **headers: str) -> httpx.Response:
    faults = [{"message": "no", "loc": list(loc)}] if loc else []
    body = {"code": code, "detail": "no", "request_id": "r1", "errors": faults}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json", **headers})


def page(status: int) -> httpx.Response:
    """An answer that is not the service's."""
    return httpx.Response(status, text="<html>refused</html>")


def info(status: str, max_client_batch: int) -> httpx.Response:
    limits = dict.fromkeys(("max_batch_tokens", "max_queue_tokens", "max_body_bytes", "request_timeout_ms"), 1000)
    return httpx.Response(200, json={"status": status, "limits": limits | {"max_client_batch": max_client_batch}})


def labels(outcomes: list[LabelResult | ProblemError]) -> list[str]:
    return [one.code if isinstance(one, ProblemError) else one.predictions[0].label for one in outcomes]


def test_answer_busy_service_is_asked_again_after_retry_after() -> None:
    replies: Iterator[Outcome] = iter(
        [problem(429, "queue_full", **{"retry-after": "2"}), httpx.ConnectError("refused")]
    )
    outcomes, steps = ask(["a"], lambda inputs: next(replies, None) or ok(inputs))
    assert labels(outcomes) == ["a"]
    assert steps == [["a"], 2.0, ["a"], 1.0, ["a"]]


def test_answer_last_attempt_raises_the_problem() -> None:
    with pytest.raises(TooBusyError) as raised:
        ask(["a"], lambda _: problem(429, "queue_full"))
    assert (raised.value.status, raised.value.code, raised.value.request_id) == (429, "queue_full", "r1")


def test_answer_last_attempt_raises_the_connection_error() -> None:
    with pytest.raises(ConnectionFailedError, match="refused") as raised:
        ask(["a"], lambda _: httpx.ConnectError("refused"))
    assert isinstance(raised.value.__cause__, httpx.ConnectError)


def test_answer_input_without_a_response_is_a_connection_error() -> None:
    (outcome,), _ = ask(["a"], lambda _: httpx.ReadTimeout("slow"))
    assert (isinstance(outcome, ConnectionFailedError), outcome.status, outcome.code) == (True, None, "timeout")
    with pytest.raises(ConnectionFailedError, match="slow"):
        ask(["a"], lambda _: httpx.ReadTimeout("slow"), failures=FailureCounter(limit=1))


def test_answer_error_does_not_repeat_the_index_in_the_request() -> None:
    body = {"code": "invalid_request", "detail": "inputs.1: must be a pair", "request_id": "r1"}
    faults = [{"message": "must be a pair", "loc": ["inputs", 1]}]
    outcomes, _ = ask(
        ["a", "b"],
        lambda inputs: httpx.Response(422, json=body | {"errors": faults}) if inputs[1:] else ok(inputs),
        100,
    )
    assert str(outcomes[1]) == "input 101: must be a pair (422 invalid_request)"


def test_answer_named_input_and_its_equals_get_the_error() -> None:
    def answer(inputs: list[str]) -> httpx.Response:
        return problem(422, "empty_text", "inputs", inputs.index("")) if "" in inputs else ok(inputs)

    outcomes, steps = ask(["a", "", "b", ""], answer, first=100)
    assert labels(outcomes) == ["a", "empty_text", "b", "empty_text"]
    assert steps == [["a", "", "b", ""], ["a", "b"]]
    assert [one.errors[0].loc for one in outcomes if isinstance(one, ProblemError)] == [
        ["inputs", 101],
        ["inputs", 103],
    ]
    assert isinstance(outcomes[1], InvalidInputError)


def of_document(document: dict[str, Any]) -> httpx.Response:
    return httpx.Response(document["status"], json=document)


def refuse_wrong(inputs: list[str], named: int = 100) -> httpx.Response:
    document = invalid_inputs({i: f"{one!r} is wrong" for i, one in enumerate(inputs) if "wrong" in one}, named)
    return of_document(document) if document else ok(inputs)


@pytest.mark.parametrize("status", [200, 400, 401, 502, 503])
def test_answer_problem_is_read_whatever_status_a_gateway_gives_it(status: int) -> None:
    document = problem_document(422, "empty_text", "empty", {0: "empty"}) | {"type": "urn:bert-service:problem:x"}
    outcomes, steps = ask(["", "a"], lambda inputs: ok(inputs) if inputs[0] else httpx.Response(status, json=document))
    assert labels(outcomes) == ["empty_text", "a"]
    assert (outcomes[0].status, steps) == (422, [["", "a"], ["a"]])


def test_answer_all_named_inputs_leave_the_request_at_once_each_with_its_message() -> None:
    outcomes, steps = ask(["wrong 1", "a", "wrong 2", "wrong 1", "b"], refuse_wrong, first=100)
    assert steps == [["wrong 1", "a", "wrong 2", "wrong 1", "b"], ["a", "b"]]
    assert labels(outcomes) == ["no_mask", "a", "no_mask", "no_mask", "b"]
    assert [str(outcomes[i]) for i in (0, 2, 3)] == [
        "input 100: 'wrong 1' is wrong (422 no_mask)",
        "input 102: 'wrong 2' is wrong (422 no_mask)",
        "input 103: 'wrong 1' is wrong (422 no_mask)",
    ]
    assert [len(outcomes[i].errors) for i in (0, 2, 3)] == [1, 1, 1]


def test_answer_named_input_has_all_its_faults() -> None:
    faults = [{"message": f"the {field} is empty", "loc": ["inputs", 1, field]} for field in ("text", "text_pair")]
    document = problem_document(422, "invalid_request", "the text is empty", {}) | {"errors": faults}
    outcomes, _ = ask(["a", "wrong"], lambda inputs: of_document(document) if inputs[1:] else ok(inputs), first=7)
    assert outcomes[0].predictions[0].label == "a"
    assert [(fault.message, fault.loc) for fault in outcomes[1].errors] == [
        ("the text is empty", ["inputs", 8, "text"]),
        ("the text_pair is empty", ["inputs", 8, "text_pair"]),
    ]


@pytest.mark.parametrize(("named", "requests"), [(100, 6), (1, 512)])
def test_answer_inputs_that_are_all_wrong_cost_as_few_requests_as_the_service_allows(named: int, requests: int) -> None:
    """Version 0.2 of the service names only the first."""
    texts = [f"wrong {n}" for n in range(512)]
    outcomes, steps = ask(texts, lambda inputs: refuse_wrong(inputs, named))
    assert [outcome.detail for outcome in outcomes] == [f"{text!r} is wrong" for text in texts]
    assert len(steps) == requests


def test_answer_input_that_cannot_be_computed_costs_no_other() -> None:
    def answer(inputs: list[str]) -> httpx.Response:
        errors = {inputs.index("b"): "the model failed on this input"} if "b" in inputs else {}
        return of_document(problem_document(500, "inference_failed", "failed", errors)) if errors else ok(inputs)

    outcomes, steps = ask(list("abcb"), answer)
    assert labels(outcomes) == ["a", "inference_failed", "c", "inference_failed"]
    assert steps == [list("abcb"), list("ac")]


def test_answer_request_that_ended_the_inference_process_is_not_repeated() -> None:
    """All its inputs get the error, which names none of them. What has left the request keeps its own."""

    def answer(inputs: list[str]) -> httpx.Response:
        return of_document(process_ended()) if inputs == ["a", "b"] else refuse_wrong(inputs)

    outcomes, steps = ask(["a", "wrong", None, "b"], answer, first=7)
    assert steps == [["a", "wrong", "b"], ["a", "b"]]
    assert labels(outcomes) == ["inference_failed", "no_mask", "invalid_input", "inference_failed"]
    assert [outcome.ended_process for outcome in outcomes] == [True, False, False, True]
    assert [outcome.input_index for outcome in outcomes] == [None, 8, 9, None]


def test_failure_counter_raises_after_requests_in_a_row_that_ended_the_process() -> None:
    failures = FailureCounter(limit=3)
    for reply in (process_ended(), process_ended(), None, process_ended(), process_ended()):
        ask(["a", "b"], lambda inputs, reply=reply: of_document(reply) if reply else ok(inputs), failures=failures)  # type: ignore[misc]
    with pytest.raises(ProblemError, match="the inference process ended"):
        ask(["a", "b"], lambda _: of_document(process_ended()), failures=failures)


def test_answer_input_that_cannot_be_sent_costs_no_other() -> None:
    outcomes, steps = ask(["a", None, "b", 5], ok, first=100)
    assert labels(outcomes) == ["a", "invalid_input", "b", "invalid_input"]
    assert steps == [["a", "b"]]
    assert [one.input_index for one in outcomes if isinstance(one, ProblemError)] == [101, 103]
    outcomes, steps = ask([None], ok)
    assert (labels(outcomes), steps) == (["invalid_input"], [])


@pytest.mark.parametrize("reply", [page(403), page(500), problem(504, "x"), page(200)])
def test_failure_counter_raises_after_inputs_in_a_row(reply: httpx.Response) -> None:
    failures, asked = FailureCounter(), list[list[str]]()

    def answer(inputs: list[str]) -> httpx.Response:
        asked.append(inputs)
        return reply if inputs != ["good"] else ok(inputs)

    for _ in range(3):
        ask(["good"], answer, failures=failures)
        outcomes, _ = ask(["a"] * 19, answer, failures=failures)
        assert all(isinstance(outcome, ProblemError) for outcome in outcomes)
    asked.clear()
    ask([None] * 3, answer, failures=failures)  # these are not sent and not counted
    with pytest.raises(ProblemError):
        ask(["a"] * 500, answer, failures=failures)
    assert len(asked) < 15


def test_failure_counter_ignores_invalid_inputs() -> None:
    failures = FailureCounter(limit=2)
    ask(["a"], lambda _: page(403), failures=failures)
    ask(["", ""], lambda _: problem(422, "empty_text", "inputs", 0), failures=failures)
    with pytest.raises(ProblemError, match="403"):
        ask(["b", "c"], lambda _: page(403), failures=failures)


def test_answer_request_is_not_repeated_if_all_inputs_are_wrong() -> None:
    outcomes, steps = ask(["", ""], lambda _: problem(422, "empty_text", "inputs", 0))
    assert labels(outcomes) == ["empty_text"] * 2
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "not_json"), (413, "too_large")],
)
def test_answer_unnamed_input_at_fault_is_found_by_halves(status: int, code: str) -> None:
    outcomes, _ = ask(list("abcdefg"), lambda inputs: problem(status, code) if "e" in inputs else ok(inputs), first=7)
    assert labels(outcomes) == ["a", "b", "c", "d", code, "f", "g"]
    assert outcomes[4].input_index == 11


UNEXPECTED = [
    *map(page, (200, 204, 413, 502)),
    httpx.Response(302, headers={"Location": "https://login.example"}),
    httpx.Response(200, text='{"model": "m", "resul'),
    httpx.Response(200, json={"model": "m", "results": []}),
    httpx.Response(500, json={"detail": "another service"}, headers={"content-type": "application/problem+json"}),
]


@pytest.mark.parametrize("reply", UNEXPECTED, ids=lambda reply: str(reply.status_code))
def test_answer_unexpected_answer_to_one_input_costs_no_other(reply: httpx.Response) -> None:
    outcomes, _ = ask(list("abcdefg"), lambda inputs: reply if "e" in inputs else ok(inputs), first=7)
    assert [isinstance(one, UnexpectedAnswerError) for one in outcomes] == [one == "e" for one in "abcdefg"]
    assert (outcomes[4].status, outcomes[4].input_index) == (reply.status_code, 11)


@pytest.mark.parametrize("reply", UNEXPECTED, ids=lambda reply: str(reply.status_code))
def test_answer_unexpected_answers_are_tried_again(reply: httpx.Response) -> None:
    replies = iter([reply] * 2)
    outcomes, steps = ask(["a", "b"], lambda inputs: next(replies, None) or ok(inputs))
    assert labels(outcomes) == ["a", "b"]
    assert steps == [["a", "b"], 0.5, ["a", "b"], 1.0, ["a", "b"]]


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (
            httpx.Response(403, text=f"<html>\n\x1b[1m{'x' * 300}"),
            f"403, not as bert-service: '<html> \\x1b[1m{'x' * 189}'",
        ),
        (httpx.Response(308, headers={"Location": "https://b"}), "308 to https://b, not as bert-service: ''"),
    ],
)
def test_unexpected_answer_error_shows_the_beginning_or_the_redirect(reply: httpx.Response, shown: str) -> None:
    (outcome,), _ = ask(["a"], lambda _: reply)
    assert (
        str(outcome)
        == f"input 0: http://bert/root/sentiment: responded {shown} ({reply.status_code} unexpected_answer)"
    )


def away(policy: RetryPolicy, info_reply: httpx.Response, before: calls.ServiceInfo | None = None) -> list[Any]:
    """The inputs of the requests that are sent until the error, while all answers are a gateway's."""
    exchange = Exchange(policy, lambda: 0.0, random=lambda: 0.0, info=before)
    sent: list[Any] = []

    def answer(inputs: Any) -> httpx.Response:
        sent.append(inputs)
        return page(502) if inputs else info_reply

    chunk = Chunk(0, [calls.encode("a"), calls.encode("b")])
    with pytest.raises(UnexpectedAnswerError, match="502"):
        perform(exchange.answer(calls.sentiment(), chunk, FailureCounter(limit=2)), answer)
    return [inputs for inputs in sent if inputs]


def test_answer_unexpected_answers_are_tried_until_the_deadline_while_the_service_is_away() -> None:
    policy, known = RetryPolicy(attempts=7), calls.read_info(info("ready", 8))
    assert away(policy, page(502)) == [["a", "b"]] * 7
    assert away(policy, page(502), calls.HIDDEN_INFO) == [["a", "b"]] * 7
    assert away(policy, page(404), known) == [["a", "b"]] * 7  # `/info` could be read before


def test_answer_one_repeats_an_unexpected_answer_with_all_attempts() -> None:
    exchange = Exchange(RetryPolicy(attempts=5), lambda: 0.0, random=lambda: 0.0)
    replies = iter([page(403)] * 4)
    flow = exchange.answer_one(calls.sentiment(), "a")
    result, _ = perform(flow, lambda inputs: (next(replies, None) or ok(inputs)) if inputs else info("ready", 8))
    assert labels([result]) == ["a"]


def test_answer_waits_while_a_gateway_answers_in_place_of_the_service() -> None:
    exchange = Exchange(RetryPolicy(attempts=1000), lambda: 0.0, random=lambda: 0.0)
    replies = iter([page(502)] * 20)
    flow = exchange.answer(calls.sentiment(), Chunk(0, [calls.encode("a")]), FailureCounter())
    outcomes, _ = perform(flow, lambda inputs: next(replies, None) or (ok(inputs) if inputs else info("ready", 8)))
    assert labels(outcomes) == ["a"]


@pytest.mark.parametrize("reply", [page(404), page(200), info("ready", 8), problem(401, "unauthorized")])
def test_answer_unexpected_answers_to_all_inputs_are_raised_soon_if_a_server_is_there(reply: httpx.Response) -> None:
    policy = RetryPolicy(attempts=1000)
    assert away(policy, reply, calls.HIDDEN_INFO) == [["a", "b"]] * 3 + [["b"]] * 3 + [["a"]] * 3


def test_answer_slow_request_is_halved() -> None:
    outcomes, steps = ask(
        list("abcd"), lambda inputs: problem(504, "deadline_exceeded") if len(inputs) > 2 else ok(inputs)
    )
    assert labels(outcomes) == list("abcd")
    assert [len(inputs) for inputs in steps] == [4, 2, 2]


@pytest.mark.parametrize("reply", [problem(504, "x"), page(504), httpx.ReadTimeout("slow")])
def test_answer_input_too_slow_gets_its_error_after_all_attempts_and_costs_no_other(reply: Outcome) -> None:
    now, failures = 0.0, FailureCounter()

    def answer(inputs: list[str]) -> Outcome:
        nonlocal now
        now += 30 if "b" in inputs else 1
        return reply if "b" in inputs else ok(inputs)

    outcomes, steps = ask(list("abcdefgh"), answer, clock=lambda: now, failures=failures)
    assert [isinstance(one, ProblemError) for one in outcomes] == [one == "b" for one in "abcdefgh"]
    sent = [inputs for inputs in steps if isinstance(inputs, list)]
    assert sent[:5] == [list("abcdefgh"), list("efgh"), list("abcd"), list("cd"), list("ab")]
    assert sent[5:] == [["b"]] * 3 + [["a"]]
    _, steps = ask(list("abcdefgh"), ok, failures=failures)
    assert [len(inputs) for inputs in steps] == [2, 2, 2, 2]
    _, steps = ask(list("abcdefgh"), ok, failures=failures)
    assert [len(inputs) for inputs in steps] == [2, 3, 3]


def test_answer_slow_request_is_halved_until_the_deadline() -> None:
    asked: list[int] = []

    def answer(inputs: list[str]) -> httpx.Response:
        asked.append(len(inputs))
        return problem(504, "deadline_exceeded")

    with pytest.raises(DeadlineExceededError):
        ask(["a"] * 512, answer, clock=lambda: 40.0 * len(asked))  # each answer takes so many seconds
    assert asked == [512, 256, 128]


def test_answer_wrong_inputs_are_found_after_the_deadline() -> None:
    seconds = iter([0.0])
    outcomes, _ = ask(
        list("abcd"),
        lambda inputs: problem(413, "too_large") if "b" in inputs else ok(inputs),
        clock=lambda: next(seconds, 1000.0),
    )
    assert labels(outcomes) == ["a", "too_large", "c", "d"]


def test_answer_deadline_is_counted_from_the_last_answer() -> None:
    now = 0.0
    refused: set[int] = set()

    def answer(inputs: list[str]) -> httpx.Response:
        nonlocal now
        now += 60
        if len(inputs) not in refused:
            refused.add(len(inputs))
            return problem(429, "queue_full")
        return problem(422, "empty_text", "inputs", 0) if inputs[0] in "abc" else ok(inputs)

    outcomes, _ = ask(list("abcd"), answer, clock=lambda: now)
    assert labels(outcomes) == ["empty_text", "empty_text", "empty_text", "d"]
    assert now == 8 * 60


@pytest.mark.parametrize(
    ("status", "code", "loc"),
    [
        (401, "unauthorized", ()),
        (404, "task_not_served", ()),
        (422, "unknown_target", ("parameters", "targets", 0)),
        (500, "internal_error", ()),
    ],
)
def test_answer_other_problems_are_raised(status: int, code: str, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(ProblemError) as raised:
        ask(["a", "b"], lambda _: problem(status, code, *loc))
    assert raised.value.code == code


def test_model_is_known_when_the_models_are_loaded() -> None:
    model = {"name": "m", "tasks": ["fill-mask", "sentiment"], "sha256": "ab", "labels": ["A"]}
    loaded = json.loads(info("warming", 1).content) | {"models": [model]}
    replies = [info("loading", 1), info("loading", 1), httpx.Response(200, json=loaded)]
    times = iter(float(n) for n in range(100))
    exchange = Exchange(RetryPolicy(), lambda: next(times), random=lambda: 0.0)
    found, steps = perform(exchange.model("classify"), lambda _: replies.pop(0))
    assert found == Model("m", "ab", ["A"], None)
    assert steps == [None, 1.0, None, 1.0, None]


@pytest.mark.parametrize("reply", [page(404), info("ready", 1)], ids=["hidden", "older service"])
def test_model_of_a_service_that_does_not_tell_is_unknown(reply: httpx.Response) -> None:
    exchange = Exchange(RetryPolicy(), lambda: 0.0, random=lambda: 0.0)
    assert perform(exchange.model("sentiment"), lambda _: reply)[0] is None


@pytest.mark.parametrize("status", [200, 302, 403, 404])
def test_service_info_that_is_hidden_has_small_limits(status: int) -> None:
    exchange = Exchange(RetryPolicy(attempts=1000), lambda: 0.0, random=lambda: 0.0)
    replies = iter([page(status)] * 3)
    for _ in range(2):
        assert perform(exchange.service_info(), lambda _: next(replies))[0] == calls.HIDDEN_INFO


def test_service_info_of_a_service_that_is_away_is_waited_for() -> None:
    exchange = Exchange(RetryPolicy(attempts=1000), lambda: 0.0, random=lambda: 0.0)
    replies = iter([page(502)] * 20)
    assert perform(exchange.service_info(), lambda _: next(replies, None) or info("ready", 8))[0].limits.inputs == 8


def test_service_info_is_asked_for_again_when_the_limits_may_have_changed() -> None:
    now, replies = 0.0, [info("loading", 1), info("ready", 2), info("ready", 3), info("ready", 4)]
    exchange = Exchange(RetryPolicy(), lambda: now, random=lambda: 0.0)

    def inputs() -> int:
        found, _ = perform(exchange.service_info(), lambda _: replies.pop(0))
        return int(found.limits.inputs)

    assert inputs() == 1
    now = 0.9
    assert inputs() == 1
    now = 1.0
    assert inputs() == 2  # the service was loading
    now = 60.0
    assert inputs() == 2
    now = 61.0
    assert inputs() == 3  # another service may have taken its place
    chunk = Chunk(0, [calls.encode("a"), calls.encode("b")])
    perform(
        exchange.answer(calls.sentiment(), chunk, FailureCounter()),
        lambda inputs: problem(413, "too_large") if inputs[1:] else ok(inputs),
    )
    assert inputs() == 4  # it has refused a request within its limits
