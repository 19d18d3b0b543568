"""`POST /sentiment`: what a review feels."""

from __future__ import annotations

from fastapi import Response

from app.json_route import TaskRequest
from app.routes.replies import documented, respond, task_router
from app.schemas import LabelResponse, SentimentRequest, as_list

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


@router.post("/sentiment", summary="Classify texts", **documented(LabelResponse, _EXAMPLE))
async def sentiment(body: SentimentRequest, request: TaskRequest) -> Response:
    """The labels of the loaded classifier with their probabilities."""
    parameters = body.parameters
    reply = await request.engine.sentiment(
        as_list(body.inputs), deadline=request.deadline, top_k=parameters.top_k, truncate=parameters.truncate
    )
    return respond(request, "sentiment", reply, LabelResponse(reply.model, reply.results))
