"""Clients of a service that is full: many requests a second, at next to no processor time for those that are refused.

On a device that is this machine's processor whatever the clients take is taken from the products.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
from collections import Counter
from dataclasses import dataclass, field
from struct import Struct
from time import perf_counter, time_ns
from typing import Final, TypeAlias

import numpy as np

OUTSTANDING: Final = 2000  # requests that are under way at once at most, so that the clients' own memory is bounded
TICK: Final = 0.01  # seconds between the moments at which requests leave: those of one leave together
_SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h: with what is read comes when its bytes arrived
_STAMP: Final = Struct("qq")  # seconds and nanoseconds
_FIELD: Final = re.compile(rb"\r\n(content-length|retry-after): ([0-9]+)(?=\r\n)", re.IGNORECASE)
_CONTINUE: Final = "100"
_FULL: Final = ("429", "503")

Over: TypeAlias = asyncio.Future[None]


@dataclass
class Seen:
    """What became of requests: by status, when products came, how long refusals took; and memory by time.

    `refused` are the seconds until a refusal lay in its client's socket, `read` until its client came to read it.
    `lags` are how many seconds after the clock requests left: the clients' own delay.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    made: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    wrong: int = 0
    late: int = 0
    memory: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """One product: its request's head and body, and the C that is right."""

    head: bytes
    body: bytes
    c: bytes

    @classmethod
    def of(cls, side: int, *, stamped: bool) -> Work:
        """A product of two square matrices of small integers, which every kernel sums up exactly.

        C may be A's stamp instead, which is what the null device gives.
        """
        rng = np.random.default_rng(1)
        a, b = (rng.integers(-4, 5, (side, side)).astype(np.float32) for _ in "ab")
        body = a.tobytes() + b.tobytes()
        lines = [f"POST /matmul?m={side}&n={side}&k={side} HTTP/1.1", "Host: localhost", "Expect: 100-continue"]
        lines += ["Content-Type: application/octet-stream", f"Content-Length: {len(body)}", "Connection: close", "", ""]
        stamp = np.full((side * side // 2,), a.reshape(-1).view(np.uint64)[0])
        stamp[-1] = a.reshape(-1).view(np.uint64)[-1]
        return cls("\r\n".join(lines).encode(), body, (stamp if stamped else a @ b).tobytes())


def answered(data: bytes) -> tuple[str, dict[bytes, int], bytes]:
    """The status of an answer, the headers that are numbers, and what there is of its body."""
    head, _, body = data.partition(b"\r\n\r\n")
    fields = {name.lower(): int(value) for name, value in _FIELD.findall(head + b"\r\n")}
    return head.split(maxsplit=2)[1].decode(), fields, body


@dataclass(slots=True)
class Asked:
    """A request that has no whole answer yet: when it left, and what was heard, and when that began."""

    connection: socket.socket
    sent: int
    over: Over
    heard: bytes = b""
    came: int = 0


class Clients:
    """Requests for one product, each on a connection of its own: its head, and its body once that is asked for."""

    def __init__(self, port: int, work: Work, seen: Seen) -> None:
        self._port, self._work, self._seen = port, work, seen
        self._loop, self._poll = asyncio.get_running_loop(), select.epoll()
        self._asked: dict[int, Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(self._poll.fileno(), self._look)

    @property
    def under_way(self) -> int:
        """Requests that have no answer yet."""
        return len(self._asked) + len(self._tasks)

    def ask(self) -> Over:
        """Send a head; what is given is done when the request has its answer, or has failed."""
        connection, over = socket.socket(), self._loop.create_future()
        try:
            connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            connection.connect(("127.0.0.1", self._port))  # on loopback there is nothing to wait for
            self._asked[connection.fileno()] = Asked(connection, time_ns(), over)
            connection.send(self._work.head)
            self._poll.register(connection, select.EPOLLIN)
        except OSError as error:
            self._asked.pop(connection.fileno(), None)
            self._ended(connection, type(error).__name__, over)
        return over

    async def stop(self) -> None:
        """Give up what is under way."""
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()
        for asked in self._asked.values():
            asked.connection.close()
            asked.over.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self) -> None:
        """Hear the answers that have come."""
        for number, _ in self._poll.poll(0):
            asked = self._asked[number]
            try:
                told = self._hear(asked)
            except OSError as error:
                told = type(error).__name__, {}
            if told is not None:
                del self._asked[number]
                self._go_on(asked, *told)

    def _hear(self, asked: Asked) -> tuple[str, dict[bytes, int]] | None:
        """The status of an answer and its headers, None while it is not whole.

        The system says when its first bytes came: clients that have much to do come to read them later.
        """
        data, told, *_ = asked.connection.recvmsg(2**16, socket.CMSG_SPACE(_STAMP.size), socket.MSG_DONTWAIT)
        if not data:
            raise ConnectionResetError("the answer is not whole")
        if not asked.came:
            seconds, nanoseconds = _STAMP.unpack(told[0][2]) if told else divmod(time_ns(), 10**9)
            asked.came = seconds * 10**9 + nanoseconds
        asked.heard += data
        if b"\r\n\r\n" not in asked.heard:
            return None
        status, headers, body = answered(asked.heard)
        return (status, headers) if len(body) == headers.get(b"content-length", 0) else None

    def _go_on(self, asked: Asked, status: str, headers: dict[bytes, int]) -> None:
        """Send the body of a request that is let in; note a refusal."""
        if status == _CONTINUE:
            self._poll.unregister(asked.connection)
            asked.connection.setblocking(False)
            task = self._loop.create_task(self._finish(asked.connection, asked.over))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if status in _FULL:
            self._seen.refused.append((asked.came - asked.sent) / 1e9)
            self._seen.read.append((time_ns() - asked.sent) / 1e9)
            self._seen.after.append(headers[b"retry-after"])
        self._ended(asked.connection, status, asked.over)

    async def _finish(self, connection: socket.socket, over: Over) -> None:
        """Send the body, and read the product."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=2**20)
        try:
            writer.write(self._work.body)
            status, headers, _ = answered(await reader.readuntil(b"\r\n\r\n"))
            content = await reader.readexactly(headers[b"content-length"])
            if status == "200":
                self._seen.wrong += content != self._work.c
                self._seen.made.append(perf_counter())
            self._ended(writer, status, over)
        except (OSError, asyncio.IncompleteReadError, KeyError) as error:
            self._ended(writer, type(error).__name__, over)
        finally:
            writer.close()

    def _ended(self, connection: socket.socket | asyncio.StreamWriter, name: str, over: Over) -> None:
        connection.close()
        self._seen.statuses[name] += 1
        if not over.done():
            over.set_result(None)


async def closed(port: int, work: Work, seen: Seen, clients: int, seconds: float) -> None:
    """So many clients, each waiting for its answer before it asks again."""
    until, asking = perf_counter() + seconds, Clients(port, work, seen)

    async def client() -> None:
        while perf_counter() < until:
            await asking.ask()

    await asyncio.gather(*(client() for _ in range(clients)))
    await asking.stop()


async def opened(port: int, work: Work, seen: Seen, rate: float, seconds: float) -> None:
    """So many requests a second, by the clock; those under way at the end are given up."""
    started, asking, number = perf_counter(), Clients(port, work, seen), 0
    while (due := started + number / rate) < started + seconds:
        await asyncio.sleep(max(0.0, due - perf_counter()))
        seen.lags.append(max(0.0, perf_counter() - due))
        for _ in range(max(1, round(rate * TICK))):
            number += 1
            if asking.under_way < OUTSTANDING:
                asking.ask()
            else:
                seen.late += 1
    await asking.stop()
