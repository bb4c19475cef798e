"""TLS on a real socket: renewed files, handshakes that stall, and connections beyond the limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from app.api.errors import problem
from app.server import ConnectionLimits, ReloadingTls, TlsFiles, acceptor
from tests.support.api.wire_server import Loop, Wired, head, served
from tests.support.waiting import until

EXPECTS = {"Expect": "100-continue"}


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own authority with a name, and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    words += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(made)]
    subprocess.run(words, check=True, capture_output=True)
    return made, key


def served_name(port: int) -> bytes:
    """The certificate that a port shows."""
    shown = ssl.get_server_certificate(("127.0.0.1", port), timeout=20)
    return ssl.PEM_cert_to_DER_cert(shown)


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    return cast("Loop", request.param)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    """The files of the first of two pairs, where the service looks for them."""
    for name in ("one", "two"):
        certificate(tmp_path, name)
    shutil.copy(tmp_path / "one.crt", tmp_path / "tls.crt")
    shutil.copy(tmp_path / "one.key", tmp_path / "tls.key")
    return TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")


@contextlib.contextmanager
def connected(port: int) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain, context.wrap_socket(plain) as secured:
        yield secured


def answer(secured: ssl.SSLSocket) -> bytes:
    """What is answered to a request without a body."""
    secured.sendall(head("GET", "/hello"))
    return secured.recv(65536)


@pytest.mark.slow
def test_a_renewed_certificate_is_served_without_a_restart(
    loop: Loop, tmp_path: Path, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    assert files.key is not None
    with served(loop, tls=ReloadingTls(files)) as wired, connected(wired.port) as before:
        assert served_name(wired.port) == der(tmp_path / "one.crt")
        shutil.copy(tmp_path / "two.crt", files.certificate)  # its key follows: until then the first pair is served
        until(lambda: served_name(wired.port) == der(tmp_path / "one.crt") and "cannot be used" in caplog.text)
        shutil.copy(tmp_path / "two.key", files.key)
        until(lambda: served_name(wired.port) == der(tmp_path / "two.crt"))
        assert answer(before).startswith(b"HTTP/1.1 200 ")  # what was connected stays so
    assert caplog.text.count("cannot be used") == 1


def test_files_that_are_gone_or_broken_change_nothing(files: TlsFiles) -> None:
    now = [0.0]
    tls = ReloadingTls(files, clock=lambda: now[0])
    first = tls.context()
    for broken in ("", "no certificate", None):
        if broken is None:
            files.certificate.unlink()
        else:
            files.certificate.write_text(broken)
        now[0] += 2
        assert tls.context() is first


@pytest.mark.slow
def test_a_handshake_that_stalls_ends_in_seconds_and_is_counted(
    loop: Loop, files: TlsFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert acceptor.HANDSHAKE <= 10
    monkeypatch.setattr(acceptor, "HANDSHAKE", 0.3)
    failed: list[None] = []
    with served(loop, tls=ReloadingTls(files, lambda: failed.append(None))) as wired:
        with socket.create_connection(("127.0.0.1", wired.port), timeout=30) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", wired.port), timeout=30) as plain:
            plain.sendall(head("GET", "/hello"))
            with contextlib.suppress(ConnectionResetError):
                while plain.recv(4096):
                    pass
        until(lambda: len(failed) == 2)
        with connected(wired.port) as secured:
            assert answer(secured).startswith(b"HTTP/1.1 200 ")
    assert caplog.text.count("127.0.0.1 made no TLS connection") == 2


async def later(_: Request) -> Response:
    await asyncio.sleep(0.2)
    return PlainTextResponse("later")


@pytest.mark.slow
def test_a_client_that_ends_its_side_of_tls_has_no_answer(loop: Loop, files: TlsFiles) -> None:
    """So it is documented: by the alert of TLS or by TCP alone, of either event loop."""
    with served(loop, tls=ReloadingTls(files), routes=[Route("/later", later)]) as wired:
        with connected(wired.port) as stays:
            stays.sendall(head("GET", "/later"))
            assert stays.recv(65536).startswith(b"HTTP/1.1 200 ")
        with connected(wired.port) as alerts:
            alerts.sendall(head("GET", "/later"))
            with alerts.unwrap() as plain:  # returns once the server has ended its side, too
                assert plain.recv(65536) == b""
        with connected(wired.port) as ends:
            ends.sendall(head("GET", "/later"))
            ends.shutdown(socket.SHUT_WR)
            heard = b"".join(iter(lambda: socket.socket.recv(ends, 65536), b""))
            assert len(heard) < 700, "the session's tickets, and no answer"


@pytest.mark.rotating
def test_one_connection_too_many_hears_so_over_tls(loop: Loop, files: TlsFiles) -> None:
    limits = ConnectionLimits(2, 2, problem)
    with served(loop, tls=ReloadingTls(files), connections=limits) as wired, contextlib.ExitStack() as stack:
        for _ in range(2):
            assert answer(stack.enter_context(connected(wired.port))).startswith(b"HTTP/1.1 200 ")
        with connected(wired.port) as refused:
            heard = answer(refused)
        assert heard.startswith(b"HTTP/1.1 503 ")
        assert b"too_many_connections" in heard
        assert b"x-request-id: " in heard
        stack.close()
        until(lambda: _serves(wired))


def _serves(wired: Wired) -> bool:
    with connected(wired.port) as secured:
        return answer(secured).startswith(b"HTTP/1.1 200 ")


@pytest.mark.rotating
def test_the_gate_refuses_a_body_before_it_is_sent_over_tls(loop: Loop, files: TlsFiles) -> None:
    def shut(*_: object) -> Response:
        return problem(503, "queue_full", "there is no room")

    with served(loop, tls=ReloadingTls(files), gate=shut) as wired, connected(wired.port) as secured:
        secured.sendall(head("POST", "/x", length=10**9, **EXPECTS))
        assert secured.recv(65536).startswith(b"HTTP/1.1 503 ")


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app.server")
