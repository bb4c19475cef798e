"""The client against services that die, stall, cut short, refuse and lie, blocking and with asyncio."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from tests.support.client.scripted_server import CLOSE, STALL, Scripted, answer
from tilewise import (
    AsyncClient,
    Client,
    ClientError,
    Malformed,
    Matrix,
    NoRoom,
    TimedOut,
    UnreachableError,
    UnreadableAnswer,
    _shared_memory,
)
from tilewise._sse import Parser

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
C = A @ B
WHOLE = answer(200, C.tobytes(), X_Kernel="tiled")
BUSY = answer(503, {"code": "no_room", "error": "no room now", "limit": 10, "size": 11}, Retry_After="0")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Ask = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Call one method of a new client."""

    def blocking(url: str, method: str, *arguments: Any, **options: Any) -> Any:
        with Client(url, **options) as client:
            return getattr(client, method)(*arguments)

    async def waiting(url: str, method: str, *arguments: Any, **options: Any) -> Any:
        async with AsyncClient(url, **options) as client:
            return await getattr(client, method)(*arguments)

    return blocking if request.param == "blocking" else lambda *args, **options: asyncio.run(waiting(*args, **options))


def chunks(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return CHUNKED + b"".join(b"%x; ignored\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


@pytest.mark.parametrize(
    "first", [CLOSE, BUSY, WHOLE[:-3] + CLOSE, WHOLE[:20], chunks(C.tobytes()[:9], end=b"7\r\nab")]
)
def test_a_product_is_asked_for_again_after_what_passes(ask: Ask, first: bytes) -> None:
    if first not in {CLOSE, BUSY}:
        first = first.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    with Scripted([first, WHOLE]) as server:
        assert np.array_equal(ask(server.url, "matmul", A, B), C)
    assert len(server.requests) == 2
    assert server.requests[0] == server.requests[1]


def test_a_product_that_takes_its_own_operands_place_is_asked_for_once(ask: Ask) -> None:
    operand = Matrix("h", (3, 3), "float32")
    with Scripted([CLOSE, answer(201, {"name": "h"})]) as server:
        with pytest.raises(UnreachableError):
            ask(server.url, "keep", "h", operand, np.eye(3, dtype=np.float32))
        assert len(server.requests) == 1


def stalled(ask: Ask, said: bytes) -> None:
    with Scripted([said, WHOLE]) as server:
        with pytest.raises(TimedOut, match="did not answer in time"):
            ask(server.url, "matmul", A, B, timeout=0.2)
        assert len(server.requests) == 1


@pytest.mark.rotating
def test_a_service_that_stalls_is_not_waited_for_forever(ask: Ask) -> None:
    for said in (STALL, WHOLE[:-3] + STALL, WHOLE[:10] + STALL):
        stalled(ask, said)


@pytest.mark.timing
def test_a_service_that_stalls_is_left_at_the_callers_deadline(ask: Ask) -> None:
    started = time.monotonic()
    stalled(ask, STALL)
    assert 0.1 < time.monotonic() - started < 3


def test_one_that_takes_no_more_of_a_body_is_not_waited_for_forever(ask: Ask) -> None:
    big = np.zeros((3000, 3000), np.float32)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TimedOut):
        ask(f"http://127.0.0.1:{listener.getsockname()[1]}", "matmul", big, big, timeout=0.3, shared_memory=False)


def test_one_that_dies_for_good_is_unreachable(ask: Ask) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def die() -> None:
        connection, _ = listener.accept()
        listener.close()
        connection.recv(100)
        connection.close()

    dying = threading.Thread(target=die)
    dying.start()
    with pytest.raises(UnreachableError):
        ask(url, "matmul", A, B)
    dying.join()


def test_the_answer_to_a_body_that_was_not_read_is_seen(ask: Ask) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        connection, _ = listener.accept()
        connection.recv(100)
        connection.sendall(answer(400, {"code": "malformed", "error": "it is no body"}, close=True))
        time.sleep(0.2)
        connection.close()

    refusing = threading.Thread(target=refuse)
    refusing.start()
    big = np.zeros((3000, 3000), np.float32)
    with listener, pytest.raises(Malformed, match="it is no body"):
        ask(f"http://127.0.0.1:{listener.getsockname()[1]}", "matmul", big, big, shared_memory=False)
    refusing.join()


@pytest.mark.parametrize("sizes", [(24,), (1, 2, 3, 10), (16,)])
def test_chunked_answer_is_read_whole_and_its_connection_reused(ask: Ask, sizes: tuple[int, ...]) -> None:
    data, pieces = C.tobytes(), list[bytes]()
    for size in sizes:
        pieces, data = [*pieces, data[:size]], data[size:]
    said = chunks(*(piece for piece in (*pieces, data) if piece), end=b"0\r\nTrailer: yes\r\n\r\n")
    with Scripted([said, BUSY, said]) as server:
        assert np.array_equal(ask(server.url, "matmul", A, B), C)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        CHUNKED + b"hello\r\n",
        CHUNKED + b"1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        answer(200, C.tobytes() + b"\0"),
        answer(200, C.tobytes()[:-1]),
        chunks(C.tobytes(), b"\0"),
        answer(204),
    ],
)
def test_what_is_no_answer_is_said_to_be_unreadable(ask: Ask, said: bytes) -> None:
    with Scripted([said] * 9) as server, pytest.raises(UnreadableAnswer):
        ask(server.url, "matmul", A, B)


