"""The image and its compose file keep what they promise; the image itself is built where there is a builder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the types would be one more package for one test

from app.cli.spawn import started

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
FINAL = DOCKERFILE.rpartition("\nFROM ")[2]
SERVICE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["tilewise"]
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


@pytest.mark.timeout(120)
def test_the_health_check_passes_on_a_live_service_and_fails_on_none(tmp_path: Path) -> None:
    image = json.loads(re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", FINAL, re.MULTILINE)[0])
    assert SERVICE["healthcheck"]["test"] == ["CMD", *image]
    assert image[:2] == ["python", "-c"]
    with started(tmp_path, devices="none") as service:
        assert _healthy(image[2].replace("http://127.0.0.1:8000", service.url))
    assert not _healthy(image[2].replace("http://127.0.0.1:8000", service.url))


def _healthy(program: str) -> bool:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


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
