"""The service's own paths of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.errors import Loc
from app.http.handle import Call, TaskRoute
from app.tasks.schemas import as_list, given
from app.tasks.task import Task, TaskResult


def routes(tasks: Sequence[Task]) -> list[TaskRoute]:
    """A route for each operation of each task."""
    return [
        TaskRoute(
            operation.path,
            task,
            to_call,
            request=task.request,
            response=task.response,
            example=operation.example,
            summary=operation.summary,
            description=task.description,
        )
        for task in tasks
        for operation in task.operations
    ]


def to_call(body: Any) -> Call:
    """The call of a body that has `inputs` and `parameters`."""
    is_list = isinstance(body.inputs, list)
    return Call(as_list(body.inputs), given(body.parameters), _write, as_sent if is_list else locate_one)


def _write(result: TaskResult) -> dict[str, Any]:
    return {"model": result.model, "results": result.results}


def as_sent(loc: Loc) -> Loc:
    """The path of an input that the caller sent in a list."""
    return loc


def locate_one(loc: Loc) -> Loc:
    """The path of the only input, which the caller sent without a list."""
    return ("inputs", *loc[2:]) if loc[0] == "inputs" else loc
