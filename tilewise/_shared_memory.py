"""Products through memory that client and service share, by the Open Inference Protocol where the service has it."""

from __future__ import annotations

import json
import mmap
import os
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewise._http1 import HttpRequest
from tilewise._operands import Array, OperandPlan, StoredOperand
from tilewise._pool import Transport
from tilewise._sansio import Flow, Work
from tilewise.errors import ClientError, TimedOut

LEAST: Final = 2**20  # bytes of a product for which it is worth it
_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where the C library keeps shared memory on Linux
_GRAIN: Final = 2**21
_KEPT: Final = 2
_ALIGNED: Final = 64
_DATATYPES: Final = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}
_REGIONS: Final = "/v2/systemsharedmemory/region"


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that the service has taken on under `name`; its file has no name any more, so that nothing outlives us."""

    name: str
    memory: mmap.mmap
    nbytes: int

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A part of it as an array, which must be gone before the memory is closed."""
        return np.frombuffer(self.memory, dtype, prod(shape), offset).reshape(shape)


class Shared:
    """The regions of one client."""

    def __init__(self, transport: Transport, *, allowed: bool) -> None:
        self._transport = transport
        self._offered: bool | None = None if allowed and transport.place.local else False
        self.idle: deque[Region] = deque()
        self.dropped: deque[Region] = deque()
        self._owner = os.getpid()

    def product(self, asked: OperandPlan, options: Mapping[str, Any], room: Array) -> Flow[Mapping[str, str] | None]:
        """Make a product, and give the answer's headers; None if it has to go through the socket.

        Whatever goes wrong here goes through the socket, which tells what is wrong with the product itself.
        """
        a_bytes, b_bytes = (stored.array.size * asked.dtype.itemsize for stored in (asked.a, asked.b))
        ends = (_up(a_bytes), _up(a_bytes) + _up(b_bytes), _up(a_bytes) + _up(b_bytes) + room.nbytes)
        if ends[2] < LEAST or asked.a.name or asked.b.name or not (yield from self._is_offered()):
            return None
        region = yield from self._taken(ends[2])
        if region is None:
            return None
        try:
            yield Work(lambda: _sent(asked, region, ends[0]))
            reply = yield from self._transport.exchange(_infer(asked, options, region, ends))
            yield Work(lambda: np.copyto(room, region.array(ends[1], room.shape, room.dtype)))
        except BaseException as error:
            self.dropped.append(region)  # the service may be about to write into it
            if isinstance(error, TimedOut) or not isinstance(error, ClientError):
                raise
            return None
        self.idle.append(region)
        return reply.headers

    def give_back(self, keep: int = 0) -> Flow[None]:
        """Have the service forget what is not used, but `keep` of it."""
        while len(self.idle) > keep:
            self.dropped.append(self.idle.popleft())
        while self.dropped:
            region = self.dropped.popleft()
            with suppress(BufferError):  # what an error's traceback still shows goes with it
                region.memory.close()
            if self._owner == os.getpid():
                with suppress(ClientError):
                    yield from self._transport.exchange(
                        HttpRequest("POST", f"{_REGIONS}/{region.name}/unregister", again=True)
                    )

    def _is_offered(self) -> Flow[bool]:
        if self._owner != os.getpid():  # a forked child's descriptors are its parent's regions
            self.idle.clear()
            self.dropped.clear()
            self._owner = os.getpid()
        if self._offered is None:
            try:
                told = (
                    yield from self._transport.exchange(HttpRequest("GET", "/v2", again=True, patient=False))
                ).json()
                self._offered = "system_shared_memory" in told.get("extensions", ())
            except TimedOut:
                raise
            except (ClientError, AttributeError):
                return False
        return self._offered

    def _taken(self, nbytes: int) -> Flow[Region | None]:
        """A region of so many bytes that nobody uses; None if there can be none."""
        with suppress(IndexError):
            region = self.idle.pop()
            if region.nbytes >= nbytes:
                return region
            self.dropped.append(region)
        yield from self.give_back(_KEPT)
        name = f"tilewise-client-{uuid.uuid4().hex}"
        size = -(-nbytes // _GRAIN) * _GRAIN
        try:
            fd = os.open(_FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            self._offered = False
            return None
        try:
            os.posix_fallocate(fd, 0, size)  # what is merely promised would end a process when it is missing
            memory = mmap.mmap(fd, size)
            yield from self._transport.exchange(_registration(name, size))
        except BaseException as error:
            self._offered = self._offered and not isinstance(error, ClientError)
            if isinstance(error, OSError | ClientError):
                return None
            raise
        finally:
            os.close(fd)
            (_FOLDER / name).unlink(missing_ok=True)
        return Region(name, memory, size)


def _registration(name: str, nbytes: int) -> HttpRequest:
    return _post(f"{_REGIONS}/{name}/register", {"key": f"/{name}", "offset": 0, "byte_size": nbytes})


def _infer(asked: OperandPlan, options: Mapping[str, Any], region: Region, ends: tuple[int, int, int]) -> HttpRequest:
    inputs = [
        _tensor("A", asked, asked.a, _part(region, 0, asked.a.array.size * asked.dtype.itemsize)),
        _tensor("B", asked, asked.b, _part(region, ends[0], asked.b.array.size * asked.dtype.itemsize)),
    ]
    outputs = [{"name": "C", "parameters": _part(region, ends[1], ends[2] - ends[1])}]
    given = {name: value for name, value in options.items() if value is not None}
    return _post("/v2/models/matmul/infer", {"parameters": given, "inputs": inputs, "outputs": outputs})


def _tensor(name: str, asked: OperandPlan, stored: StoredOperand, part: Mapping[str, Any]) -> dict[str, Any]:
    rows, columns = asked.sizes(name)
    batch = asked.problem.batch if asked.problem else 1
    shape = [*([batch] if batch > 1 else []), *((columns, rows) if stored.transposed else (rows, columns))]
    return {"name": name, "datatype": _DATATYPES[asked.dtype.name], "shape": shape, "parameters": part}


def _sent(asked: OperandPlan, region: Region, second: int) -> None:
    """Copy both operands into the region, each as it is stored."""
    for offset, stored in ((0, asked.a), (second, asked.b)):
        array = stored.array.swapaxes(-1, -2) if stored.transposed else stored.array
        np.copyto(region.array(offset, array.shape, asked.dtype), array)


def _part(region: Region, offset: int, nbytes: int) -> dict[str, Any]:
    return {
        "shared_memory_region": region.name,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": nbytes,
    }


def _up(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _post(path: str, body: object) -> HttpRequest:
    # Not sent again behind a broken connection: the first may still be at work on the region.
    return HttpRequest("POST", path, (memoryview(json.dumps(body).encode()),), {"Content-Type": "application/json"})
