"""Answers out of the slab: no byte of another request, whoever reads slowly, goes away or is killed."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from app.server import ReloadingTls, TlsFiles
from tests.support.api.wire_server import EITHER, Answers, Loop, Wired, chance_of, head, served
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parent.parent.parent
MAKING = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]


@pytest.fixture(scope="module", params=EITHER)
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    with served(request.param) as running:
        yield running


def released(wired: Wired, count: int) -> None:
    until(lambda: len(wired.released) >= count, 10, each=0.002)


@pytest.mark.rotating
def test_a_slow_reader_gets_every_byte_of_its_own_answer(wired: Wired) -> None:
    size = 20_000_000
    wired.released.clear()
    with wired.connect(receive_buffer=2**14) as connection, Answers(connection) as answers:
        for byte in range(1, 4):
            connection.sendall(head("GET", f"/emitted?size={size}&byte={byte}"))
            time.sleep(0.2)
            assert len(wired.released) == byte - 1, "the bytes were given back before they had left"
            status, headers, body = answers.read()
            assert (status, headers["x-byte"]) == (201, str(byte))
            assert body == b"front" + bytes([byte]) * size
            released(wired, byte)


def test_an_answer_whose_reader_goes_away_gives_its_bytes_back(wired: Wired) -> None:
    wired.released.clear()
    for byte in range(1, 6):
        with wired.connect(receive_buffer=2**14) as connection:
            connection.sendall(head("GET", f"/emitted?size=20000000&byte={byte}"))
            connection.recv(50_000)
        released(wired, byte)


def test_a_small_answer_gives_its_bytes_back_at_once(wired: Wired) -> None:
    wired.released.clear()
    with wired.connect() as connection, Answers(connection) as answers:
        for byte in range(1, 50):
            connection.sendall(head("GET", f"/emitted?size={byte}&byte={byte}"))
            assert answers.read()[2] == b"front" + bytes([byte]) * byte
    assert len(wired.released) == 49


@pytest.mark.rotating
@pytest.mark.parametrize("loop", EITHER)
def test_tls_carries_bodies_and_answers_whole(loop: Loop, tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    subprocess.run(
        [*MAKING, "-keyout", str(pem), "-out", str(tmp_path / "c.pem")],
        check=True,
        capture_output=True,
    )
    pem.write_bytes(pem.read_bytes() + (tmp_path / "c.pem").read_bytes())
    context = ssl.create_default_context(cafile=tmp_path / "c.pem")
    data, size = chance_of(3).randbytes(3_000_000), 6_000_000
    with (
        served(loop, tls=ReloadingTls(TlsFiles(pem))) as wired,
        context.wrap_socket(wired.connect(), server_hostname="localhost") as connection,
        Answers(connection) as answers,
    ):
        for step in (10**9, 300_001, 1000):
            connection.sendall(head("POST", f"/landed?step={step}", length=len(data)) + data)
            status, _, found = answers.read()
            connection.sendall(head("POST", "/messages", length=len(data)) + data + head("GET", "/hello"))
            assert (status, found) == (200, answers.read()[2])
            assert answers.read()[2] == b"hello"
        connection.sendall(head("GET", f"/emitted?size={size}&byte=7"))
        time.sleep(0.2)
        assert answers.read()[2] == b"front" + b"\7" * size
        released(wired, 1)


@dataclass
class Null:
    """A service on the null device, which stamps C with A's bytes."""

    port: int
    process: subprocess.Popen[str]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def lent(self) -> float:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("tilewise_slab_lent_bytes "))

    def children(self) -> list[int]:
        pid = self.process.pid
        found = [
            int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
        ]
        return [one for one in found if b"products" in Path(f"/proc/{one}/cmdline").read_bytes()]


@contextmanager
def null_service(folder: Path, loop: Loop, **settings: int) -> Iterator[Null]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TILEWISE_")}
    env |= {"TILEWISE_DATA_DIR": str(folder), **{f"TILEWISE_{name.upper()}": str(n) for name, n in settings.items()}}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving.nulldevice", "--stamps", "--until-eof", "--loop", loop],
            cwd=ROOT,
            env={**env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            service = Null(int(line.rsplit(":", 1)[1]), process)
            ready(service)
            yield service
        finally:
            process.terminate()
    assert "Traceback" not in (folder / "log").read_text()


def ready(service: Null) -> None:
    def is_ready() -> bool:
        with service.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("GET", "/health/ready"))
            return answers.read()[0] == 200

    until(is_ready, 60, each=0.05, meanwhile=lambda: "the service did not become ready")


