"""A client that a generator makes of the OpenAPI document, against the service that gave it."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Final

import httpx
import pytest

from app.cli.spawn import Started
from kernels import CATALOGUE

CALLS: Final = Path(__file__).parents[1] / "support" / "api" / "generated_client_calls.py"
# It holds typer below the version that the command line is locked to, so it has an environment of its own.
GENERATOR: Final = "openapi-python-client==0.29.1"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the generator, and what its clients import."""
    folder = tmp_path_factory.mktemp("generator")
    venv.create(folder, with_pip=True)
    pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    ran = subprocess.run(
        [*pip, "--only-binary=:all:", GENERATOR], capture_output=True, text=True, timeout=300, check=False
    )
    if ran.returncode:
        pytest.skip(f"{GENERATOR} cannot be installed: {ran.stderr[-300:]}")
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_generated_client_calls_what_the_document_promises(live: Started, tools: Path, tmp_path: Path) -> None:
    document, config = tmp_path / "openapi.json", tmp_path / "config.yaml"
    document.write_bytes(httpx.get(f"{live.url}/openapi.json").content)
    config.write_text("post_hooks: []\n")
    options: list[str | Path] = ["--path", document, "--config", config, "--meta", "none"]
    generate = [tools / "openapi-python-client", "generate", *options, "--output-path", tmp_path / "generated"]
    subprocess.run(generate, check=True, capture_output=True, timeout=120)
    calls: list[str | Path] = [
        tools / "python",
        CALLS,
        tmp_path,
        live.url,
    ]
    ran = subprocess.run(calls, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    source, missing = (each["kernels.get_kernel_source"] for each in told if "kernels.get_kernel_source" in each)
    found = {name: answer for each in told for name, answer in each.items()}
    job = found["tune.tune"]
    assert (job["state"], len(job["result"]["best"])) == ("succeeded", 3)
    assert found["jobs.get_job"] == job
    assert [each["id"] for each in found["jobs.list_jobs"]["jobs"]] == [job["id"]]
    assert found["best_config.best_config"]["match"] == "exact"
    assert [best["problem"]["k"] for best in found["best_config.list_bests"]["bests"]] == [26]
    assert {trial["problem"]["m"] for trial in found["trials.list_trials"]["trials"]} == {27}
    assert "misses" in found["trials.list_misses"]
    assert source == CATALOGUE["tiled"].text
    assert missing["code"] == "unknown_kernel"
    assert found["matmul.matmul"]["c"] == [[19, 22], ["Infinity", "Infinity"]]
    assert found["operations.get_version"]["name"] == "tilewise"
