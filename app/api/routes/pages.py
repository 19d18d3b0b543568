"""What a browser opens: the playground and the API's documentation. No outside host is asked.

Links are relative, so both work behind any path prefix.
"""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from app.api.auth import check_page

router = APIRouter(include_in_schema=False, dependencies=[Depends(check_page)])

_OWN = resources.files("app.api").joinpath("static")
_SWAGGER = resources.files("fastapi_swagger.resources")
_ASSETS = {
    "docs.js": (_OWN, "text/javascript"),
    "icon.svg": (_OWN, "image/svg+xml"),
    "playground.css": (_OWN, "text/css"),
    "playground.js": (_OWN, "text/javascript"),
    "service.js": (_OWN, "text/javascript"),
    "swagger-ui.css": (_SWAGGER, "text/css"),
    "swagger-ui-bundle.js": (_SWAGGER, "text/javascript"),
}
_STRICT = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
_SWAGGER_POLICY = f"{_STRICT}; style-src 'self' 'unsafe-inline'; img-src 'self' data:"  # it styles in line


@router.get("/")
def playground() -> Response:
    """The three tasks, by hand."""
    return _page("index.html", _STRICT)


@router.get("/docs")
def swagger() -> Response:
    """Swagger UI."""
    return _page("docs.html", _SWAGGER_POLICY)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


@router.get("/static/{name}")
def asset(name: str) -> Response:
    """A file of one of the pages."""
    if name not in _ASSETS:
        raise HTTPException(404)
    folder, media_type = _ASSETS[name]
    lifetime = "max-age=86400" if folder == _SWAGGER else "no-cache"
    headers = {"Cache-Control": lifetime, "X-Content-Type-Options": "nosniff"}
    return Response(folder.joinpath(name).read_bytes(), media_type=media_type, headers=headers)


def _page(name: str, policy: str) -> Response:
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(_OWN.joinpath(name).read_bytes(), media_type="text/html", headers=headers)
