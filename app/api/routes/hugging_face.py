"""`POST /hf/*`: the wire shapes of `huggingface_hub.InferenceClient` and of `@huggingface/inference`.

Answers are nested as the clients parse them, and as their own API does.
"""

from __future__ import annotations

from typing import Any

from fastapi import Response

from app.api import openapi
from app.api.routes.replies import respond, task_router
from app.api.schemas import (
    FillMaskParameters,
    HuggingFaceClassificationParameters,
    HuggingFaceClassificationRequest,
    HuggingFaceFillMaskRequest,
    HuggingFaceLabels,
    HuggingFaceTokens,
    as_list,
)
from app.api.task_route import TaskRequest
from bert_client.wire import FillMaskResult

router = task_router("/hf", tags=["Hugging Face clients"])

_FILLED = [{"score": 0.21, "token": 1523, "token_str": "good", "sequence": "The movie was good."}]
_CLASSIFIED = [[{"label": "POSITIVE", "score": 0.98}, {"label": "NEGATIVE", "score": 0.02}]]


@router.post(
    "/fill-mask",
    operation_id="hf_fill_mask",
    summary="InferenceClient.fill_mask",
    **openapi.task(HuggingFaceTokens, _FILLED),
)
async def fill_mask(body: HuggingFaceFillMaskRequest, request: TaskRequest) -> Response:
    """The predictions of the one mask of one text; one list more for several masks, and for several texts."""
    parameters = body.parameters or FillMaskParameters()
    reply = await request.engine.fill_mask(
        as_list(body.inputs),
        deadline=request.deadline,
        top_k=parameters.top_k,
        targets=parameters.targets,
        truncate=parameters.truncate,
    )
    shapes = [_tokens(result) for result in reply.results]
    return respond(request, "fill-mask", reply, shapes if isinstance(body.inputs, list) else shapes[0])


@router.post(
    "/text-classification",
    operation_id="hf_text_classification",
    summary="InferenceClient.text_classification",
    **openapi.task(HuggingFaceLabels, _CLASSIFIED),
)
async def text_classification(body: HuggingFaceClassificationRequest, request: TaskRequest) -> Response:
    """One list of labels per text, likeliest first; for one text too, since that is what the clients read."""
    parameters = body.parameters or HuggingFaceClassificationParameters()
    reply = await request.engine.sentiment(
        as_list(body.inputs), deadline=request.deadline, top_k=parameters.top_k, truncate=parameters.truncate
    )
    return respond(request, "sentiment", reply, [result.predictions for result in reply.results])


def _tokens(result: FillMaskResult) -> list[Any]:
    rows = [mask.predictions for mask in result.masks]
    return rows[0] if len(rows) == 1 else rows
