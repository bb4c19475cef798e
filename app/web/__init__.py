"""The pages a person looks at: files beside this one, served as they are, with nothing fetched from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

STATIC: Final = Path(__file__).parent / "static"


def include(app: FastAPI) -> None:
    """Give `app` the page at / and what it loads."""

    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)(page)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