def test_what_precedes_an_answer_is_skipped(ask: Ask) -> None:
    with Scripted([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE]) as server:
        assert np.array_equal(ask(server.url, "matmul", A, B), C)


def test_an_answer_without_a_length_ends_with_its_connection(ask: Ask) -> None:
    said = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + C.tobytes()
    with Scripted([said]) as server:
        assert np.array_equal(ask(server.url, "matmul", A, B), C)


def test_a_service_that_says_to_come_back_much_later_is_not_asked_before(ask: Ask) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    for when in ("90", later):
        busy = answer(503, {"code": "no_room", "limit": 10, "size": 11}, Retry_After=when)
        with Scripted([busy, WHOLE]) as server, pytest.raises(NoRoom) as refused:
            ask(server.url, "matmul", A, B)
        assert len(server.requests) == 1
        assert (refused.value.limit, refused.value.size) == (10, 11)
        assert refused.value.retry_after is not None
        assert 80 < refused.value.retry_after <= 90


def test_a_header_cannot_smuggle_another(ask: Ask) -> None:
    with Scripted([WHOLE]) as server:
        with pytest.raises(ValueError, match="control character"):
            ask(server.url, "devices", headers={"X-Me": "me\r\nX-You: you"})
        with pytest.raises(ValueError, match="control character"):
            ask(server.url + "/a b", "devices")
        assert np.array_equal(ask(server.url, "matmul", A, B, headers={"Authorization": "Bearer x"}), C)
    assert b"\r\nAuthorization: Bearer x\r\n" in server.requests[0]


@pytest.mark.rotating
def test_tls_is_spoken_and_its_certificate_is_looked_at(ask: Ask, tmp_path: Path) -> None:
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-keyout",
        str(key),
        "-out",
        str(pem),
    ]
    subprocess.run([*made, *subject], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem, key)
    a = np.random.default_rng(0).standard_normal((900, 900))
    with Scripted([answer(200, a.tobytes())] * 2, tls) as server:
        known = ssl.create_default_context(cafile=pem)
        assert np.array_equal(ask(server.url, "matmul", a, a, tls=known, shared_memory=False), a)
        assert server.requests[0].endswith(a.tobytes() * 2)
        with pytest.raises(UnreachableError, match="certificate"):
            ask(server.url, "matmul", a, a, shared_memory=False)


OFFERED = answer(200, {"name": "tilewise", "extensions": ["binary_tensor_data", "system_shared_memory"]})
SILENT = answer(200, {"name": "tilewise", "extensions": ["binary_tensor_data"]})
TAKEN = answer(200)
FAILED = answer(500, {"code": "internal_error", "error": "no"})


