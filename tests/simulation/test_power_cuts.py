"""Whatever moment power is cut at, what the service had acknowledged is there, and its database is sound."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.simulation.power_cuts import Recording, Tally, resume, run
from tests.simulation.system_calls import recorder

pytestmark = pytest.mark.slow
CUTS, RESUMED = 200, 3


@pytest.fixture(scope="module")
def seed() -> int:
    chosen = int(os.environ.get("TEST_SEED") or random.randrange(2**32))
    print(f"TEST_SEED={chosen}")
    return chosen


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, binaries: Path) -> Recording:
    if recorder() is None:
        pytest.skip("there is no strace that may trace here")
    return Recording.made(tmp_path_factory.mktemp("recorded") / "run", binaries, shapes=3)


def cut(recording: Recording, count: int, seed: int, folder: Path) -> Tally:
    places = recording.cuts(random.Random(seed), count)
    return run(recording, list(enumerate(places)), seed, folder)


def test_what_was_acknowledged_is_there_after_a_cut_of_power(recording: Recording, seed: int, tmp_path: Path) -> None:
    tally = cut(recording, CUTS, seed, tmp_path)
    assert tally.failures == []
    assert tally.cuts == CUTS
    assert tally.acknowledged > 10 * CUTS
    assert tally.unfinished > 0


def test_a_service_that_never_syncs_would_be_found_out(recording: Recording, seed: int, tmp_path: Path) -> None:
    assert cut(recording.without("fsync", "fdatasync"), 40, seed, tmp_path).failures


def test_tune_jobs_go_on_after_a_cut_of_power(recording: Recording, seed: int, tmp_path: Path) -> None:
    """The whole service is opened on what is left, at moments at which a job was acknowledged and had not ended."""
    places = recording.unfinished_tunes()
    chosen = random.Random(seed).sample(places, RESUMED)
    assert sum(resume(recording, at, seed, tmp_path / str(at)) for at in chosen) > 0
