"""Relays what a worker process prints into this process's log, where that is JSON: its libraries print plain lines."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from typing import IO, Final

from app.observability.request_context import entered, remote

_LOG: Final = logging.getLogger(__name__)
_LINE: Final = 2**16  # bytes of a line; what is longer is told as several


def relay(output: IO[bytes], name: str, caller: Callable[[], tuple[str, str | None] | None]) -> None:
    """Relay until the process ends: its log as it is, other lines as records of the request that `caller` gives."""
    threading.Thread(target=_relay, args=(output, name, caller), name=f"{name} output", daemon=True).start()


def _relay(output: IO[bytes], name: str, caller: Callable[[], tuple[str, str | None] | None]) -> None:
    with output:
        while line := output.readline(_LINE):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if _is_record(text):
                sys.stderr.write(text + "\n")
                sys.stderr.flush()
            elif text:
                known = caller()
                with entered(None if known is None else remote(*known)):
                    _LOG.warning("%s: %s", name, text)


def _is_record(text: str) -> bool:
    """Whether a line is one of the worker's log."""
    try:
        return text.startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
