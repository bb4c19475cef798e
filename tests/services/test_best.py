"""An answer is always given and always labelled."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from time import thread_time
from typing import Any
from weakref import WeakSet

import pytest

from app.errors import NotTuned, UnknownDevice, Unsupported
from app.services.best import lookup, transfer_records
from app.services.best.kernel_order import covering, searched, untuned
from app.services.best.lookup import BestConfigs, distance
from app.services.jobs.service import new_job
from app.services.service import Service
from app.services.tuning.request import TuneSpec, kernels_to_search
from app.store.records import BestRecord, CrossRecord, TrialRecord
from app.store.repository import BestRepository, JobRepository, TrialRepository
from app.tuning.measure.racing import policy_of
from app.tuning.transfer import Transfer, TunedProblem
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200

pytest_plugins = ("tests.support.kernels.uncorrected",)

TILE = {"BM": 8, "BN": 16, "BK": 8}
NAIVE = next(iter(CATALOGUE["naive"].space))


def measured(device: Device, problem: Problem, median_ms: float = 1.0, tile: Mapping[str, int] = TILE) -> TrialRecord:
    tiled = CATALOGUE["tiled"]
    return TrialRecord(
        id=1,
        job_id="a job",
        device_model=device.model,
        device_uuid=device.uuid,
        environment=device.environment,
        problem=problem,
        kernel="tiled",
        kernel_digest=tiled.digest,
        config=tiled.space.config(tile),
        state="measured",
        stage=None,
        reason=None,
        median_ms=median_ms,
        ci95_lo_ms=0.9,
        ci95_hi_ms=1.1,
        samples=20,
        limited=False,
        relative_l2=1e-7,
        max_scaled=1e-8,
        registers=None,
        created_at=datetime.now(UTC),
        policy=policy_of(problem, device),
    )


def best(trial: TrialRecord, slower: float = 1.0) -> BestRecord:
    """A best beside an untuned choice that took so many times as long."""
    return BestRecord(
        device_model=trial.device_model,
        problem=trial.problem,
        trial=trial,
        naive=None,
        tiled=trial,
        vendor=None,
        vendor_reason="not installed",
        tuned_at=trial.created_at,
        default=replace(trial, kernel="naive", median_ms=(trial.median_ms or 0.0) * slower),
    )


class Held:
    """A quarantine that holds what it is given."""

    def __init__(self, *held: tuple[str, Config]) -> None:
        self.held = set(held)
        self.withheld: set[tuple[str, str]] = set()

    def holds(self, device: Device, kernel: str, config: Config, problem: Problem | None = None) -> str | None:
        del problem
        return "it answered wrong" if device and (kernel, config) in self.held else None

    def withholds(self, device: Device, kernel: str) -> bool:
        return (device.id, kernel) in self.withheld


PROBLEM, LARGE = Problem(256, 256, 256), Problem(1024, 1024, 1024)


@pytest.fixture
def device(service: Service) -> Device:
    return service.fleet.unit().device


def test_tuned_problem_is_answered_exactly_with_its_figures(service: Service, device: Device) -> None:
    answer = BestConfigs(service.fleet, [best(measured(device, PROBLEM))]).answer(PROBLEM)
    assert (answer.match, answer.kernel, dict(answer.config)) == ("exact", "tiled", {"BM": 8, "BN": 16, "BK": 8})
    assert answer.gflops == pytest.approx(PROBLEM.flops / 1e6)
    assert answer.accuracy is not None
    assert answer.baselines is not None
    assert answer.baselines["vendor"].reason == "not installed"
    assert answer.baselines["default"].timing == answer.timing
    assert (answer.expected_loss, answer.loss_bound, answer.provisional) == (None, None, False)


@pytest.mark.parametrize("what", ["kernel_digest", "environment", "policy"])
def test_changed_kernel_environment_or_policy_makes_an_answer_stale(
    service: Service, device: Device, what: str
) -> None:
    changed: dict[str, Any] = {what: "another"}
    trial = replace(measured(device, PROBLEM), **changed)
    bests = BestConfigs(service.fleet, [best(trial)])
    assert bests.answer(PROBLEM).match == "stale"
    with pytest.raises(NotTuned):
        bests.answer(PROBLEM, exact=True)


def test_an_unknown_shape_is_answered_by_the_nearest_of_its_family(service: Service, device: Device) -> None:
    near, far = Problem(300, 300, 300), Problem(8, 4096, 8)
    records = [best(measured(device, near, 2.0), 5), best(measured(device, far, 3.0), 5)]
    answer = BestConfigs(service.fleet, records).answer(PROBLEM)
    assert (answer.match, answer.matched_problem) == ("nearest", near)
    assert answer.launch.problem == PROBLEM
    assert answer.expected_loss is not None
    assert answer.loss_bound is not None
    assert answer.loss_bound >= answer.expected_loss >= 1


def test_tuning_a_large_shape_leaves_a_small_one_with_its_default(service: Service, device: Device) -> None:
    register_tiled = CATALOGUE["register_tiled"]
    large, small = Problem(512, 512, 512), Problem(64, 48, 32)
    widest = max(register_tiled.space.legal(large, device), key=lambda config: config["BM"] * config["BN"])
    trial = replace(measured(device, large), kernel="register_tiled", config=widest)
    untuned = BestConfigs(service.fleet).answer(small)
    assert (untuned.match, untuned.expected_loss, untuned.loss_bound) == ("default", None, None)
    for slower in (1.0, 1.5, 5.0):
        bests = BestConfigs(service.fleet, [best(replace(trial, kernel_digest=register_tiled.digest), slower)])
        answer = bests.answer(small)
        assert (answer.match, answer.kernel, answer.config) == ("default", untuned.kernel, untuned.config)
        assert answer.expected_loss is not None
        assert answer.loss_bound is not None
        assert answer.loss_bound >= answer.expected_loss >= 1


def test_a_config_whose_tiles_would_be_mostly_empty_is_never_answered(service: Service, device: Device) -> None:
    """However slow the untuned choice was, and however many shapes the config won."""
    tile = {"BM": 32, "BN": 32, "BK": 8}
    shapes = [Problem(m, 32, k) for m in (16, 32, 64) for k in range(100, 800, 40)]
    records = [best(measured(device, shape, 1.0, tile), 5) for shape in shapes]
    bests = BestConfigs(service.fleet, records)
    assert bests.answer(Problem(32, 32, 330)).match == "nearest"
    assert bests.answer(Problem(2, 2, 330)).match == "default"


def test_an_untuned_choice_that_was_as_fast_as_the_best_stays_the_answer(service: Service, device: Device) -> None:
    shapes = [Problem(m, n, 256) for m in (64, 128, 256, 512) for n in (64, 128, 256, 512)]
    for slower, match in ((1.0, "default"), (1.02, "default"), (3.0, "nearest")):
        bests = BestConfigs(service.fleet, [best(measured(device, shape), slower) for shape in shapes])
        answer = bests.answer(Problem(200, 200, 256))
        assert answer.match == match
        assert answer.loss_bound is not None
        assert answer.loss_bound < 1.5 if slower < 2 else answer.expected_loss == 1


@pytest.mark.slow
def test_lookup_among_100000_tuned_shapes_is_bounded(
    service: Service, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, tiles = random.Random(7), list(CATALOGUE["tiled"].space)[:40]  # noqa: S311 - shapes, no secrets

    def shape() -> Problem:
        m, n, k = (int(2 ** dice.uniform(0, 13)) for _ in range(3))
        return Problem(m, n, k, dice.choice((1, 1, 4)))

    shapes = list(dict.fromkeys(shape() for _ in range(102_000)))[:100_000]
    trial = measured(device, PROBLEM)
    records = [best(replace(trial, problem=one, config=dice.choice(tiles)), dice.uniform(1, 2)) for one in shapes]
    looked, launch = [0], transfer_records.launch_of

    def counted(*args: Any) -> Any:
        looked[0] += 1
        return launch(*args)

    class Noted(Transfer):
        def __init__(self, tuned: Iterable[TunedProblem], *rest: Any) -> None:
            super().__init__(taken := list(tuned), *rest)
            learned.append(len(taken))
            kept.add(self)

    learned, kept = list[int](), WeakSet[Transfer]()
    monkeypatch.setattr(transfer_records, "launch_of", counted)
    monkeypatch.setattr(transfer_records, "Transfer", Noted)
    bests = BestConfigs(service.fleet, records)
    assert looked[0] <= 300, "a promotion learns from few"
    asked, taken = [shape() for _ in range(80)], []
    for one in [*asked, *(replace(each, k=each.k + 1) for each in asked)]:
        looked[0], started = 0, thread_time()
        answer = bests.answer(one)
        taken.append(thread_time() - started)
        assert answer.match in {"exact", "nearest", "default"}
        assert looked[0] <= 200
    print(f"cold {1e3 * median(taken[:80]):.1f} ms, warm {1e3 * median(taken[80:]):.1f} ms")
    assert max(learned) <= 256
    assert len(learned) > 65, "fewer regions are asked for than are kept"
    assert len(kept) <= 65, "those of 64 regions and the whole family's"


def test_cross_measurements_decide_between_near_winners(service: Service, device: Device) -> None:
    sizes, tiles = (16, 32, 300, 4000), ({"BM": 4, "BN": 4, "BK": 4}, TILE)
    records = [best(measured(device, Problem(m, m, m), 1.0, tiles[m == 300]), 5) for m in sizes]  # 300 is the nearest
    good, bad = (CATALOGUE["tiled"].space.config(tile) for tile in tiles)
    crossed = [
        CrossRecord(device.model, record.problem, "tiled", config, "search", ms, 10, dropped=False)
        for record in records
        for config, ms in ((good, 1.0), (bad, 1.0 if record.problem.m == 300 else 2.0))
    ]
    assert BestConfigs(service.fleet, records).answer(PROBLEM).config == bad
    answer = BestConfigs(service.fleet, records, crossed=lambda *_: crossed).answer(PROBLEM)
    assert (answer.config, answer.matched_problem) == (good, Problem(32, 32, 32))


def test_cross_measurements_are_read_at_promotion(service: Service, device: Device) -> None:
    job = new_job("tune", {}, "crossed")
    good, bad = {"BM": 4, "BN": 4, "BK": 4}, TILE
    shapes = [replace(PROBLEM, dtype="float64", trans_a=True, trans_b=True, m=m) for m in (16, 32, 300, 4000)]
    winners = dict(zip(shapes, (good, good, bad, good), strict=True))  # 300 is the nearest to 256

    def store(session: Any) -> list[BestRecord]:
        JobRepository(session).add(job)
        kept = []
        for shape, winner in winners.items():
            for tile, ms in ((good, 1.0), (bad, 1.0 if winner is bad else 3.0)):
                trial = replace(measured(device, shape, ms, tile), id=None, job_id=job.id)
                saved = replace(trial, id=TrialRepository(session).add(trial))
                kept += [best(saved)] if tile is winner else []
            slow = replace(measured(device, shape, 5.0), id=None, job_id=job.id, kernel="naive", config=NAIVE)
            kept[-1] = replace(kept[-1], default=replace(slow, id=TrialRepository(session).add(slow)))
        BestRepository(session).promote(*kept)
        return kept

    asked = replace(PROBLEM, dtype="float64", trans_a=True, trans_b=True)
    unaware = BestConfigs(service.fleet, service.database.write(store))
    assert unaware.answer(asked).matched_problem == shapes[2]
    assert BestConfigs.load(service.fleet, service.database).answer(asked).matched_problem == shapes[1]


def test_a_stored_best_outranks_every_nearer_guess(service: Service, device: Device) -> None:
    near = [best(measured(device, Problem(256 + n, 256, 256), 0.1)) for n in (-1, 1, 2)]
    answer = BestConfigs(service.fleet, [*near, best(measured(device, PROBLEM, 9.0))]).answer(PROBLEM)
    assert (answer.match, answer.matched_problem) == ("exact", PROBLEM)


def test_quarantined_config_is_never_answered(service: Service, device: Device) -> None:
    other, quarantine = Problem(260, 260, 260), Held()
    ladder = [("default", kernel.name) for kernel in untuned(PROBLEM, device)]
    records = [best(measured(device, PROBLEM)), best(measured(device, other, tile={"BM": 4, "BN": 8, "BK": 4}), 5)]
    bests = BestConfigs(service.fleet, records, quarantine)
    seen = []
    for _ in range(2 + len(ladder)):
        answer = bests.answer(PROBLEM)
        seen.append((answer.match, answer.kernel))
        quarantine.held.add((answer.kernel, answer.config))
    assert seen == [("exact", "tiled"), ("nearest", "tiled"), *ladder]
    with pytest.raises(Unsupported, match="is quarantined on"):
        bests.answer(PROBLEM)


def test_kernel_whose_default_is_not_verified_is_not_taken_untuned(service: Service, device: Device) -> None:
    quarantine = Held()
    bests = BestConfigs(service.fleet, [], quarantine)
    assert bests.answer(LARGE).kernel == "register_tiled"
    quarantine.withheld = {(device.id, "register_tiled"), ("opencl:9", "tiled")}
    bests.changed()
    assert bests.answer(LARGE).kernel == "tiled"
    quarantine.withheld.add((device.id, "tiled"))
    bests.changed()
    assert bests.answer(LARGE).kernel == "naive"
    quarantine.held.add(("naive", bests.answer(LARGE).config))
    assert bests.answer(LARGE).kernel == "register_tiled"


def test_below_what_failed_stands_the_next_kernel(service: Service, device: Device) -> None:
    bests, failed = BestConfigs(service.fleet), set[tuple[str, Config]]()
    kernels = []
    for _ in range(3):
        answer = bests.below(LARGE, device.id, failed)
        kernels.append(answer.kernel)
        failed.add((answer.kernel, answer.config))
    assert kernels == ["register_tiled", "tiled", "naive"]
    with pytest.raises(Unsupported, match="has just failed"):
        bests.below(LARGE, device.id, failed)


def test_a_stale_config_that_is_quarantined_is_not_served(service: Service, device: Device) -> None:
    trial = replace(measured(device, PROBLEM), environment="another")
    bests = BestConfigs(service.fleet, [best(trial)], Held(("tiled", trial.config)))
    assert bests.answer(PROBLEM).match == "default"


def test_the_best_so_far_is_served_while_a_tune_runs_and_says_so(service: Service, device: Device) -> None:
    bests = BestConfigs(service.fleet, [best(measured(device, Problem(250, 250, 250)), 5)])
    before = bests.generation
    bests.provisional(best(measured(device, PROBLEM, 0.5)))
    answer = bests.answer(PROBLEM)
    assert (answer.match, answer.provisional, answer.matched_problem) == ("exact", True, PROBLEM)
    assert bests.generation > before
    assert bests.record(device.model, PROBLEM) is None
    with pytest.raises(NotTuned):
        bests.answer(PROBLEM, exact=True)
    bests.withdraw(device.model, PROBLEM)
    assert bests.answer(PROBLEM).match == "nearest"


def test_promotion_takes_the_place_of_what_was_provisional(service: Service, device: Device) -> None:
    bests = BestConfigs(service.fleet)
    bests.provisional(best(measured(device, PROBLEM, 0.5)))
    bests.promoted([best(measured(device, PROBLEM, 0.4))])
    answer = bests.answer(PROBLEM, exact=True)
    assert (answer.provisional, answer.timing and answer.timing.median_ms) == (False, 0.4)


@pytest.mark.parametrize(("so_far", "match"), [(0.5, "exact"), (2.0, "stale")])
def test_a_stale_best_yields_only_to_what_is_faster(
    service: Service, device: Device, so_far: float, match: str
) -> None:
    bests = BestConfigs(service.fleet, [best(replace(measured(device, PROBLEM, 1.0), environment="another"))])
    bests.provisional(best(measured(device, PROBLEM, so_far)))
    assert bests.answer(PROBLEM).match == match


def test_a_current_best_outranks_what_a_retune_has_found_so_far(service: Service, device: Device) -> None:
    bests = BestConfigs(service.fleet, [best(measured(device, PROBLEM, 1.0))])
    bests.provisional(best(measured(device, PROBLEM, 0.5)))
    assert not bests.answer(PROBLEM).provisional


@pytest.mark.timing
def test_an_exact_answer_takes_microseconds_and_another_a_few_milliseconds(service: Service, device: Device) -> None:
    dice, tiles = random.Random(5), list(CATALOGUE["tiled"].space)  # noqa: S311 - shapes, no secrets

    def shape() -> Problem:
        return Problem(dice.randint(1, 3000), dice.randint(1, 3000), dice.randint(1, 3000))

    shapes = [shape() for _ in range(300)]
    records = [best(measured(device, one, dice.uniform(1, 2), dice.choice(tiles[:40]))) for one in shapes]
    bests = BestConfigs(service.fleet, records)
    bests.answer(shapes[0])

    def seconds(problem: Problem) -> float:
        started = thread_time()
        bests.answer(problem)
        return thread_time() - started

    exact = median(seconds(shapes[0]) for _ in range(1000))
    transfer_records = median(seconds(shape()) for _ in range(200))
    print(f"exact {exact * 1e6:.2f} us, nearest {transfer_records * 1e6:.0f} us")
    assert exact < 20e-6
    assert transfer_records < 5e-3


def test_another_family_never_answers(service: Service, device: Device) -> None:
    bests = BestConfigs(service.fleet, [best(measured(device, PROBLEM))])
    for other in (replace(PROBLEM, dtype="float64"), replace(PROBLEM, trans_a=True)):
        answer = bests.answer(other)
        assert (answer.match, answer.timing, answer.baselines) == ("default", None, None)


@pytest.mark.parametrize(
    ("problem", "kernel"),
    [
        (Problem(256, 256, 256), "tiled"),
        (Problem(1024, 1024, 1024), "register_tiled"),
        (Problem(512, 512, 512, trans_a=True), "register_tiled"),
        (Problem(1, 300, 900), "naive"),
        (Problem(300, 3, 4), "naive"),
        (Problem(5, 300, 900), "tiled"),
        (Problem(2048, 1, 2048, trans_a=True), "skinny"),
        (Problem(64, 64, 64, 9), "tiled"),
        (Problem(131072, 16, 32), "tiled"),
        (Problem(88, 9133, 184), "tall"),
    ],
)
def test_an_untuned_problem_is_answered_by_the_kernel_that_suits_a_processor(
    service: Service, problem: Problem, kernel: str
) -> None:
    answer = BestConfigs(service.fleet).answer(problem)
    assert (answer.match, answer.kernel) == ("default", kernel)


def test_kernel_without_a_legal_default_is_passed_over(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    tiled = CATALOGUE["tiled"]
    closed = replace(tiled, space=replace(tiled.space, rules={"never": lambda *_: False}, reads={}))
    monkeypatch.setattr("app.services.best.kernel_order.CATALOGUE", {**CATALOGUE, "tiled": closed})
    answer = BestConfigs(service.fleet).answer(Problem(5, 300, 900))
    assert (answer.match, answer.kernel) == ("default", "skinny")


@pytest.mark.parametrize(
    ("architecture", "dtype", "highest"),
    [
        ("sm_90", "float32", "pipelined"),
        ("sm_75", "float32", "register_tiled"),
        ("sm_90", "float64", "double_hopper"),
        ("sm_80", "float64", "double_tensor"),
        ("sm_89", "float64", "register_tiled"),
    ],
)
def test_the_highest_kernel_for_a_square_is_the_architectures(architecture: str, dtype: str, highest: str) -> None:
    limits = Limits(1024, 48 * 1024, 32, 80, 1e12, 1e13, 5e12)
    card = Device("cuda:0", "cuda", "a GPU", architecture, "1", "2", "3", "uuid", 2**34, limits)
    assert covering(Problem(1024, 1024, 1024, dtype=dtype), card)[-1].name == highest


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        ((192, 192, 192), "register_tiled"),
        ((256, 256, 256), "register_tiled"),
        ((384, 384, 384), "pipelined"),
        ((64, 64, 131072), "pipelined"),
        ((256, 256, 513), "pipelined"),
        ((16, 4096, 4096), "skinny"),
        ((16, 1024, 4096), "skinny"),
        ((16, 1023, 4096), "pipelined"),
        ((9, 190, 499), "pipelined"),
        ((4, 1024, 4096), "skinny"),
        ((4, 1023, 4096), "gemv"),
        ((1, 1838, 95), "gemv"),
        ((1, 80, 113), "gemv"),
        ((5, 2000, 900), "gemv"),
        ((900, 301, 1), "outer"),
        ((48, 48, 64), "register_tiled"),
    ],
)
@pytest.mark.usefixtures("uncorrected")
def test_kernel_that_leaves_a_gpu_idle_is_passed_over_untuned(sizes: tuple[int, int, int], first: str) -> None:
    ladder = list(untuned(Problem(*sizes), H200))
    assert ladder[0].name == first
    assert {kernel.name for kernel in ladder} == {kernel.name for kernel in covering(Problem(*sizes), H200)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(192, 192, 192), (9450, 6891, 106), (6852, 6848, 60), (4096, 4096, 4096)])
def test_a_tune_compares_with_what_is_served_untuned(sizes: tuple[int, int, int], dtype: str) -> None:
    limits = Limits(1024, 227 * 1024, 32, 132, 4e12, 6e13, 3e13)
    card = Device("cuda:0", "cuda", "a GPU", "sm_90", "1", "2", "3", "uuid", 2**34, limits)
    problem = Problem(*sizes, dtype=dtype)
    kernels = kernels_to_search(problem, card, TuneSpec((problem,)))
    assert kernels == searched(problem, card)
    assert kernels[-1] is next(untuned(problem, card))
    assert [kernel for kernel in covering(problem, card) if kernel is not kernels[-1]] == kernels[:-1]


def test_a_class_that_no_kernel_covers_is_refused_by_its_name(service: Service) -> None:
    with pytest.raises(Unsupported, match=r"float16 \(tf32\)"):
        service.best.answer(replace(PROBLEM, dtype="float16", precision="tf32"))


def test_answers_are_kept_until_as_many_newer_ones_are(
    service: Service, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_MOST", 8)
    known = BestConfigs(service.fleet)
    problems = [Problem(size, 7, 9) for size in range(1, 13)]
    answers = [known.answer(problem, device.id) for problem in problems]
    assert [known.knows(problem, device.id) for problem in problems] == 4 * [False] + 8 * [True]
    assert known.answer(problems[-1], device.id) is answers[-1]
    assert known.answer(problems[0], device.id) == answers[0], "and is worked out again"


def test_an_unknown_device_is_refused(service: Service) -> None:
    with pytest.raises(UnknownDevice):
        service.best.answer(PROBLEM, "cuda:99")


def test_promotion_changes_the_answer_and_the_generation(service: Service, device: Device) -> None:
    bests = BestConfigs(service.fleet)
    assert bests.answer(PROBLEM).match == "default"
    before = bests.generation
    bests.promoted([best(measured(device, PROBLEM))])
    assert bests.answer(PROBLEM).match == "exact"
    assert bests.generation > before


def test_distance_is_symmetric_and_counts_doublings() -> None:
    assert distance(PROBLEM, Problem(512, 256, 256)) == distance(Problem(512, 256, 256), PROBLEM) == 1.0
