"""GET /errors: what each code of an error means. The `type` of an error's body is the path of its page."""

from __future__ import annotations

from html import escape
from typing import Annotated, Any, Final

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.api.errors import documented
from app.api.negotiation import VARY, best_media, listed
from app.api.openapi.direct_route import DirectRouter
from app.api.responses import Answer, reply
from app.errors import NotFound
from app.errors.codes import PATH, ErrorCode, error_codes
from app.server.security_headers import PAGE

router = DirectRouter("operations")

Code = Annotated[str, Path(description="The code, such as queue_full.")]
_JSON: Final = "application/json"
_HTML: Final = "text/html"
_PAGE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "JSON, or a page if Accept prefers text/html.",
        "content": {_HTML: {"schema": {"type": "string"}}},
    }
}
_HEAD: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width"><title>{title}</title>'
    '<link rel="stylesheet" href="{up}static/style.css">'
)
_KEPT: Final = {**VARY, "Cache-Control": "no-cache"}  # it says the same to everybody
_PAGE_HEADERS: Final = {**PAGE, **VARY}
_AGAIN: Final = "The same request may succeed later: wait as <code>Retry-After</code> says."


class ErrorPage(Answer):
    """What a code means, its status, and when to try again."""

    code: str
    status: int
    title: Annotated[str, Field(description="The status in words.")]
    meaning: str
    retry_after: Annotated[
        int | None,
        Field(description="Seconds of Retry-After if nothing better is known; null if it is not sent."),
    ]

    @classmethod
    def of(cls, value: ErrorCode) -> ErrorPage:
        """Take the domain's value."""
        return cls(
            code=value.code,
            status=value.status,
            title=value.title,
            meaning=value.meaning,
            retry_after=value.retry_after,
        )


class ErrorPages(Answer):
    """All codes."""

    errors: list[ErrorPage]


@router.get(PATH, summary="The codes of errors", response_model=ErrorPages, responses=_PAGE | documented())
async def get_errors(request: Request) -> Response:
    """Every code that the body of an error may carry, by status."""
    found = sorted(error_codes().values(), key=lambda each: (each.status, each.code))
    if not _wants_html(request):
        return reply(ErrorPages(errors=[ErrorPage.of(each) for each in found]), headers=_KEPT)
    items = "".join(
        f'<li>{each.status} <a href="{PATH}/{each.code}">{each.code}</a>: {escape(each.meaning)}' for each in found
    )
    head = _HEAD.format(title="Errors", up="")
    return HTMLResponse(f"{head}<h1>Errors</h1><ul>{items}</ul>", headers=_PAGE_HEADERS)


@router.get(
    PATH + "/{code}",
    summary="What an error's code means",
    response_model=ErrorPage,
    responses=_PAGE | documented(NotFound),
)
async def get_error(request: Request, code: Code) -> Response:
    """The page that the `type` of an error's body names: JSON, or text/html for a browser."""
    found = error_codes().get(code)
    if found is None:
        raise NotFound(f"there is no error {code}; {PATH} lists them")
    if not _wants_html(request):
        return reply(ErrorPage.of(found), headers=_KEPT)
    again = f"<p>{_AGAIN}</p>" if found.retry_after is not None else ""
    text = f"<p><b>{found.status} {escape(found.title)}.</b> {escape(found.meaning)}</p>{again}"
    end = f'<p><a href="{PATH}">All errors</a></p>'
    head = _HEAD.format(title=code, up="../")
    return HTMLResponse(f"{head}<h1>{code}</h1>{text}{end}", headers=_PAGE_HEADERS)


def _wants_html(request: Request) -> bool:
    return best_media(listed(request, "accept"), (_JSON, _HTML)) == _HTML
