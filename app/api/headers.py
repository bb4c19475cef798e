"""Header fields that are lists: what a caller sends of them is read on the event loop, so it is bounded."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

MOST: Final = 1024  # characters of one field that are read


def listed(request: Request, name: str) -> str:
    """A list field's values in one line; nothing where they are longer than 1,024 characters together.

    For fields that a server may disregard: Prefer (RFC 7240, section 2), Accept and Accept-Encoding (RFC 9110, 12.5).
    """
    text = ",".join(request.headers.getlist(name))
    return text if len(text) <= MOST else ""
