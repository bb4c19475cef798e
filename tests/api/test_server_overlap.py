"""Large products: their bytes are on their way to the device and back while others are on the socket."""

from __future__ import annotations

import io
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from app.dtypes import Array
from app.services.matmul.certificates import device_sketch
from app.services.matmul.chunked_transfer import LARGE
from app.worker.serving import chunked_transfer
from benchmarks.serving import nulldevice
from tests.support.api import service_in_process
from tests.support.api.service_in_process import Running, begun, posted, running
from tests.support.api.wire_server import Answers, chance_of
from tests.support.services import flipped_bits, small_pieces
from tests.support.services.small_pieces import PIECE
from tests.support.waiting import until

NAIVE = "kernel=naive"
LONG = LARGE + 4
ONES = PIECE // 4  # float32 numbers of a piece
RATE = 1e8  # bytes a second of the slow device, and of its clients
STAMP = 0x1234567812345678
SIDE = 3584
SQUARE = 4 * SIDE * SIDE  # bytes: three pieces and a part of one


@pytest.fixture(scope="module", autouse=True)
def _pieces() -> Iterator[None]:
    with small_pieces.used():
        yield


@pytest.fixture(scope="module")
def pocl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("pocl")) as service:
        yield service


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The null device, whose copies take time; C is A's first eight bytes over and over."""
    fleet = partial(nulldevice.null_fleet, stamps=True, copy_rate=RATE)
    with running(tmp_path_factory.mktemp("slow"), fleet) as service:
        yield service


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"pocl", "slow"} & set(request.fixturenames):
        request.getfixturevalue(name).settled()


def integers(*shape: int) -> Array:
    seed = secrets.randbits(32)
    print("seed", seed)
    return np.random.default_rng(seed).integers(-8, 9, shape, np.int8).astype(np.float32)


