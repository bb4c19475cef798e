"""Large bodies and answers that threads move: whole, and given back to the event loop by clients that are slow."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.server import TransferLimits
from app.server.bulk_transfer import LARGE, BulkSocket, TransferRate, Turn
from app.server.thread_pool import ThreadPool
from tests.support.api.wire_server import EITHER, Answers, Wired, chance_of, head, served
from tests.support.waiting import until

DATA = chance_of(11).randbytes(24 * LARGE)
DIGEST = hashlib.sha256(DATA).hexdigest().encode()
LIMITS = TransferLimits(idle_timeout=1.0, transfer_timeout=30.0, min_rate=1000)


@pytest.fixture(scope="module", params=EITHER)
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    """One thread moves all: whoever holds it holds up everybody."""
    with served(request.param, LIMITS, transfers=1) as running:
        yield running


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each turn of a thread."""
    found, run = list[int](), Turn.run

    def noted(turn: Turn) -> None:
        run(turn)
        found.append(turn.moved)

    monkeypatch.setattr(Turn, "run", noted)
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_threads_receive_bodies_whole_and_what_follows_is_the_next_request(wired: Wired, moved: list[int]) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        for step in (10**9, 5 * LARGE + 1, LARGE // 2):
            moved.clear()
            connection.sendall(head("POST", f"/landed?step={step}", length=len(DATA)) + DATA + head("GET", "/hello"))
            assert answers.read()[2] == DIGEST
            assert answers.read()[2] == b"hello"
            assert (sum(moved) > len(DATA) // 2) == (step >= LARGE)


def test_a_client_that_waits_to_be_asked_is_asked_and_received_by_a_thread(wired: Wired, moved: list[int]) -> None:
    with wired.connect() as connection:
        connection.sendall(head("POST", "/landed", length=len(DATA), Expect="100-continue"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(DATA)
        with Answers(connection) as answers:
            assert answers.read()[2] == DIGEST
    assert sum(moved) > len(DATA) // 2


@pytest.mark.slow
def test_many_clients_share_few_threads(wired: Wired) -> None:
    def one(byte: int) -> tuple[bytes, bytes]:
        with wired.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("POST", "/landed", length=len(DATA)) + DATA)
            return answers.read()[2], bytes([byte])

    with ThreadPoolExecutor(8) as pool:
        assert {found for found, _ in pool.map(one, range(16))} == {DIGEST}


def test_clients_that_stall_hold_no_thread(wired: Wired, moved: list[int]) -> None:
    stalled = [wired.connect() for _ in range(3)]
    try:
        for each in stalled:
            each.sendall(head("POST", "/landed", length=len(DATA)) + DATA[: 3 * LARGE])
        until(lambda: len(moved) >= len(stalled))
        with wired.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("POST", "/landed", length=len(DATA)) + DATA)
            assert answers.read()[2] == DIGEST
        for each in stalled:
            each.sendall(DATA[3 * LARGE :])
            with Answers(each) as answers:
                assert answers.read()[2] == DIGEST
    finally:
        for each in stalled:
            each.close()


@pytest.mark.rotating
def test_a_client_that_stops_is_told_in_time(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        began = time.monotonic()
        connection.sendall(head("POST", "/landed", length=len(DATA)) + DATA[: 5 * LARGE])
        assert answers.read()[0] == 408
        assert 1.0 <= time.monotonic() - began < 5.0


def test_clients_that_break_off_leave_nothing(wired: Wired) -> None:
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("GET", "/hello"))
        assert answers.read()[0] == 200
    before = descriptors()
    for cut in (LARGE, 3 * LARGE + 17, len(DATA) - 1):
        wired.seen.clear()
        with wired.connect() as connection:
            connection.sendall(head("POST", "/landed", length=len(DATA)) + DATA[:cut])
        until(lambda: "gone" in wired.seen)
    until(lambda: descriptors() <= before)


@pytest.mark.rotating
def test_threads_send_answers_whole_beside_one_that_nobody_reads(wired: Wired, moved: list[int]) -> None:
    wired.released.clear()
    with wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("GET", f"/emitted?size={20 * LARGE}&byte=5"))
        assert answers.read()[2] == b"front" + b"\5" * (20 * LARGE)
    assert sum(moved) > 10 * LARGE
    until(lambda: len(wired.released) == 1)
    with wired.connect(receive_buffer=2**14) as idle:
        idle.sendall(head("GET", f"/emitted?size={20 * LARGE}&byte=6"))
        assert idle.recv(1)
        with wired.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("POST", "/landed", length=len(DATA)) + DATA)
            assert answers.read()[2] == DIGEST
        assert len(wired.released) == 1, "the bytes were given back before they had left"
        until(lambda: len(wired.released) == 2)  # it is cut off


def test_without_threads_the_event_loop_carries_all(moved: list[int]) -> None:
    with served("uvloop", transfers=0) as wired, wired.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", "/landed", length=len(DATA)) + DATA)
        assert answers.read()[2] == DIGEST
        connection.sendall(head("GET", f"/emitted?size={20 * LARGE}&byte=5"))
        assert answers.read()[2] == b"front" + b"\5" * (20 * LARGE)
    assert moved == []


@pytest.mark.slow
def test_whoever_is_cancelled_waits_until_the_thread_has_let_go() -> None:
    threads, (near, far) = ThreadPool(1, "transfers"), socket.socketpair()
    near.setblocking(False)
    view = memoryview(bytearray(64 * LARGE))
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            try:
                far.sendall(b"\1" * LARGE)
            except OSError:
                return

    async def cancelled() -> bytes:
        task = asyncio.create_task(BulkSocket(threads, near).receive(view))
        while not view[0]:  # noqa: ASYNC110 - a thread's write sets no event, and all is there in a few milliseconds
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seen = bytes(view)
        await asyncio.sleep(0.05)
        return seen

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        assert asyncio.run(cancelled()) == bytes(view)
    finally:
        stop.set()
        near.close()
        far.close()
        feeder.join(10)
        threads.stop()
    assert not view[-1], "it was cancelled before it had all"


def test_a_client_is_fast_again_once_a_mebibyte_has_come_quickly() -> None:
    now, found = [0.0], list[bool]()
    pace = TransferRate(lambda: now[0])
    pace.slowed()
    for nbytes in (LARGE // 2, LARGE // 2):
        pace.note(nbytes)
        found.append(pace.is_fast)
    pace.slowed()
    now[0] += 1.0
    pace.note(LARGE)
    assert [*found, pace.is_fast] == [False, True, False]
