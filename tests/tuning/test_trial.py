"""One trial on a device in this process: what is rejected and why, what is leased, and what is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hostdevice import DEVICE, HostDevice, RecordedLink, data, held_by, launch_of, right

from app.devices.base import Array, Vendor
from app.devices.fleet import Held
from app.devices.process import Link
from app.errors import CompileFailed, LaunchFailed, WrongResult
from app.tuning import bench as benches
from app.tuning import trial
from app.tuning.outcome import Measured, Outcome, Rejected
from kernels.problem import Problem
from kernels.space import Config

PROBLEM = Problem(64, 48, 80)
LIMIT = 0.02


def writes_nothing(*_: object) -> None:
    pass


def leaves_one(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    before = memory[first + 17].copy()
    right(problem, a, b, memory, first)
    memory[first + 17] = before


def zeroes_one(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    right(problem, a, b, memory, first)
    memory[first + problem.m * problem.n - 1] = 0


def writes_past(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    right(problem, a, b, memory, first)
    end = first + problem.batch * problem.m * problem.n
    memory[end : end + 3] = 1.0


def writes_before(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    right(problem, a, b, memory, first)
    memory[first - 1] = 1.0


def swaps(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    right(problem, a, np.ascontiguousarray(b.swapaxes(1, 2)).reshape(b.shape), memory, first)


def faults(*_: object) -> None:
    raise LaunchFailed("an illegal address", fatal=True)


def runs_out(*_: object) -> None:
    raise LaunchFailed("too many resources requested")


class Tires:
    """Right the first time, and then the device refuses."""

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
        self.launches += 1
        if self.launches > 1:
            raise LaunchFailed("the device is too hot")
        right(problem, a, b, memory, first)


FUNCTIONS = {
    function.__name__: function
    for function in (right, writes_nothing, leaves_one, zeroes_one, writes_past, writes_before, swaps, faults, runs_out)
}


@pytest.fixture
def device() -> HostDevice:
    return HostDevice({**FUNCTIONS, "tires": Tires()})


@pytest.fixture
def held(device: HostDevice) -> Held:
    return held_by(device)


@pytest.fixture
def link(device: HostDevice) -> RecordedLink:
    return RecordedLink(device.acts)


def attempt(held: Held, link: RecordedLink, name: str, problem: Problem = PROBLEM, job: str = "job") -> Outcome:
    return trial.attempt(
        held, cast("Link", link), launch_of(problem, name), trial.Bench(job, problem, seed=5), limit=LIMIT
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (33, 7, 65, 1), (5, 9, 3, 4), (1, 300, 2, 1)])
def test_a_right_kernel_is_measured(
    held: Held, link: RecordedLink, dtype: str, layout: str, shape: tuple[int, int, int, int]
) -> None:
    problem = Problem(*shape, dtype, trans_a=layout[0] == "t", trans_b=layout[1] == "t")
    outcome = attempt(held, link, "right", problem)
    assert isinstance(outcome, Measured)
    assert outcome.timing.median_ms == pytest.approx(0.1)
    assert outcome.accuracy.relative_l2 < 1e-6
    assert outcome.registers == 21


@pytest.mark.parametrize(
    ("name", "stage", "reason"),
    [
        ("no_such_thing", "compile", "error: unknown name 'no_such_thing'"),
        ("writes_nothing", "verify", "left 3072 elements unwritten"),
        ("leaves_one", "verify", "left 1 element unwritten"),
        ("zeroes_one", "verify", "relative L2 error"),
        ("writes_past", "verify", "wrote outside C: 12 bytes past its end"),
        ("writes_before", "verify", "wrote outside C: 4 bytes before it"),
        ("swaps", "verify", "relative L2 error 1."),
        ("runs_out", "launch", "too many resources requested"),
        ("tires", "measure", "the device is too hot"),
    ],
)
def test_a_wrong_kernel_is_rejected_with_its_reason_and_the_next_trial_is_well(
    held: Held, link: RecordedLink, name: str, stage: str, reason: str
) -> None:
    outcome = attempt(held, link, name)
    assert isinstance(outcome, Rejected)
    assert outcome.stage == stage
    assert outcome.reason.startswith(reason)
    assert isinstance(attempt(held, link, "right"), Measured)


def test_a_lost_device_is_raised_so_that_its_process_is_replaced(held: Held, link: RecordedLink) -> None:
    with pytest.raises(LaunchFailed, match="illegal address"):
        attempt(held, link, "faults")


def test_a_binary_that_loses_the_device_is_raised_too(
    held: Held, link: RecordedLink, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_: object) -> None:
        raise CompileFailed("the binary cannot be loaded", fatal=True)

    monkeypatch.setattr(device, "compile", lose)
    with pytest.raises(CompileFailed):
        attempt(held, link, "right")


def test_compiling_and_comparing_happen_outside_the_lease_and_launches_inside(
    held: Held, link: RecordedLink, device: HostDevice
) -> None:
    attempt(held, link, "right")
    leased, seen = False, set()
    for act in device.acts:
        leased = act == "lease" or (leased and act != "back")
        seen.add((act.split()[0], leased))
    assert {act for act, inside in seen if inside} >= {"run", "time", "reference", "offer"}
    assert not {"compile", "warm", "download", "phase"} & {act for act, inside in seen if inside}
    assert not {"run", "time", "reference"} & {act for act, inside in seen if not inside}
    phases = [act for act in device.acts if act.startswith("phase")]
    assert phases == ["phase compile", "phase verify", "phase launch", "phase verify", "phase measure"]


@pytest.mark.parametrize(("seconds", "most"), [(1e-5, 20), (5e-4, 4), (1.5e-3, 1), (0.01, 1)])
def test_a_product_waits_for_two_milliseconds_of_launches_or_one(
    held: Held, link: RecordedLink, device: HostDevice, seconds: float, most: int
) -> None:
    device.seconds = seconds
    attempt(held, link, "right")
    acts = device.acts
    batches = [int(act.split()[1]) for act in acts if act.startswith("time")]
    assert max(batches) == most
    assert all(acts[at - 1] == "offer" for at, act in enumerate(acts) if act.startswith("time"))


def test_no_launch_is_taken_for_hung_before_two_seconds(held: Held, link: RecordedLink, device: HostDevice) -> None:
    device.seconds = 0.9
    attempt(held, link, "right")
    assert min(link.deadlines) >= 2.0
    assert link.deadlines[-1] == pytest.approx(9.0)


def test_timed_launches_rotate_through_more_than_three_caches_of_operands(
    held: Held, link: RecordedLink, device: HostDevice
) -> None:
    problem = Problem(1024, 1024, 1024)
    ready = benches.prepared(held, cast("Link", link), trial.Bench("job", problem, 1))
    rotation = ready.on(device).rotation
    assert len(rotation) * problem.bytes > 3 * 64 * 2**20
    places = {(id(one.handle), one.offset) for set_ in rotation for one in (set_.a, set_.b, set_.c)}
    assert len(places) == 3 * len(rotation)
    assert all(np.array_equal(data(set_.a), data(rotation[0].a)) for set_ in rotation)


def test_where_memory_is_short_there_are_fewer_sets(held: Held, link: RecordedLink, device: HostDevice) -> None:
    device.memory = 3 * PROBLEM.bytes
    outcome = attempt(held, link, "right")
    assert isinstance(outcome, Measured)
    assert len(benches.prepared(held, cast("Link", link), trial.Bench("job", PROBLEM, 5)).on(device).rotation) == 1


def test_operands_that_do_not_fit_are_a_rejected_launch(held: Held, link: RecordedLink, device: HostDevice) -> None:
    device.memory = PROBLEM.c_bytes
    outcome = attempt(held, link, "right")
    assert isinstance(outcome, Rejected)
    assert (outcome.stage, outcome.reason.split(":")[0]) == ("launch", "out of memory")


def test_the_reference_is_computed_once_for_a_bench(held: Held, link: RecordedLink, device: HostDevice) -> None:
    for name in ("right", "leaves_one", "runs_out", "right"):
        attempt(held, link, name)
    assert device.acts.count("reference") == 1
    attempt(held, link, "right", job="another")
    assert device.acts.count("reference") == 2


def test_the_reference_is_computed_anew_after_a_write_outside_c(
    held: Held, link: RecordedLink, device: HostDevice
) -> None:
    for name in ("writes_past", "right", "right"):
        attempt(held, link, name)
    assert device.acts.count("reference") == 2


def test_another_bench_replaces_the_one_before(held: Held, link: RecordedLink) -> None:
    attempt(held, link, "right")
    attempt(held, link, "right", Problem(8, 8, 8))
    assert [name for name, kept in held.memory.items() if isinstance(kept, benches.Prepared)] == ["bench"]
    assert held.memory["bench"].bench.problem == Problem(8, 8, 8)


def test_large_references_are_made_in_pieces_between_which_the_device_is_offered(
    held: Held, link: RecordedLink, device: HostDevice
) -> None:
    device.device, device.memory = replace(DEVICE, limits=replace(DEVICE.limits, peak64=1e9)), 2**24
    outcome = attempt(held, link, "right", Problem(512, 256, 256, batch=3))
    assert isinstance(outcome, Measured)
    assert device.acts.count("reference") >= 4


def test_a_reference_that_fails_its_spot_check_is_no_candidates_fault(
    held: Held, link: RecordedLink, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "reference", lambda a, b: np.matmul(a, b).astype(np.float64))
    with pytest.raises(WrongResult, match="the float64 reference"):
        attempt(held, link, "right")
    assert "bench" not in held.memory


def vendor(held: Held, link: RecordedLink) -> Outcome:
    return trial.attempt_vendor(held, cast("Link", link), PROBLEM, trial.Bench("job", PROBLEM, 5), LIMIT)


def test_the_vendors_library_is_verified_and_measured_as_a_kernel_is(
    held: Held, link: RecordedLink, device: HostDevice
) -> None:
    outcome = vendor(held, link)
    assert isinstance(outcome, Measured)
    assert (outcome.kernel, outcome.config) == ("vendor", Config(()))
    assert "run" in device.acts


def test_where_there_is_no_vendors_library_its_reason_is_the_rejection(
    held: Held, link: RecordedLink, device: HostDevice
) -> None:
    device.vendor = Vendor(None, "cuBLAS is not installed")
    assert vendor(held, link) == Rejected("vendor", Config(()), "space", "cuBLAS is not installed")
