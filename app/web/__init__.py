"""The pages a person looks at: files beside this one, served as they are, with nothing fetched from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from app.server.security_headers import PAGE

STATIC: Final = Path(__file__).parent / "static"
# The reference's own style sheet has its signs as data.
_REFERENCE: Final = {"Content-Security-Policy": f"{PAGE['Content-Security-Policy']}; img-src 'self' data:"}
_COMPRESSED: Final = {"Content-Encoding": "gzip", "Content-Type": "text/javascript; charset=utf-8"}


class _Files(StaticFiles):
    """Files of one folder with the headers of pages; one with a compressed twin is sent so where it may be."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, 304 to the ETag that it has, or the framework's 404."""
        has_twin = (STATIC / f"{path}.gz").is_file()
        is_compressed = has_twin and "gzip" in Headers(scope=scope).get("Accept-Encoding", "")
        response = await super().get_response(f"{path}.gz" if is_compressed else path, scope)
        response.headers.update(PAGE)
        if has_twin:
            response.headers["Vary"] = "Accept-Encoding"
        if is_compressed:
            response.headers.update(_COMPRESSED)
        return response


@cache
def _text(depth: int) -> str:
    """What every page begins as, its links relative to an address of so many folders below the service's own."""
    return (STATIC / "index.html").read_text(encoding="utf-8").replace("{up}", "../" * depth)


def _shell(request: Request, depth: int) -> Response:
    text = _text(depth)
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    response = HTMLResponse(text, headers={**PAGE, "ETag": tag})
    if_none_match = {each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")}
    return NotModifiedResponse(response.headers) if tag in if_none_match else response


def include(app: FastAPI) -> None:
    """Give `app` the overview at /, the other pages below /ui, the reference at /docs, and what they load."""
    files = _Files(directory=STATIC)

    async def overview(request: Request) -> Response:
        return _shell(request, 0)

    async def page(request: Request, page: str) -> Response:
        return _shell(request, page.count("/") + 1)

    async def reference(request: Request) -> Response:
        response = await files.get_response("reference.html", request.scope)
        response.headers.update(_REFERENCE)
        return response

    pages: dict[str, Callable[..., Awaitable[Response]]] = {"/": overview, "/ui/{page:path}": page, "/docs": reference}
    for path, made in pages.items():
        app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)(made)
    app.mount("/static", files, name="static")
