"""tilewise serve, and the demo that starts it: real processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cli import serve
from app.cli.spawn import Started, started
from tests.support.cli.command_line import Run
from tests.support.waiting import until
from tilewise import Client

pytest_plugins = ["tests.support.cli.command_line"]

COMMAND = [sys.executable, "-m", "app.cli"]
# Seconds in which a busy host without AVX-512 builds one default and measures it, too.
ENOUGH = "15"


def environment(data: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TILEWISE_DATA_DIR": str(data), "TILEWISE_DEVICES": "opencl", **more}


def demo(data: Path, *words: str, timeout: float, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment(data, TMPDIR=str(data), **more)
    return subprocess.run(
        [*COMMAND, "demo", *words], env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


def terminated(service: Started) -> None:
    """Tell a service to end, and see that it does, with its children and without complaint."""
    tasks = Path(f"/proc/{service.process.pid}/task").iterdir()
    children: list[str] = []
    for task in tasks:
        with suppress(FileNotFoundError):  # a thread that has ended since
            children += (task / "children").read_text().split()
    assert children
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(9) in (0, -signal.SIGTERM)

    def left() -> list[str]:
        return [pid for pid in children if alive(int(pid))]

    until(lambda: not left(), 2, meanwhile=left)
    assert "Traceback" not in service.log.read_text()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_serving_ends_with_the_parent_that_started_it(tmp_path: Path) -> None:
    with started(tmp_path, devices="none") as service:
        assert service.process.stdin is not None
        service.process.stdin.close()
        assert service.process.wait(10) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            [*COMMAND, "serve", "--port", port], env=environment(tmp_path), capture_output=True, text=True, check=False
        )
    assert ran.returncode == 1
    assert ran.stderr == f"tilewise: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


@pytest.mark.slow
def test_a_port_that_another_takes_while_the_service_starts_is_said_in_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        command = [*COMMAND, "serve", "--port", str(port)]
        with subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as starting:
            until((tmp_path / "tilewise.db").exists)  # it has bound its socket, and does not listen yet
            other.listen()
            _, told = starting.communicate(timeout=60)
    assert starting.returncode == 1
    assert told == f"tilewise: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_a_port_that_the_system_chose_is_shared_with_nobody() -> None:
    with serve.tcp_listener("127.0.0.1", 0) as listener, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(listener.getsockname())


@pytest.mark.rotating
def test_a_port_that_the_system_chose_is_free_once_the_service_has_ended(tmp_path: Path) -> None:
    with started(tmp_path, devices="none") as service:
        port = int(service.url.rpartition(":")[2])
        caller = socket.create_connection(("127.0.0.1", port))
        httpx.get(f"{service.url}/health/live").raise_for_status()
    with caller:  # the service's end of this connection waits for it to be closed here
        serve.tcp_listener("127.0.0.1", port).close()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"AUTH": "keys"}, {"INSECURE": "yes"}])
def test_a_host_that_others_reach_is_served_if_its_owner_says_how(tmp_path: Path, settings: dict[str, str]) -> None:
    words = [*COMMAND, "serve", "--host", "0.0.0.0", "--port", "0"]  # noqa: S104 - that is what is tested
    chosen = {f"TILEWISE_{name}": value for name, value in settings.items()}
    env = environment(tmp_path, TILEWISE_DEVICES="none", **chosen)
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=15)
    assert re.fullmatch(r"Tilewise listens on http://0\.0\.0\.0:\d+\n", line), complaints
    assert process.returncode == 0


@pytest.mark.slow
def test_demo_shows_everything_and_leaves_nothing(tmp_path: Path) -> None:
    words = [*COMMAND, "demo", "--shapes", "64x64x64", "--seconds", ENOUGH, "--keep"]
    env = environment(tmp_path, TMPDIR=str(tmp_path))
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = ""
        while "until Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said + process.stderr.read()
            said += line
        with Client(line.split()[4]) as client:
            assert client.best_config(64, 64, 64, match="exact").match == "exact"
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=20)
            assert not client.ready()
    for word in ("64x64x64", "naive", "tiled", "vendor", "Speed-up", "exact", "float64", "right", "What to try next"):
        assert word in said
    assert "Stopping it" in rest
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_serve_says_its_pages_data_devices_and_when_it_is_ready(tmp_path: Path) -> None:
    words = [*COMMAND, "serve", "--port", "0"]
    with subprocess.Popen(
        words, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        while not (line := process.stdout.readline()).startswith(("Ready in", "Degraded in")):
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=20)
    address = said.split()[3]
    assert f"pages    {address}/ and the reference at {address}/docs" in said
    assert f"data     {tmp_path}\n" in said
    assert "device   opencl:0: " in said
    assert complaints.splitlines()[-1] == "stopped"


@pytest.mark.slow
def test_interrupted_demo_says_that_it_stopped(tmp_path: Path) -> None:
    words = [*COMMAND, "demo", "--shapes", "64", "--seconds", "60"]
    env = environment(tmp_path, TMPDIR=str(tmp_path))
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert "its data and its log are in" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(20) == 130
    assert said.rstrip().endswith("stopped")
    assert "Traceback" not in said


@pytest.mark.slow
def test_demos_next_lines_work_as_they_are_pasted(tmp_path: Path) -> None:
    kept = tmp_path / "what is kept"
    ran = demo(tmp_path, "--shapes", "64", "--seconds", ENOUGH, "--data-dir", str(kept), timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout[ran.stdout.index("What to try next") :].splitlines()[1:]
    commands = [line.partition("  #")[0].strip() for line in lines if "  #" in line]
    assert [line for line in commands if " serve" in line]
    env = environment(tmp_path, PYTHONPATH=str(Path(__file__).resolve().parents[2]))
    for command in commands:
        if " serve" not in command:
            shorter = command.replace("tune 1000x1200x800", "tune 64 --trials 1 --kernels naive").replace(
                "1000x1200x800", "64"
            )
            pasted = subprocess.run(
                ["bash", "-c", shorter], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
            )
            assert pasted.returncode == 0, f"{command}: {pasted.stdout}{pasted.stderr}"
    assert (tmp_path / "c.npy").exists()


@pytest.mark.slow
def test_a_demo_where_no_device_is_says_so(tmp_path: Path) -> None:
    ran = demo(tmp_path, timeout=60, TILEWISE_DEVICES="none")
    assert ran.returncode == 4
    assert "no device" in ran.stderr.lower()
    assert "Traceback" not in ran.stderr


@pytest.mark.timing
def test_the_whole_demo_takes_under_two_minutes(tmp_path: Path) -> None:
    began = time.monotonic()
    ran = demo(tmp_path, "--data-dir", str(tmp_path / "kept"), timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert time.monotonic() - began < 120
    for word in ("128x128x128", "256x256x256", "512x512x512", "500x600x400", "right", " serve", "its page is at"):
        assert word in ran.stdout
    assert (tmp_path / "kept" / "tilewise.db").exists()


@pytest.mark.slow
def test_unix_socket_and_tls_serve_and_sigterm_cleans_up(
    tmp_path: Path,
) -> None:
    path, pem, key = tmp_path / "tilewise.sock", tmp_path / "certificate.pem", tmp_path / "key.pem"
    making = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", str(key)]
    subprocess.run([*making, "-out", str(pem)], check=True, capture_output=True)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    settings = {"devices": "opencl", "uds": str(path), "tls_certificate": str(pem), "tls_key": str(key)}
    a = np.arange(700 * 1100, dtype=np.float32).reshape(700, 1100) % 7
    b = np.arange(1100 * 600, dtype=np.float32).reshape(1100, 600) % 5
    with started(tmp_path, **settings) as service:
        assert service.url.startswith("https://")
        context = ssl.create_default_context(cafile=pem)
        context.check_hostname = False
        assert httpx.get(f"{service.url}/health/live", verify=context).status_code == 200
        assert path.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://x/health/live").json() == {"status": "live"}
        for secured in (Client(service.url, tls=context), Client(f"unix://{path}")):
            with secured:
                assert secured.ready(wait=90)
                np.testing.assert_array_equal(secured.matmul(a, b), a @ b)
        assert path.exists()
        assert (tmp_path / "tilewise.db").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "results").stat().st_mode & 0o777 == 0o700
        terminated(service)
    assert not path.exists()


@pytest.mark.slow
def test_without_a_port_the_socket_alone_is_served(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tilewise.sock"
    with started(tmp_path, devices="none", port="off", uds=str(path), host="0.0.0.0") as service:  # noqa: S104
        assert service.url == f"unix://{path}"
        with Client(service.url) as client:
            assert list(client.jobs()) == []
        assert not listening(service.process.pid)
        assert len(arenas(service.process.pid)) <= 1, "of hundreds of threads"
        monkeypatch.setenv("TILEWISE_DATA_DIR", str(tmp_path))
        found = run("jobs", "--json")  # by what the owner of the database says of itself
        assert found.code == 0, found.err
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(9) in (0, -signal.SIGTERM)
    assert not path.exists()
    ran = run("serve", "--port", "off")
    assert ran.code == 1
    assert ran.err == "tilewise: without a port there is nowhere to listen: set TILEWISE_UDS, or give --uds\n"
    assert "a port is a number from 0 to 65535, or off" in run("serve", "--port", "70000").err


def arenas(pid: int) -> list[int]:
    """Addresses of the malloc arenas of a process beside its first: 64 MiB are reserved for each, most out of reach."""
    found, size = list[int](), 2**26
    lines = [line.split()[:2] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    for (used, rights), (reserved, no_rights) in pairwise(lines):
        (start, end), (next_, last) = ([int(each, 16) for each in span.split("-")] for span in (used, reserved))
        is_arena = start % size == 0 and end == next_ and last == start + size
        found += [start] if is_arena and (rights, no_rights) == ("rw-p", "---p") else []
    return found


def listening(pid: int) -> list[str]:
    """The inodes of a process's TCP sockets that listen."""
    own = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return [line[9] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


def test_missing_certificate_or_socket_is_said_in_a_sentence(run: Run, tmp_path: Path) -> None:
    for name, complaint in (("uds", "cannot listen on "), ("tls-certificate", "TLS cannot be had from ")):
        ran = run("serve", "--port", 0, f"--{name}", tmp_path / "no" / "such" / "file")
        assert ran.code == 1
        assert ran.err.startswith(f"tilewise: {complaint}")
        assert len(ran.err.splitlines()) == 1
