"""Recordings: written and read without loss, and played as a device."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import Malformed
from app.tuning.outcome import Measured, Rejected
from app.tuning.replay import Recording, Replay, dump, lines, load, read
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.problem import Problem
from kernels.space import Config

LIMITS = Limits(1024, 49152, 32, 132, 4e12, 6e13, 3e13, 65536, 255, 233472, 1024, 2048, 32)
DEVICE = Device("cuda:0", "cuda", "a GPU", "sm_90", "1", "2", "3", "uuid", 2**36, LIMITS)
PROBLEM = Problem(1024, 1000, 512)


def config(bm: int, bn: int, bk: int) -> Config:
    return Config((("BM", bm), ("BN", bn), ("BK", bk)))


def recording(seed: int = 7) -> Recording:
    """Every legal config of tiled with three samples, but for two that failed."""
    generator = random.Random(seed)  # noqa: S311  a recording is no secret
    legal = CATALOGUE["tiled"].space.legal(PROBLEM, DEVICE)
    outcomes: dict[Config, tuple[float, ...] | Rejected] = {
        each: tuple(round(generator.uniform(1e-4, 1e-3), 9) for _ in range(3)) for each in legal
    }
    outcomes[legal[3]] = Rejected("tiled", legal[3], "compile", 'too many "registers"')
    outcomes[legal[5]] = Rejected("tiled", legal[5], "verify", "left 1 element unwritten")
    return Recording(DEVICE, "tiled", CATALOGUE["tiled"].digest, PROBLEM, "events", outcomes)


def test_a_recording_is_read_as_it_was_written() -> None:
    whole = [recording(), replace(recording(8), problem=Problem(8, 8, 8), kernel="foreign")]
    found = read("".join(lines(whole)).splitlines())
    assert len(found) == len(whole)
    for one, other in zip(found, whole, strict=True):
        assert (one.device, one.kernel, one.problem, one.policy) == (
            other.device,
            other.kernel,
            other.problem,
            other.policy,
        )
        assert list(one.outcomes) == list(other.outcomes)
        for each, expected in other.outcomes.items():
            got = one.outcomes[each]
            if isinstance(expected, Rejected):
                assert isinstance(got, Rejected)
                assert (got.stage, got.reason) == (expected.stage, expected.reason)
            else:
                assert got == pytest.approx(expected)


@pytest.mark.parametrize("name", ["space.replay", "space.replay.gz"])
def test_a_file_holds_equal_bytes_for_equal_recordings(tmp_path: Path, name: str) -> None:
    dump([recording()], tmp_path / name)
    first = (tmp_path / name).read_bytes()
    dump(load(tmp_path / name), tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize(
    "text",
    ["nonsense", "[[1], [2]]", '{"format": "other"}', "3", "\n".join(list(lines([recording()]))[:2]) + "\n[[1]]"],
)
def test_what_is_no_recording_is_refused_by_its_line(text: str) -> None:
    with pytest.raises(Malformed, match="line"):
        read(text.splitlines())


def test_the_space_is_just_what_was_recorded() -> None:
    whole = recording()
    kernel = whole.space()
    assert set(kernel.space.legal(PROBLEM, DEVICE)) == set(whole.outcomes)
    assert kernel.default(PROBLEM, DEVICE) in whole.outcomes
    few = replace(whole, outcomes=dict(list(whole.outcomes.items())[:7]))
    assert len(few.space().space.legal(PROBLEM, DEVICE)) == 7


def test_a_kernel_that_is_unknown_here_still_has_a_space() -> None:
    foreign = replace(recording(), kernel="Xgemm")
    kernel = foreign.space()
    assert set(kernel.space.legal(PROBLEM, DEVICE)) == set(foreign.outcomes)
    assert kernel.launch(kernel.default(PROBLEM, DEVICE), PROBLEM, DEVICE).kernel == "Xgemm"


def test_a_replay_gives_recorded_samples_and_failures() -> None:
    whole = recording()
    kernel = whole.space()
    replay = Replay(whole, seed=1)
    for each, found in whole.outcomes.items():
        outcome = replay.attempt(kernel.launch(each, PROBLEM, DEVICE), None)
        if isinstance(found, Rejected):
            assert outcome == found
        else:
            assert isinstance(outcome, Measured)
            assert set(outcome.seconds) <= set(found)
            assert min(found) <= outcome.timing.median_ms / 1e3 <= max(found)
    assert replay.evaluations == len(whole.outcomes)
    assert replay.spent > 0


def test_a_replay_samples_contenders_round_by_round_and_equal_seeds_alike() -> None:
    whole = recording()
    kernel = whole.space()
    measured = [each for each, found in whole.outcomes.items() if not isinstance(found, Rejected)][:4]
    contenders = [kernel.launch(each, PROBLEM, DEVICE) for each in measured]
    sample_interleaved = Replay(whole, seed=3).sample(contenders, 6)
    assert [len(seconds) for seconds in sample_interleaved.seconds] == [6] * 4
    assert sample_interleaved == Replay(whole, seed=3).sample(contenders, 6)
    assert sample_interleaved.policy == "events"


def test_the_vendor_is_not_in_a_recording() -> None:
    outcome = Replay(recording(), seed=1).attempt(PROBLEM, None)
    assert isinstance(outcome, Rejected)
    assert outcome.kernel == "vendor"
