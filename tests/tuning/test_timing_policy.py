"""Which problems are timed by graphs: those that a good launch does in under about 50 us, whatever the config."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.tuning.measure.racing import floor_seconds, policy_of
from kernels.device import Limits
from kernels.problem import Problem
from tests.support.tuning.host_device import DEVICE

PLAIN = Limits(1024, 227 * 1024, 32, 132, bandwidth=4.8e12, peak=66.9e12, peak64=33.5e12)
LIMITS = replace(PLAIN, tensor_float16=989e12, tensor_bfloat16=989e12, tensor_tf32=494e12, tensor_float64=66.9e12)
H200 = replace(DEVICE, id="cuda:0", platform="cuda", limits=LIMITS)


@pytest.mark.parametrize(
    ("problem", "policy"),
    [
        (Problem(1, 1, 1), "graph"),
        (Problem(256, 256, 256), "graph"),
        (Problem(1024, 1024, 1024), "graph"),
        (Problem(2048, 2048, 2048), "events"),
        (Problem(2048, 2048, 2048, dtype="float16"), "graph"),
        (Problem(2048, 2048, 2048, precision="tf32"), "graph"),
        (Problem(1024, 1024, 1024, dtype="float64"), "graph"),
        (Problem(1536, 1536, 1536, dtype="float64"), "events"),
        (Problem(1536, 1536, 1536, precision="emulated"), "graph"),
        (Problem(4096, 4096, 4096, dtype="bfloat16"), "events"),
        (Problem(1, 4096, 4096), "graph"),
        (Problem(16, 8192, 8192), "events"),
        (Problem(64, 64, 131_072), "graph"),
        (Problem(262_144, 16, 32), "graph"),
        (Problem(64, 64, 64, batch=512), "graph"),
        (Problem(4096, 4096, 4096), "events"),
    ],
)
def test_the_floor_of_a_problem_decides(problem: Problem, policy: str) -> None:
    assert policy_of(problem, H200) == policy
    assert (floor_seconds(problem, H200) < 50e-6) == (policy == "graph")


def test_without_tensor_cores_the_floor_is_that_of_fused_multiply_adds() -> None:
    older, wide = replace(H200, limits=PLAIN), Problem(2048, 2048, 2048)
    for problem in (replace(wide, dtype="float16"), replace(wide, precision="tf32"), wide):
        assert floor_seconds(problem, older) == pytest.approx(2e-6 + problem.flops / 66.9e12)


def test_a_processor_has_events_alone() -> None:
    assert policy_of(Problem(1, 1, 1), DEVICE) == "events"


def test_layout_decides_nothing() -> None:
    for layout in ((False, True), (True, False), (True, True)):
        problem = Problem(1024, 1024, 1024, trans_a=layout[0], trans_b=layout[1])
        assert floor_seconds(problem, H200) == floor_seconds(Problem(1024, 1024, 1024), H200)
