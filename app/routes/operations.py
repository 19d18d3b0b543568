"""Health, info, metrics, docs: what operators and browsers ask."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

from app.engine import Engine
from app.errors import UnavailableError
from app.metrics import CONTENT_TYPE, Metrics
from app.routes.replies import PROBLEMS
from app.settings import Settings

router = APIRouter(tags=["operations"])
docs_router = APIRouter(include_in_schema=False)

_UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: PROBLEMS[503]}
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


@router.get("/health/live", summary="Is a restart needed?", responses=_UNAVAILABLE)
async def live(request: Request) -> dict[str, str]:
    """503 once the inference thread is dead."""
    engine = _engine(request)
    if not engine.alive:
        raise UnavailableError(engine.status)
    return {"status": "alive"}


@router.get("/health/ready", summary="Can it answer?", responses=_UNAVAILABLE)
async def ready(request: Request) -> dict[str, str]:
    """200 only after a forward pass has succeeded and while the service is not draining."""
    engine = _engine(request)
    if engine.status != "ready":
        raise UnavailableError(engine.status, retry_after=1)
    return {"status": "ready"}


@router.get("/info", summary="Models and limits")
async def info(request: Request) -> dict[str, Any]:
    """Models, sizes, device, precision, limits, version."""
    engine, settings = _engine(request), request.app.state.settings
    backend = engine.backend
    return {
        "version": request.app.version,
        "status": engine.status,
        "device": backend.device,
        "dtype": backend.dtype,
        "threads": backend.threads,
        "workers": settings.workers,
        "models": [
            {
                "name": served.name,
                "tasks": served.tasks,
                "parameters": served.parameters,
                "layers": served.config.num_hidden_layers,
                "hidden_size": served.config.hidden_size,
                "heads": served.config.num_attention_heads,
                "vocab_size": served.config.vocab_size,
                "max_tokens": served.config.max_position_embeddings,
                "labels": served.config.labels if "sentiment" in served.tasks else None,
            }
            for served in backend.models.values()
        ],
        "limits": _limits(settings, engine),
    }


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters and histograms of this worker process."""
    collected: Metrics = request.app.state.metrics
    return Response(collected.render(), headers={"Content-Type": CONTENT_TYPE})


def _limits(settings: Settings, engine: Engine) -> dict[str, int]:
    names = ("max_queue_tokens", "max_client_batch", "max_body_bytes", "request_timeout_ms")
    return {"max_batch_tokens": engine.batcher.batch_tokens} | {name: getattr(settings, name) for name in names}


@docs_router.get("/")
async def index() -> Response:
    """The playground's place; until it is built, the docs."""
    return RedirectResponse("docs")


@docs_router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


@docs_router.get("/docs")
async def swagger(request: Request) -> Response:
    """Swagger UI from this process: no outside host is asked. Relative links work behind any path prefix."""
    options = json.dumps({"url": "openapi.json", "dom_id": "#ui", "tryItOutEnabled": True, "deepLinking": True})
    return HTMLResponse(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{request.app.title}</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({options})</script>
</body>
</html>
"""
    )


@docs_router.get("/docs/{name}")
def asset(name: str) -> Response:
    """A file of Swagger UI."""
    if name not in _ASSETS:
        raise HTTPException(404)
    content = resources.files("fastapi_swagger.resources").joinpath(name).read_bytes()
    return Response(content, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})
