"""The protocol of base.Backend, run on every device that can be had."""

from __future__ import annotations

import secrets
from dataclasses import replace
from itertools import product
from statistics import median
from time import perf_counter

import numpy as np
import pytest

from app.devices.backend import Backend, Buffer, Operands, Program
from app.dtypes import Array, numpy_dtype
from app.errors import CompileFailed, LaunchFailed
from app.tuning.measure.racing import EVENTS, GRAPH, policy_of
from kernels import CATALOGUE
from kernels.launch import Build, Launch
from kernels.problem import ITEMSIZE, Problem
from kernels.sources import source
from kernels.split_k import accumulation
from tests.support.pairwise import crossed

PAGE = 4096
SIZES = [(1, 1, 1), (1, 37, 5), (29, 1, 33), (67, 35, 1), (70, 133, 65)]
KERNELS = sorted(CATALOGUE)
# Compiled for seconds; the grids of all kernels have tests of their own.
LONG = {name: pytest.param(name, marks=pytest.mark.slow) for name in KERNELS if name not in {"naive", "tiled"}}
CLASSES = list(product(ITEMSIZE, (False, True), (False, True)))
# PoCL takes a second for each: few of them by default, with every kernel, dtype and transposition among them.
USUAL = {("float32", True, False), ("float64", False, True), ("float16", False, False), ("bfloat16", True, True)}
# Of the kernels whose own tests run each class on the processor, one or two are enough of what a backend does.
ENOUGH = {
    "naive": {("float32", True, False), ("bfloat16", True, True)},
    "tiled": {("float64", False, True)},
    "batched": {("float32", True, False)},
    "register_tiled": set(),
    "skinny": set(),
    "tall": {("float32", True, False)},
}
NAMED_CLASSES = [
    pytest.param(name, dtype, a, b, marks=[] if (dtype, a, b) in ENOUGH.get(name, USUAL) else [pytest.mark.slow])
    for name, (dtype, a, b) in product(KERNELS, CLASSES)
    if dtype in CATALOGUE[name].dtypes
]
# What kernels for some shapes are for: their configs are chosen there, and answer right on all. Such small tiles as
# these are soon compiled.
OWN = {"batched": (30, 30, 30), "tall": (8, 2100, 9), "skinny": (2, 133, 65)}
POISON = 0xFF
STRAY = """
KERNEL(8, 1) matmul(const GLOBAL REAL *a, const GLOBAL REAL *b, GLOBAL REAL *c, const INDEX m, const INDEX n,
                    const INDEX k)
{
    for (int i = 0; i < 131072; i += 1024) {
        c[i + THREAD_X] = k;
        c[-1 - i - THREAD_X] = k;
    }
}"""


def integers(problem: Problem, shape: tuple[int, int], draw: np.random.Generator) -> Array:
    """Small integers: sums of their products are exact in every accumulator, in whatever order."""
    return draw.integers(-8, 9, (problem.batch, *shape)).astype(numpy_dtype(problem.dtype))


def exact(problem: Problem, a: Array, b: Array) -> Array:
    left = a.swapaxes(-1, -2) if problem.trans_a else a
    right = b.swapaxes(-1, -2) if problem.trans_b else b
    return np.asarray(np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(numpy_dtype(problem.dtype)))


def own(name: str, like: Problem) -> Problem:
    """A problem that a kernel is for, stored as another is."""
    m, n, k = OWN.get(name, (70, 133, 65))
    return replace(like, m=m, n=n, k=k, batch=1)


def planned(name: str, problem: Problem, backend: Backend, like: Problem | None = None) -> Launch:
    """A launch with the default config, or another problem's default: fewer configs are fewer compilations."""
    kernel, device = CATALOGUE[name], backend.device
    chosen = like or (problem if kernel.covers(problem, device) else own(name, problem))
    if not kernel.covers(chosen, device):
        pytest.skip(f"{name} does not compute {chosen.key} on {device.id}")
    return kernel.for_problem(kernel.launch(kernel.default(chosen, device), chosen, device), problem)


def spread(launch: Launch) -> Launch:
    """The same binary with a block for each tile, where a block has several."""
    if "TILES" not in launch.config:
        return launch
    kernel = CATALOGUE[launch.kernel]
    return kernel.for_problem(
        replace(launch, config=kernel.space.config({**launch.config, "TILES": 1})), launch.problem
    )


def generator() -> np.random.Generator:
    seed = secrets.randbits(32)
    print("seed", seed)
    return np.random.default_rng(seed)


