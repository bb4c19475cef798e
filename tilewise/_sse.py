"""Server-sent events, as the service writes them: id, event, data; comments keep the line open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tilewise.decoding import decoded
from tilewise.errors import UnreadableAnswer
from tilewise.models import Event

_LONGEST: Final = 2**20  # bytes of one event


class Parser:
    """The events of one stream, from its bytes in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._identity, self._name, self._data, self._size = 0, "", list[str](), 0

    def feed(self, piece: bytes) -> Iterator[Event | None]:
        """Give the events that are whole by now, each once, and None for a comment: a sign of life.

        Raises UnreadableAnswer for what is no stream of events, or one event without end.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8", errors="replace").removesuffix("\r")
            if line.startswith(":"):
                yield None
            elif line:
                self._member(line)
            else:
                if self._data:
                    yield Event(self._identity, self._name, self._value())
                self._name, self._data, self._size = "", [], 0
        if len(self._rest) + self._size > _LONGEST:
            raise UnreadableAnswer("an event has no end", None, "unreadable")

    def _value(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = decoded("\n".join(self._data))
        except ValueError as error:
            raise UnreadableAnswer("an event is no JSON", None, "unreadable") from error
        return value

    def _member(self, line: str) -> None:
        member, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if member == "id" and value.isdecimal():
            self._identity = int(value)
        elif member == "event":
            self._name = value
        elif member == "data":
            self._data.append(value)
            self._size += len(value)
