"""If-Match and If-None-Match (RFC 9110, section 13.1), and the ETag of a resident matrix: a version of this run."""

from __future__ import annotations

from secrets import token_hex
from typing import Final

from starlette.requests import Request

from app.services.cache.service import EtagCondition
from app.services.matmul.resident_matrices import Condition

IF_MATCH: Final = "If-Match"
IF_NONE_MATCH: Final = "If-None-Match"
_RUN: Final = token_hex(4)  # versions begin anew with each run
_ANY: Final = {"*"}


def etag(version: int) -> str:
    """The entity tag of a version."""
    return f'"{_RUN}-{version}"'


def version_condition_of(request: Request) -> Condition | None:
    """What a request says must hold of the version that there is; None if it says nothing."""
    condition = etag_condition_of(request)
    return None if condition is None else lambda version: condition(None if version is None else etag(version))


def etag_condition_of(request: Request) -> EtagCondition | None:
    """What a request says must hold of the entity tag that there is, None where there is none; None if it says nothing.

    If-None-Match counts where there is no If-Match (RFC 9110, section 13.2.2).
    """
    if (wanted := _tags(request, IF_MATCH)) is not None:
        return lambda tag: tag is not None and (wanted == _ANY or tag in wanted)
    if _tags(request, IF_NONE_MATCH) is not None:
        return lambda tag: tag is None or not is_known(request, tag)
    return None


def is_known(request: Request, tag: str) -> bool:
    """Whether If-None-Match names an entity tag, strong or weak: whoever asks has what it is of."""
    known = _tags(request, IF_NONE_MATCH) or set()
    return known == _ANY or tag in {each.removeprefix("W/") for each in known}


def _tags(request: Request, name: str) -> set[str] | None:
    """The tags of a list field, or None. A tag of ours has no comma: one that has is none of ours in two pieces."""
    lines = request.headers.getlist(name)
    return {tag.strip(" \t") for line in lines for tag in line.split(",")} if lines else None
