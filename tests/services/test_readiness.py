"""A kernel that hangs, kills its process or answers wrong costs neither readiness nor a product: the next serves."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from app.errors import DeviceError, WrongResult
from app.services.matmul import device_queue, readiness
from app.services.matmul import service as matmul
from kernels.problem import Problem
from tests.support.services.faulty_kernels import (
    ENDLESS_KERNEL,
    WILD_KERNEL,
    WRONG_KERNEL,
    break_kernels,
    endless_compilation,
)
from tests.support.services.running_service import Client, product, readiness_once, settled, started
from tests.support.started_services import compiling_alone
from tests.support.waiting import until

PROBLEM = Problem(256, 256, 256)  # of the class that is verified at the start
OTHER = Problem(801, 802, 803)  # of one that is verified at its first use, and large enough for register_tiled
SMALL = Problem(40, 41, 42)
RUNGS = ("register_tiled", "tiled", "naive")
STAGES = {
    ENDLESS_KERNEL: "timeout",
    "#": "timeout",
    WILD_KERNEL: "died",
    WRONG_KERNEL: "verify",
    "nonsense;": "compile",
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine is busy with, take nothing for hung."""
    monkeypatch.setattr(readiness, "_LEAST", 100.0)
    monkeypatch.setattr(matmul, "_PATIENCE", 100.0)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have the good kernels compiled, so that nothing but what hangs takes long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readiness, "_LEAST", 100.0)
        with compiling_alone(), started(tmp_path_factory.mktemp("compiled")) as (client, service):
            readiness_once(client, settled)
            for kernel in RUNGS:
                product(service, OTHER, kernel)