def column(nbytes: int) -> Array:
    """An A of one column: times the 1 x 1 matrix 3 it is itself three times."""
    return integers(nbytes // 4, 1)


THREE = np.full((1, 1), 3, np.float32)


def times_three(service: Running, a: Array, **headers: object) -> tuple[dict[str, str], bytes]:
    status, told, body = posted(service, f"m={a.size}&n=1&k=1&{NAIVE}", a, THREE, **headers)
    assert status == 200, body
    return told, body


SOME = pytest.mark.slow  # each takes a second


@pytest.mark.slow
@pytest.mark.parametrize(
    "nbytes", [LARGE, pytest.param(LARGE + 4, marks=SOME), 3 * PIECE - 4, pytest.param(3 * PIECE, marks=SOME)]
)
def test_every_byte_is_right_at_the_pieces_edges(pocl: Running, nbytes: int) -> None:
    a = column(nbytes)
    told, body = times_three(pocl, a)
    assert np.array_equal(np.frombuffer(body, np.float32), 3 * a[:, 0])
    assert ("d2h" in told["server-timing"]) == (nbytes <= LARGE), "a large C leaves while it is copied"
    assert "h2d" in told["server-timing"]


@pytest.mark.slow
def test_a_large_b_comes_after_a(pocl: Running) -> None:
    b = integers(1, LARGE // 4 + 1)
    status, _, body = posted(pocl, f"m=1&n={b.size}&k=1&{NAIVE}", THREE, b)
    assert status == 200
    assert np.array_equal(np.frombuffer(body, np.float32), 3 * b[0])


@pytest.mark.slow
def test_both_operands_may_be_large(pocl: Running) -> None:
    a, b = integers(2, 2 * ONES + 1), integers(1, 2 * ONES + 1)
    status, _, body = posted(pocl, f"m=2&n=1&k={b.size}&trans_b=true&kernel=vendor", a, b)
    assert status == 200
    exact = a.astype(np.int64) @ b[0].astype(np.int64)
    assert np.allclose(np.frombuffer(body, np.float32), exact, rtol=0, atol=1e-4 * np.abs(a[0] * b[0]).sum())


@pytest.mark.slow
def test_other_forms_of_an_answer_are_right_too(pocl: Running) -> None:
    a = column(LARGE + 4)
    told, body = times_three(pocl, a, Accept="application/x-npy")
    assert "d2h" not in told["server-timing"]
    assert np.array_equal(np.load(io.BytesIO(body)), 3 * a)
    told, body = times_three(pocl, a, Accept="application/vnd.safetensors")
    assert "d2h" not in told["server-timing"]
    assert np.array_equal(np.frombuffer(body[-a.nbytes :], np.float32), 3 * a[:, 0])
    told, body = times_three(pocl, a, Accept="application/x-npz")
    assert "d2h" in told["server-timing"], "the archive's front has a sum of all of C"
    with np.load(io.BytesIO(body)) as found:
        assert np.array_equal(found["c"], 3 * a)


@contextmanager
def half_sent(
    service: Running, a: Array, taken: Callable[[], object] | None = None
) -> Iterator[tuple[socket.socket, Answers]]:
    """A product of which so much was sent that the device has the first piece, or `taken`; its end is to be sent."""
    with service.connect() as connection, Answers(connection) as answers:
        begun(connection, f"m={a.size}&n=1&k=1&{NAIVE}", a.nbytes + THREE.nbytes)
        connection.sendall(a.data.cast("B")[: PIECE + 5])
        until(taken or service.keys)
        yield connection, answers


def finished(connection: socket.socket, answers: Answers, a: Array) -> None:
    connection.sendall(a.data.cast("B")[PIECE + 5 :])
    connection.sendall(THREE.data.cast("B"))
    status, _, body = answers.read()
    assert status == 200, body
    assert np.array_equal(np.frombuffer(body, np.float32), 3 * a[:, 0])


def small(service: Running) -> None:
    status, _, body = posted(service, "m=8&n=1&k=1", np.arange(8, dtype=np.float32), THREE)
    assert status == 200, body
    assert np.array_equal(np.frombuffer(body, np.float32), 3 * np.arange(8))


@pytest.mark.rotating
def test_a_slow_client_keeps_no_other_product_waiting(pocl: Running) -> None:
    a = column(LONG)
    small(pocl)
    with half_sent(pocl, a) as (connection, answers):
        unit = pocl.service.fleet.units[0]
        for _ in range(10):
            assert unit.lease.waiting == unit.products.waiting == 0
            small(pocl)
        assert pocl.keys(), "what was sent stays on the device meanwhile"
        finished(connection, answers, a)


@pytest.mark.timing
def test_a_small_product_beside_a_slow_client_is_quick(pocl: Running) -> None:
    a = column(LONG)
    small(pocl)
    with half_sent(pocl, a) as (connection, answers):
        took = []
        for _ in range(10):
            started = time.perf_counter()
            small(pocl)
            took.append(time.perf_counter() - started)
        finished(connection, answers, a)
    assert sorted(took)[5] < 0.2


@pytest.mark.slow
def test_a_child_killed_in_mid_upload_costs_nothing(pocl: Running) -> None:
    a = column(LONG)
    with half_sent(pocl, a) as (connection, answers):
        pocl.kill()
        assert pocl.keys() == ()
        finished(connection, answers, a)


def test_an_upload_that_is_given_up_leaves_nothing_on_the_device(pocl: Running) -> None:
    with half_sent(pocl, column(LONG)):
        pass
    pocl.settled()


def test_pieces_that_the_device_has_no_memory_for_come_with_the_product(pocl: Running) -> None:
    a = column(LONG)
    pocl.products.call(service_in_process.starve, 1)
    with half_sent(pocl, a, lambda: pocl.products.call(service_in_process.left_to_refuse) == 0) as (
        connection,
        answers,
    ):
        finished(connection, answers, a)


@pytest.mark.rotating
def test_an_operand_that_waits_on_the_device_gives_way_to_a_product(pocl: Running) -> None:
    a, other = column(LONG), column(2**22)
    with half_sent(pocl, a) as (connection, answers):
        pocl.products.call(service_in_process.starve, 1)
        status, _, body = posted(pocl, f"m={other.size}&n=1&k=1&{NAIVE}", other, THREE)
        assert status == 200, body
        assert np.array_equal(np.frombuffer(body, np.float32), 3 * other[:, 0])
        assert pocl.products.call(service_in_process.starve, 0) == 0
        assert pocl.keys() == ()
        finished(connection, answers, a)


def stamped(connection: socket.socket) -> None:
    """Send a product whose operands and result have SQUARE bytes each, at the device's rate."""
    begun(connection, f"m={SIDE}&n={SIDE}&k={SIDE}", 2 * SQUARE)
    piece = np.full(2**17, STAMP, np.uint64).data.cast("B")
    started = time.perf_counter()
    for at in range(0, 2 * SQUARE, len(piece)):
        connection.sendall(piece[: 2 * SQUARE - at])
        time.sleep(max(0.0, at / RATE - (time.perf_counter() - started)))


@pytest.mark.slow
def test_child_killed_in_mid_answer_sends_no_wrong_byte(slow: Running) -> None:
    with slow.connect() as connection:
        stamped(connection)
        found = bytearray()
        while len(found) < 2**20:
            found += connection.recv(2**16)
        slow.kill()
        while piece := connection.recv(2**20):
            found += piece
    front, _, body = bytes(found).partition(b"\r\n\r\n")
    assert b" 200 " in front.splitlines()[0]
    assert 2**19 < len(body) < SQUARE, "the answer was whole: nothing was tested"
    assert body[: len(body) // 8 * 8] == np.uint64(STAMP).tobytes() * (len(body) // 8)
    slow.settled()


@pytest.mark.timing
def test_receiving_copying_and_sending_overlap(slow: Running) -> None:
    sink = memoryview(bytearray(2**22))
    with slow.connect() as connection:
        started = time.perf_counter()
        stamped(connection)
        sent = time.perf_counter() - started
        front = connection.recv(2**12)
        first, at = time.perf_counter(), len(front) - front.index(b"\r\n\r\n") - 4
        while at < SQUARE:
            at += connection.recv_into(sink)
            time.sleep(max(0.0, at / RATE - (time.perf_counter() - first)))
        wall = time.perf_counter() - started
    queued = float(front.partition(b"queue;dur=")[2].partition(b",")[0]) / 1e3  # a kernel is verified at its first use
    copies, read = 3 * SQUARE / RATE, SQUARE / RATE
    print(f"wall {wall:.3f} s, queued {queued:.3f}; sent in {sent:.3f}, read in {read:.3f}, copied in {copies:.3f}")
    assert wall - queued < 0.8 * (sent + copies + read)


@pytest.mark.slow
def test_uploads_that_are_given_up_at_any_point_leave_nothing(slow: Running) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    chance, threads = chance_of(seed), threading.active_count()
    piece = bytes(2**22)
    for _ in range(30):
        with slow.connect() as connection:
            begun(connection, "m=4096&n=4096&k=4096", 2**27)
            for _ in range(chance.randrange(12)):
                connection.sendall(piece)
            connection.sendall(piece[: chance.randrange(2**22)])
    slow.settled()
    assert threading.active_count() < threads + 40


@pytest.mark.slow
@pytest.mark.parametrize("turned", ["", "&trans_a=true&trans_b=true"])
def test_a_large_product_is_certified_as_it_arrives_and_leaves_its_device(pocl: Running, turned: str) -> None:
    a, b = integers(3000, 3100), integers(3100, 2900)
    sent = (a.T.copy(), b.T.copy()) if turned else (a, b)
    query = f"m=3000&n=2900&k=3100&verify=freivalds{turned}"
    status, told, body = posted(pocl, query, *sent)
    assert status == 200, body
    assert np.array_equal(np.frombuffer(body, np.float32).reshape(3000, 2900), a @ b)
    assert told["x-certificate"].startswith("freivalds; ")
    assert {"d2h", "verify"} <= {each.partition(";")[0].strip() for each in told["server-timing"].split(",")}


@pytest.fixture
def sketching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processor make the sketches of its products."""
    monkeypatch.setattr(device_sketch, "PLATFORMS", frozenset({"opencl"}))


LONG_C = "m=3000&n=3100&k=600&verify=freivalds"


@pytest.mark.slow
@pytest.mark.usefixtures("sketching")
@pytest.mark.parametrize("turned", ["", "&trans_a=true&trans_b=true"])
def test_a_large_product_is_certified_on_its_device_and_leaves_while_it_is_copied(pocl: Running, turned: str) -> None:
    a, b = integers(3000, 600), integers(600, 3100)
    status, told, body = posted(pocl, LONG_C + turned, *((a.T.copy(), b.T.copy()) if turned else (a, b)))
    assert status == 200, body
    assert np.array_equal(np.frombuffer(body, np.float32).reshape(3000, 3100), a @ b)
    assert told["x-certificate"].startswith("freivalds; ")
    phases = {each.partition(";")[0].strip() for each in told["server-timing"].split(",")}
    assert ("verify" in phases, "d2h" in phases) == (True, False)


@pytest.mark.slow
@pytest.mark.usefixtures("sketching")
def test_a_c_that_is_another_on_its_way_is_never_answered_to_its_end(
    pocl: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_transfer, "download_chunk", flipped_bits.on_the_way)
    a, b = integers(3000, 600), integers(600, 3100)
    _, told, body = posted(pocl, LONG_C, a, b)
    assert len(body) < int(told["content-length"]) == 3000 * 3100 * 4


@pytest.mark.slow
@pytest.mark.usefixtures("sketching")
def test_a_c_of_a_form_that_is_read_before_it_is_sent_is_refused_whole(
    pocl: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_transfer, "download_chunk", flipped_bits.on_the_way)
    a, b = integers(3000, 600), integers(600, 3100)
    status, _, body = posted(pocl, LONG_C, a, b, Accept="application/x-npz")
    assert status == 500
    assert b"C differs between host and device" in body
