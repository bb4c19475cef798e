"""What a caller prefers (RFC 7240): a job at once, or an answer if it comes within so many seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

LONGEST: Final = 60.0  # seconds that a request waits for its job
# A preference with its parameters, up to the comma before the next: a comma within quotes does not end it.
_ONE: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')
_VALUED: Final = re.compile(r'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;"]*))?\s*(?:;|$)')
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Preference:
    """Whether a job will do, and how many seconds to wait for its end, 60 at most; None where that was not said."""

    respond_async: bool = False
    wait: float | None = None

    @property
    def wants_job(self) -> bool:
        """Whether a 202 is an answer: a wait alone says so too, for what takes longer (RFC 7240, section 4.3)."""
        return self.respond_async or self.wait is not None

    @property
    def applied(self) -> str:
        """What was heeded, for Preference-Applied."""
        wait = [] if self.wait is None else [f"wait={self.wait:g}"]
        return ", ".join((["respond-async"] if self.respond_async else []) + wait)


def preference(request: Request) -> Preference:
    """The preferences of a request's Prefer headers; of one that comes twice the first counts, others are ignored."""
    found: dict[str, str] = {}
    for entry in _ONE.findall(",".join(request.headers.getlist("prefer"))):
        named = _VALUED.match(entry)
        if named:
            found.setdefault(named[1].lower(), (named[2] or "").strip('"'))
    seconds = found.get("wait", "")
    wait = min(float(seconds), LONGEST) if _SECONDS.fullmatch(seconds) else None
    return Preference("respond-async" in found, wait)
