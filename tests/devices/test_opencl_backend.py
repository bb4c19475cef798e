from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from app.devices.backend import Backend, Operands
from app.devices.opencl import OpenCLBackend
from app.devices.opencl.pocl.cpu_name import name_for
from app.devices.opencl.pocl.cpuid import processor
from app.devices.process import Worker
from app.devices.threads import wait_until_idle
from app.errors import ChildTimedOut
from app.tuning.measure.racing import EVENTS, GRAPH
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.support.devices import device_functions
from tests.support.devices.backend_contract import Contract, planned


class TestOpenCL(Contract):
    @pytest.fixture
    def backend(self, opencl: OpenCLBackend) -> Backend:
        return opencl

    @pytest.mark.rotating
    def test_after_warming_no_launch_compiles_anything(self, backend: Backend, cache_dir: Path) -> None:
        """PoCL compiles per local size and class of grid, and writes what it compiled into its cache."""
        for problem in (Problem(100, 50, 9), Problem(1500, 700, 2)):
            kernel = CATALOGUE["tiled"]
            config = kernel.space.config({"BM": 16, "BN": 8, "BK": 4})
            launch = kernel.launch(config, problem, backend.device)
            program = backend.compile(launch.build)
            backend.warm(program, launch)
            warmed = compiled(cache_dir)
            operands = [backend.allocate(size) for size in (problem.a_bytes, problem.b_bytes, problem.c_bytes)]
            backend.run(program, launch, Operands(*operands))
            assert compiled(cache_dir) == warmed

    @pytest.mark.slow
    def test_what_was_compiled_once_is_found_on_disk(self, tmp_path: Path) -> None:
        # In a process of its own: PoCL's cache stays where the first to load it wanted it.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            before, after = pool.submit(compiled_twice, tmp_path).result(60)
        assert before
        assert after == before

    def test_a_graph_is_refused_and_there_are_no_sensors(self, backend: Backend) -> None:
        problem = Problem(8, 8, 8)
        one = backend.allocate(problem.c_bytes)
        launch = planned("tiled", problem, backend)
        with pytest.raises(ValueError, match="OpenCL has no policy 'graph'"):
            backend.time(backend.compile(launch.build), launch, [Operands(one, one, one)], GRAPH)
        with pytest.raises(ValueError, match="OpenCL has no policy 'graph'"):
            backend.vendor_time(problem, [Operands(one, one, one)], GRAPH)
        assert backend.conditions() is None

    def test_nobody_computes_beside_the_vendors_library_or_after_it(self, backend: Backend) -> None:
        """Workers of a BLAS that wait for more work on a core would slow the next kernel down."""
        problem = Problem(256, 256, 256)
        zeros = np.zeros((256, 256), np.float32)
        operands = [backend.upload(zeros), backend.upload(zeros), backend.allocate(problem.c_bytes)]
        for _ in range(5):
            assert all(seconds > 0 for seconds in backend.vendor_time(problem, [Operands(*operands)], EVENTS))
            assert wait_until_idle(0.1)

    def test_the_cache_is_the_systems_largest(self, backend: Backend) -> None:
        assert backend.device.limits.cache_bytes >= 2**20

    def test_the_processor_is_one_that_llvm_knows(self, backend: Backend) -> None:
        found = processor()
        assert found is not None
        assert backend.device.architecture == name_for(found.features, backend.device.architecture)
        assert backend.device.name == found.name
        assert backend.device.model.split(" | ")[2] == f"{backend.device.limits.sms} cores"

    @pytest.mark.slow
    def test_a_kernel_that_never_ends_is_not_taken_for_a_compilation(self, cache_dir: Path) -> None:
        """In a child of its own: the launch cannot be broken off."""
        child = Worker("endless", device_functions.open_opencl, (cache_dir,))
        try:
            with pytest.raises(ChildTimedOut) as failure:
                child.call(device_functions.warm_an_endless_kernel, 60.0, 1.0)
            assert failure.value.facts == {"stage": "launch", "deadline": 1.0}
        finally:
            child.close()

    def test_two_openings_agree_on_the_model(self, backend: Backend, cache_dir: Path) -> None:
        again = OpenCLBackend("opencl:0", cache_dir).device
        assert again.model == backend.device.model
        assert again.environment == backend.device.environment
        assert again.uuid == backend.device.uuid


def compiled_twice(cache_dir: Path) -> tuple[dict[Path, int], dict[Path, int]]:
    """What is on disk after one backend has compiled a kernel, and after another has."""
    found = []
    for _ in range(2):
        backend = OpenCLBackend("opencl:0", cache_dir)
        launch = planned("tiled", Problem(9, 9, 9), backend)
        backend.warm(backend.compile(launch.build), launch)
        found.append(compiled(cache_dir))
    return found[0], found[1]


def compiled(cache_dir: Path) -> dict[Path, int]:
    """Every binary that PoCL has written, with the time of its writing."""
    return {path: path.stat().st_mtime_ns for path in (cache_dir / "pocl").rglob("*.so")}
