"""tilewise doctor, with a service and without; and what it says of an installation that is not well."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from app.cli.spawn import Started
from app.devices.sandbox import PARTS, support
from tests.support.cli.command_line import Run

pytest_plugins = ["tests.support.cli.command_line"]

EXAMINED = {"program", "cuda libraries", "opencl libraries", "NVIDIA driver", "opencl:0"}
LOCAL = {"data folder", "kernels' folder", "port", "database", "sandbox", "memory lock limit", "CPU clocks"}


@pytest.mark.rotating
def test_doctor_examines_everything_and_has_each_device_make_a_product(run: Run, where: list[str]) -> None:
    ran = run("doctor", "--json", *where)
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert ran.code == 0, ran.out
    assert ran.json["status"] == "ok"
    assert set(checks) >= EXAMINED | (LOCAL if not where else {"service"})
    assert "a product of 64x48x32" in checks["opencl:0"]["found"]
    assert "PoCL" in checks["opencl:0"]["found"]
    assert all(check["advice"] for check in checks.values() if check["state"] != "ok")


@pytest.mark.rotating
def test_doctor_says_what_is_not_restricted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_DEVICES", "none")

    def found() -> dict[str, str]:
        checks = run("doctor", "--json").json["checks"]
        (check,) = (check for check in checks if check["name"] == "sandbox")
        return {name: check[name] for name in ("state", "found")}

    missing = support().missing
    assert found()["state"] == ("warning" if missing else "ok")
    assert all(part in found()["found"] for part in PARTS)
    monkeypatch.setenv("TILEWISE_SANDBOX", "off")
    assert found()["state"] == "warning"
    assert found()["found"].startswith("off")


def test_doctor_prints_a_table(run: Run, service: Started) -> None:
    ran = run("doctor", "--url", service.url)
    assert ran.code == 0
    assert "checks hold" in ran.out
    assert "PoCL" in ran.out


def test_doctor_exits_1_and_says_what_to_do_where_no_device_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_DEVICES", "none")
    ran = run("doctor", "--json")
    assert ran.code == 1
    wrong = [check for check in ran.json["checks"] if check["state"] == "wrong"]
    assert [check["name"] for check in wrong] == ["devices"]
    assert wrong[0]["advice"]


@pytest.mark.rotating
def test_doctor_finds_port_database_and_folder_faults(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWISE_DEVICES", "none")
    monkeypatch.setenv("TILEWISE_DATA_DIR", str(tmp_path))
    assert run("migrate").code == 0
    database = tmp_path / "tilewise.db"
    size = database.stat().st_size
    with database.open("r+b") as file:
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(os.urandom(512))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("TILEWISE_PORT", str(taken.getsockname()[1]))
        checks = {check["name"]: check for check in run("doctor", "--json").json["checks"]}
    assert checks["database"]["state"] == "wrong"
    assert checks["port"]["state"] == "warning"
    assert "Address already in use" in checks["port"]["found"]
    monkeypatch.setenv("TILEWISE_DATA_DIR", "/proc/nope")
    checks = {check["name"]: check for check in run("doctor", "--json").json["checks"]}
    assert (checks["data folder"]["state"], checks["devices"]["state"]) == ("wrong", "wrong")


def test_doctor_asks_the_service_that_has_the_database_open(
    run: Run, service: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWISE_DATA_DIR", str(service.log.parent))
    ran = run("doctor", "--json")
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert ran.code == 0, ran.out
    assert f"open in pid {service.process.pid} at {service.url}" in checks["database"]["found"]
    assert checks["service"]["found"].startswith(("ready at", "degraded at"))
