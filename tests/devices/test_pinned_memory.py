"""The slab is page-locked where there is a GPU, and copied from as before where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pytest

from app.devices.backend import Backend
from app.devices.slab import Slab, attach

cuda = pytest.importorskip("app.devices.cuda")
runtime = pytest.importorskip("cupy.cuda.runtime")
HOST_MEMORY = 1  # cudaMemoryTypeHost


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = Slab(2**28)
    yield slab
    slab.close()


def devices() -> int:
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return 0


@pytest.mark.skipif(devices() > 0, reason="there is a GPU")
def test_without_a_gpu_memory_stays_unlocked_with_a_reason(slab: Slab) -> None:
    memory = attach(slab.fd, slab.nbytes)
    reason = cuda.lock(slab.fd, memory)
    assert reason is not None
    assert "cannot be locked" in reason
    memory[:4] = b"mine"
    assert bytes(slab.view(slab.lend(4))[:4]) == b"mine"


@pytest.mark.cuda
@pytest.mark.usefixtures("driver")
def test_locked_memory_is_known_to_the_driver_and_copied_faster(backend: Backend, slab: Slab) -> None:
    def rate() -> float:
        array = np.frombuffer(memory, np.uint8)
        backend.upload(array)
        began = perf_counter()
        for _ in range(5):
            backend.upload(array)
        return 5 * len(memory) / (perf_counter() - began)

    memory = attach(slab.fd, slab.nbytes)
    memory[::4096] = bytes(len(memory) // 4096)
    before = rate()
    assert cuda.lock(slab.fd, memory) is None
    address = np.frombuffer(memory, np.uint8).ctypes.data
    try:
        assert runtime.pointerGetAttributes(address).type == HOST_MEMORY
        after = rate()
    finally:  # else the driver still has the pages once they are unmapped, and allocations after this fail
        runtime.hostUnregister(address)
    print(f"{before / 1e9:.1f} GB/s before, {after / 1e9:.1f} GB/s locked")
    assert after > 1.3 * before


@pytest.fixture
def backend(driver: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    del driver
    backend: Backend = cuda.CudaBackend("cuda:0", tmp_path_factory.mktemp("cache"))
    yield backend
    backend.close()
