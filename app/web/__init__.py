"""The pages a person looks at: files beside this one, served as they are, with nothing fetched from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.server.security_headers import PAGE

STATIC: Final = Path(__file__).parent / "static"
# The reference's own style sheet has its signs as data.
_REFERENCE: Final = {"Content-Security-Policy": f"{PAGE['Content-Security-Policy']}; img-src 'self' data:"}


class _Files(StaticFiles):
    """Files of one folder, with the headers of pages."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, 304 to the ETag that it has, or the framework's 404."""
        response = await super().get_response(path, scope)
        response.headers.update(PAGE)
        return response


def include(app: FastAPI) -> None:
    """Give `app` the page at /, the reference at /docs, and what they load."""
    files = _Files(directory=STATIC)

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def reference(request: Request) -> Response:
        response = await files.get_response("reference.html", request.scope)
        response.headers.update(_REFERENCE)
        return response

    for path, made in {"/": page, "/docs": reference}.items():
        app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)(made)
    app.mount("/static", files, name="static")
