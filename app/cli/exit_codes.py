"""Exit codes."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """The meaning of each exit code."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_TUNED = 3
    NOBODY = 4
    INTERRUPTED = 130


EXPLAINED: Final = (
    "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 not tuned, so there is no exact answer; "
    "4 no service answers, or there is no such device; 130 interrupted."
)

_CODES: Final = {
    "not_tuned": Exit.NOT_TUNED,
    "unreachable": Exit.NOBODY,
    "no_device": Exit.NOBODY,
    "unknown_device": Exit.NOBODY,
    "malformed": Exit.USAGE,
    "invalid": Exit.USAGE,
    "unknown_kernel": Exit.USAGE,
}


def exit_of(code: str) -> Exit:
    """The exit code for an error's stable code, the service's or our own."""
    return _CODES.get(code, Exit.FAILED)
