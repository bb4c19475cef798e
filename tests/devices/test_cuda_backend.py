from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

import numpy as np
import pytest

from app.devices.backend import Backend, Operands
from app.devices.process import Worker
from app.dtypes import numpy_dtype
from app.errors import LaunchFailed
from app.tuning.measure.racing import EVENTS, GRAPH, policy_of
from app.tuning.verify import tolerance
from kernels import CATALOGUE, cost_model
from kernels.problem import Problem
from tests.support.devices import child_functions, device_functions
from tests.support.devices.backend_contract import KERNELS, Contract, own, planned

cuda = pytest.importorskip("app.devices.cuda")
VENDOR_CLASSES = [("float16", "strict"), ("bfloat16", "strict"), ("float32", "tf32"), ("float32", "strict")]


def rotation(backend: Backend, problem: Problem, count: int) -> list[Operands]:
    """Sets of ones."""
    sets = []
    for _ in range(count):
        a, b = (
            np.ones((problem.batch, *shape), numpy_dtype(problem.dtype)) for shape in (problem.a_shape, problem.b_shape)
        )
        sets.append(Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes)))
    return sets


@pytest.mark.cuda
@pytest.mark.usefixtures("driver")
class TestCuda(Contract):
    @pytest.fixture
    def backend(self, gpu: Backend) -> Backend:
        return gpu

    @pytest.mark.parametrize("name", KERNELS)
    def test_our_occupancy_is_the_drivers(self, backend: Backend, name: str) -> None:
        kernel = CATALOGUE[name]
        cube = Problem(512, 512, 512, dtype=kernel.dtypes[0])
        problem = cube if kernel.covers(cube, backend.device) else own(name, cube)
        if not kernel.covers(problem, backend.device):
            pytest.skip(f"{name} does not compute {problem.key} on {backend.device.id}")
        legal = kernel.space.legal(problem, backend.device)
        for config in legal[:: max(7, len(legal) // 60)]:
            launch = kernel.launch(config, problem, backend.device)
            program = backend.compile(launch.build)
            assert program.registers
            ours = cost_model.occupancy(backend.device.limits, launch.threads, launch.shared_bytes, program.registers)
            assert ours is not None
            theirs = cuda.occupancy_blocks(program, launch.threads, launch.dynamic_smem_bytes)
            assert ours.blocks_per_sm == theirs, (config, program.registers)

    def test_an_illegal_address_is_fatal(self, tmp_path: Path) -> None:
        """In a child of its own: the context is lost with it."""
        child = Worker("faulty", device_functions.open_cuda, (tmp_path,))
        try:
            with pytest.raises(LaunchFailed) as failure:
                child.call(device_functions.write_out_of_bounds)
            assert failure.value.facts["fatal"] is True
            assert child.call(child_functions.pid) == child.pid
            assert child.generation == 2
        finally:
            child.close()

    def test_a_graph_runs_every_launch_and_gives_their_mean(self, backend: Backend) -> None:
        problem = Problem(512, 512, 512)
        launch = planned("tiled", problem, backend)
        program, sets = backend.compile(launch.build), rotation(backend, problem, 40)
        for _ in range(2):
            (mean,) = backend.time(program, launch, sets, GRAPH)
        alone = median(backend.time(program, launch, sets, EVENTS))
        assert 0.5 * alone < mean < 1.2 * alone
        products = [np.empty((512, 512), np.float32) for _ in sets]
        for operands, c in zip(sets, products, strict=True):
            backend.download(operands.c, c)
        assert all(np.array_equal(c, products[0]) for c in products)
        assert (products[0] == 512).all()

    def test_same_graph_is_captured_once_and_old_ones_dropped(self, backend: Any) -> None:
        problem = Problem(64, 64, 64)
        launch = planned("tiled", problem, backend)
        program, sets = backend.compile(launch.build), rotation(backend, problem, 3)
        backend.time(program, launch, sets, GRAPH)
        kept = backend.graphs
        backend.time(program, launch, sets, GRAPH)
        assert backend.graphs == kept
        for count in range(4, 60):
            backend.time(program, launch, (sets * 20)[:count], GRAPH)
        assert len(backend.graphs) == 32

    @pytest.mark.parametrize("trans_b", [False, True])
    @pytest.mark.parametrize(("dtype", "precision"), VENDOR_CLASSES)
    def test_the_vendors_library_computes_the_class_that_is_asked_for(
        self, backend: Backend, dtype: str, precision: str, trans_b: bool
    ) -> None:
        if backend.vendor.name is None or backend.device.capability < 80:
            pytest.skip(f"no vendor library of such classes: {backend.vendor.reason}")
        for m, n, k in ((512, 256, 1024), (64, 48, 16384), (255, 257, 253)):
            problem = Problem(m, n, k, 2, dtype, precision, trans_b=trans_b)
            a, b = tolerance.operands(problem, seed=m)
            operands = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
            backend.fill(operands.c, tolerance.POISON)
            backend.vendor_run(problem, operands)
            c = np.empty((2, m, n), numpy_dtype(dtype))
            backend.download(operands.c, c)
            reference = backend.reference(*tolerance.applied(problem, a, b))
            assert tolerance.judge(problem, a, b, reference, c) is None, problem.key
            if precision == "tf32" and problem.n % 4 == 0:
                strict = replace(problem, precision="strict")
                assert tolerance.judge(strict, a, b, reference, c) is not None, "it was computed strictly"

    def test_the_vendors_library_is_timed_in_a_graph_and_is_right_afterwards(self, backend: Backend) -> None:
        if backend.vendor.name is None:
            pytest.skip(f"no vendor library: {backend.vendor.reason}")
        for problem in (Problem(256, 192, 320), Problem(64, 64, 8192), Problem(32, 32, 32, 50, trans_b=True)):
            sets = rotation(backend, problem, 20)
            for _ in range(2):
                (mean,) = backend.vendor_time(problem, sets, GRAPH)
            alone = median(backend.vendor_time(problem, sets, EVENTS))
            assert 0.2 * alone < mean < 1.5 * alone, problem.key
            c = np.empty((problem.batch, problem.m, problem.n), np.float32)
            for operands in (sets[0], sets[-1]):
                backend.download(operands.c, c)
                assert (c == problem.k).all()
            backend.fill(sets[0].c, 0xFF)
            backend.vendor_run(problem, sets[0])
            backend.download(sets[0].c, c)
            assert (c == problem.k).all()

    def test_a_launch_takes_as_long_after_the_host_has_waited(self, backend: Backend) -> None:
        problem = Problem(16, 14336, 4096, dtype="float16", trans_b=True)
        launch, sets = planned("tensor_core", problem, backend), rotation(backend, problem, 4)
        program = backend.compile(launch.build)
        ways: dict[str, Callable[[Sequence[Operands], str], list[float]]] = {
            "ours": partial(backend.time, program, launch)
        }
        if backend.vendor.name is not None:
            ways["vendor"] = partial(backend.vendor_time, problem)
        for name, timed in ways.items():
            together = median(mean for _ in range(5) for mean in timed(sets * 10, GRAPH))
            for gap in (0.0, 0.001, 0.02):
                seconds = []
                for number in range(15):
                    sleep(gap)
                    seconds += timed([sets[number % 4]], EVENTS)
                # A launch between events has some 2 us of its own. After the wait one took three to four times as long.
                assert 0.9 * together < median(seconds) < 1.1 * together + 3e-6, (name, gap, together, seconds)

    def test_a_launch_takes_as_long_where_the_host_is_slow_to_queue_it(self, backend: Backend) -> None:
        limits = backend.device.limits
        timer = pytest.importorskip("app.devices.cuda.timing").LaunchTimer(limits, lambda n: backend.allocate(n).handle)
        words = pytest.importorskip("cupy").zeros(2**24, np.uint32)

        def launch(gap: float) -> None:
            sleep(gap)
            words.fill(1)

        def median_of(gap: float) -> float:
            launches = [partial(launch, gap)] * 4
            return float(
                median(each for _ in range(8) for each in timer.seconds(EVENTS, launches, self, (), nullcontext))
            )

        median_of(0)
        prompt, slow = median_of(0), median_of(5e-3)
        assert abs(slow - prompt) < 0.1 * prompt

    def test_a_launch_that_cannot_be_captured_is_a_reason_and_graphs_work_on(self, backend: Backend) -> None:
        problem = Problem(64, 64, 64)
        launch = planned("tiled", problem, backend)
        program, sets = backend.compile(launch.build), rotation(backend, problem, 3)
        impossible = replace(launch, block=(backend.device.limits.threads + 1, 1))
        for policy in (GRAPH, EVENTS):
            with pytest.raises(LaunchFailed) as failure:
                backend.time(program, impossible, sets, policy)
            assert failure.value.facts["fatal"] is False
            assert backend.time(program, launch, sets, policy)

    def test_short_problems_are_timed_by_graphs_and_long_ones_by_events(self, backend: Backend) -> None:
        assert policy_of(Problem(64, 64, 64), backend.device) == GRAPH
        assert policy_of(Problem(8192, 8192, 8192), backend.device) == EVENTS

    def test_nvml_tells_clocks_and_power(self, backend: Backend) -> None:
        reading = backend.conditions()
        assert reading is not None
        assert reading.sm_mhz
        assert reading.memory_mhz

    def test_a_spill_free_kernel_says_so(self, backend: Backend) -> None:
        program = backend.compile(planned("tiled", Problem(64, 64, 64), backend).build)
        assert program.registers
        assert program.spills == 0
