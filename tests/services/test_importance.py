"""Which parameters matter, of times whose make is known; and occupancy over what a block takes, by hand."""

from __future__ import annotations

from itertools import product
from math import exp
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from app.errors import NotTuned
from app.services.charts.importance import FEWEST, importance
from app.services.charts.occupancy import occupancy_curves
from app.services.charts.points import ConfigPoint
from app.tuning.replay import load
from kernels.problem import Problem
from kernels.space import Config

_PROBLEM: Final = Problem(64, 64, 64)
_RECORDING: Final = Path(__file__).parent.parent / "data" / "register_tiled-h200-512x512x512.replay.gz"


def point(bm: int, bn: int, bk: int, ms: float | None) -> ConfigPoint:
    config = Config.of({"BM": bm, "BN": bn, "BK": bk})
    return ConfigPoint(_PROBLEM, "tiled", config, "search", ms, None if ms else "refused")


def points() -> list[ConfigPoint]:
    """Slow where BM and BN are both small or both large, whatever BK is."""
    noise = np.random.default_rng(7)
    sizes, depths = (8, 16, 32, 64), (1, 2, 4, 8, 16, 32)
    return [
        point(bm, bn, bk, exp(((bm > 16) == (bn > 16)) + 0.01 * noise.standard_normal()))
        for bm, bn, bk in product(sizes, sizes, depths)
    ]


@pytest.mark.slow
def test_shuffling_finds_the_interplay_that_no_parameter_shows_alone() -> None:
    found = importance([*points(), point(128, 8, 1, None)], None, _PROBLEM)
    named = {one.name: one for one in found.parameters}
    assert (found.kernel, found.measured) == ("tiled", 96)
    assert found.explained is not None
    assert found.explained > 0.9
    assert found.parameters[-1].name == "BK"
    assert all(named[name].alone < 0.01 for name in ("BM", "BN", "BK"))
    for name in ("BM", "BN"):
        assert (named[name].shuffled or 0) > 0.5
    assert abs(named["BK"].shuffled or 0) < 0.05


def test_few_configs_grow_no_forest() -> None:
    found = importance(points()[: FEWEST - 1], "tiled", _PROBLEM)
    assert found.explained is None
    assert [one.shuffled for one in found.parameters] == [None, None, None]
    assert [one.alone for one in found.parameters] == sorted((one.alone for one in found.parameters), reverse=True)
    with pytest.raises(NotTuned, match="naive"):
        importance(points(), "naive", _PROBLEM)


def test_occupancy_over_what_a_block_takes_is_cudas() -> None:
    limits = load(_RECORDING)[0].device.limits
    curves = {one.resource: one for one in occupancy_curves(limits, 256, 48 << 10, 64)}
    held = {name: {each.value: each.occupancy for each in one.points} for name, one in curves.items()}
    # 64 registers of 256 threads: four blocks' fill the file; 48 KiB and 1 KiB reserved go into 228 KiB four times.
    assert (held["registers"][64].blocks_per_sm, held["registers"][64].fraction) == (4, 0.5)
    assert (held["registers"][128].blocks_per_sm, held["registers"][128].limited_by) == (2, "registers")
    assert (held["shared_bytes"][0].blocks_per_sm, held["shared_bytes"][0].limited_by) == (4, "registers")
    assert (held["shared_bytes"][100 << 10].blocks_per_sm, held["shared_bytes"][100 << 10].fraction) == (2, 0.25)
    assert held["threads"][1024].blocks_per_sm == 1
    assert [(name, one.own) for name, one in curves.items()] == [
        ("threads", 256),
        ("registers", 64),
        ("shared_bytes", 48 << 10),
    ]
    unknown = {one.resource: one.own for one in occupancy_curves(limits, 256, 0, 0)}
    assert unknown == {"threads": 256, "registers": None, "shared_bytes": 0}
    processor = load(_RECORDING.with_name("tiled-cpu-256x256x256.replay.gz"))[0].device.limits
    assert occupancy_curves(processor, 256, 0, 0) == ()
