"""`POST /sentiment`: what a review feels."""

from __future__ import annotations

from fastapi import Response

from app.api import openapi
from app.api.routes.replies import respond, task_router
from app.api.schemas import SentimentRequest, as_list
from app.api.task_route import TaskRequest
from bert_client.wire import LabelResponse

router = task_router(tags=["tasks"])

_EXAMPLE = {
    "model": "sentiment",
    "results": [
        {
            "predictions": [{"label": "POSITIVE", "score": 0.98}, {"label": "NEGATIVE", "score": 0.02}],
            "tokens": 11,
            "truncated": False,
        }
    ],
}


@router.post(
    "/sentiment",
    operation_id="sentiment",
    summary="Classify texts",
    **openapi.task(LabelResponse, _EXAMPLE),
)
async def sentiment(body: SentimentRequest, request: TaskRequest) -> Response:
    """The labels of the loaded classifier with their probabilities."""
    parameters = body.parameters
    reply = await request.engine.sentiment(
        as_list(body.inputs), deadline=request.deadline, top_k=parameters.top_k, truncate=parameters.truncate
    )
    return respond(request, "sentiment", reply, LabelResponse(reply.model, reply.results))
