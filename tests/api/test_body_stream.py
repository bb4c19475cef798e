"""Where a body of unknown length lies while it grows, and what is said of a client that sends it too slowly."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from app.api.body.flow_control import SlowTransfers
from app.api.body.stream import staging
from app.api.errors import timed_out
from app.server.thread_pool import FEW, RequestThreads
from app.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


class Watched(RequestThreads):
    """Threads that say for how many bytes each call was."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def sized(self, nbytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.sizes.append(nbytes)
        return await super().sized(nbytes, function, *args, **kwargs)


@contextmanager
def lend(nbytes: int) -> Iterator[memoryview]:
    yield memoryview(bytearray(nbytes))


def test_large_early_bytes_are_copied_in_a_thread() -> None:
    threads, pieces = Watched(), [bytes([byte]) * FEW for byte in range(1, 20)]

    async def grown() -> bytes:
        async with staging(0, lend, threads, SlowTransfers()) as area:
            for piece in pieces:
                await area.write(piece)
            return bytes(area.data)

    assert asyncio.run(grown()) == b"".join(pieces)
    assert {FEW, 4 * FEW, 16 * FEW} <= set(threads.sizes)


def test_the_text_of_a_408_names_settings_that_there_are() -> None:
    text = timed_out()[408]["description"]
    named = re.findall("TILEWISE_([A-Z_]+)", text)
    assert len(named) == 3
    assert {name.lower() for name in named} <= set(Settings.model_fields)
