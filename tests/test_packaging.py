"""The wheel holds the program and nothing else, and works where there is nothing but it; the lock is for everybody."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest

import app
import tilewise

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("app", "kernels", "migrations")
BUNDLE = "tilewise_bundle/"  # the client in the service's wheel
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The service's wheel, built with no network."""
    return _built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's wheel."""
    return _built(ROOT / "tilewise", tmp_path_factory.mktemp("client"))


@pytest.mark.rotating
def test_the_wheel_holds_every_file_of_the_packages_and_the_client(wheel: Path) -> None:
    client = {BUNDLE + path.relative_to(ROOT).as_posix() for path in _files("tilewise")}
    service = {path.relative_to(ROOT).as_posix() for path in _files(*PACKAGES)} - {"app/tilewise.pth"}
    assert _held(wheel) == {"tilewise.pth", *client, *service}


def test_the_charts_library_in_the_wheel_is_the_one_that_was_built_with_its_licence(wheel: Path) -> None:
    folder = "app/web/static/vendor/"
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(folder + name) for name in ("echarts.js", "echarts.js.gz", "echarts.LICENSE.txt")}
        said = dict(line.split()[::-1] for line in archive.read(f"{folder}echarts.sha256").decode().splitlines())
    assert gzip.decompress(files["echarts.js.gz"]) == files["echarts.js"]
    assert {hashlib.sha256(files[Path(name).name]).hexdigest() for name in said} == set(said.values())
    assert b"Apache License" in files["echarts.LICENSE.txt"]


def test_the_clients_wheel_holds_its_package_alone_and_needs_numpy_alone(client: Path) -> None:
    assert _held(client) == {f"tilewise/{path.name}" for path in _files("tilewise") if path.suffix in {".py", ".typed"}}
    metadata = _metadata(client)
    needed = [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert (metadata["Name"], metadata["Version"]) == ("tilewise-client", PROJECT["version"])
    assert needed == ["numpy>=2.0"]


def test_all_parts_are_of_one_version() -> None:
    client = tomllib.loads((ROOT / "tilewise" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert PROJECT["version"] == client["version"] == app.__version__ == tilewise.__version__


def test_the_client_imports_beside_packages_of_the_services_names(client: Path, tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a stranger')", encoding="utf-8")
    zipfile.ZipFile(client).extractall(tmp_path)
    loaded = _imported(sys.executable, "tilewise.client", "tilewise._futures", path=tmp_path)
    assert loaded["tilewise"] == str(tmp_path / "tilewise" / "__init__.py")
    assert not {"ml_dtypes", "httpx", "pydantic", *PACKAGES} & set(loaded)


@pytest.mark.rotating
def test_the_command_finds_its_client_where_no_pth_is_read(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "target")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    packages = [path for path in sys.path if path.endswith("site-packages")]
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "target"), *packages])
    program = "import sys, app.cli; app.cli.main(['best', '--help']); import tilewise; print(tilewise.__file__)"
    words = [sys.executable, "-S", "-c", program]  # -S: the interpreter reads no .pth
    ran = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Usage:" in ran.stdout
    assert str(tmp_path / "target" / "tilewise_bundle") in ran.stdout


@pytest.mark.slow
def test_either_wheel_survives_the_other_and_its_removal(wheel: Path, client: Path, tmp_path: Path) -> None:
    python = _environment(tmp_path / "venv")
    bundled, alone = "tilewise_bundle/tilewise/__init__.py", "site-packages/tilewise/__init__.py"
    for first, then in (
        ((wheel, "tilewise"), (client, "tilewise-client")),
        ((client, "tilewise-client"), (wheel, "tilewise")),
    ):
        _pip(python, "install", "--no-deps", str(first[0]))
        _pip(python, "install", "--no-deps", str(then[0]))
        assert _imported(python, "tilewise", "app")["tilewise"].endswith(alone)
        _pip(python, "uninstall", "--yes", first[1])
        left = bundled if then[0] == wheel else alone
        assert _imported(python, "tilewise")["tilewise"].endswith(left)
        _pip(python, "uninstall", "--yes", then[1])


def test_the_wheel_holds_kernel_sources_and_migrations(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel).namelist()
    assert {
        "kernels/common/portable.h",
        "kernels/naive/kernel.cu",
        "kernels/tiled/kernel.cu",
        "migrations/env.py",
    } <= set(held)
    assert [name for name in held if re.fullmatch(r"migrations/versions/\d{4}_\w+\.py", name)]


def test_the_wheel_carries_the_licence_the_command_and_the_python_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folder = next(name for name in archive.namelist() if name.endswith("/METADATA")).removesuffix("METADATA")
        assert "tilewise = app.cli:main" in archive.read(f"{folder}entry_points.txt").decode()
        assert b"Apache License" in archive.read(f"{folder}licenses/LICENSE")
    metadata = _metadata(wheel)
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
    command = [str(python.parent / "tilewise"), "demo", "--shapes", "64x64x64,96x80x72", "--seconds", "30"]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "right." in ran.stdout
    where = [str(python), "-c", "import app, kernels, migrations; print(*app.__path__, *kernels.__path__)"]
    for path in subprocess.run(where, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split():
        assert path.startswith(str(python.parent.parent))


def _installed(wheel: Path, folder: Path) -> Path:
    """The Python of a fresh virtual environment that holds the wheel and what it needs."""
    python = _environment(folder)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"what the wheel needs cannot be installed here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    return python


def _environment(folder: Path) -> Path:
    """The Python of a virtual environment that holds pip, and finds NumPy where this one has it."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _imported(python: Path | str, *names: str, path: Path | None = None) -> dict[str, str]:
    """Where each module comes from that is loaded once these are imported; NumPy's is this environment's."""
    numpy = str(Path(np.__file__).parent.parent)
    program = (
        f"import sys, json; sys.path.append({numpy!r}); import {', '.join(names)}\n"
        "print(json.dumps({name: str(getattr(module, '__file__', '')) for name, module in sys.modules.items()}))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PYTHONPATH": str(path)} if path else {}
    folder = path or Path(python).parent
    ran = subprocess.run([str(python), "-c", program], env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, str] = json.loads(ran.stdout)
    return told


def _built(project: Path, folder: Path) -> Path:
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheels, is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (built,) = folder.glob("*.whl")
    return built


def _held(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def _files(*packages: str) -> list[Path]:
    found = [path for package in packages for path in (ROOT / package).rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def _is_public(file: dict[str, str]) -> bool:
    return file["url"].startswith("https://files.pythonhosted.org/packages/") and file["hash"].startswith("sha256:")
