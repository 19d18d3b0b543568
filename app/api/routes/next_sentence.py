"""`POST /next-sentence`: does one text follow the other?"""

from __future__ import annotations

from fastapi import Response

from app.api import openapi
from app.api.routes.replies import respond, task_router
from app.api.schemas import NextSentenceRequest, as_list
from app.api.task_route import TaskRequest
from bert_client.wire import LabelResponse

router = task_router(tags=["tasks"])

_EXAMPLE = {
    "model": "pretrained",
    "results": [
        {
            "predictions": [{"label": "IS_NEXT", "score": 0.93}, {"label": "NOT_NEXT", "score": 0.07}],
            "tokens": 14,
            "truncated": False,
        }
    ],
}


@router.post(
    "/next-sentence",
    operation_id="next_sentence",
    summary="Judge whether a text follows",
    **openapi.task(LabelResponse, _EXAMPLE),
)
async def next_sentence(body: NextSentenceRequest, request: TaskRequest) -> Response:
    """The probability that `text_pair` stood right after `text`."""
    reply = await request.engine.next_sentence(
        as_list(body.inputs), deadline=request.deadline, truncate=body.parameters.truncate
    )
    return respond(request, "next-sentence", reply, LabelResponse(reply.model, reply.results))
