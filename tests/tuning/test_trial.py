"""One trial on a device in this process: what is rejected and why, what is leased, and what is left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from app.devices.backend import Operands, Program, Reading, Vendor, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array
from app.errors import CompileFailed, LaunchFailed, WrongResult
from app.tuning.outcome import Conditions, Measured, Outcome, Rejected
from app.tuning.runner import InterleavedSamples
from app.worker.measuring import fixture as benches
from app.worker.measuring import reference_product, trial
from app.worker.measuring.contenders import ContenderCache, LoadedContender
from app.worker.measuring.reference_kernel import reference_kernel
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.support.pairwise import crossed
from tests.support.tuning.host_device import DEVICE, HostDevice, RecordedLink, data, held_by, launch_of, right

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
    return HostDevice({**FUNCTIONS, "again": right, "tires": Tires()})


@pytest.fixture
def held(device: HostDevice) -> WorkerContext:
    return held_by(device)


@pytest.fixture
def link(device: HostDevice) -> RecordedLink:
    return RecordedLink(device.acts)


def attempt(
    held: WorkerContext,
    link: RecordedLink,
    name: str,
    problem: Problem = PROBLEM,
    job: str = "job",
    best: float | None = None,
) -> Outcome:
    return trial.attempt(
        held, cast("WorkerLink", link), launch_of(problem, name), trial.FixtureKey(job, problem, seed=5), best, LIMIT
    )


@crossed(
    dtype=["float32", "float64"],
    layout=["nn", "nt", "tn", "tt"],
    shape=[(1, 1, 1, 1), (33, 7, 65, 1), (5, 9, 3, 4), (1, 300, 2, 1)],
)
def test_a_right_kernel_is_measured(
    held: WorkerContext, link: RecordedLink, dtype: str, layout: str, shape: tuple[int, int, int, int]
) -> None:
    problem = Problem(*shape, dtype, trans_a=layout[0] == "t", trans_b=layout[1] == "t")
    outcome = attempt(held, link, "right", problem)
    assert isinstance(outcome, Measured)
    assert outcome.timing.median_ms == pytest.approx(0.1)
    assert outcome.accuracy.relative_l2 < 1e-6
    assert outcome.registers == 21
    assert outcome.compilation is not None
    assert (outcome.compilation.block, outcome.compilation.shared_bytes) == (launch_of(problem, "right").block, 2048)
    assert 0 < (outcome.compilation.seconds or 0) < 60


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
def test_wrong_kernel_is_rejected_and_the_next_trial_is_well(
    held: WorkerContext, link: RecordedLink, name: str, stage: str, reason: str
) -> None:
    outcome = attempt(held, link, name)
    assert isinstance(outcome, Rejected)
    assert outcome.stage == stage
    assert outcome.reason.startswith(reason)
    assert (outcome.compilation is not None) == (stage != "compile")
    assert isinstance(attempt(held, link, "right"), Measured)


def test_a_lost_device_is_raised_so_that_its_process_is_replaced(held: WorkerContext, link: RecordedLink) -> None:
    with pytest.raises(LaunchFailed, match="illegal address"):
        attempt(held, link, "faults")


def test_a_binary_that_loses_the_device_is_raised_too(
    held: WorkerContext, link: RecordedLink, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_: object) -> None:
        raise CompileFailed("the binary cannot be loaded", fatal=True)

    monkeypatch.setattr(device, "compile", lose)
    with pytest.raises(CompileFailed):
        attempt(held, link, "right")


def test_launches_alone_are_inside_the_lease(held: WorkerContext, link: RecordedLink, device: HostDevice) -> None:
    attempt(held, link, "right")
    leased, seen = False, set()
    for act in device.acts:
        leased = act == "lease" or (leased and act != "back")
        seen.add((act.split()[0], leased))
    assert {act for act, inside in seen if inside} >= {"run", "time", "reference", "offer"}
    assert not {"compile", "warm", "download", "phase"} & {act for act, inside in seen if inside}
    assert not {"run", "time", "reference"} & {act for act, inside in seen if not inside}


def test_stages_are_named_before_they_begin(held: WorkerContext, link: RecordedLink, device: HostDevice) -> None:
    attempt(held, link, "right")
    device.acts.clear()
    attempt(held, link, "leaves_one")
    phases = [act.removeprefix("phase ") for act in device.acts if act.startswith(("phase", "warm"))]
    assert phases == ["compile", "warm tiled 12", "launch", "launch", "verify"]
    device.acts.clear()
    attempt(held, link, "right")
    phases = [act.removeprefix("phase ") for act in device.acts if act.startswith("phase")]
    assert phases == ["launch", "verify", "measure"], "what is loaded is not compiled again"


@pytest.mark.parametrize(("seconds", "most"), [(1e-5, 20), (5e-4, 4), (1.5e-3, 1), (0.01, 1)])
def test_a_product_waits_for_two_milliseconds_of_launches_or_one(
    held: WorkerContext, link: RecordedLink, device: HostDevice, seconds: float, most: int
) -> None:
    attempt(held, link, "right")
    device.seconds = seconds
    device.acts.clear()
    attempt(held, link, "again")
    acts = device.acts
    batches = [int(act.split()[1]) for at, act in enumerate(acts) if act.startswith("time") and acts[at - 1] == "offer"]
    assert max(batches) == most
    assert all(acts[at - 1] in {"offer", "lease"} for at, act in enumerate(acts) if act.startswith("time"))
    assert all(act == "time 3 events" for at, act in enumerate(acts) if acts[at - 1] == "lease" and act[:4] == "time")


def test_no_launch_is_taken_for_hung_before_two_seconds(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    device.seconds = 0.9
    attempt(held, link, "right")
    assert min(link.deadlines) >= 2.0


def test_launch_is_taken_for_hung_after_ten_times_what_it_took() -> None:
    entrant = LoadedContender("tiled", Config(()), lambda _: None, lambda _sets, _policy: [], predicted=1e-3)
    assert entrant.deadline() == 2.0
    entrant.slowest = 0.9
    assert [entrant.deadline(), entrant.deadline(3)] == pytest.approx([9.0, 27.0])


def test_timed_launches_rotate_through_more_than_three_caches_of_operands(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    problem = Problem(512, 256, 256)
    ready = benches.prepared(held, cast("WorkerLink", link), trial.FixtureKey("job", problem, 1))
    rotation = ready.on(device).rotation
    assert 3 * 2**20 < len(rotation) * problem.bytes < 5 * 2**20
    places = {(id(one.handle), one.offset) for set_ in rotation for one in (set_.a, set_.b, set_.c)}
    assert len(places) == 3 * len(rotation)
    assert all(np.array_equal(data(set_.a), data(rotation[0].a)) for set_ in rotation)


def test_where_memory_is_short_there_are_fewer_sets(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    device.memory = 2**19
    outcome = attempt(held, link, "right")
    assert isinstance(outcome, Measured)
    assert (
        len(benches.prepared(held, cast("WorkerLink", link), trial.FixtureKey("job", PROBLEM, 5)).on(device).rotation)
        == 5
    )


def test_operands_that_do_not_fit_are_a_rejected_launch(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    device.memory = PROBLEM.c_bytes
    outcome = attempt(held, link, "right")
    assert isinstance(outcome, Rejected)
    assert (outcome.stage, outcome.reason.split(":")[0]) == ("launch", "out of memory")


def test_the_reference_is_computed_once_for_a_bench(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    for name in ("right", "leaves_one", "runs_out", "right"):
        attempt(held, link, name)
    assert device.acts.count("reference") == 1
    attempt(held, link, "right", job="another")
    assert device.acts.count("reference") == 2


def test_the_reference_is_computed_anew_after_a_write_outside_c(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    for name in ("writes_past", "right", "right"):
        attempt(held, link, name)
    assert device.acts.count("reference") == 2


def test_another_bench_replaces_the_one_before(held: WorkerContext, link: RecordedLink) -> None:
    attempt(held, link, "right")
    attempt(held, link, "right", Problem(8, 8, 8))
    kept = benches.kept(held)
    assert kept is not None
    assert kept.key.problem == Problem(8, 8, 8)


def test_large_references_offer_the_device_between_pieces(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    device.device, device.memory = replace(DEVICE, limits=replace(DEVICE.limits, peak64=1e9)), 2**24
    outcome = attempt(held, link, "right", Problem(512, 256, 256, batch=3))
    assert isinstance(outcome, Measured)
    assert device.acts.count("reference") >= 4


def test_a_reference_that_fails_its_spot_check_is_no_candidates_fault(
    held: WorkerContext, link: RecordedLink, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "reference", lambda a, b: np.matmul(a, b).astype(np.float64))
    with pytest.raises(WrongResult, match="the float64 reference"):
        attempt(held, link, "right")
    assert benches.kept(held) is None


def vendor(held: WorkerContext, link: RecordedLink) -> Outcome:
    return trial.attempt(held, cast("WorkerLink", link), PROBLEM, trial.FixtureKey("job", PROBLEM, 5), None, LIMIT)


def test_the_vendors_library_is_verified_and_measured_as_a_kernel_is(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    outcome = vendor(held, link)
    assert isinstance(outcome, Measured)
    assert (outcome.kernel, outcome.config) == ("vendor", Config(()))
    assert "run" in device.acts


def test_where_there_is_no_vendors_library_its_reason_is_the_rejection(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    device.vendor = Vendor(None, "cuBLAS is not installed")
    assert vendor(held, link) == Rejected("vendor", Config(()), "space", "cuBLAS is not installed")


def test_a_contender_stays_loaded_and_the_oldest_goes(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    attempt(held, link, "right")
    compiled = device.acts.count("compile")
    attempt(held, link, "right")
    assert device.acts.count("compile") == compiled
    device.functions |= {f"other {number}": right for number in range(40)}
    for number in range(40):
        attempt(held, link, f"other {number}")
    attempt(held, link, "right")
    assert device.acts.count("compile") == compiled + 41


def test_a_config_that_is_clearly_slower_is_dropped(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    outcome = attempt(held, link, "right", best=1e-5)
    assert isinstance(outcome, Measured)
    assert outcome.timing.dropped
    assert len(outcome.seconds) == outcome.timing.samples < 10
    assert device.seconds in outcome.seconds


def test_a_race_is_run_again_while_the_device_is_disturbed(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    attempt(held, link, "right")
    undisturbed = launches(device, lambda: attempt(held, link, "right"))
    device.seconds *= 1.3
    assert launches(device, lambda: attempt(held, link, "right")) > 2.5 * undisturbed


def launches(device: HostDevice, act: Callable[[], object]) -> int:
    """How many timed launches an act makes, those of the reference kernel aside."""
    device.acts.clear()
    act()
    acts = device.acts
    return sum(int(act.split()[1]) for at, act in enumerate(acts) if act.startswith("time") and acts[at - 1] == "offer")


@pytest.fixture
def gpu(device: HostDevice) -> HostDevice:
    """The same, as if it had graphs and were fast."""
    limits = replace(DEVICE.limits, bandwidth=4e12, peak=6e13, peak64=3e13)
    device.device = replace(DEVICE, id="cuda:0", platform="cuda", limits=limits)
    return device


def test_short_launches_are_timed_in_graphs_of_two_milliseconds(
    held: WorkerContext, link: RecordedLink, gpu: HostDevice
) -> None:
    gpu.seconds = 1e-5
    outcome = attempt(held, link, "right")
    assert isinstance(outcome, Measured)
    assert outcome.timing.policy == "graph"
    assert outcome.timing.median_ms == pytest.approx(0.01)
    graphs = [act for act in gpu.acts if act.endswith("graph")]
    assert set(graphs) == {"time 200 graph"}
    assert len(graphs) == 1 + outcome.timing.samples


def test_a_graph_is_not_short_because_the_first_launches_were_long(
    held: WorkerContext, link: RecordedLink, gpu: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.seconds, time, slow = 1e-5, gpu.time, [3e-4, 3e-4, 2e-5]

    def starting(program: Program, launch: Launch, sets: Sequence[Operands], policy: str) -> list[float]:
        seconds = time(program, launch, sets, policy)
        first = slow and policy == "events" and launch.problem == PROBLEM
        return [slow.pop(0) if first and slow else each for each in seconds]

    monkeypatch.setattr(gpu, "time", starting)
    attempt(held, link, "right")
    assert not slow
    assert {act for act in gpu.acts if act.endswith("graph")} == {"time 200 graph"}


def test_the_vendors_library_is_timed_by_the_same_policy(
    held: WorkerContext, link: RecordedLink, gpu: HostDevice
) -> None:
    gpu.seconds = 1e-5
    outcome = vendor(held, link)
    assert isinstance(outcome, Measured)
    assert outcome.timing.policy == "graph"


def heat_of(
    held: WorkerContext, link: RecordedLink, *contenders: Launch | Problem, rounds: int = 5
) -> InterleavedSamples:
    return trial.sample(held, cast("WorkerLink", link), contenders, trial.FixtureKey("job", PROBLEM, 5), rounds)


def test_a_heat_samples_every_contender_once_a_round(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    sample_interleaved = heat_of(held, link, launch_of(PROBLEM, "right"), PROBLEM, launch_of(PROBLEM, "again"))
    assert [len(seconds) for seconds in sample_interleaved.seconds] == [5, 5, 5]
    assert (sample_interleaved.policy, sample_interleaved.conditions, sample_interleaved.retaken) == ("events", None, 0)
    assert not link.leased
    device.acts.clear()
    heat_of(held, link, launch_of(PROBLEM, "right"), launch_of(PROBLEM, "again"))
    assert "compile" not in device.acts, "contenders stay loaded from heat to heat"
    leased = [device.acts[at - 1] for at, act in enumerate(device.acts) if act.startswith("time")]
    assert set(leased) == {"offer", "lease"}


def test_a_heats_contenders_use_the_sets_in_turn(
    held: WorkerContext, link: RecordedLink, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    heat_of(held, link, launch_of(PROBLEM, "right"), launch_of(PROBLEM, "again"), rounds=1)
    used: list[int] = []
    time = device.time

    def noted(program: Program, launch: Launch, sets: Sequence[Operands], policy: str) -> list[float]:
        if launch.problem == PROBLEM:
            used.extend(one.c.offset for one in sets)
        return time(program, launch, sets, policy)

    monkeypatch.setattr(device, "time", noted)
    held.state(ContenderCache).contenders.clear()  # so that both warm up again
    heat_of(held, link, launch_of(PROBLEM, "right"), launch_of(PROBLEM, "again"), rounds=6)
    assert len(used) == 14
    assert len(set(used)) == 14, "no two launches in a row have the same operands"


def test_a_heat_tells_the_medians_of_the_sensors(held: WorkerContext, link: RecordedLink, device: HostDevice) -> None:
    heat_of(held, link, launch_of(PROBLEM, "right"), rounds=1)
    device.readings = [Reading(1000.0, None, 300.0, 50.0), Reading(1400.0, None, 310.0, 52.0, ("power cap",))]
    device.readings.append(Reading(1980.0, None, 290.0, 51.0))
    sample_interleaved = heat_of(held, link, launch_of(PROBLEM, "right"), rounds=3)
    assert sample_interleaved.conditions == Conditions(1400.0, None, 300.0, 51.0, ("power cap",))


def test_a_contender_that_is_gone_ends_the_heat_with_an_error(held: WorkerContext, link: RecordedLink) -> None:
    with pytest.raises(LaunchFailed, match="unknown name 'gone'"):
        heat_of(held, link, launch_of(PROBLEM, "right"), launch_of(PROBLEM, "gone"))


def loses_the_tail(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    whole = problem.k // 8 * 8
    right(problem, np.ascontiguousarray(a[:, :, :whole]), np.ascontiguousarray(b[:, :whole]), memory, first)


def hides_nan(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    right(problem, np.nan_to_num(a, posinf=0, neginf=0), np.nan_to_num(b, posinf=0, neginf=0), memory, first)


def rounds_sums(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    """As good as any on N(0,1), and not exact."""
    right(problem, a * np.float32(1 + 2e-7), b, memory, first)


def overruns_odd_rows(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
    right(problem, a, b, memory, first)
    if problem.n % 2:
        memory[first + problem.m * problem.n * problem.batch] = 0


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (right, None),
        (loses_the_tail, "numbers of 1x64x48x79: relative L2 error"),
        (hides_nan, "NaN and infinities of 1x64x48x80: NaN or infinity: 0 elements that should be finite are not"),
        (rounds_sums, "integers of 1x64x48x80: "),
        (overruns_odd_rows, "numbers of 1x64x47x80: wrote outside C: 4 bytes past its end"),
        (runs_out, "too many resources requested"),
    ],
)
def test_a_finalist_is_proved_on_neighbours_and_hostile_operands(
    held: WorkerContext,
    link: RecordedLink,
    device: HostDevice,
    function: Callable[[Problem, Array, Array, Array, int], None],
    reason: str | None,
) -> None:
    device.functions["finalist"] = function
    launch = launch_of(PROBLEM, "finalist")
    rejected = trial.stress_verify(held, cast("WorkerLink", link), launch, trial.FixtureKey("job", PROBLEM, 5))
    assert not link.leased
    if reason is None:
        assert rejected is None
    else:
        assert rejected is not None
        assert rejected.stage == ("launch" if function is runs_out else "verify")
        assert rejected.reason.startswith(reason)


@pytest.mark.parametrize(
    ("width", "reason"), [(4, None), (8, "numbers of 1x64x48x76: relative L2 error"), (16, "numbers of 1x64x48x76")]
)
def test_refused_neighbour_is_replaced_by_one_of_the_class(
    held: WorkerContext,
    link: RecordedLink,
    device: HostDevice,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    reason: str | None,
) -> None:
    def loses_what_is_not_whole(problem: Problem, a: Array, b: Array, memory: Array, first: int) -> None:
        whole = problem.k // width * width
        right(problem, np.ascontiguousarray(a[:, :, :whole]), np.ascontiguousarray(b[:, :whole]), memory, first)

    tiled = CATALOGUE["tiled"]
    rules = {**tiled.space.rules, "only this one": lambda _, problem, __: problem == PROBLEM}
    spaced = {**CATALOGUE, "tiled": replace(tiled, space=replace(tiled.space, rules=rules))}
    monkeypatch.setattr("app.worker.measuring.stress.KERNELS", spaced)
    device.functions["finalist"] = loses_what_is_not_whole
    rejected = trial.stress_verify(
        held, cast("WorkerLink", link), launch_of(PROBLEM, "finalist"), trial.FixtureKey("job", PROBLEM, 5)
    )
    assert (rejected is None) == (reason is None)
    assert rejected is None or rejected.reason.startswith(str(reason))


def test_a_host_without_memory_rejects_the_shape_before_it_tries(
    held: WorkerContext, link: RecordedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_product, "available_bytes", lambda: 1000)
    outcome = attempt(held, link, "right")
    assert isinstance(outcome, Rejected)
    assert (outcome.stage, outcome.reason.split(":")[0]) == ("launch", "out of memory")


def test_reference_kernel_takes_a_tenth_of_a_millisecond(
    held: WorkerContext, link: RecordedLink, device: HostDevice
) -> None:
    device.seconds = 8e-4
    first = reference_kernel(held, cast("WorkerLink", link))
    assert first.launch.problem == Problem(128, 128, 128)
    device.seconds = 1e-4
    assert reference_kernel(held, cast("WorkerLink", link)) is first
    assert first.seconds() == pytest.approx(1e-4)
