"""Registered memory belongs to who registered it, is used within its bounds, and stays open while it is used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from app.devices import cuda
from app.devices.backend import Backend, Buffer, WorkerContext
from app.devices.fleet import Fleet
from app.devices.process import DeviceWorker, WorkerLink
from app.devices.slab import Slab
from app.dtypes import Array
from app.errors import InvalidRegion, RegionExists, SharedMemoryOff, UnknownDevice, UnknownRegion, Unsupported
from app.services.principal import ANONYMOUS, Principal
from app.services.service import Service
from app.services.shared_memory.memory import CudaRegion, HostSpan, SystemRegion
from app.services.shared_memory.registry import SharedMemoryRegistry
from app.worker.serving import ipc
from app.worker.serving.ipc import IpcHandle

OTHER = Principal("other")


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=4096)
    contents(memory)[:4096] = bytes(range(256)) * 16
    yield memory
    memory.close()
    memory.unlink()


@pytest.fixture
def regions() -> Iterator[SharedMemoryRegistry]:
    slab = Slab(4096)
    regions = SharedMemoryRegistry(Fleet((), slab), allowed=True)
    yield regions
    regions.close()
    slab.close()


def contents(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None
    return memory.buf


def place(nbytes: int) -> HostSpan:
    return HostSpan(memoryview(bytearray(nbytes)), 0)


def test_every_principal_has_names_of_its_own(regions: SharedMemoryRegistry, memory: SharedMemory) -> None:
    mine, theirs = (SystemRegion("operands", memory.name, offset, 64) for offset in (0, 128))
    regions.register_system(ANONYMOUS, mine)
    regions.register_system(OTHER, theirs)
    with pytest.raises(RegionExists):
        regions.register_system(OTHER, mine)
    assert regions.listed(ANONYMOUS, "system", None) == [mine]
    assert regions.listed(OTHER, "system", "operands") == [theirs]
    assert regions.listed(OTHER, "cuda", None) == []
    regions.unregister(ANONYMOUS, "cuda", None)
    regions.unregister(ANONYMOUS, "system", None)
    with pytest.raises(UnknownRegion), regions.window(ANONYMOUS, "operands", 0, 1):
        pass
    with regions.window(OTHER, "operands", 2, 4) as window:
        read = place(4)
        window.read(read)
        assert bytes(read.view) == bytes([130, 131, 132, 133])


def test_what_is_written_stays_within_the_part(regions: SharedMemoryRegistry, memory: SharedMemory) -> None:
    regions.register_system(ANONYMOUS, SystemRegion("product", memory.name, 100, 50))
    with regions.window(ANONYMOUS, "product", 10, 8) as window:
        window.write(HostSpan(memoryview(bytearray(b"x" * 8)), 0))
    assert bytes(contents(memory)[108:120]) == bytes([108, 109]) + b"x" * 8 + bytes([118, 119])
    for offset, nbytes in ((43, 8), (-1, 8), (0, 51), (2**63, 1), (0, -1)):
        with pytest.raises(InvalidRegion), regions.window(ANONYMOUS, "product", offset, nbytes):
            pass


def test_a_region_that_is_used_is_closed_after_its_last_user(
    regions: SharedMemoryRegistry, memory: SharedMemory
) -> None:
    regions.register_system(ANONYMOUS, SystemRegion("operands", memory.name, 0, 64))
    before = open_descriptors()
    with regions.window(ANONYMOUS, "operands", 0, 64) as window:
        regions.unregister(ANONYMOUS, "system", "operands")
        assert open_descriptors() == before
        window.read(place(64))
        regions.register_system(ANONYMOUS, SystemRegion("operands", memory.name, 64, 64))
    assert open_descriptors() == before
    regions.close()
    assert open_descriptors() == before - 1


def test_unused_memory_without_a_key_is_forgotten(memory: SharedMemory) -> None:
    regions = SharedMemoryRegistry(Fleet((), cast("Slab", None)), allowed=True, abandoned=0.05)
    gone = SharedMemory(create=True, size=64)
    used = SharedMemory(create=True, size=64)
    try:
        for name, one in (("gone", gone), ("used", used), ("named", memory)):
            regions.register_system(ANONYMOUS, SystemRegion(name, one.name, 0, 64))
        gone.unlink()
        used.unlink()
        with regions.window(ANONYMOUS, "used", 0, 64):
            time.sleep(0.1)
            regions.register_system(OTHER, SystemRegion("new", memory.name, 0, 64))
        assert [region.name for region in regions.listed(ANONYMOUS, "system", None)] == ["named", "used"]
        with regions.window(ANONYMOUS, "used", 0, 64):
            pass
        regions.register_system(OTHER, SystemRegion("newer", memory.name, 0, 64))
        assert [region.name for region in regions.listed(ANONYMOUS, "system", None)] == ["named", "used"]
    finally:
        regions.close()
        gone.close()
        used.close()


def test_one_principal_holds_so_many_regions_at_most(regions: SharedMemoryRegistry, memory: SharedMemory) -> None:
    for index in range(512):
        regions.register_system(ANONYMOUS, SystemRegion(str(index), memory.name, 0, 64))
    with pytest.raises(InvalidRegion, match="unregister some"):
        regions.register_system(ANONYMOUS, SystemRegion("more", memory.name, 0, 64))
    regions.register_system(OTHER, SystemRegion("more", memory.name, 0, 64))


def test_nothing_is_registered_where_it_is_not_allowed_or_there_is_no_gpu(
    regions: SharedMemoryRegistry, memory: SharedMemory
) -> None:
    closed = SharedMemoryRegistry(Fleet((), cast("Slab", None)), allowed=False)
    with pytest.raises(SharedMemoryOff):
        closed.register_system(ANONYMOUS, SystemRegion("operands", memory.name, 0, 64))
    with pytest.raises(SharedMemoryOff):
        closed.register_cuda(ANONYMOUS, CudaRegion("operands", 0, 64), bytes(64))
    with pytest.raises(UnknownDevice, match="cuda:0"):
        regions.register_cuda(ANONYMOUS, CudaRegion("operands", 0, 64), bytes(64))
    assert not regions.has_cuda


def test_a_child_without_cuda_refuses_handles(service: Service) -> None:
    products: DeviceWorker = service.fleet.unit(None).products
    with pytest.raises(Unsupported, match="opencl:0"):
        products.call(ipc.check, IpcHandle(bytes(64), 64))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@dataclass
class HostShared:
    """Allocations of this process by their names, in the place of a GPU's."""

    memory: dict[bytes, Array]
    users: list[bytes] = field(default_factory=list)

    def open(self, raw: bytes, nbytes: int) -> Buffer:
        self.users.append(raw)
        return Buffer((raw, self.memory[raw]), nbytes)

    def write(self, buffer: Buffer, array: Array) -> None:
        buffer.handle[1][buffer.offset : buffer.offset + buffer.nbytes] = array

    def close(self, buffer: Buffer) -> None:
        self.users.remove(buffer.handle[0])


