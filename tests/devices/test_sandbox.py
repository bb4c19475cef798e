"""What the processes that run kernels may do to the host, tried in them."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from app.devices import fleet as fleets
from app.devices import worker_entry
from app.devices.binary_cache import CACHES, make_private
from app.devices.fleet import Fleet, open_fleet
from app.devices.process import Worker
from app.devices.sandbox import PARTS, Sandbox, Support, landlock, of_discovery, of_platform, support
from app.errors import DeviceError
from tests.support.devices import child_functions, sandbox_functions
from tests.support.devices.child_factory import Making

SUPPORT = support()
confining = pytest.mark.skipif(SUPPORT.missing != (), reason=f"this system cannot restrict {SUPPORT.missing}")


@pytest.fixture(scope="module")
def fleet(binaries: Path) -> Iterator[Fleet]:
    with open_fleet("opencl", binaries, 2**24) as fleet:
        yield fleet


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a file that a worker has no business with."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "secret").write_text("a secret", encoding="ascii")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for name in ("bin", "pocl", "cuda"):
        (tmp_path / "cache" / name).mkdir(parents=True)
    return tmp_path / "cache"


@pytest.mark.rotating
@confining
@pytest.mark.parametrize("role", ["products", "trials"])
def test_a_devices_process_reaches_no_network_no_other_file_and_no_other_process(
    fleet: Fleet, binaries: Path, outside: Path, role: str
) -> None:
    child: Worker = getattr(fleet.unit(), role)
    assert set(child.call(sandbox_functions.sockets).values()) == {errno.EPERM}
    assert set(child.call(sandbox_functions.calls).values()) == {errno.EPERM}
    found = child.call(sandbox_functions.files, outside, binaries / "pocl")
    allowed = {name: found.pop(name) for name in ("move inside", "remove inside", "umask")}
    assert allowed == {"move inside": 0, "remove inside": 0, "umask": 0o077}
    assert found.pop("link out") in {errno.EACCES, errno.EXDEV}
    assert set(found.values()) == {errno.EACCES}
    assert (outside / "secret").read_text(encoding="ascii") == "a secret"
    assert child.call(sandbox_functions.signals, os.getpid()) == errno.EPERM
    assert "Permission denied\n42" in child.call(sandbox_functions.a_program, outside)
    assert set(child.call(sandbox_functions.threads)) == {"NoNewPrivs:1 Seccomp:2"}
    assert fleet.restricted == PARTS


@pytest.mark.drawn(2)
@confining
@pytest.mark.parametrize("number", range(landlock.OLDEST, SUPPORT.landlock + 1))
def test_files_are_out_of_reach_in_every_version_of_landlock(
    make: Making, cache: Path, outside: Path, number: int
) -> None:
    child = make(sandbox=of_platform(Support(number, filters=False), "opencl", cache))
    found = child.call(sandbox_functions.files, outside, cache / "pocl")
    assert (found["move inside"], found["remove inside"]) == (0, 0)
    refused = {"read", "write", "append", "make", "make a folder", "remove"}
    assert {found[name] for name in refused} == {errno.EACCES}
    assert (found["truncate"] == errno.EACCES) == (number >= 3)


@confining
def test_tcp_and_abstract_sockets_are_out_of_reach_by_landlock_alone(make: Making, cache: Path) -> None:
    child = make(sandbox=of_platform(Support(SUPPORT.landlock, filters=False), "opencl", cache))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0tilewise-{os.getpid()}")
        local.listen()
        port = listener.getsockname()[1]
        assert child.call(sandbox_functions.tcp, port) == (errno.EACCES, errno.EACCES)
        assert child.call(sandbox_functions.abstract, f"tilewise-{os.getpid()}") == errno.EPERM


@confining
def test_filters_alone_keep_a_process_from_the_network(make: Making, cache: Path, outside: Path) -> None:
    child = make(sandbox=of_platform(Support(filters=True), "opencl", cache))
    assert set(child.call(sandbox_functions.sockets).values()) == {errno.EPERM}
    assert child.call(sandbox_functions.files, outside, cache)["read"] == 0


@confining
def test_a_gpus_process_has_what_the_driver_needs_and_no_network(make: Making, cache: Path) -> None:
    child = make(sandbox=of_platform(SUPPORT, "cuda", cache))
    found = child.call(sandbox_functions.sockets)
    assert found.pop("netlink") == 0
    assert set(found.values()) == {errno.EPERM}
    assert child.call(sandbox_functions.signals, os.getpid()) == 0
    assert child.call(sandbox_functions.files, Path("/dev/shm"), cache / "cuda")["make a folder"] == 0  # noqa: S108
    Path("/dev/shm/folder").rmdir()  # noqa: S108
    Path("/dev/shm/new").unlink()  # noqa: S108


@confining
def test_a_gpus_process_finds_room_for_cupys_cache_where_the_user_has_none(
    make: Making, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    child = make(sandbox=replace(of_platform(SUPPORT, "cuda", cache), write=(str(cache / "cuda"),)))
    assert child.call(sandbox_functions.import_cupy, cache) == str(cache / "cuda" / "cupy")
    assert (cache / "cuda" / "cupy").is_dir()


@confining
def test_the_process_that_asks_for_devices_is_confined_as_their_workers(
    make: Making, binaries: Path, outside: Path
) -> None:
    for name in CACHES:
        make_private(binaries / name)
    child = make(sandbox=of_discovery(SUPPORT, "opencl", binaries))
    devices, _ = child.call(worker_entry.discover, "opencl", binaries)
    assert [device.id for device in devices] == ["opencl:0"]
    assert child.call(sandbox_functions.files, outside, binaries / "pocl")["read"] == errno.EACCES
    assert set(child.call(sandbox_functions.sockets).values()) == {errno.EPERM}


@pytest.mark.rotating
def test_a_fleet_confines_discovery(binaries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Sandbox | None] = {}

    class Noted(Worker):
        def __init__(self, name: str, *arguments: Any, **options: Any) -> None:
            given[name] = options.get("sandbox")
            super().__init__(name, *arguments, **options)

    monkeypatch.setattr(fleets, "Worker", Noted)
    with open_fleet("opencl", binaries, 2**20) as fleet:
        assert given["opencl discovery"] == given[f"{fleet.unit().device.id} trials"] is not None


def test_cuda_is_asked_without_a_sandbox_where_device_files_are_to_be_made(cache: Path, tmp_path: Path) -> None:
    gpus, found = tmp_path / "gpus", []
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "gpus/0", "gpus/1", "nvidia1"):
        (tmp_path / name).mkdir(parents=True)
        sandbox = of_discovery(Support(1, filters=True), "cuda", cache, tmp_path, gpus)
        found.append(bool(sandbox.support.parts))
    assert found == [False, False, True, True, False, True]


@pytest.mark.slow
def test_without_the_sandbox_a_process_may_do_what_its_user_may(
    binaries: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.devices.fleet")
    with open_fleet("opencl", binaries, 2**20, sandboxed=False) as fleet:
        found = fleet.unit().trials.call(sandbox_functions.sockets)
        assert found["IPv4"] == 0
        assert fleet.restricted == ()
    assert "TILEWISE_SANDBOX is off" in caplog.text
    caplog.clear()
    monkeypatch.setattr(fleets, "support", Support)  # as an older kernel's
    with open_fleet("opencl", binaries, 2**20) as fleet:
        assert fleet.unit().trials.call(sandbox_functions.files, outside, binaries)["read"] == 0
        assert fleet.restricted == ()
    told = [record for record in caplog.records if "no means to restrict" in record.message]
    assert [(record.levelname, record.message.count(",")) for record in told] == [("INFO", len(PARTS) - 1)]


def test_a_user_without_a_home_has_a_sandbox(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)  # of whom the system knows nothing, as in some clusters
    with pytest.raises(RuntimeError):
        Path.home()
    assert str(cache / "cuda") in of_platform(SUPPORT, "cuda", cache).write


def test_a_process_that_cannot_be_confined_runs_nothing(make: Making) -> None:
    child = make(sandbox=sandbox_functions.Failing(SUPPORT))
    with pytest.raises(DeviceError, match="cannot be confined"):
        child.call(child_functions.echo, 1)


@confining
@pytest.mark.timing
def test_a_sandbox_delays_a_start_by_milliseconds_at_most(cache: Path) -> None:
    seconds: dict[Sandbox | None, list[float]] = {None: [], of_platform(SUPPORT, "opencl", cache): []}
    for _ in range(15):
        for sandbox, times in seconds.items():
            child = Worker("timed", child_functions.hold, ("state",), sandbox=sandbox)
            started = perf_counter()
            child.start()
            times.append(perf_counter() - started)
            child.close()
    without, within = map(min, seconds.values())  # of which a busy machine says least
    assert within - without < 0.01
