"""What a device's sketches have to be, on every device that can be had."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import numpy as np
import pytest

from app.devices.backend import Backend, Operands, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array
from app.errors import CertificateFailed, LaunchFailed
from app.services.matmul.certificates import device_sketch
from app.services.matmul.certificates.certificate import Certificate, Certifier, ClassBound
from app.services.matmul.certificates.device_sketch import SketchOnDevice
from app.services.matmul.certificates.freivalds import StreamedSketch
from app.tuning.verify.tolerance import applied, operands
from app.worker.serving import sketch
from app.worker.serving.sketch import DeviceSketch, SketchClasses
from kernels.freivalds import VECTORS
from kernels.problem import ITEMSIZE, Problem
from tests.services.test_certificates import CLASS, HARD, UNSIGNED, T, flipped, made

FLIPS = 250
KEPT = ("float32", "strict"), ("float32", "tf32"), ("float64", "strict"), ("bfloat16", "strict")


class FreeLink:
    """A link to a device that nobody else wants."""

    def phase(self, stage: str, deadline: float) -> None:
        assert stage in {"compile", "verify"}
        assert deadline > 0

    def lease(self, deadline: float) -> Any:
        assert deadline > 0
        return nullcontext()


@dataclass(frozen=True)
class OnDevice:
    """A, B and C as a device has them, which may be others than the host's."""

    held: WorkerContext

    def sketch(self, problem: Problem, a: Array, b: Array, c: Array, asked: SketchOnDevice) -> DeviceSketch | None:
        link, backend = cast("WorkerLink", FreeLink()), self.held.backend
        maker = sketch.prepared(self.held, link, problem, asked.request, 60.0)
        on = Operands(*(backend.upload(np.ascontiguousarray(each)) for each in (a, b, c)))
        if maker is None:
            return None
        maker.begin(on)
        maker.compute()
        return maker.end()

    def certificate(
        self, problem: Problem, here: tuple[Array, Array, Array], there: tuple[Array, Array, Array] | None = None
    ) -> Certificate:
        """Of a product whose matrices are `here` in the slab, and on the device too, or others are `there`."""
        with closing(Certifier(problem, *here, devices=(self.held.backend.device,))) as certifier:
            asked = certifier.on_device
            assert asked is not None
            found = self.sketch(problem, *(there or here), asked)
            assert found is not None
            asked.take(found)
            return certifier.certificate(problem.precision)


def altered(rng: np.random.Generator, matrix: Array) -> Array:
    """A matrix of which one bit is another."""
    other = np.ascontiguousarray(matrix).copy()
    words = other.reshape(-1).view(UNSIGNED[matrix.itemsize])
    words[int(rng.integers(words.size))] ^= words.dtype.type(1 << int(rng.integers(8 * matrix.itemsize)))
    return other


def whole(problem: Problem, seed: int) -> tuple[Array, Array, Array]:
    """Operands as they are stored, and C."""
    a, b = operands(problem, seed=seed)
    return a, b, made(problem, a, b)