class HostBackend:
    """As much of a backend as copying from shared memory takes."""

    class device:  # noqa: N801 - it stands where an instance would
        platform, id = "cuda", "cuda:0"

    def download(self, buffer: Buffer, out: Array) -> None:
        out[:] = buffer.handle[1][buffer.offset : buffer.offset + buffer.nbytes]


class FreeLink:
    """A link to a device that nobody else wants."""

    def lease(self, deadline: float, *, last: bool = False) -> Any:
        assert deadline > 0
        assert not last
        return memoryview(b"")  # something that may be entered and left


def test_handles_are_opened_once_copied_by_their_parts_and_closed() -> None:
    raw, other = b"r" * 64, b"o" * 64
    shared = HostShared({raw: np.arange(100, dtype=np.uint8), other: np.zeros(8, np.uint8)})
    slab = memoryview(bytearray(64))
    held = WorkerContext(cast("Backend", HostBackend()), slab, {cuda.Sharing: shared})
    link = cast("WorkerLink", FreeLink())
    ipc.check(held, link, IpcHandle(raw, 100))
    ipc.fetch(held, link, IpcHandle(raw, 100), 10, 32, 4)
    assert bytes(slab[31:37]) == bytes([0, 10, 11, 12, 13, 0])
    slab[:3] = b"abc"
    ipc.deliver(held, link, IpcHandle(raw, 100), 50, 0, 3)
    assert bytes(shared.memory[raw][49:54]) == bytes([49]) + b"abc" + bytes([53])
    ipc.deliver(held, link, IpcHandle(other, 8), 0, 0, 3)  # a child that replaced another opens what it is told
    assert shared.users == [raw, other]
    for handle in (IpcHandle(raw, 100), IpcHandle(other, 8), IpcHandle(raw, 100)):
        ipc.close(held, link, handle)
    assert shared.users == []
