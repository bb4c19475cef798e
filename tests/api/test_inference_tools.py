"""Programs that were built for the protocol: the oldest tritonclient that installs, and NVIDIA's perf_analyzer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.cli.spawn import Started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIO: Final = Path(__file__).parents[1] / "support" / "api" / "triton_scenario.py"
# Its first release spells a type as NumPy did until 1.23, which has no wheels beyond Python 3.11.
OLDEST: Final = ("tritonclient[http]==2.3.0", "numpy<1.24") if sys.version_info < (3, 12) else ()
OLD: Final = ("tritonclient[http]==2.40.0", "numpy<2")
ANALYZER: Final = "tritonclient==2.40.0"  # later wheels want a later C library, and from 2.61 on have no analyzer


def run(*command: str | Path, **options: Any) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return str(ran.stdout)


def fetched(*command: str | Path, **options: Any) -> None:
    """Run what needs a network, or skip the test with the reason."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)
    if ran.returncode != 0:
        pytest.skip(f"{' '.join(map(str, command[:5]))} ... failed: {(ran.stderr or ran.stdout)[-300:]}")


@pytest.mark.parametrize("packages", [each for each in (OLDEST, OLD) if each], ids=lambda packages: str(packages[0]))
def test_an_old_tritonclient_works_unmodified(live: Started, tmp_path: Path, packages: tuple[str, ...]) -> None:
    venv.create(tmp_path / "old", with_pip=True)
    python = tmp_path / "old" / "bin" / "python"
    fetched(python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *packages)
    assert "all right" in run(python, SCENARIO, live.url.removeprefix("http://"))


def test_the_installed_tritonclient_does_all_that_old_ones_do(live: Started) -> None:
    assert "all right with 5 codings" in run(sys.executable, SCENARIO, live.url.removeprefix("http://"))


@pytest.fixture(scope="module")
def analyzer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The program, out of the last wheel that has one for this C library; and where its libraries are."""
    folder = tmp_path_factory.mktemp("analyzer")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder)
    fetched(*pip, ANALYZER, "nvidia-cuda-runtime-cu12")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    if not (libraries := found("libb64.so.0d")):
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            pytest.skip("libb64.so.0d is not installed, and there is no apt-get to fetch it")
        fetched("apt-get", "download", "libb64-0d", cwd=folder)
        fetched("dpkg", "-x", *folder.glob("*.deb"), folder)
        libraries = [str(path.parent) for path in folder.rglob("libb64.so.0d")]
    libraries += [str(path.parent) for path in folder.rglob("libcudart.so.12")]
    (program,) = folder.rglob("bin/perf_analyzer")
    program.chmod(0o755)
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    fetched(program, "--version", env=environment)
    return program, environment


def found(library: str) -> list[str]:
    return [str(path.parent) for folder in ("/usr/lib", "/lib") for path in Path(folder).glob(f"*/{library}")]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-a", "--concurrency-range", "4"),
        ("--shared-memory", "system"),
        ("--shared-memory", "system", "-a", "--concurrency-range", "3"),
        ("--request-rate-range", "20"),
    ],
    ids=" ".join,
)
def test_perf_analyzer_measures_the_service(
    live: Started, analyzer: tuple[Path, dict[str, str]], options: tuple[str, ...]
) -> None:
    program, environment = analyzer
    size = 64
    numbers = [1.0] * size**2
    warm = {
        "inputs": [{"name": name, "datatype": "FP32", "shape": [size, size], "data": numbers} for name in "AB"],
    }
    assert httpx.post(f"{live.url}/v2/models/matmul/infer", json=warm, timeout=60).status_code == 200
    where = ("-m", "matmul", "-u", live.url.removeprefix("http://"), "-i", "http")
    shapes = ("--shape", f"A:{size},{size}", "--shape", f"B:{size},{size}")
    # Whether figures are stable is this machine's affair: a wide margin, and three windows.
    told = run(program, *where, *shapes, "-p", "400", "-r", "3", "-s", "999", *options, env=environment)
    assert int(re.findall(r"Successful request count: (\d+)", told)[0]) > 0, told
    assert re.search(r"compute infer \d+ usec", told), told
    assert httpx.get(f"{live.url}/v2/systemsharedmemory/status").json() == []
