"""Uploads and answers that are slow for the memory that they hold give way to products that find none."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from app.api.body.flow_control import SlowTransfers, TooSlow, TransferWatchdog
from app.errors import NoRoom
from app.server import TransferLimits
from tests.support.api.service_in_process import Running, begun, posted, running
from tests.support.api.wire_server import Answers
from tests.support.waiting import until

SLAB = 2**28
LARGE = 125 * 2**20  # bytes that a head declares: two of them leave less of the slab than a product takes
K = 4096
RATE = 17_500  # bytes a second of each of two clients


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("slow"), slab_bytes=SLAB, min_transfer_rate=0) as found:
        yield found


@contextmanager
def trickling(connection: socket.socket) -> Iterator[None]:
    """Send a little of a body each tenth of a second."""
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.1):
            try:
                connection.sendall(bytes(RATE // 10))
            except OSError:
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def until_lent(service: Running, nbytes: int) -> None:
    until(lambda: service.service.fleet.slab.lent_bytes >= nbytes)


def product(service: Running, size: int = 1024) -> int:
    """The status of a product of 8 MiB with its result, which is right."""
    a = np.ones((size, size // 2), np.float32)
    status, _, body = posted(service, f"m={size}&n={size}&k={size // 2}&dtype=float32&kernel=tiled", a, a)
    if status == 200:
        assert (np.frombuffer(body, np.float32) == size // 2).all()
    assert status in {200, 503}
    return status


def patient(service: Running) -> None:
    """Ask until there is room, for half of the time after which a client that moves nothing is cut off in any case."""
    until(lambda: product(service) == 200, 30, each=0.5)


@pytest.mark.slow
def test_two_uploads_that_hold_the_slab_and_trickle_give_way_to_products(service: Running) -> None:
    with ExitStack() as stack:
        uploads = [stack.enter_context(service.connect()) for _ in range(2)]
        for each in uploads:
            begun(each, f"m={LARGE // 4 // K}&n=1&k={K}&dtype=float32", LARGE + 4 * K)
            stack.enter_context(trickling(each))
        until_lent(service, 2 * LARGE)
        patient(service)
        assert [product(service) for _ in range(5)] == [200] * 5
        with Answers(uploads[0]) as answers:
            status, _, body = answers.read()
        assert status == 408, body
        assert b"its memory was needed by others" in body


@pytest.mark.slow
def test_answers_that_nobody_reads_give_way_to_products(service: Running) -> None:
    side = int((LARGE // 4) ** 0.5)
    readers = []
    with ExitStack() as stack:
        for _ in range(2):
            reader = stack.enter_context(service.connect())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            begun(reader, f"m={side}&n={side}&k=1&dtype=float32&kernel=tiled", 8 * side)
            reader.sendall(bytes(8 * side))
            readers.append(reader)
        for reader in readers:
            assert reader.recv(1, socket.MSG_PEEK)  # its answer has begun
        assert service.service.fleet.slab.lent_bytes >= 2 * 4 * side * side
        patient(service)
        assert [product(service) for _ in range(5)] == [200] * 5


class Moved:
    """Bytes that a client has moved."""

    def __init__(self) -> None:
        self.nbytes = 0


async def transfer(slow: SlowTransfers, held: int, moved: Moved, seconds: float) -> str:
    watchdog = TransferWatchdog(TransferLimits(min_rate=0, slab_timeout=60), lambda: moved.nbytes, slow)
    watchdog.held = held
    try:
        async with watchdog.running():
            await asyncio.sleep(seconds)
    except TooSlow as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_transfer_at_the_rate_of_its_memory_and_one_that_holds_none_do_not_give_way() -> None:
    async def run() -> list[str]:
        slow, still, fast = SlowTransfers(), Moved(), Moved()
        fast.nbytes = 10**6  # of 6 MB in 60 s, in the first 3 s
        tasks = [asyncio.create_task(transfer(slow, 6 * 10**6, fast, 3.0))]
        tasks += [asyncio.create_task(transfer(slow, held, still, 3.0)) for held in (0, 6 * 10**6)]
        await asyncio.sleep(0.1)
        assert not slow.end()  # nobody is slow yet
        await asyncio.sleep(2.1)
        assert slow.end()
        return await asyncio.gather(*tasks)

    first, second, third = asyncio.run(run())
    assert (first, second) == ("", "")
    assert third.startswith("its memory was needed by others: fewer than 100000 bytes moved a second")


def test_where_nobody_is_slow_no_room_is_told_at_once() -> None:
    attempts = []

    async def attempt() -> None:
        attempts.append(1)
        raise NoRoom("full")

    with pytest.raises(NoRoom):
        asyncio.run(SlowTransfers().make_room(attempt))
    assert len(attempts) == 1
