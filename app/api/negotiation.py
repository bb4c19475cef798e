"""Prefer (RFC 7240) and header fields that are lists, bounded in length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Final

from starlette.requests import Request

LONGEST: Final = 60.0  # seconds that a request waits for its job
_TOKEN: Final = frozenset(f"{ascii_letters}{digits}!#$%&'*+-.^_`|~")  # RFC 9110, section 5.6.2
_BLANK: Final = " \t"
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
    """The preferences of a request's Prefer headers; of one that comes twice the first counts, others are ignored.

    So are headers that are longer than 1,024 characters together.
    """
    found: dict[str, str] = {}
    for entry in _split(listed(request, "prefer"), ","):
        name, value = _named(next(_split(entry, ";")))  # its parameters mean nothing to any preference that is heeded
        if name and value is not None:
            found.setdefault(name, value)
    seconds = found.get("wait", "")
    wait = min(float(seconds), LONGEST) if _SECONDS.fullmatch(seconds) else None
    return Preference("respond-async" in found, wait)


def _split(text: str, separator: str) -> Iterator[str]:
    """The pieces of a text between separators; one within a quoted string does not separate."""
    start, quoted, escaped = 0, False, False
    for at, letter in enumerate(text):
        if escaped:
            escaped = False
        elif letter == '"':
            quoted = not quoted
        elif letter == "\\":
            escaped = quoted
        elif letter == separator and not quoted:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _named(pair: str) -> tuple[str, str | None]:
    """A preference's name in lower case and its value; no name where it has none, None for a value that is no word."""
    name, _, value = (part.strip(_BLANK) for part in pair.partition("="))
    return name.lower() if _TOKEN.issuperset(name) else "", _word(value)


def _word(text: str) -> str | None:
    """A token, or what a quoted string says; None where it is neither. Nothing is a word without letters."""
    if _TOKEN.issuperset(text):
        return text
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':  # noqa: PLR2004 - the quotes
        return None
    said, escaped = [], False
    for letter in text[1:-1]:
        escaped = letter == "\\" and not escaped
        if not escaped:
            said.append(letter)
    return "".join(said)


MOST: Final = 1024  # characters of one field that are read


def listed(request: Request, name: str) -> str:
    """A list field's values in one line; nothing where they are longer than 1,024 characters together.

    For fields that a server may disregard: Prefer (RFC 7240, section 2), Accept and Accept-Encoding (RFC 9110, 12.5).
    """
    text = ",".join(request.headers.getlist(name))
    return text if len(text) <= MOST else ""