@pytest.fixture
def impatient(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what hangs for hung sooner."""
    del compiled
    monkeypatch.setattr(device_queue, "_FIRST", 10.0)
    monkeypatch.setattr(device_queue, "_LONGEST", 10.0)


def best_config(client: Client, problem: Problem) -> str:
    answer = client.get("/best-config", params={"m": problem.m, "n": problem.n, "k": problem.k}).json()
    return str(answer["kernel"])


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        ("tiled", WILD_KERNEL),
        pytest.param("tiled", WRONG_KERNEL, marks=pytest.mark.slow),
        pytest.param("tiled", "nonsense;", marks=pytest.mark.slow),
        pytest.param("register_tiled", WILD_KERNEL, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("patient")
def test_default_that_fails_at_start_is_replaced_by_the_one_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, fault: str
) -> None:
    quarantined_at_the_start(tmp_path, monkeypatch, kernel, fault)


@pytest.mark.parametrize(("kernel", "fault"), [("tiled", ENDLESS_KERNEL), ("register_tiled", "#")])
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_default_that_hangs_at_start_is_replaced_by_the_one_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, fault: str
) -> None:
    quarantined_at_the_start(tmp_path, monkeypatch, kernel, fault)


def quarantined_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, fault: str) -> None:
    break_kernels(monkeypatch, {kernel: endless_compilation() if fault == "#" else fault})
    with started(tmp_path) as (client, service):
        told = readiness_once(client, settled)
        assert (told["status"], told["verified"], told["total"]) == ("degraded", 2, 3)
        (reason,) = told["reasons"]
        assert f"{kernel} " in reason
        assert "quarantined" in reason
        (device,) = client.get("/devices").json()["devices"]
        (held,) = device["quarantined"]
        assert (held["kernel"], held["stage"]) == (kernel, STAGES[fault])
        serving = "tiled" if kernel == "register_tiled" else "register_tiled"
        assert product(service, PROBLEM).kernel == best_config(client, PROBLEM) == serving
        assert {one.kernel for one in service.quarantine.entries(service.fleet.unit().device)} == {kernel}


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"register_tiled": WILD_KERNEL}, marks=pytest.mark.slow),
        pytest.param({"register_tiled": WRONG_KERNEL, "tiled": "nonsense;"}, marks=pytest.mark.slow),
        {"register_tiled": "nonsense;", "tiled": WILD_KERNEL},
    ],
)
@pytest.mark.usefixtures("patient")
def test_kernel_that_fails_at_first_use_is_replaced_by_the_one_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[str, str]
) -> None:
    made_below(tmp_path, monkeypatch, faults)


@pytest.mark.parametrize("faults", [{"register_tiled": "#"}, {"register_tiled": ENDLESS_KERNEL}])
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_kernel_that_hangs_at_first_use_is_replaced_by_the_one_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[str, str]
) -> None:
    made_below(tmp_path, monkeypatch, faults)


def made_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[str, str]) -> None:
    with started(tmp_path) as (client, service):
        readiness_once(client, settled)
        assert best_config(client, OTHER) == "register_tiled"
        endless = endless_compilation()
        break_kernels(monkeypatch, {name: endless if fault == "#" else fault for name, fault in faults.items()})
        service.best.changed()
        serving = next(name for name in RUNGS if name not in faults)
        made = product(service, OTHER)
        assert (made.kernel, made.match) == (serving, "default")
        assert made.seconds["build"] > made.seconds["kernel"]
        assert best_config(client, OTHER) == serving
        told = client.get("/health/ready").json()
        assert told["status"] == "degraded"
        failed = [reason.split()[1] for reason in told["reasons"]]  # one twice where an idle look found its default too
        assert list(dict.fromkeys(failed)) == list(faults)
        with pytest.raises(DeviceError):
            product(service, OTHER, "register_tiled")
        assert "build" not in product(service, OTHER).seconds


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_small_product_that_kills_its_child_is_left_to_the_kernel_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path) as (client, service):
        readiness_once(client, settled)
        chosen = best_config(client, SMALL)  # which is another on another processor
        break_kernels(monkeypatch, {chosen: WILD_KERNEL})
        service.best.changed()
        answer = service.best.answer(SMALL, "opencl:0")
        service.matmul.builds.learn(service.fleet.unit("opencl:0"), answer.launch)  # as if one had been made
        with service.matmul.reserve(SMALL) as placed:
            placed.a[...], placed.b[...] = 1, 1
            begun = service.matmul.begin(placed, "opencl:0", time.perf_counter())
            assert begun is not None
            assert begun.finish() is None
            assert service.matmul.multiply(placed).kernel != chosen
            assert np.array_equal(placed.c, np.full((40, 41), 42, np.float32))


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_device_without_its_lowest_kernel_is_not_ready_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        break_kernels(broken, {"naive": WILD_KERNEL})
        with started(tmp_path) as (client, service):
            told = readiness_once(client, lambda told: "died" in told.get("detail", ""))
            assert (told["code"], told["verified"]) == ("not_ready", 0)
            assert "naive" not in {entry.kernel for entry in service.quarantine.entries(service.fleet.unit().device)}
            broken.undo()
            assert readiness_once(client, settled)["status"] == "ready"
            assert client.get("/health/ready").json()["verified"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_wrong_lowest_kernel_leaves_the_device_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernels(monkeypatch, {"naive": WRONG_KERNEL})
    with started(tmp_path) as (client, _):
        told = readiness_once(client, lambda told: "naive" in told.get("detail", ""))
        assert told["code"] == "not_ready"
        assert "failed its check before serving" in told["detail"]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_what_was_suspected_serves_again_once_it_does_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_RETRY", (1.0, 2.0))
    with monkeypatch.context() as broken, started(tmp_path) as (client, service):
        unit = service.fleet.unit()
        readiness_once(client, settled)
        launch = readiness.defaults(unit)[1]
        service.quarantine.withhold(unit.device, launch.kernel)
        service.quarantine.suspect(unit.device, launch, "died", "verify", "the disk was full")
        assert client.get("/health/ready").json()["status"] == "degraded"
        readiness_once(client, lambda told: told["status"] == "ready")
        assert not service.quarantine.entries(unit.device)
        assert not service.quarantine.withholds(unit.device, launch.kernel)
        del broken


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
def test_what_fails_twice_is_stored_and_not_tried_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_RETRY", (0.1, 0.2))
    break_kernels(monkeypatch, {"register_tiled": WILD_KERNEL})
    with started(tmp_path) as (client, service):
        readiness_once(client, settled)
        device = service.fleet.unit().device
        until(lambda: not any(entry.launch for entry in service.quarantine.entries(device)), 60, each=0.1)
    with started(tmp_path) as (client, service):
        told = readiness_once(client, settled)
        assert (told["status"], told["verified"]) == ("degraded", 2)
        assert service.fleet.unit().trials.generation == 1  # nobody died of it again
        assert product(service, PROBLEM).kernel == "tiled"


@pytest.mark.slow
def test_service_that_stops_while_it_verifies_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for delay in (0.0, 0.2):
        with started(tmp_path):
            time.sleep(delay)
        assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_wrong_answer_of_a_product_is_told_by_its_forced_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path) as (client, service):
        readiness_once(client, settled)
        break_kernels(monkeypatch, {"tiled": WRONG_KERNEL})
        with pytest.raises(WrongResult):
            product(service, OTHER, "tiled")
        with pytest.raises(WrongResult, match="quarantined"):
            product(service, OTHER, "tiled")
