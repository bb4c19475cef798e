"""What browsers are told of every answer, and of pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_POLICY: Final = "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
# Of a page: what it loads is the service's own, and nothing stands in it that is run or styles it.
PAGE: Final[Mapping[str, str]] = {
    "Content-Security-Policy": f"default-src 'self'; {_POLICY}",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_YEAR: Final = 365 * 86400


def of_every_answer(*, tls: bool) -> list[tuple[str, str]]:
    """No browser guesses a type (Fetch, nosniff); over TLS it comes by TLS alone for a year (RFC 6797)."""
    transport = [("Strict-Transport-Security", f"max-age={_YEAR}")] if tls else []
    return [("X-Content-Type-Options", "nosniff"), *transport]
