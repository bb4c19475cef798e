"""Server-sent events, as the service writes them: id, event, data; comments keep the line open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from app.client.answers import Event


def parse(lines: Iterable[bytes]) -> Iterator[Event | None]:
    """Give the events of a stream, each as soon as its empty line has come, and None for a comment: a sign of life."""
    identity, name, data = 0, "", list[str]()
    for raw in lines:
        line = raw.decode("utf-8").rstrip("\r\n")
        if not line:
            if data:
                yield Event(identity, name, json.loads("\n".join(data)))
            name, data = "", []
            continue
        if line.startswith(":"):
            yield None
        member, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if member == "id" and value.isdecimal():
            identity = int(value)
        elif member == "event":
            name = value
        elif member == "data":
            data.append(value)
