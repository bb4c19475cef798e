"""The launches that a sanitizer watches on a GPU, on the processor; and what is made of a sanitizer's words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernels import sanitized
from kernels import CATALOGUE
from tests.support.kernels.devices import H200, PROCESSOR
from tests.support.kernels.pocl_runner import queue

ROOT = Path(__file__).resolve().parents[2]
WINNERS = [
    {"kernel": "naive", "config": {"BM": 2, "BN": 16}, "problem": {"m": 4096, "n": 4096, "k": 4096, "trans_b": True}},
    {"kernel": "tiled", "config": {"BM": 8, "BN": 8, "BK": 8}, "problem": {"m": 64, "n": 64, "k": 131072}},
]
# Stands between as the sanitizer does: what it finds comes between the lines of the program that it watches. The third
# time that a case begins it ends at once, with the program.
WATCHING = """#!{python}
import pathlib, subprocess, sys
tool, program = sys.argv[sys.argv.index("--tool") + 1], sys.argv[sys.argv.index({python!r}):]
begun = pathlib.Path({begun!r})
print("========= COMPUTE-SANITIZER", flush=True)
with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as watched:
    for line in watched.stdout:
        print(line, end="", flush=True)
        if '"begins"' in line:
            begun.write_text(begun.read_text() + ".")
            if tool == "memcheck" and begun.read_text() == ".":
                print("========= Invalid __global__ write of size 4 bytes")
                print("=========     at matmul+0x190")
                print("=========     Access to 0x7f is out of bounds")
                print("=========     and is inside the nearest allocation at 0x70 of size 18 bytes", flush=True)
            if begun.read_text() == "...":
                watched.kill()
                sys.exit(255)
errors = int(tool == "memcheck")
print(f"========= ERROR SUMMARY: {{errors}} error" if errors else
      "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
sys.exit(9 * errors)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the winners are compiled once for all runs."""
    return tmp_path_factory.mktemp("cache")


def ran(folder: Path, cache: Path, *options: str) -> tuple[int, str, Any]:
    """The status, the last lines and the report of a run over the winners alone."""
    winners, out = folder / "winners.json", folder / "out.json"
    winners.write_text(json.dumps(WINNERS))
    command = [sys.executable, "-m", "benchmarks.kernels.sanitize", "--device", "opencl:0", "--kernels", ""]
    command += ["--winners", str(winners), "--out", str(out), "--cache", str(cache), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.slow
def test_winners_are_launched_on_small_problems_of_their_class(tmp_path: Path, cache: Path) -> None:
    queue()
    status, said, report = ran(tmp_path, cache)
    assert status == 0, said
    (only,) = report["reports"]
    assert [each["name"].split()[0] for each in only["findings"]] == ["naive", "tiled"]
    assert [each["wrong"] for each in only["findings"]] == [None, None]
    naive, tiled = ([key.split("/") for key in each["problems"]] for each in only["findings"])
    assert {(dtype, turned) for dtype, _, turned, _ in naive} == {("float32", "nt")}
    assert {(dtype, turned) for dtype, _, turned, _ in tiled} == {("float32", "nn")}
    assert len(naive) == len(tiled) == 4


@pytest.mark.slow
def test_sanitizer_reports_and_deaths_belong_to_their_case(tmp_path: Path, cache: Path) -> None:
    queue()
    begun, stand_in = tmp_path / "begun", tmp_path / "compute-sanitizer"
    begun.write_text("")
    stand_in.write_text(WATCHING.format(python=sys.executable, begun=str(begun)))
    stand_in.chmod(0o755)
    status, said, report = ran(tmp_path, cache, "--sanitizer", str(stand_in), "--tools", "memcheck,racecheck")
    assert status == 1, said
    memory, races = report["reports"]
    assert [(each["errors"], each["wrong"]) for each in memory["findings"]] == [(1, None), (0, None)]
    found, where, near = memory["findings"][0]["first"].split(", ")
    assert found == "Invalid __global__ write of size 4 bytes"
    assert (where, near) == (
        "Access to 0x7f is out of bounds",
        "and is inside the nearest allocation at 0x70 of size 18 bytes",
    )
    assert (memory["counted"], races["counted"]) == (1, 0)
    assert [each["wrong"] is None for each in races["findings"]] == [False, True]
    assert "ended with 255" in races["findings"][0]["wrong"]
    assert len(report["faults"]) == 2


def test_a_missing_or_broken_sanitizer_is_no_clean_run(tmp_path: Path, cache: Path) -> None:
    status, said, report = ran(tmp_path, cache, "--sanitizer", "/bin/false", "--tools", "memcheck")
    assert status == 1
    assert "nothing was launched" in said
    assert report is None


@pytest.mark.parametrize(
    "device", [pytest.param(H200, id="cuda", marks=pytest.mark.slow), pytest.param(PROCESSOR, id="opencl")]
)
def test_every_kernels_defaults_are_launched_on_something(device: Any) -> None:
    cases = sanitized.cases(list(CATALOGUE), [], device)
    assert {each.kernel for each in cases} == {
        name for name in CATALOGUE if device.platform in CATALOGUE[name].platforms
    }
    for case in cases:
        problems = case.problems
        # Odd sizes, or where a tensor map wants rows of whole 16 bytes, sizes that are no whole tile.
        assert len({(each.m % 32, each.n % 32, each.k % 32) for each in problems}) > 1, case.name
        assert all(case.launch(each, device).grid >= 1 for each in (case.own, *problems)), case.name
        assert all(each.m * each.n * each.k * each.batch <= 2**30 for each in problems), case.name
        assert all(each.family == case.own.family for each in problems)
    families = {case.own.family for case in cases}
    classes = {pair for kernel in CATALOGUE.values() if device.platform in kernel.platforms for pair in kernel.classes}
    assert {tuple(family.split("/")[:2]) for family in families} == classes
    assert len([family for family in families if "emulated" not in family]) == 4 * len(CATALOGUE["naive"].classes)
