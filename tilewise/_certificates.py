"""What a verified product's answer says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewise.decoding import from_json
from tilewise.errors import UnreadableAnswer

_COUNTS = ("rounds", "recomputed", "unchecked")


@dataclass(frozen=True, slots=True)
class Certificate:
    """What Freivalds' check found of a product: its `residual` that comes nearest to its `bound`, by `rounds` vectors.

    An element that is off by more than the bound is `missed` with that chance at most. `recomputed` rows that stood out
    were made again in float64: `error` is the largest of theirs beside its `error_bound`. `unchecked` elements lie
    beside NaN, infinities or overflow.
    """

    method: str
    rounds: int
    missed: float
    residual: float
    bound: float
    recomputed: int = 0
    error: float | None = None
    error_bound: float | None = None
    unchecked: int = 0


def parse_certificate(headers: Mapping[str, str]) -> Certificate | None:
    """Read X-Certificate, such as freivalds; rounds=16; None without it, UnreadableAnswer if it is none."""
    header = headers.get("x-certificate")
    if header is None:
        return None
    method, *members = (part.strip() for part in header.split(";"))
    try:
        told = {name: float(value) for name, _, value in (member.partition("=") for member in members)}
        counts = {name: int(told[name]) for name in _COUNTS}
        return from_json(Certificate, told | counts | {"method": method})
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableAnswer("the answer's certificate cannot be read", None, "unreadable") from error
