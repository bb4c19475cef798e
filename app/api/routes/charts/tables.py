"""JSON or comma-separated values, whichever a request accepts more."""

from __future__ import annotations

from typing import Any, Final

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from app.api.formats.csv_table import MEDIA, csv_text
from app.api.formats.json_matrix import MEDIA as JSON
from app.api.negotiation import best_media, listed
from app.errors import NotAcceptable

TABLE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The answer, or with `Accept: text/csv` its entries, a row each; a page's `next` is in `Link`.",
        "content": {MEDIA: {"schema": {"type": "string"}}},
    }
}


def told(request: Request, answer: BaseModel, member: str | None = None) -> Response:
    """An answer as JSON, or the entries of its `member` (None: itself) as CSV; raises NotAcceptable."""
    media = best_media(listed(request, "accept"), (JSON, MEDIA))
    if media is None:
        raise NotAcceptable(f"the answer can be {JSON} or {MEDIA}", accepted=[JSON, MEDIA])
    if media == JSON:
        return Response(answer.model_dump_json(), 200, {"Vary": "Accept"}, JSON)
    content = orjson.loads(answer.model_dump_json())
    headers = {"Vary": "Accept"}
    if following := content.get("next"):
        headers["Link"] = f'<?{request.url.include_query_params(cursor=following).query}>; rel="next"'
    rows = [content] if member is None else content[member]
    return Response(csv_text(rows), 200, headers, f"{MEDIA}; charset=utf-8")