class Contract:
    """What any Backend must do; a subclass gives the fixture `backend`."""

    @pytest.mark.rotating
    @pytest.mark.parametrize(("name", "dtype", "trans_a", "trans_b"), NAMED_CLASSES)
    def test_integer_products_are_exact_within_their_edges(
        self, backend: Backend, name: str, dtype: str, trans_a: bool, trans_b: bool
    ) -> None:
        draw, programs = generator(), dict[Build, Program]()
        for (m, n, k), batch in product(SIZES, (1, 3)):
            problem = Problem(m, n, k, batch, dtype, trans_a=trans_a, trans_b=trans_b)
            launch = planned(name, problem, backend, like=own(name, problem))
            program = programs.get(launch.build) or programs.setdefault(launch.build, backend.compile(launch.build))
            a, b = integers(problem, problem.a_shape, draw), integers(problem, problem.b_shape, draw)
            guarded = backend.allocate(problem.c_bytes + 2 * PAGE)
            backend.fill(guarded, POISON)
            operands = Operands(backend.upload(a), backend.upload(b), guarded.window(PAGE, problem.c_bytes))
            backend.run(program, launch, operands)
            landing = np.empty(guarded.nbytes, np.uint8)
            backend.download(guarded, landing)
            c = landing[PAGE:-PAGE].view(numpy_dtype(dtype)).reshape(batch, m, n)
            assert np.array_equal(c, exact(problem, a, b)), problem.key
            assert (landing[:PAGE] == POISON).all()
            assert (landing[-PAGE:] == POISON).all()

    @pytest.mark.rotating
    @pytest.mark.parametrize("name", [LONG.get(name, name) for name in KERNELS])
    def test_a_grid_of_more_than_65535_work_items_is_right(self, backend: Backend, name: str) -> None:
        draw = generator()
        problem = Problem(1200, 8001, 3)
        a, b = integers(problem, problem.a_shape, draw), integers(problem, problem.b_shape, draw)
        launch = spread(planned(name, problem, backend))
        assert launch.grid * launch.block[0] > 65_535 or backend.device.platform == "cuda"
        program = backend.compile(launch.build)
        backend.warm(program, launch)
        operands = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
        backend.run(program, launch, operands)
        c = np.empty((1, problem.m, problem.n), np.float32)
        backend.download(operands.c, c)
        assert np.array_equal(c, exact(problem, a, b))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_slices_product_is_added_to_c_and_to_nothing_beside_it(self, backend: Backend, dtype: str) -> None:
        for m, n in ((1, 1), (3, 1), (31, 67), (64, 128), (129, 1027)):
            launch = accumulation(Problem(m, n, 7, dtype=dtype))
            program, room = backend.compile(launch.build), launch.problem.c_bytes
            terms = np.arange(2 * m * n, dtype=dtype).reshape(2, m, n)
            partial, c = backend.upload(terms[0]), backend.allocate(room + 2 * PAGE)
            backend.fill(c, 0x5A)
            backend.write(c.window(PAGE, room), terms[1])
            backend.run(program, launch, Operands(partial, partial, c.window(PAGE, room)))
            out = np.empty(room + 2 * PAGE, np.uint8)
            backend.download(c, out)
            assert np.array_equal(out[PAGE:-PAGE].view(dtype).reshape(m, n), terms[0] + terms[1])
            assert (out[:PAGE] == 0x5A).all()
            assert (out[-PAGE:] == 0x5A).all()

    def test_what_is_uploaded_comes_back_through_any_window(self, backend: Backend) -> None:
        content = generator().integers(0, 256, 4 * PAGE).astype(np.uint8)
        buffer = backend.upload(content)
        out = np.empty(PAGE, np.uint8)
        backend.download(buffer.window(2 * PAGE, PAGE), out)
        assert np.array_equal(out, content[2 * PAGE : 3 * PAGE])
        backend.download(buffer.window(PAGE, 3 * PAGE).window(PAGE, PAGE), out)
        assert np.array_equal(out, content[2 * PAGE : 3 * PAGE])

    def test_what_is_written_into_a_part_of_a_buffer_lands_there_alone(self, backend: Backend) -> None:
        content = generator().integers(0, 256, 4 * PAGE).astype(np.uint8)
        buffer = backend.allocate(content.nbytes)
        backend.fill(buffer, POISON)
        backend.write(buffer.window(PAGE, PAGE + 5), content[PAGE : 2 * PAGE + 5])
        out = np.empty(content.nbytes, np.uint8)
        backend.download(buffer, out)
        assert np.array_equal(out[PAGE : 2 * PAGE + 5], content[PAGE : 2 * PAGE + 5])
        assert (out[:PAGE] == POISON).all()
        assert (out[2 * PAGE + 5 :] == POISON).all()
        backend.write(buffer.window(PAGE, 3 * PAGE).window(2 * PAGE, PAGE), content[3 * PAGE :])
        backend.write(buffer.window(0, PAGE), content[:PAGE])
        backend.write(buffer.window(2 * PAGE, PAGE).window(0, PAGE), content[2 * PAGE : 3 * PAGE])
        backend.download(buffer, out)
        assert np.array_equal(out, content)

    def test_poison_makes_every_float_nan_and_stays_in_its_window(self, backend: Backend) -> None:
        buffer = backend.upload(np.zeros(3 * PAGE, np.uint8))
        backend.fill(buffer.window(PAGE, PAGE), POISON)
        out = np.empty(3 * PAGE, np.uint8)
        backend.download(buffer, out)
        for dtype in (np.float32, np.float64):
            assert np.isnan(out[PAGE : 2 * PAGE].view(dtype)).all()
        assert not out[:PAGE].any()
        assert not out[2 * PAGE :].any()

    def test_the_compilers_own_words_are_the_error(self, backend: Backend) -> None:
        with pytest.raises(CompileFailed, match="the parameters do not fit"):
            backend.compile(Build("broken", "#error the parameters do not fit\n", "matmul", ()))
        launch = planned("tiled", Problem(8, 8, 8), backend)
        macros = tuple(macro for macro in launch.build.macros if macro[0] != "BK")
        with pytest.raises(CompileFailed, match="BK must be defined"):
            backend.compile(Build("tiled", launch.build.text, "matmul", macros))
        with pytest.raises(CompileFailed):
            backend.compile(Build("tiled", launch.build.text, "no_such_function", launch.build.macros))

    def test_memory_that_is_not_there_is_refused_and_the_device_lives_on(self, backend: Backend) -> None:
        with pytest.raises(LaunchFailed) as failure:
            backend.allocate(2**50)
        assert failure.value.facts["fatal"] is False
        assert backend.allocate(PAGE).nbytes == PAGE
        assert backend.free_bytes() > PAGE

    def test_warming_up_tells_when_nothing_is_left_to_compile(self, backend: Backend) -> None:
        launch = planned("naive", Problem(50, 40, 30), backend)
        told: list[str] = []
        backend.warm(backend.compile(launch.build), launch, lambda: told.append("compiled"))
        assert told == ["compiled"]

    @pytest.mark.rotating
    def test_what_is_written_near_the_operands_while_warming_up_does_no_harm(self, backend: Backend) -> None:
        """Half a mebibyte before and past C: on a CPU that memory is the process's own."""
        wide = "#define DTYPE_FLOAT32\n" + source("common/portable.h") + STRAY
        launch = replace(planned("naive", Problem(64, 64, 64), backend), block=(8, 1))
        launch = replace(launch, build=Build("stray", wide, "matmul", ()))
        for _ in range(3):
            backend.warm(backend.compile(launch.build), launch)
        assert backend.allocate(PAGE).nbytes == PAGE

    def test_timing_gives_one_positive_sample_for_each_set_in_order(self, backend: Backend) -> None:
        problem = Problem(64, 64, 64)
        launch = planned("tiled", problem, backend)
        program = backend.compile(launch.build)
        draw = generator()
        a = backend.upload(integers(problem, problem.a_shape, draw))
        b = backend.upload(integers(problem, problem.b_shape, draw))
        sets = [Operands(a, b, backend.allocate(problem.c_bytes)) for _ in range(3)]
        assert backend.time(program, launch, [], EVENTS) == []
        samples = backend.time(program, launch, sets, EVENTS)
        assert len(samples) == 3
        assert all(0 < seconds < 10 for seconds in samples)
        products = [np.empty((64, 64), np.float32) for _ in sets]
        for operands, c in zip(sets, products, strict=True):
            backend.download(operands.c, c)
        assert np.array_equal(products[0], products[2])

    def test_a_longer_sum_takes_longer_by_the_devices_clock(self, backend: Backend) -> None:
        seconds = []
        for k in (64, 8192):
            problem = Problem(64, 64, k)
            launch = planned("tiled", problem, backend)
            program = backend.compile(launch.build)
            a, b = np.ones(problem.a_shape, np.float32), np.ones(problem.b_shape, np.float32)
            operands = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
            seconds.append(min(backend.time(program, launch, [operands] * 5, EVENTS)))
        assert seconds[1] > 4 * seconds[0]

    @crossed(dtype=list(ITEMSIZE), trans_a=(False, True), trans_b=(False, True))
    def test_the_vendors_library_is_right_for_every_class(
        self, backend: Backend, dtype: str, trans_a: bool, trans_b: bool
    ) -> None:
        if backend.vendor.name is None:
            assert backend.vendor.reason
            pytest.skip(f"no vendor library: {backend.vendor.reason}")
        draw = generator()
        for (m, n, k), batch in product(SIZES, (1, 3)):
            problem = Problem(m, n, k, batch, dtype, trans_a=trans_a, trans_b=trans_b)
            a, b = integers(problem, problem.a_shape, draw), integers(problem, problem.b_shape, draw)
            operands = Operands(backend.upload(a), backend.upload(b), self._windowed(backend, problem))
            backend.vendor_run(problem, operands)
            c = np.empty((batch, m, n), numpy_dtype(dtype))
            backend.download(operands.c, c)
            assert np.array_equal(c, exact(problem, a, b)), problem.key
            assert all(seconds > 0 for seconds in backend.vendor_time(problem, [operands] * 2, EVENTS))

    def test_a_policy_that_the_device_does_not_have_is_an_error(self, backend: Backend) -> None:
        problem = Problem(64, 64, 64)
        launch = planned("tiled", problem, backend)
        program, one = backend.compile(launch.build), backend.allocate(problem.c_bytes)
        with pytest.raises(ValueError, match="no policy 'stopwatch'"):
            backend.time(program, launch, [Operands(one, one, one)], "stopwatch")
        assert policy_of(problem, backend.device) in {EVENTS, GRAPH}

    def test_what_the_sensors_say_is_sane(self, backend: Backend) -> None:
        reading = backend.conditions()
        if reading is None:
            return
        assert reading.sm_mhz is None or 50 < reading.sm_mhz < 5000
        assert reading.memory_mhz is None or 50 < reading.memory_mhz < 20_000
        assert reading.watts is None or 0 < reading.watts < 3000
        assert reading.celsius is None or 0 < reading.celsius < 120

    @pytest.mark.timing
    def test_what_the_sensors_say_is_cheap(self, backend: Backend) -> None:
        seconds = []
        for _ in range(20):
            started = perf_counter()
            backend.conditions()
            seconds.append(perf_counter() - started)
        assert median(seconds) < 5e-3

    def test_the_vendor_has_a_name_with_a_version(self, backend: Backend) -> None:
        name, reason = backend.vendor.name, backend.vendor.reason
        assert (name is None) != (reason is None)
        assert name is None or name.split()[-1][0].isdigit()

    def test_the_reference_is_float64_and_takes_views(self, backend: Backend) -> None:
        draw = generator()
        a = draw.standard_normal((3, 20, 31)).astype(np.float32)
        b = draw.standard_normal((3, 17, 31)).astype(np.float32)
        expected = np.matmul(a.astype(np.float64), b.swapaxes(1, 2).astype(np.float64))
        for left, right, want in ((a, b.swapaxes(1, 2), expected), (a[1], b[1].T, expected[1])):
            found = backend.reference(left, right)
            assert found.dtype == np.float64
            assert found.shape == want.shape
            assert np.abs(found - want).max() < 1e-13

    def test_the_identity_is_sane_and_stays_the_same(self, backend: Backend) -> None:
        device, limits = backend.device, backend.device.limits
        assert device.id.startswith(device.platform + ":")
        assert all((device.name, device.architecture, device.driver, device.runtime, device.compiler))
        assert device.memory_bytes >= 2**28
        assert limits.threads >= 64
        assert limits.shared_bytes >= 16 * 1024
        assert limits.sms >= 1
        assert 1e8 < limits.bandwidth < 1e14
        assert 1e9 < limits.peak < 1e16
        assert 0 < limits.peak64 <= limits.peak
        assert limits.cache_bytes == 0 or 2**18 <= limits.cache_bytes < 2**32

    def _windowed(self, backend: Backend, problem: Problem) -> Buffer:
        """C behind a page of something else: vendors must heed the window too."""
        return backend.allocate(problem.c_bytes + PAGE).window(PAGE, problem.c_bytes)