def stamped(connection: socket.socket, answers: Answers, n: int, stamp: int) -> int:
    """Send one product of stamps; gives the status, and checks every byte of a C."""
    operand = np.full(n * n // 2, stamp, np.uint64)
    path = f"/matmul?m={n}&n={n}&k={n}"
    connection.sendall(head("POST", path, length=2 * operand.nbytes, Content_Type="application/octet-stream"))
    connection.sendall(operand.data)
    connection.sendall(operand.data)
    status, _, body = answers.read()
    if status == 200:
        found = np.frombuffer(body, np.uint64)
        assert len(found) == len(operand)
        assert (found == stamp).all(), f"{(found != stamp).sum()} foreign words of {len(found)}"
    return status


@pytest.fixture(scope="module", params=EITHER)
def null(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Null]:
    with null_service(tmp_path_factory.mktemp("null"), request.param, slab_bytes=2**26) as service:
        yield service


def settled(service: Null) -> None:
    until(lambda: not service.lent(), 10)


@pytest.mark.slow
def test_no_answer_has_a_foreign_byte_though_all_share_one_slab(null: Null) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")

    def one(client: int) -> set[int]:
        chance, statuses = chance_of(seed + client), list[int]()
        with null.connect() as connection, Answers(connection) as answers:
            while statuses.count(200) < 5:
                statuses.append(stamped(connection, answers, 2 * chance.randint(520, 700), chance.getrandbits(63)))
                time.sleep(0.03 if statuses[-1] == 503 else 0)
        return set(statuses)

    with ThreadPoolExecutor(8) as pool:
        assert set().union(*pool.map(one, range(8))) <= {200, 503}
    settled(null)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "k"), [(1900, 1900), (64, 100_000)], ids=["large answers", "small answers"])
def test_one_client_alone_always_finds_room_however_much_its_products_take(null: Null, m: int, k: int) -> None:
    path, operands = f"/matmul?m={m}&n={m}&k={k}", bytes(8 * m * k)  # more than half of the slab, every time
    with null.connect() as connection, Answers(connection) as answers:
        for _ in range(6):
            connection.sendall(head("POST", path, length=len(operands), Content_Type="application/octet-stream"))
            connection.sendall(operands)
            status, _, body = answers.read()
            assert status == 200, body


@pytest.mark.slow
def test_a_killed_child_costs_its_products_and_mixes_nothing(null: Null) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    over, statuses = threading.Event(), list[int]()

    def one(client: int) -> None:
        chance = chance_of(seed + client)
        with null.connect() as connection, Answers(connection) as answers:
            while not over.is_set():
                statuses.append(stamped(connection, answers, 2 * chance.randint(520, 700), chance.getrandbits(63)))

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(one, client) for client in range(4)]
        for _ in range(3):
            time.sleep(0.4)
            for child in null.children():
                os.kill(child, signal.SIGKILL)
        killed = len(statuses)
        try:
            until(lambda: 200 in statuses[killed + 4 :], 30, each=0.05)  # four may have been under way
        finally:
            over.set()
        for each in running:
            each.result()
    assert set(statuses) <= {200, 503}
    settled(null)


def descriptors(service: Null) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


@pytest.mark.slow
def test_aborted_uploads_leave_nothing_behind(null: Null) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance, n = chance_of(seed), 1000
    sent = head("POST", f"/matmul?m={n}&n={n}&k={n}", length=8 * n * n, Content_Type="application/octet-stream")
    sent += bytes(8 * n * n)
    before = descriptors(null)
    for _ in range(60):
        with null.connect() as connection:
            cut = chance.choice((chance.randrange(len(sent)), chance.randrange(400), chance.randrange(200_000)))
            connection.sendall(sent[:cut])
            if chance.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    settled(null)
    with null.connect() as connection, Answers(connection) as answers:
        assert stamped(connection, answers, 1040, 5) == 200
    assert descriptors(null) <= before + 2


@pytest.mark.slow
def test_a_body_of_three_gibibytes_is_a_product_like_any_other(tmp_path: Path) -> None:
    m, k, n = 2**14, 2**15 + 2**14, 2  # A is 3 GiB
    limits = {"slab_bytes": 2**32, "max_body_bytes": 2**33}
    with null_service(tmp_path, "uvloop", **limits) as service, service.connect() as connection:
        with Answers(connection) as answers:
            path = f"/matmul?m={m}&n={n}&k={k}"
            length = 4 * (m * k + k * n)
            connection.settimeout(600)
            connection.sendall(head("POST", path, length=length, Content_Type="application/octet-stream"))
            piece = np.full(2**21, 77, np.uint64)
            for at in range(0, length, piece.nbytes):
                connection.sendall(piece.data.cast("B")[: length - at])
            status, headers, body = answers.read()
        assert (status, headers["x-shape"]) == (200, f"{m}x{n}")
        assert len(body) == 4 * m * n
        settled(service)
