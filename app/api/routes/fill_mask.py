"""`POST /fill-mask`: words for `[MASK]`."""

from __future__ import annotations

from fastapi import Response

from app.api import openapi
from app.api.routes.replies import respond, task_router
from app.api.schemas import FillMaskRequest, as_list
from app.api.task_route import TaskRequest
from bert_client.wire import FillMaskResponse

router = task_router(tags=["tasks"])

_EXAMPLE = {
    "model": "pretrained",
    "results": [
        {
            "masks": [
                {
                    "position": 4,
                    "predictions": [
                        {
                            "score": 0.21,
                            "token": 1523,
                            "token_str": "good",
                            "sequence": "The movie was good and I loved it.",
                        }
                    ],
                }
            ],
            "tokens": 11,
            "truncated": False,
        }
    ],
}


@router.post(
    "/fill-mask",
    operation_id="fill_mask",
    summary="Fill in masked words",
    **openapi.task(FillMaskResponse, _EXAMPLE),
)
async def fill_mask(body: FillMaskRequest, request: TaskRequest) -> Response:
    """The likeliest words for each `[MASK]`, with their probability over the whole vocabulary."""
    parameters = body.parameters
    reply = await request.engine.fill_mask(
        as_list(body.inputs),
        deadline=request.deadline,
        top_k=parameters.top_k,
        targets=parameters.targets,
        truncate=parameters.truncate,
    )
    return respond(request, "fill-mask", reply, FillMaskResponse(reply.model, reply.results))
