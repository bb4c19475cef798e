"""A terminal on the other side of a pty, which answers questions as terminals of its kind do."""

from __future__ import annotations

import os
import pty
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

KITTY = b"\x1b_Gi=31;OK\x1b\\\x1b[?62;c"
XTERM_WITH_SIXEL = b"\x1b[?63;1;2;4;6;9;15;22c"
XTERM = b"\x1b[?64;1;2;6;9;15;16;17;18;21;22;28c"  # has 64 and 14-like numbers, and no 4
SILENT = b""


@dataclass
class Terminal:
    """The program's ends of the pty; `shown` is all that the program wrote."""

    stdin: TextIO
    stdout: TextIO
    shown: bytearray = field(default_factory=bytearray)


@contextmanager
def answering(answer: bytes) -> Iterator[Terminal]:
    """A terminal that gives an answer once it was asked for its attributes."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    with os.fdopen(slave, "r", closefd=False) as stdin, os.fdopen(slave, "w", closefd=False) as stdout:
        terminal = Terminal(stdin, stdout)
        thread = threading.Thread(target=_serve, args=(master, terminal, answer))
        thread.start()
        try:
            yield terminal
        finally:
            stdout.flush()
            os.close(slave)
            thread.join()
            os.close(master)


def _serve(master: int, terminal: Terminal, answer: bytes) -> None:
    """Read until the other end is closed: the kernel may hand on what was written a while later."""
    asked = False
    while True:
        try:
            terminal.shown += os.read(master, 65_536)
        except OSError:  # EIO: all has been read, and nobody has the other end open
            return
        if not asked and b"\x1b[c" in terminal.shown:
            asked = True
            os.write(master, answer)
