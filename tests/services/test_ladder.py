from __future__ import annotations

from app.services.best.ladder import KernelConfig, LadderPoint, rungs
from kernels.space import Config


def config(size: int) -> KernelConfig:
    return "tiled", Config.of({"BM": size})


SMALL, MIDDLE, LARGE = config(8), config(32), config(128)
POINTS = [
    LadderPoint(1, SMALL, {MIDDLE: 0.5}),
    LadderPoint(16, SMALL, {MIDDLE: 0.02, LARGE: 0.9}),
    LadderPoint(64, MIDDLE, {SMALL: 0.4}),
    LadderPoint(256, LARGE, {MIDDLE: 0.01, SMALL: 0.0}),
]


def test_without_a_loss_a_rung_ends_where_the_winner_changes() -> None:
    found = rungs(POINTS, 1, 1000, 0.0)
    assert [(one.m_from, one.m_to, one.config) for one in found] == [
        (1, 16, SMALL),
        (17, 64, MIDDLE),
        (65, 1000, LARGE),
    ]
    assert [one.worst[1] for one in found] == [0.0, 0.0, 0.0]
    assert [one.untuned for one in found] == [14, 47, 935]


def test_with_a_loss_there_are_as_few_rungs_as_it_allows_and_the_loss_is_the_measured_one() -> None:
    found = rungs(POINTS, 1, 256, 0.03)
    assert [(one.m_from, one.m_to, one.config) for one in found] == [(1, 16, SMALL), (17, 256, MIDDLE)]
    assert found[1].tuned == ((64, 0.0), (256, 0.01))
    assert found[1].worst == (256, 0.01)
    (one,) = rungs(POINTS, 1, 256, 0.6)
    assert (one.config, one.worst) == (SMALL, (64, 0.4))  # MIDDLE would lose half at 1


def test_what_was_not_measured_is_never_taken_to_be_small() -> None:
    apart = [LadderPoint(1, SMALL, {}), LadderPoint(2, LARGE, {})]
    assert len(rungs(apart, 1, 2, 100.0)) == 2
