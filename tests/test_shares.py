"""The cases that a run of the checks draws: of tests with many, and of slow ones a share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import drawn, resting, undrawn
from tests.support.shares import share_of

_ROTATING = re.compile(r"@pytest\.mark\.rotating\n(?:@.*\n)*def (\w+)")
ROOT = Path(__file__).resolve().parents[1]
CASES = [f"tests/x.py::test_one[{number}]" for number in range(20)] + ["tests/x.py::test_alone"]


def test_share_has_a_case_of_every_test_and_repeats_with_its_seed() -> None:
    kept = drawn(CASES, 6, 1, "1")
    assert kept == drawn(CASES, 6, 1, "1")
    assert CASES[-1] in kept
    assert len(kept) == 1 + 4


def test_shares_of_many_seeds_have_every_case() -> None:
    assert set().union(*(drawn(CASES, 6, 1, str(seed)) for seed in range(100))) == {*CASES}


def test_parts_of_many_seeds_have_every_test_and_each_has_its_share_of_whole_tests() -> None:
    names = [f"tests/x.py::test_{number}" for number in range(40)]
    parts = [drawn([*names, *CASES], 6, 3, str(seed)) for seed in range(100)]
    assert set().union(*parts) >= {*names}
    for kept in parts:
        assert len({nodeid.partition("[")[0] for nodeid in kept}) == 14
        assert sum(nodeid.startswith("tests/x.py::test_one[") for nodeid in kept) in {0, 4}


def test_what_one_seed_leaves_of_a_tests_cases_another_draws() -> None:
    counts = dict.fromkeys(CASES, 2)
    for seed in range(9):
        left = undrawn(counts, str(seed))
        assert left == undrawn(counts, str(seed))
        assert len(left) == 20 - 2
        assert CASES[-1] not in left, "it has one case alone"
    assert not {*CASES}.intersection(*(undrawn(counts, str(seed)) for seed in range(100)))


def test_one_in_three_of_the_tests_that_rotate_has_its_turn_and_each_has_one() -> None:
    names = [f"tests/x.py::test_{number}[{case}]" for number in range(30) for case in "ab"]
    left = [resting(names, str(seed)) for seed in range(100)]
    assert left[0] == resting(names, "0")
    assert {len(each) for each in left} == {40}
    assert not {*names}.intersection(*left)
    assert resting(names[:1], "1") == set()


def test_all_that_failed_is_run_once_more_whatever_is_drawn(tmp_path: Path) -> None:
    file = Path(__file__).relative_to(ROOT)
    names = [f"{file}::{name}" for name in re.findall(r"^def (test_\w+)\(\)", Path(__file__).read_text(), re.MULTILINE)]
    slow = "tests/cli/test_cli_serve.py::test_a_port_that_is_taken_is_said_in_a_sentence"
    rotating = "tests/test_site.py::" + _ROTATING.findall((ROOT / "tests/test_site.py").read_text())[0]
    failed = {*names[:5], slow, rotating}
    (tmp_path / "v/cache").mkdir(parents=True)
    (tmp_path / "v/cache/lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
    files = sorted({nodeid.partition("::")[0] for nodeid in failed})
    words = ["-o", f"cache_dir={tmp_path}", "-n", "0", "--last-failed", "--collect-only", "-q", "-m", "browser", *files]
    own = os.environ | {"TEST_PART": "3", "TEST_SHARE": "3"}
    command = [sys.executable, "-m", "pytest", *words]
    ran = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True, timeout=120)
    assert {line for line in ran.stdout.splitlines() if "::" in line} == failed


@pytest.mark.parametrize(("share", "count", "left"), [("1", 60, 60), ("12", 60, 5), ("12", 15, 2), ("12", 1, 1)])
def test_share_of_many_draws_is_two_at_least(
    share: str, count: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SHARE", share)
    assert share_of(count) == left


def test_every_file_with_slow_cases_is_in_a_lane_of_the_checks() -> None:
    words = (ROOT / ".ci" / "run").read_text().split()
    named = [word for word, before in zip(words[1:], words, strict=False) if before != "--ignore"]
    lanes = tuple(word for word in named if word.startswith("tests/"))
    assert lanes
    slow = re.compile(r"mark\.(slow|drawn|rotating)\b")
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if slow.search(file.read_text())]
    assert len(files) > 50
    missing = [name for file in files if not (name := str(file.relative_to(ROOT))).startswith(lanes)]
    assert not missing
