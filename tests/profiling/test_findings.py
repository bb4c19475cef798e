"""Figures are assembled from the best source of each, and say what they say in sentences."""

from __future__ import annotations

import json

import pytest

from app.profiling.figures import ARTICLE, KernelProfile, SourceFigures, assembled
from app.profiling.findings import findings
from app.profiling.model import predicted, rates
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.support.kernels.devices import H200

PROBLEM = Problem(2048, 2048, 2048)
COUNTED = {
    "sm_throughput_percent": 95.0,
    "memory_throughput_percent": 94.0,
    "l1_hit_percent": 2.4,
    "dram_bytes": 4.0 * PROBLEM.bytes,
    "bank_conflicts": 12.0,
    "occupancy_percent": 99.0,
    "stall_barrier": 1.5,
    "stall_long_scoreboard": 3.5,
    "stall_wait": 1.0,
    "stall_drain": 0.5,
}


def kernel(role: str, values: dict[str, float], time: float, reason: str | None = None) -> KernelProfile:
    own = CATALOGUE[role]
    config = own.default(PROBLEM, H200)
    foreseen = predicted(own, config, PROBLEM, H200, 40)
    sources = [
        SourceFigures("timer", {"time_ms": time}),
        SourceFigures("ncu", values),
        SourceFigures("driver", {"registers": 40.0, "local_bytes": 0.0}),
        SourceFigures("model", {**foreseen, **rates("fma", PROBLEM, H200, time)}),
    ]
    return KernelProfile(role, role, dict(config), assembled("cuda", role, sources, foreseen, reason))


def test_each_figure_has_the_best_source_the_model_and_the_article_beside_it() -> None:
    one = kernel("tiled", COUNTED, 1.0)
    hit = one.figure("l1_hit_percent")
    assert hit is not None
    assert (hit.value, hit.source, hit.reason, hit.article) == (2.4, "ncu", None, 2.43)
    moved = one.figure("dram_bytes")
    assert moved is not None
    assert (moved.source, moved.predicted) == ("ncu", float(PROBLEM.bytes))
    stalls = [figure.name for figure in one.figures if figure.name.startswith("stall_")]
    assert stalls == ["stall_long_scoreboard", "stall_barrier", "stall_wait"], "more than three, or not in order"
    assert KernelProfile.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_what_no_counter_says_is_labelled_with_its_source_and_the_reason() -> None:
    one = kernel("naive", {}, 2.0, "Nsight Compute (ncu) is not installed here")
    told = {figure.name: figure for figure in one.figures}
    assert {figure.source for figure in told.values()} == {"timer", "driver", "model", "none"}
    for figure in told.values():
        assert (figure.reason is None) == (figure.source == "timer"), figure
    assert told["l1_hit_percent"].value is None
    assert told["sm_throughput_percent"].value == pytest.approx(100 * PROBLEM.flops / 2e-3 / H200.limits.peak)
    assert not [name for name in ARTICLE["naive"] if told[name].article is None]


def test_findings_say_what_binds_what_waits_and_what_is_faster() -> None:
    said = "\n".join(
        findings([kernel("naive", {**COUNTED, "l1_hit_percent": 90.4}, 2.0), kernel("tiled", COUNTED, 1.0)])
    )
    assert "tiled is bound by arithmetic: 95 % of the SMs' peak, 94 % of memory's." in said
    assert "4 times the bytes of A, B and C" in said
    assert "tiled's warps wait most for long scoreboard: 3.5 warps each time that one issues." in said
    assert "tiled meets 12 bank conflicts of shared memory." in said
    assert "tiled is 2 times as fast as naive." in said
    assert "tiled finds 2.4 % of its sectors in L1, naive 90.4 %" in said


def test_without_counters_findings_say_that_the_model_speaks() -> None:
    said = "\n".join(findings([kernel("tiled", {}, 1.0, "there is none")]))
    assert "of the peak of its instructions by the model." in said
    assert "bank conflicts" not in said
    refused = KernelProfile("vendor", "vendor", {}, refusal="there is no vendor library")
    assert findings([refused]) == ["vendor was not profiled: there is no vendor library."]
