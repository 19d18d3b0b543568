"""Pages for browsers: the playground and Swagger UI. They load nothing from other hosts.

Links are relative, so the pages also work behind a path prefix.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles

from app.http.auth import check_page

router = APIRouter(include_in_schema=False, dependencies=[Depends(check_page)])

_FILES = StaticFiles(packages=[("app.http", "static"), ("fastapi_swagger", "resources")])
_SWAGGER_ASSETS = {"swagger-ui.css", "swagger-ui-bundle.js"}
_ASSETS = {"docs.js", "icon.svg", "playground.css", "playground.js", "service.js"} | _SWAGGER_ASSETS
_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
_SWAGGER_POLICY = f"{_POLICY}; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
"""Swagger UI sets inline styles and loads images from `data:` URLs."""


@router.get("/")
async def playground(request: Request) -> Response:
    return await _page(request, "index.html", _POLICY)


@router.get("/docs")
async def swagger(request: Request) -> Response:
    return await _page(request, "docs.html", _SWAGGER_POLICY)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


@router.get("/static/{name}")
async def asset(name: str, request: Request) -> Response:
    """A script, style sheet or icon of the pages."""
    if name not in _ASSETS:
        raise HTTPException(404)
    return await _file(request, name, {"Cache-Control": "max-age=86400" if name in _SWAGGER_ASSETS else "no-cache"})


async def _page(request: Request, name: str, policy: str) -> Response:
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
    return await _file(request, name, headers)


async def _file(request: Request, name: str, headers: dict[str, str]) -> Response:
    """A file, or 304 if the browser's copy is current."""
    request.scope["headers"] = [one for one in request.scope["headers"] if one[0] != b"range"]  # files are small
    response = await _FILES.get_response(name, request.scope)
    response.headers.update(headers | {"X-Content-Type-Options": "nosniff"})
    return response