@pytest.mark.parametrize(
    ("script", "paths"),
    [
        ([SILENT], ["/v2"]),
        ([answer(404, {"code": "not_found"})], ["/v2"]),
        ([OFFERED, answer(403, {"code": "shared_memory_off"})], ["/v2", "register"]),
        ([OFFERED, TAKEN, FAILED], ["/v2", "register", "infer"]),
        ([OFFERED, TAKEN, answer(404, {"code": "unknown_region"})], ["/v2", "register", "infer"]),
        ([OFFERED, TAKEN, CLOSE], ["/v2", "register", "infer"]),
    ],
)
def test_where_shared_memory_fails_the_socket_is_taken_silently(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, script: list[bytes], paths: list[str]
) -> None:
    monkeypatch.setattr(_shared_memory, "LEAST", 1)
    with Scripted([*script, WHOLE, TAKEN]) as server:
        assert np.array_equal(ask(server.url, "matmul", A, B), C)
    asked = [head.split()[1].partition("?")[0].rpartition("/")[2] for head in server.heads()]
    assert asked[: len(paths) + 1] == [path.removeprefix("/") for path in paths] + ["matmul"]
    assert asked[len(paths) + 1 :] == (["unregister"] if "infer" in paths else [])
    assert not list(Path("/dev/shm").glob("tilewise-client-*"))  # noqa: S108 - where it would be left


def test_stalled_shared_memory_is_told_and_not_used_again(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shared_memory, "LEAST", 1)
    with Scripted([OFFERED, TAKEN, STALL, TAKEN]) as server, pytest.raises(TimedOut):
        ask(server.url, "matmul", A, B, timeout=0.3)
    assert "unregister" in server.heads()[-1]


class Endless:
    """A service that answers with a first part, then with the same again and again for as long as it is heard."""

    def __init__(self, first: bytes, again: bytes) -> None:
        self.sent = 0
        self._first, self._again = first, again
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.recv(2**16)
                    connection.sendall(self._first)
                    while True:
                        connection.sendall(self._again)
                        self.sent += len(self._again)


def test_an_error_without_end_is_read_for_a_mebibyte_at_most(ask: Ask) -> None:
    for framing, again in (
        (b"", b"x" * 2**16),
        (b"Transfer-Encoding: chunked\r\n", b"10000\r\n" + b"x" * 2**16 + b"\r\n"),
    ):
        with Endless(b"HTTP/1.1 500 Said\r\n" + framing + b"\r\n", again) as server:
            with pytest.raises(ClientError) as refused:
                ask(server.url, "devices", timeout=30)
            assert refused.value.status == 500
            assert server.sent < 2**25  # with what lies in the sockets' buffers


def test_answers_that_only_precede_another_end_with_the_timeout(ask: Ask) -> None:
    with Endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100) as server, pytest.raises(TimedOut):
        ask(server.url, "devices", timeout=0.3)


def test_json_nested_too_deeply_is_no_answer(ask: Ask) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with Scripted([answer(200, deep), answer(500, b'{"error":' + deep + b"}")]) as server:
        with pytest.raises(UnreadableAnswer):
            ask(server.url, "devices")
        with pytest.raises(ClientError, match="the service answered 500"):
            ask(server.url, "devices")
    with Scripted([answer(500, {"error": ["a"], "code": {"b": 1}})]) as server:
        with pytest.raises(ClientError, match="the service answered 500") as refused:
            ask(server.url, "devices")
        assert refused.value.code == "error"
    config = '{"a":' + "[" * 20_000 + "]" * 20_000 + "}"
    with Scripted([answer(200, C.tobytes(), X_Config=config)]) as server, pytest.raises(UnreadableAnswer):
        ask(server.url, "product", A, B)


def test_an_event_that_cannot_be_read_is_no_answer() -> None:
    for stream in (b"data: " + b"[" * 100_000 + b"\n\n", b"data: {\n\n", b"data: " + b"x" * 2**21):
        with pytest.raises(UnreadableAnswer):
            list(Parser().feed(stream))
