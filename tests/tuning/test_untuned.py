"""Tuning some shapes makes no others slow: what the service answers them with, measured beside the untuned choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(1200)
def test_after_twenty_tunes_no_other_shape_is_slower_than_untuned(tmp_path: Path) -> None:
    out = tmp_path / "untuned.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tuner.untuned", "--tunes", "20", "--others", "10", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode in {0, 1}, done.stderr
    found = json.loads(out.read_text())["summary"]
    assert found["answers"] == 200
    assert found["slower"] == 0
    assert found["within"] >= 0.95
