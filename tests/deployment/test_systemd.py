"""What systemd is told, and the unit: its sandbox is weak in nothing that matters, and the service works within it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from app.cli.spawn import started
from app.devices.sandbox import support
from app.server import SystemdNotifier
from tilewise import Client

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "tilewise.service"
LAUNCHER = Path(__file__).with_name("filtered.py")
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@contextmanager
def manager(name: str) -> Iterator[socket.socket]:
    """The service manager's end of NOTIFY_SOCKET; @ begins a name that no folder has."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if name.startswith("@") else name)
        receiver.settimeout(20)
        yield receiver


def told(receiver: socket.socket, word: str) -> dict[str, str]:
    """The next message with this assignment."""
    while True:
        message = dict(line.split("=", 1) for line in receiver.recv(4096).decode().split("\n"))
        if word in message:
            return message


def pending(receiver: socket.socket) -> int:
    """How many messages wait, which are taken."""
    receiver.setblocking(False)
    count = 0
    try:
        while receiver.recv(4096):
            count += 1
    except BlockingIOError:
        receiver.settimeout(20)
    return count


@pytest.mark.parametrize("form", ["path", "@abstract"])
def test_the_manager_is_told_by_a_path_and_by_an_abstract_name(tmp_path: Path, form: str) -> None:
    name = str(tmp_path / "notify") if form == "path" else f"@tilewise-{tmp_path.name}-{os.getpid()}"
    environment = {"NOTIFY_SOCKET": name, "HOME": "/"}
    with manager(name) as receiver:
        notifier = SystemdNotifier.from_environment(environment)
        notifier.ready(lambda: "two\nREADY=0 lines")
        assert told(receiver, "READY") == {"READY": "1", "STATUS": "two READY=0 lines"}
        notifier.stopping()
        assert told(receiver, "STOPPING")["STOPPING"] == "1"
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "vsock:2:1"}, {"NOTIFY_SOCKET": "/nowhere/notify"}])
def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = SystemdNotifier.from_environment(environment)
    notifier.ready(lambda: "")
    notifier.stopping()
    notifier.close()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_this_processs_own(variables: dict[str, str], seconds: float | None) -> None:
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": "/run/notify", **variables})
    assert notifier.watchdog_seconds == seconds


@pytest.mark.rotating
def test_the_watchdog_is_fed_only_while_the_event_loop_answers(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")

    async def run(receiver: socket.socket) -> tuple[int, int]:
        notifier = SystemdNotifier(name, 0.15)
        notifier.ready(lambda: "")
        await asyncio.sleep(0.6)
        running = pending(receiver)
        time.sleep(0.6)  # noqa: ASYNC251 - a loop that is stuck is what is tested
        stuck = pending(receiver)
        notifier.close()
        return running, stuck

    with manager(name) as receiver:
        running, stuck = asyncio.run(run(receiver))
    assert running >= 4
    assert stuck == 0


@pytest.mark.slow
def test_service_notifies_systemd_and_its_children_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    with manager(name) as receiver, started(tmp_path / "data", devices="opencl") as service:
        assert told(receiver, "READY")["STATUS"]
        with Client(service.url) as client:
            assert client.devices()
        pings = [told(receiver, "WATCHDOG") for _ in range(3)]
        assert [ping for ping in pings if not ping["STATUS"]] == []
        tasks = Path(f"/proc/{service.process.pid}/task").glob("*/children")
        children = [child for task in tasks for child in task.read_text().split()]
        assert children
        environments = [Path(f"/proc/{child}/environ").read_bytes() for child in children]
        assert [each for each in environments if b"NOTIFY_SOCKET" in each or b"WATCHDOG" in each] == []
        service.process.send_signal(signal.SIGTERM)
        assert told(receiver, "STOPPING")["STOPPING"] == "1"
        assert service.process.wait(15) in (0, -signal.SIGTERM)


@analyze
def test_the_units_exposure_is_three_at_most() -> None:
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=30", str(UNIT)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-300:] + ran.stderr
    assert "Overall exposure level" in ran.stdout


@analyze
def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/tilewise/bin/tilewise", sys.executable))
    ran = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_unit_has_what_a_gpu_needs_and_no_more() -> None:
    service = settings()
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert int(service["WatchdogSec"][0]) >= 30
    assert service["LimitMEMLOCK"] == ["infinity"]
    assert service["DevicePolicy"] == ["closed"]
    assert all(allowed.startswith(("char-nvidia", "/dev/nvidia")) for allowed in service["DeviceAllow"])
    assert "MemoryDenyWriteExecute" not in service
    (credential,) = service["LoadCredential"]
    assert f"TILEWISE_ADMIN_KEY_FILE=%d/{credential.partition(':')[0]}" in " ".join(service["Environment"])


@pytest.mark.slow
@analyze
@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="PoCL is of x86-64")
@pytest.mark.timeout(180)
def test_product_is_made_under_the_units_system_call_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy.json"
    rule = {"names": sorted(allowed_calls()), "action": "SCMP_ACT_ALLOW"}
    profile = {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.EPERM, "syscalls": [rule]}
    policy.write_text(json.dumps(profile), encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {LAUNCHER} {policy} {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with started(tmp_path / "data", devices="opencl") as service, Client(service.url, timeout=120) as client:
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        a = np.arange(64 * 48, dtype=np.float32).reshape(64, 48) % 7
        assert np.array_equal(client.matmul(a, a.T), a @ a.T)
        assert client.tune("64x64x48", seconds=8, wait=True).state == "succeeded"
        with urlopen(f"{service.url}/health", timeout=60) as answer:  # noqa: S310 - the service just started
            assert json.load(answer)["sandbox"] == list(support().parts)
    assert allowed_calls().isdisjoint({"mount", "ptrace", "reboot", "bpf", "init_module", "setuid", "chroot"})


def settings() -> dict[str, list[str]]:
    """The unit's [Service], each name with all its lines."""
    found: dict[str, list[str]] = {}
    parts = UNIT.read_text(encoding="utf-8").split("\n[Service]\n")[1].split("\n[")[0]
    for line in parts.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def allowed_calls() -> set[str]:
    """What SystemCallFilter allows, as systemd reads its lines: one after the other, ~ takes away."""
    allowed: set[str] = set()
    for line in settings()["SystemCallFilter"]:
        calls = {call for word in line.removeprefix("~").split() for call in named(word)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed | named("@default")


def named(word: str) -> set[str]:
    """A system call, or those of a set such as @basic-io and of the sets in it."""
    if not word.startswith("@"):
        return {word}
    ran = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", word], capture_output=True, text=True, check=True
    )
    words = [line.strip() for line in ran.stdout.splitlines()[1:] if line.startswith("    ")]
    return {call for each in words if not each.startswith("#") for call in named(each)}
