"""What a worker's function reads and writes of the slab, and the same call with its operands elsewhere."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from app.cluster.messages import NO_OPERANDS, NodeOperands, SharedSlab, whole_pages
from app.devices.slab import Slab, SlabRegion
from app.dtypes import Array
from app.errors import Unsupported
from app.worker.serving import batched, chunked_transfer, ipc, product
from app.worker.serving.device_memory import Panel
from app.worker.serving.product import MultiplyRequest, MultiplyResult

_TOKEN: Final = 32  # bytes by which a slab is known to be the one that was meant
_IPC: Final = (ipc.check, ipc.fetch, ipc.deliver, ipc.close)


@dataclass(frozen=True, slots=True)
class StagedCall:
    """A call's arguments with offsets from 0 on, the operands that lie there, and what its value becomes here."""

    arguments: tuple[Any, ...]
    operands: NodeOperands = NO_OPERANDS
    finish: Callable[[Any], Any] = lambda value: value


def local_answer(function: Callable[..., Any]) -> tuple[Any] | None:
    """The value of a function of copies that a node never keeps, in a tuple; None for any other function.

    Raises Unsupported for memory that only processes of one host can share.
    """
    if function in _IPC:
        raise Unsupported("a device of another node cannot open this host's memory")
    if function is chunked_transfer.upload_chunk:
        return (0,)  # nothing goes ahead of its product
    if function is chunked_transfer.download_chunk:
        return (True,)  # the whole of it came with its product
    return ((),) if function is product.forget else None


def staged(function: Callable[..., Any], arguments: tuple[Any, ...]) -> StagedCall:
    """The call as a node makes it: products bring all of their operands, and leave nothing there."""
    if function is product.multiply:
        request: MultiplyRequest = arguments[0]
        (plain,), operands = _moved([request])
        loaded = len({*request.keys[:2]} - {None})
        return StagedCall((plain,), operands, lambda value: _loaded(value, loaded))
    if function is batched.multiply:
        plains, operands = _moved(arguments[0])
        return StagedCall((plains, *arguments[1:]), operands)
    return StagedCall(arguments)


def _loaded(result: MultiplyResult, loaded: int) -> MultiplyResult:
    return replace(result, loaded=loaded)


def _moved(requests: Iterable[MultiplyRequest]) -> tuple[tuple[MultiplyRequest, ...], NodeOperands]:
    """Requests whose operands lie one after the other from 0 on, then their results, and where these are now."""
    panels = [_panels(request) for request in requests]
    reads, writes = [panel for a, b, _ in panels for panel in (a, b)], [c for _, _, c in panels]
    starts = np.cumsum([0, *(whole_pages(panel.nbytes) for panel in (*reads, *writes))]).tolist()
    plains = []
    for number, request in enumerate(requests):
        at = starts[2 * number], starts[2 * number + 1], starts[len(reads) + number]
        plain = MultiplyRequest(request.problem, request.launch, *at, allowed=request.allowed)
        plains.append(replace(plain, sketch=request.sketch))
    return tuple(plains), NodeOperands(tuple(reads), tuple(writes))


def _panels(request: MultiplyRequest) -> tuple[Panel, Panel, Panel]:
    """A, B and C of a request in the slab, those of a tile too."""
    if request.tile is not None:
        return request.tile.a, request.tile.b, request.tile.c
    problem = request.problem
    places = (request.a, problem.a_bytes), (request.b, problem.b_bytes), (request.c, problem.c_bytes)
    a, b, c = (Panel(0, offset, 1, nbytes, nbytes) for offset, nbytes in places)
    return a, b, c


def shifted(function: Callable[..., Any] | None, arguments: tuple[Any, ...], by: int) -> tuple[Any, ...]:
    """The arguments of a staged call whose operands begin at an offset of a slab."""
    if function is product.multiply:
        return (_shifted(arguments[0], by),)
    if function is batched.multiply:
        return (tuple(_shifted(request, by) for request in arguments[0]), *arguments[1:])
    return arguments


def _shifted(request: MultiplyRequest, by: int) -> MultiplyRequest:
    return replace(request, a=request.a + by, b=request.b + by, c=request.c + by)


def rows(memory: memoryview | mmap.mmap, panel: Panel) -> Array:
    """The rows of a panel, as bytes."""
    return np.ndarray((panel.rows, panel.width), np.uint8, memory, panel.offset, (panel.pitch, 1))


def at(offset: int, panel: Panel) -> Panel:
    """A panel's rows where they lie one after the other."""
    return Panel(0, offset, panel.rows, panel.width, panel.width)


def results(memory: memoryview, operands: NodeOperands, offset: int) -> list[Array]:
    """The results of a call in the node's slab."""
    found = []
    for panel in operands.writes:
        found.append(rows(memory, at(offset, panel)))
        offset += whole_pages(panel.nbytes)
    return found


def announced(slab: Slab) -> tuple[SharedSlab, SlabRegion]:
    """What another process of this host may know a slab by, and the region of that, to be released once it does."""
    region, token = slab.lend(_TOKEN), os.urandom(_TOKEN)
    slab.view(region)[:_TOKEN] = token
    return SharedSlab(os.getpid(), slab.fd, slab.nbytes, region.offset, token), region


def opened(shared: SharedSlab) -> mmap.mmap | None:
    """The slab of another process of this host and user, to read from; None if there is no such process here."""
    with suppress(OSError, ValueError):
        fd = os.open(f"/proc/{shared.pid}/fd/{shared.fd}", os.O_RDONLY)
        try:
            if os.fstat(fd).st_size != shared.nbytes:
                return None
            memory = mmap.mmap(fd, shared.nbytes, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        if memory[shared.offset : shared.offset + len(shared.token)] == shared.token:
            return memory
    return None