class Sketches:
    """The contract; a subclass gives the fixture `backend`."""

    @pytest.fixture
    def device(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> OnDevice:
        monkeypatch.setattr(device_sketch, "PLATFORMS", frozenset({backend.device.platform}))
        monkeypatch.setattr(device_sketch, "LEAST", 0)
        monkeypatch.setattr(device_sketch, "_SMALL", float("inf"))
        return OnDevice(WorkerContext(backend, memoryview(b"")))

    @pytest.mark.drawn(6)
    @pytest.mark.parametrize(("dtype", "trans_a", "trans_b"), list(product(ITEMSIZE, (False, True), (False, True))))
    def test_a_sketch_is_numpys(self, device: OnDevice, dtype: str, trans_a: bool, trans_b: bool) -> None:
        for m, n, k, batch in ((700, 261, 515, 1), (1, 3, 5, 4), (33, 129, 257, 3)):
            problem = Problem(m, n, k, batch, dtype, "strict", trans_a, trans_b)
            a, b, c = whole(problem, seed=m)
            (a.swapaxes(-1, -2) if trans_a else a)[..., m // 2, :] *= 0.001  # a row that has a weight
            streamed = StreamedSketch(problem, a, b, c, norms=True)
            asked = SketchOnDevice(streamed.vectors, a, b, c)
            asked.take(self.found(device, problem, a, b, c, asked))
            ours, theirs = streamed.result(), asked.sketch()
            assert theirs is not None
            assert np.array_equal(ours.weights, theirs.weights)
            scale = (ours.middle.max() + 1) * ours.columns.max()
            for name in ("largest", "middle", "whole", "columns", "results"):
                host, there = getattr(ours, name), getattr(theirs, name)
                assert host.shape == there.shape
                assert np.abs(host - there).max() <= 1e-12 * (scale if name == "largest" else host.max()), name

    def found(self, device: OnDevice, problem: Problem, *rest: Any) -> DeviceSketch:
        found = device.sketch(problem, *rest)
        assert found is not None
        assert found.seconds > 0
        return found

    @pytest.mark.drawn(2)
    @pytest.mark.parametrize(("dtype", "precision"), CLASS)
    def test_right_products_of_every_class_pass(self, device: OnDevice, dtype: str, precision: str) -> None:
        for m, n, k, batch in ((70, 530, 41, 1), (1, 3, 1030, 1), (33, 20, 17, 40), (600, 1, 9, 2), (1100, 5, 300, 3)):
            problem = Problem(m, n, k, batch, dtype, precision)
            found = device.certificate(problem, whole(problem, seed=m))
            assert found.residual <= found.bound
            assert (found.rounds, found.unchecked) == (VECTORS, 0)

    @pytest.mark.drawn(3)
    @pytest.mark.parametrize("kind", HARD)
    def test_operands_that_are_hard_to_sum_pass(self, device: OnDevice, kind: str) -> None:
        rng, problem = np.random.default_rng(5), Problem(40, 60, 700)
        a, b = (HARD[kind](rng, shape).astype(np.float32) for shape in (problem.a_shape, problem.b_shape))
        assert device.certificate(problem, (a, b, made(problem, a, b))).unchecked == 0

    @pytest.mark.rotating
    @pytest.mark.parametrize(("dtype", "precision"), KEPT)
    def test_every_bit_of_c_that_is_off_by_more_than_the_class_errs_is_found(
        self, device: OnDevice, dtype: str, precision: str
    ) -> None:
        """On the device before anybody looked: the host's C is the same."""
        problem = Problem(48, 52, 300, dtype=dtype, precision=precision)
        a, b, c = whole(problem, seed=3)
        above, c = 0, c.reshape(problem.m, problem.n)
        bound = self.bound(problem, a, b, c)
        for wrong, i, j, effect in flipped(np.random.default_rng(7), c):
            if not effect <= 2 * bound[i, j]:
                above += 1
                with pytest.raises(CertificateFailed):
                    device.certificate(problem, (a, b, wrong))
            if above == FLIPS:
                break

    def bound(self, problem: Problem, a: Array, b: Array, c: Array) -> Array:
        """What an element may be off that is not found: with rounding what all of its column may."""
        allowed, (left, right) = ClassBound.of(problem, problem.precision), applied(problem, a, b)
        rows, columns = (np.linalg.norm(x[0].astype(np.float64), axis=at) for x, at in ((left, 1), (right, 0)))
        if not allowed.rounding:
            return np.asarray(allowed.gamma * np.outer(rows, columns) + allowed.least)
        rounded = allowed.rounding * np.linalg.norm(c.astype(np.float64), axis=0)
        return np.broadcast_to(T * (allowed.gamma * np.linalg.norm(rows) * columns + rounded), c.shape)

    @pytest.mark.rotating
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize("which", range(3))
    @pytest.mark.parametrize("where", ["host", "device"])
    def test_every_bit_that_differs_between_host_and_device_is_found(
        self, device: OnDevice, which: int, where: str, dtype: str
    ) -> None:
        problem, rng = Problem(37, 51, 45, dtype=dtype), np.random.default_rng(which)
        right = whole(problem, seed=4)
        for _ in range(FLIPS // 3):
            changed = *right[:which], altered(rng, right[which]), *right[which + 1 :]
            here, there = (changed, right) if where == "host" else (right, changed)
            with pytest.raises(CertificateFailed, match=f"{'ABC'[which]} differs between host and device"):
                device.certificate(problem, cast("Any", here), cast("Any", there))

    def test_blocks_that_change_places_on_the_way_are_found(self, device: OnDevice) -> None:
        problem = Problem(512, 512, 16)
        a, b, c = whole(problem, seed=4)
        moved = c.copy().reshape(-1, 2**14)
        moved[[1, 9]] = moved[[9, 1]]
        with pytest.raises(CertificateFailed, match=r"C differs between host and device from byte 65536 .* 1 more"):
            device.certificate(problem, (a, b, moved.reshape(c.shape)), (a, b, c))

    def test_a_lost_block_and_swapped_rows_are_found(self, device: OnDevice) -> None:
        problem = Problem(64, 96, 80, batch=3)
        a, b, c = whole(problem, seed=1)
        lost, swapped = c.copy(), c.copy()
        lost[1, 16:32, 16:32] = 0
        swapped[2, [4, 5]] = swapped[2, [5, 4]]
        for wrong in (lost, swapped):
            with pytest.raises(CertificateFailed, match="is off by"):
                device.certificate(problem, (a, b, wrong))

    def test_what_is_not_finite_is_the_hosts_matter(self, device: OnDevice) -> None:
        problem = Problem(30, 40, 50)
        a, b = (each[0] for each in operands(problem, seed=2))
        a[3, 4], b[5, 6] = np.nan, np.inf
        c = made(problem, a, b).reshape(30, 40)
        assert device.certificate(problem, (a, b, c)).unchecked >= 40 + 29
        wrong = c.copy()
        wrong[20, 20] += 1e3
        with pytest.raises(CertificateFailed):
            device.certificate(problem, (a, b, wrong))

    def test_a_sketch_that_fails_is_none_and_the_hosts_holds(
        self, device: OnDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem = Problem(64, 64, 64)
        a, b, c = whole(problem, seed=1)
        with closing(Certifier(problem, a, b, c, devices=(device.held.backend.device,))) as certifier:
            asked = certifier.on_device
            assert asked is not None
            device.sketch(problem, a, b, c, asked)  # its kernels are checked

            def without_memory(*_: object) -> None:
                raise LaunchFailed("out of memory", fatal=False)

            monkeypatch.setattr(device.held.backend, "run", without_memory)
            asked.take(device.sketch(problem, a, b, c, asked))
            assert asked.sketch() is None
            assert certifier.certificate("strict").residual >= 0

    def test_a_product_that_is_made_again_has_no_sketch_of_the_first_ones_operands(
        self, device: OnDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem, backend = Problem(64, 64, 64), device.held.backend
        a, b, c = whole(problem, seed=1)
        asked = SketchOnDevice(StreamedSketch(problem, a, b, c, norms=False).vectors, a, b, c)
        maker = sketch.prepared(device.held, cast("WorkerLink", FreeLink()), problem, asked.request, 60.0)
        assert maker is not None
        on = Operands(*map(backend.upload, (a, b, c)))
        maker.begin(on)

        def without_memory(*_: object) -> None:
            raise LaunchFailed("out of memory", fatal=False)

        monkeypatch.setattr(backend, "allocate", without_memory)
        maker.begin(on)
        monkeypatch.undo()
        maker.compute()
        assert maker.end() is None

    def test_kernels_that_are_wrong_make_none(self, device: OnDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = Problem(64, 64, 64)
        a, b, c = whole(problem, seed=1)
        asked = SketchOnDevice(StreamedSketch(problem, a, b, c, norms=False).vectors, a, b, c)
        right: Callable[..., None] = device.held.backend.download

        def wrong(buffer: Any, out: Array) -> None:
            right(buffer, out)
            out.reshape(-1)[-1] += 1

        monkeypatch.setattr(device.held.backend, "download", wrong)
        assert device.sketch(problem, a, b, c, asked) is None
        assert set(device.held.state(SketchClasses).known.values()) == {False}
        monkeypatch.undo()
        assert device.sketch(problem, a, b, c, asked) is None, "it is not tried again"
