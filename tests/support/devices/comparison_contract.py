"""What a device's comparisons have to be, on every device that can be had."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import cast

import numpy as np
import pytest

from app.devices.backend import Backend, Buffer, Operands, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array, numpy_dtype
from app.errors import CompileFailed, LaunchFailed, WrongResult
from app.tuning.outcome import Measured, Rejected
from app.tuning.verify.tolerance import POISON, applied, operands, verdict
from app.worker.measuring import device_reference, trial
from app.worker.measuring.device_reference import ComparisonClasses, DeviceReference
from app.worker.measuring.fixture import kept, prepared, reference_of
from app.worker.measuring.reference_product import GUARD, Comparison, HostReference, host_reference, poison
from app.worker.measuring.trial import FixtureKey
from kernels import KERNELS
from kernels.problem import ITEMSIZE, Problem
from tests.support.pairwise import crossed
from tests.support.tuning.host_device import RecordedLink

SHAPES = [(1, 1, 1, 1), (64, 256, 32, 1), (65, 257, 33, 3), (700, 3, 75, 2), (1, 1000, 9, 40), (130, 520, 300, 1)]
LAYOUTS = ["nn", "nt", "tn", "tt"]


def guarded_c(backend: Backend, problem: Problem, c: Array) -> Buffer:
    """C on the device between guard bands."""
    guarded = backend.allocate(problem.c_bytes + 2 * GUARD)
    window = guarded.window(GUARD, problem.c_bytes)
    poison(backend, guarded, window)
    backend.write(window, np.ascontiguousarray(c))
    return guarded


def rounded(problem: Problem, a: Array, b: Array) -> Array:
    """The product as a right kernel makes it."""
    exact: Array = np.matmul(*applied(problem, a, b), dtype=np.float64)
    return exact.astype(numpy_dtype(problem.dtype))


class Comparisons:
    """The contract; a subclass gives the fixture `backend`."""

    @pytest.fixture
    def held(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
        monkeypatch.setattr(device_reference, "PLATFORMS", frozenset({backend.device.platform}))
        monkeypatch.setattr(device_reference, "LEAST", 0)
        return WorkerContext(backend, memoryview(b""))

    @pytest.fixture
    def link(self) -> WorkerLink:
        return cast("WorkerLink", RecordedLink([]))

    def there(self, held: WorkerContext, link: WorkerLink, problem: Problem, a: Array, b: Array) -> DeviceReference:
        found = reference_of(held, link, problem, a, b, 1)
        assert isinstance(found, DeviceReference)
        return found

    @pytest.mark.drawn(8)
    @crossed(dtype=list(ITEMSIZE), shape=SHAPES, layout=LAYOUTS)
    def test_errors_are_those_that_the_host_finds(
        self, held: WorkerContext, link: WorkerLink, dtype: str, shape: tuple[int, int, int, int], layout: str
    ) -> None:
        problem = Problem(*shape, dtype, trans_a=layout[0] == "t", trans_b=layout[1] == "t")
        a, b = operands(problem, seed=problem.m)
        there = self.there(held, link, problem, a, b)
        here = host_reference(held.backend, link, problem, a, b, 1)
        assert there.norms.whole == pytest.approx(here.norms.whole, rel=1e-12)
        assert there.norms.usual == pytest.approx(here.norms.usual, rel=1e-12)
        noise = 1 + 1e-2 * np.random.default_rng(1).standard_normal((problem.batch, problem.m, problem.n))
        for c in (rounded(problem, a, b), (rounded(problem, a, b) * noise).astype(a.dtype)):
            guarded = guarded_c(held.backend, problem, c)
            found, known = there.compare(link, guarded), here.compare(link, guarded)
            assert found is not None
            assert found.outside is None
            # The references are sums in other orders: what a float64 C is off by is as much as they differ by.
            few = (1e-15 * here.norms.whole) ** 2
            assert found.errors.squares == pytest.approx(known.errors.squares, rel=1e-6, abs=few)
            least = 1e-15 if dtype == "float64" else 1e-18
            assert found.errors.worst == pytest.approx(known.errors.worst, rel=1e-6, abs=least)
            assert found.errors.early == pytest.approx(known.errors.early, rel=1e-6, abs=least)
            ours, theirs = (verdict(problem, each.norms, of.errors) for each, of in ((there, found), (here, known)))
            assert ours.reason == theirs.reason or None not in {ours.reason, theirs.reason}

    @pytest.mark.parametrize("dtype", ITEMSIZE)
    def test_one_wrong_element_anywhere_is_found(self, held: WorkerContext, link: WorkerLink, dtype: str) -> None:
        problem = Problem(130, 261, 40, 2, dtype)
        a, b = operands(problem, seed=2)
        there, right = self.there(held, link, problem, a, b), rounded(problem, a, b)
        assert self.reason(there, link, held.backend, problem, right) is None
        rng = np.random.default_rng(2)
        for at in ((0, 0, 0), (1, 129, 260), *(tuple(map(int, rng.integers(right.shape))) for _ in range(20))):
            wrong = right.copy()
            wrong[at] = 100 if abs(float(wrong[at])) < 50 else 0
            assert "exceeds" in str(self.reason(there, link, held.backend, problem, wrong))

    @pytest.mark.parametrize("dtype", ITEMSIZE)
    def test_unwritten_elements_are_told_from_nan(self, held: WorkerContext, link: WorkerLink, dtype: str) -> None:
        problem = Problem(70, 300, 40, 1, dtype)
        a, b = operands(problem, seed=3)
        there, c = self.there(held, link, problem, a, b), rounded(problem, a, b)
        c[0, 1, 2:5] = np.nan
        assert self.reason(there, link, held.backend, problem, c) == "gave NaN for 3 elements of a finite product"
        c[0, 69, 299:].view(np.uint8)[...] = POISON
        assert self.reason(there, link, held.backend, problem, c) == "left 1 element unwritten"
        c[0, 0, 0] = np.inf
        assert self.reason(there, link, held.backend, problem, c) == "left 1 element unwritten"

    def test_infinities_are_wrong(self, held: WorkerContext, link: WorkerLink) -> None:
        problem = Problem(40, 50, 60)
        a, b = operands(problem, seed=3)
        there, c = self.there(held, link, problem, a, b), rounded(problem, a, b)
        c[0, 3, 4] = -np.inf
        assert "relative L2 error inf" in str(self.reason(there, link, held.backend, problem, c))

    def reason(
        self, there: DeviceReference, link: WorkerLink, backend: Backend, problem: Problem, c: Array
    ) -> str | None:
        compared = there.compare(link, guarded_c(backend, problem, c))
        assert isinstance(compared, Comparison)
        return verdict(problem, there.norms, compared.errors).reason

    def test_bytes_outside_c_are_told(self, held: WorkerContext, link: WorkerLink) -> None:
        problem = Problem(33, 7, 9, dtype="float16")
        a, b = operands(problem, seed=4)
        there, guarded = self.there(held, link, problem, a, b), guarded_c(held.backend, problem, rounded(problem, a, b))
        held.backend.write(guarded.window(GUARD - 3, 3), np.zeros(3, np.uint8))
        held.backend.write(guarded.window(guarded.nbytes - 1, 1), np.zeros(1, np.uint8))
        compared = there.compare(link, guarded)
        assert compared is not None
        assert compared.outside == "wrote outside C: 3 bytes before it and 1 bytes past its end"

    @pytest.mark.parametrize("where", ["reference", "rows", "columns"])
    def test_a_reference_that_was_written_over_is_none(self, held: WorkerContext, link: WorkerLink, where: str) -> None:
        problem = Problem(65, 70, 80)
        a, b = operands(problem, seed=5)
        there, guarded = self.there(held, link, problem, a, b), guarded_c(held.backend, problem, rounded(problem, a, b))
        assert there.compare(link, guarded) is not None
        at = {"reference": 4549, "rows": 65 * 70 + 64, "columns": 65 * 71 + 69}[where]
        value = np.empty(1)
        held.backend.download(there.expected.window(8 * at, 8), value)
        held.backend.write(there.expected.window(8 * at, 8), value * (1 + 1e-6))
        assert there.compare(link, guarded) is None

    def test_a_trial_makes_a_lost_reference_anew(self, held: WorkerContext, link: WorkerLink) -> None:
        problem = Problem(96, 80, 64)
        tiled = KERNELS["tiled"]
        launch = tiled.launch(tiled.default(problem, held.backend.device), problem, held.backend.device)
        key = FixtureKey("job", problem, 1)
        assert isinstance(trial.attempt(held, link, launch, key, None, 0.01), Measured)
        lost = prepared(held, link, key).reference
        assert isinstance(lost, DeviceReference)
        held.backend.fill(lost.expected, 0x3F)
        outcome = trial.attempt(held, link, launch, key, None, 0.01)
        assert isinstance(outcome, Measured)
        assert outcome.accuracy.relative_l2 < 1e-6
        now = kept(held)
        assert now is not None
        assert now.reference is not lost

    def test_a_kernel_that_writes_over_the_reference_is_rejected(
        self, held: WorkerContext, link: WorkerLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem, lose = Problem(96, 80, 64), DeviceReference.compare
        tiled = KERNELS["tiled"]
        launch = tiled.launch(tiled.default(problem, held.backend.device), problem, held.backend.device)

        def after(there: DeviceReference, link: WorkerLink, guarded: Buffer) -> Comparison | None:
            if there.problem == problem:
                held.backend.fill(there.expected, 0x3F)
            return lose(there, link, guarded)

        monkeypatch.setattr(DeviceReference, "compare", after)
        outcome = trial.attempt(held, link, launch, FixtureKey("job", problem, 1), None, 0.01)
        assert isinstance(outcome, Rejected)
        assert outcome.reason == "wrote outside C: over the reference product"

    def test_a_reference_is_made_in_turns(
        self, held: WorkerContext, link: WorkerLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = held.backend
        slow = replace(backend.device, limits=replace(backend.device.limits, peak64=1e9))
        monkeypatch.setattr(backend, "device", slow)
        for problem in (Problem(300, 500, 700, 2, trans_a=True), Problem(90, 100, 300, 40, trans_b=True)):
            a, b = operands(problem, seed=6)
            acts = cast("RecordedLink", link).acts
            acts.clear()
            there = self.there(held, link, problem, a, b)
            assert acts.count("offer") >= 4
            compared = there.compare(link, guarded_c(backend, problem, rounded(problem, a, b)))
            assert compared is not None
            assert verdict(problem, there.norms, compared.errors).reason is None

    def test_a_wrong_reference_is_no_candidates_fault(
        self, held: WorkerContext, link: WorkerLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem, multiply = Problem(64, 48, 80), held.backend.vendor_run
        a, b = operands(problem, seed=7)
        self.there(held, link, problem, a, b)  # its kernels are checked

        def off(problem: Problem, on: Operands) -> None:
            multiply(problem, on)
            held.backend.fill(on.c.window(0, 64 * 48 * 4), 0)  # half of it

        monkeypatch.setattr(held.backend, "vendor_run", off)
        with pytest.raises(WrongResult, match="the float64 reference"):
            reference_of(held, link, problem, a, b, 1)

    def test_comparisons_that_are_wrong_are_the_hosts(
        self, held: WorkerContext, link: WorkerLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem, right = Problem(64, 48, 80), held.backend.download
        a, b = operands(problem, seed=8)

        def wrong(buffer: Buffer, out: Array) -> None:
            right(buffer, out)
            if out.dtype == np.float64:
                out.reshape(-1)[0] += 1

        monkeypatch.setattr(held.backend, "download", wrong)
        assert isinstance(reference_of(held, link, problem, a, b, 1), HostReference)
        assert set(held.state(ComparisonClasses).known.values()) == {False}
        monkeypatch.undo()
        monkeypatch.setattr(device_reference, "PLATFORMS", frozenset({held.backend.device.platform}))
        monkeypatch.setattr(device_reference, "LEAST", 0)
        assert isinstance(reference_of(held, link, problem, a, b, 1), HostReference), "it is not tried again"

    @pytest.mark.parametrize(
        ("error", "is_lost"),
        [
            (LaunchFailed("out of memory", fatal=False), False),
            (CompileFailed("error: no such thing"), False),
            (LaunchFailed("an illegal address", fatal=True), True),
        ],
    )
    def test_where_the_device_has_no_memory_or_compiler_the_host_compares(
        self,
        held: WorkerContext,
        link: WorkerLink,
        monkeypatch: pytest.MonkeyPatch,
        error: LaunchFailed | CompileFailed,
        is_lost: bool,
    ) -> None:
        problem = Problem(64, 48, 80)
        a, b = operands(problem, seed=9)

        def fails(*_: object) -> None:
            raise error

        monkeypatch.setattr(held.backend, "run" if isinstance(error, LaunchFailed) else "compile", fails)
        if is_lost:
            with pytest.raises(LaunchFailed):
                reference_of(held, link, problem, a, b, 1)
        else:
            found = reference_of(held, link, problem, a, b, 1)
            assert isinstance(found, HostReference)
            assert not isnan(found.norms.whole)
