"""Which pictures a terminal can show, asked of the terminal itself.

Sources: Kitty's graphics protocol ("Querying support"), and DEC's Primary Device Attributes, in which 4 is sixel.
"""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Final, Literal, TextIO, TypeAlias

Protocol: TypeAlias = Literal["kitty", "sixel"]

# A picture of one pixel that is not to be shown, then a question that every terminal answers: one that answers the
# second alone has no such graphics.
QUERY: Final = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"
_KITTY: Final = re.compile(rb"\x1b_Gi=31;OK\x1b\\")
_ATTRIBUTES: Final = re.compile(rb"\x1b\[\?([0-9;]*)c")
_SIXEL: Final = b"4"
_PATIENCE: Final = 0.5  # seconds for an answer over a slow line; a terminal that gives none costs them once
_MUTE: Final = frozenset(
    {"", "dumb", "linux", "unknown"}
)  # values of TERM whose terminals show none, or print questions


def picture_protocol(
    source: TextIO, target: TextIO, environment: Mapping[str, str] = os.environ, patience: float = _PATIENCE
) -> Protocol | None:
    """How pictures are shown to whoever sits at a terminal; None where nobody does, or it shows none."""
    if environment.get("TERM", "") in _MUTE or not (source.isatty() and target.isatty()):
        return None
    if "KITTY_WINDOW_ID" in environment and "TMUX" not in environment:
        return "kitty"
    try:
        answer = _asked(source.fileno(), target.fileno(), patience)
    except (OSError, termios.error):
        return None
    if _KITTY.search(answer):
        return "kitty"
    found = _ATTRIBUTES.search(answer)
    return "sixel" if found and _SIXEL in found.group(1).split(b";") else None


def _asked(source: int, target: int, patience: float) -> bytes:
    """What the terminal answers, to the end of its attributes, or as much as came in time."""
    answer, until = b"", monotonic() + patience
    with _unechoed(source):
        os.write(target, QUERY)
        while not _ATTRIBUTES.search(answer):
            left = until - monotonic()
            if left <= 0 or not select.select([source], [], [], left)[0]:
                break
            piece = os.read(source, 1024)
            if not piece:
                break
            answer += piece
    return answer


@contextmanager
def _unechoed(source: int) -> Iterator[None]:
    """Have the terminal give its answer at once, and show nothing of it."""
    before = termios.tcgetattr(source)
    try:
        tty.setcbreak(source, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(source, termios.TCSANOW, before)
