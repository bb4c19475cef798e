"""The wheel holds the program and nothing else, and works where there is nothing but it; the lock is for everybody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("app", "kernels", "migrations")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built with no network."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_packages_and_the_client(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {"tilewise.py", *(path.relative_to(ROOT).as_posix() for path in _files())}


def test_the_wheel_holds_kernel_sources_and_migrations(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel).namelist()
    assert {"kernels/portable.h", "kernels/naive.cu", "kernels/tiled.cu", "migrations/env.py"} <= set(held)
    assert [name for name in held if re.fullmatch(r"migrations/versions/\d{4}_\w+\.py", name)]


def test_the_wheel_carries_the_licence_the_command_and_the_python_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folder = next(name for name in archive.namelist() if name.endswith("/METADATA")).removesuffix("METADATA")
        metadata = Parser().parsestr(archive.read(f"{folder}METADATA").decode())
        assert "tilewise = app.cli:main" in archive.read(f"{folder}entry_points.txt").decode()
        assert b"Apache License" in archive.read(f"{folder}licenses/LICENSE")
    assert (metadata["Name"], metadata["Version"]) == ("tilewise", PROJECT["version"])
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (">=3.11", "Apache-2.0")


def test_the_lock_names_public_places_only_and_a_hash_for_every_file() -> None:
    sources = {str(package["source"]) for package in LOCK["package"] if package["name"] != PROJECT["name"]}
    assert sources == {"{'registry': 'https://pypi.org/simple'}"}
    files = [file for package in LOCK["package"] for file in (*package.get("wheels", ()), package.get("sdist"))]
    assert [file for file in files if file and not _is_public(file)] == []


def test_the_lock_has_every_package_that_the_project_asks_for() -> None:
    asked = {*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)}
    names = {found.group().lower() for found in (re.match(r"[\w.-]+", requirement) for requirement in asked) if found}
    assert names <= {package["name"] for package in LOCK["package"]}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_runs_from_the_wheel_where_there_is_nothing_but_python(wheel: Path, tmp_path: Path) -> None:
    python = _installed(wheel, tmp_path / "venv")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TILEWISE_", "PYTHON"))}
    env["PATH"] = str(python.parent)
    command = [str(python.parent / "tilewise"), "demo", "--shapes", "64x64x64,96x80x72", "--seconds", "10"]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "right." in ran.stdout
    where = [str(python), "-c", "import app, kernels, migrations; print(*app.__path__, *kernels.__path__)"]
    for path in subprocess.run(where, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split():
        assert path.startswith(str(python.parent.parent))


def _installed(wheel: Path, folder: Path) -> Path:
    """The Python of a fresh virtual environment that holds the wheel and what it needs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"what the wheel needs cannot be installed here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    return python


def _files() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def _is_public(file: dict[str, str]) -> bool:
    return file["url"].startswith("https://files.pythonhosted.org/packages/") and file["hash"].startswith("sha256:")
