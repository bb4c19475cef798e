"""The image and its compose file keep what they promise; the image itself is built where there is a builder."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx
import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]  # the types would be one more package for one test

from app.cli.spawn import started
from app.devices.sandbox import support
from app.settings import Settings
from tests.support.waiting import until
from tilewise import Client

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
FINAL = DOCKERFILE.rpartition("\nFROM ")[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICE: dict[str, Any] = COMPOSE["services"]["tilewise"]
LAUNCHER = Path(__file__).with_name("filtered.py")
PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_the_image_runs_as_nobody_special_and_writes_to_data_and_tmp_alone() -> None:
    assert _words("USER") == ["1000:1000"]
    assert _words("VOLUME") == ["/data"]
    paths = [value for value in _environment().values() if value.startswith("/") and ":" not in value]
    assert len(paths) >= 5
    assert [path for path in paths if not path.startswith(("/data", "/tmp"))] == []  # noqa: S108 - the image's own


def test_the_image_and_the_compose_file_carry_the_projects_version() -> None:
    assert f'org.opencontainers.image.version="{VERSION}"' in FINAL
    assert SERVICE["image"] == f"tilewise:{VERSION}"


def test_whatever_the_image_is_made_of_exists_and_is_sent_to_the_builder() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    sources = [source for line in lines for source in shlex.split(line)[:-1]]
    assert {"pyproject.toml", "uv.lock", "app", "kernels", "migrations", "tilewise"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists() or not _sent(source)] == []
    assert not _sent("tests")
    assert not _sent(".git")


def test_no_package_enters_the_image_without_a_hash() -> None:
    installs = [part for part in re.split(r"&&|^RUN ", DOCKERFILE, flags=re.MULTILINE) if "pip install" in part]
    assert len(installs) >= 3
    assert [part for part in installs if "--require-hashes" not in part and "--offline --no-deps" not in part] == []


def test_the_container_has_a_gpu_and_no_privileges() -> None:
    (device,) = SERVICE["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert (SERVICE["read_only"], SERVICE["cap_drop"]) == (True, ["ALL"])
    assert SERVICE["security_opt"] == ["no-new-privileges:true"]
    assert SERVICE["ulimits"]["memlock"] == -1
    assert [port for port in SERVICE["ports"] if not port.startswith("127.0.0.1:")] == []
    assert SERVICE["pids_limit"] >= 1024
    assert re.fullmatch(r"[0-9]+g", SERVICE["mem_limit"])


def test_callers_of_the_container_show_a_key_that_is_never_committed() -> None:
    environment, secrets = SERVICE["environment"], COMPOSE["secrets"]
    assert environment["TILEWISE_AUTH"] == "keys"
    assert environment["TILEWISE_ADMIN_KEY_FILE"] == f"/run/secrets/{SERVICE['secrets'][0]}"
    path = re.sub(r"\$\{\w+:-(.*)\}", r"\1", secrets[SERVICE["secrets"][0]]["file"])
    kept = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode
    assert kept == 0 or not (ROOT / ".git").exists(), "the key is never committed"
    for text in ((ROOT / "compose.yaml"), (ROOT / "docs" / "how-to" / "deploy.md")):
        assert f"> {path}" in text.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_health_check_passes_if_products_are_served(
    tmp_path: Path,
) -> None:
    options, image = re.findall(r"^HEALTHCHECK (.*)CMD (\[.*\])$", FINAL, re.MULTILINE)[0]
    check = json.loads(image)
    assert SERVICE["healthcheck"]["test"] == ["CMD", *check]
    for name in ("interval", "timeout", "start_period", "retries"):
        assert f"--{name.replace('_', '-')}={SERVICE['healthcheck'][name]} " in options
    assert check[:2] == ["python", "-c"]
    with started(tmp_path / "ready", devices="opencl") as service, Client(service.url) as client:
        program = check[2].replace("http://127.0.0.1:8000", service.url)
        until(client.ready, 120, each=0.2)
        assert _healthy(program)
    assert not _healthy(program)
    with started(tmp_path / "live", devices="none") as service:
        assert httpx.get(f"{service.url}/health/live", timeout=10).status_code == 200
        assert not _healthy(check[2].replace("http://127.0.0.1:8000", service.url))


@pytest.mark.skipif(shutil.which("uv", path=PROGRAMS) is None, reason="uv is not installed")
def test_the_images_bill_of_materials_is_the_lock_files(tmp_path: Path) -> None:
    (words,) = re.findall(r"&& \S*/(uv export [^&]*--format cyclonedx\S* [^&]*) &&", DOCKERFILE)
    command = shlex.split(words.replace("/opt/tilewise/sbom.cdx.json", str(tmp_path / "sbom.json")))
    program = shutil.which("uv", path=PROGRAMS)
    assert program
    subprocess.run([program, *command[1:], "--offline"], cwd=ROOT, check=True, capture_output=True)
    bill = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("tilewise", VERSION)
    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    assert {part["type"] for part in parts.values()} == {"library"}
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    known = {(package["name"], package["version"]) for package in locked}
    assert {(part["name"], part["version"]) for part in parts.values()} <= known
    assert {part["purl"].partition("?")[0] for part in parts.values()} == {
        f"pkg:pypi/{part['name']}@{part['version']}" for part in parts.values()
    }
    hashes = [reference["hashes"] for part in parts.values() for reference in part["externalReferences"]]
    assert all(each[0]["alg"] == "SHA-256" and len(each[0]["content"]) == 64 for each in hashes)
    named = {ref for each in bill["dependencies"] for ref in (each["ref"], *each.get("dependsOn", []))}
    assert named == {root["bom-ref"], *parts}
    exported = [line for line in _exported(program) if "==" in line]
    assert {re.split("==|;", line)[0].strip().partition("[")[0] for line in exported} == {
        p["name"] for p in parts.values()
    }


def test_a_base_image_may_be_pinned_and_none_is_invented() -> None:
    assert re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE) == ["python:3.12-slim"]
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]
    guide = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    assert re.search(r'--build-arg "?BASE=python:3\.12-slim@\$', guide)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="PoCL is of x86-64")
@pytest.mark.timeout(180)
def test_the_service_works_under_the_containers_filter_of_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = ROOT / "deploy" / "seccomp.json"
    allowed = {
        name
        for rule in json.loads(profile.read_text(encoding="utf-8"))["syscalls"]
        for name in rule["names"]
        if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule
    }
    assert allowed.isdisjoint({"mount", "ptrace", "bpf", "setns", "unshare", "clone", "keyctl", "io_uring_setup"})
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {LAUNCHER} {profile} {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with started(tmp_path / "data", devices="opencl") as service, Client(service.url, timeout=120) as client:
        assert "Seccomp:\t2" in Path(f"/proc/{service.process.pid}/status").read_text()
        a = np.arange(64 * 48, dtype=np.float32).reshape(64, 48) % 7
        assert np.array_equal(client.matmul(a, a.T), a @ a.T)
        assert client.tune("48x48x48", trials=2, wait=True).state == "succeeded"
        with urlopen(f"{service.url}/health", timeout=60) as answer:  # noqa: S310 - the service just started
            assert json.load(answer)["sandbox"] == list(support().parts)


def _healthy(program: str) -> bool:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def _exported(uv: str) -> list[str]:
    words = ["export", "--quiet", "--frozen", "--offline", "--no-emit-project", "--no-hashes", "--no-annotate"]
    extras = ["--extra", "cublas", "--extra", "otel", "--extra", "postgres"]
    return subprocess.run(
        [uv, *words, *extras], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def _words(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction} (.+)$", FINAL, re.MULTILINE)


def _environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in _words("ENV") for pair in shlex.split(line))


def _sent(path: str) -> bool:
    """Whether .dockerignore lets a path of the top level through: the last line that matches decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#") and fnmatch(path, line.removeprefix("!")):
            sent = line.startswith("!")
    return sent


def test_every_setting_that_the_files_name_is_one() -> None:
    """TILEWISE_ADMIN_KEY and TILEWISE_PORT are compose's own variables where they stand in ${...}."""
    known = {f"TILEWISE_{name.upper()}" for name in Settings.model_fields} | {"TILEWISE_KEY"}
    files = [
        ROOT / "compose.yaml",
        ROOT / "Dockerfile",
        *(path for path in (ROOT / "deploy").rglob("*") if path.is_file()),
    ]
    named = {
        (path.name, name)
        for path in files
        for name in re.findall(r"(?<![{A-Z_])TILEWISE_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 8
    assert {one for one in named if one[1] not in known} == set()
