"""Content negotiation: Accept, Accept-Encoding (RFC 9110, section 12.5) and Prefer (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

VARY: Final = {"Vary": "Accept"}  # of an answer whose form Accept chooses (RFC 9110, section 12.5.5)
MAX_WAIT: Final = 60.0  # seconds that a request waits for its job
MAX_LENGTH: Final = 1024  # characters of one field that are read
_TCHARS: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, section 5.6.2
_ENTRY: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*(?:"|\\?$)|[^,"])+', re.DOTALL)
_PREFERENCE: Final = re.compile(
    rf'[ \t]*({_TCHARS})[ \t]*(?:=[ \t]*(?:(?:({_TCHARS})|"((?:[^"\\]|\\.)*)")[ \t]*)?)?(?:;.*)?', re.DOTALL
)
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,3})?")
_WEIGHT: Final = re.compile(r"q=([0-9]+(?:\.[0-9]*)?)")


@dataclass(frozen=True, slots=True)
class Preference:
    """The preferences of a request that are honoured: respond-async and wait, None if it was not given."""

    respond_async: bool = False
    wait: float | None = None

    @property
    def wants_job(self) -> bool:
        """Whether a 202 is an answer: a wait alone says so too, for what takes longer (RFC 7240, section 4.3)."""
        return self.respond_async or self.wait is not None

    @property
    def applied(self) -> str:
        """The value of Preference-Applied."""
        wait = [] if self.wait is None else [f"wait={self.wait:g}"]
        return ", ".join((["respond-async"] if self.respond_async else []) + wait)


def listed(request: Request, name: str) -> str:
    """A list field's values in one line; empty if they have more than 1,024 characters together.

    For fields that a server may disregard, which the three of this module are.
    """
    text = ",".join(request.headers.getlist(name))
    return text if len(text) <= MAX_LENGTH else ""


def preference(request: Request) -> Preference:
    """The preferences of a request; the first of a name counts, and unknown or unreadable ones are ignored."""
    found: dict[str, str] = {}
    for match in filter(None, map(_PREFERENCE.fullmatch, _ENTRY.findall(listed(request, "prefer")))):
        found.setdefault(match[1].lower(), match[2] or re.sub(r"\\(.)", r"\1", match[3] or ""))
    seconds = found.get("wait", "")
    wait = min(float(seconds), MAX_WAIT) if _SECONDS.fullmatch(seconds) else None
    return Preference("respond-async" in found, wait)


def best_media(accept: str, offers: Sequence[str]) -> str | None:
    """The media type that an Accept weighs highest, the first of equals; None if it accepts none of them."""
    ranges = _weights(accept) if accept.strip() else {"*/*": 1.0}

    def weight(media: str) -> float:
        names = (media, media.partition("/")[0] + "/*", "*/*")
        return next((ranges[name] for name in names if name in ranges), 0.0)

    best = max(offers, key=weight)
    return best if weight(best) else None


def best_coding(accept_encoding: str, codings: Sequence[str]) -> str | None:
    """The content coding that an Accept-Encoding asks for: "identity" for none, None if nothing acceptable is left.

    Libraries name by default all that they know, so a coding counts as asked for only if it is the only one that is
    named, or if `identity` is refused.
    """
    weights = _weights(accept_encoding)
    accepted = [name for name in codings if weights.get(name, weights.get("*", 0.0))]
    if not weights.get("identity", weights.get("*", 1.0)):
        return accepted[0] if accepted else None
    named = [name for name, weight in weights.items() if weight]
    return named[0] if len(named) == 1 and named[0] in codings else "identity"


def _weights(text: str) -> Mapping[str, float]:
    """The weight of each name in a list: 1 if none is given, 0 if it cannot be read."""
    weights = {}
    for entry in filter(None, map(str.strip, text.lower().split(","))):
        name, *options = (piece.strip() for piece in entry.split(";"))
        given = next((option for option in options if option.startswith("q=")), "q=1")
        match = _WEIGHT.fullmatch(given)
        weights[name] = float(match[1]) if match else 0.0
    return weights
