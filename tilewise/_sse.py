"""Server-sent events, as the service writes them: id, event, data; comments keep the line open."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tilewise.models import Event


class Parser:
    """The events of one stream, from its bytes in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._identity, self._name, self._data = 0, "", list[str]()

    def feed(self, piece: bytes) -> Iterator[Event | None]:
        """Give the events that are whole by now, each once, and None for a comment: a sign of life."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8").removesuffix("\r")
            if line.startswith(":"):
                yield None
            elif line:
                self._member(line)
            else:
                if self._data:
                    yield Event(self._identity, self._name, json.loads("\n".join(self._data)))
                self._name, self._data = "", []

    def _member(self, line: str) -> None:
        member, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if member == "id" and value.isdecimal():
            self._identity = int(value)
        elif member == "event":
            self._name = value
        elif member == "data":
            self._data.append(value)
