from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import childwork
import devicework
import pytest
from contract import KERNELS, Contract, planned

from app.devices.base import Backend
from app.devices.process import Child
from app.errors import LaunchFailed
from kernels import CATALOGUE, model
from kernels.problem import Problem

cuda = pytest.importorskip("app.devices.cuda")


@pytest.fixture(scope="module")
def gpu(driver: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    del driver
    backend: Backend = cuda.CudaBackend("cuda:0", tmp_path_factory.mktemp("cache"))
    yield backend
    backend.close()


@pytest.mark.cuda
@pytest.mark.usefixtures("driver")
class TestCuda(Contract):
    @pytest.fixture
    def backend(self, gpu: Backend) -> Backend:
        return gpu

    @pytest.mark.parametrize("name", KERNELS)
    def test_our_occupancy_is_the_drivers(self, backend: Backend, name: str) -> None:
        kernel, problem = CATALOGUE[name], Problem(512, 512, 512)
        for config in kernel.space.legal(problem, backend.device)[::7]:
            launch = kernel.launch(config, problem, backend.device)
            program = backend.compile(launch.build)
            assert program.registers
            ours = model.occupancy(backend.device.limits, launch.threads, launch.shared_bytes, program.registers)
            assert ours is not None
            assert ours.blocks_per_sm == cuda.occupancy_blocks(program, launch.threads), (config, program.registers)

    def test_an_illegal_address_is_fatal(self, tmp_path: Path) -> None:
        """In a child of its own: the context is lost with it."""
        child = Child("faulty", devicework.open_cuda, (tmp_path,))
        try:
            with pytest.raises(LaunchFailed) as failure:
                child.call(devicework.write_out_of_bounds)
            assert failure.value.facts["fatal"] is True
            assert child.call(childwork.pid) == child.pid
            assert child.generation == 2
        finally:
            child.close()

    def test_a_spill_free_kernel_says_so(self, backend: Backend) -> None:
        program = backend.compile(planned("tiled", Problem(64, 64, 64), backend).build)
        assert program.registers
        assert program.spills == 0
