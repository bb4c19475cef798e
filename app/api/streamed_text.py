"""Answers that are made piece by piece in a thread, while the client takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from starlette.responses import StreamingResponse

from app.server.thread_pool import RequestThreads

Piece = TypeVar("Piece", str, bytes)


async def streamed(
    pieces: Iterator[Piece], threads: RequestThreads, media: str, headers: dict[str, str] | None = None
) -> StreamingResponse:
    """Pieces as the body of an answer; none of them is empty. What the first one raises is raised here."""
    first = await threads.call(next, pieces, None)
    return StreamingResponse(_rest(first, pieces, threads), 200, headers, media)


async def _rest(first: Piece | None, pieces: Iterator[Piece], threads: RequestThreads) -> AsyncIterator[Piece]:
    piece = first
    while piece is not None:
        yield piece
        piece = await threads.call(next, pieces, None)
