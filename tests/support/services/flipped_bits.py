"""What tests have a serving child do beside making products: bits flip in a device's memory, and in the slab."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from app.devices.backend import AsyncExecution, Buffer, Operands, Program, SyncExecution, WorkerContext
from app.devices.process import WorkerLink
from app.worker.serving import chunked_transfer, product
from app.worker.serving.chunked_transfer import Chunk
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels.launch import Launch

_AT = 3  # the byte of the first float32 that has its sign, which is flipped with an exponent's bit
_BITS = 0xC0


def of_operand(held: WorkerContext, link: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """As product.multiply, of an A that is another's on the device."""
    return _with(held, link, order, before=True)


def of_c(held: WorkerContext, link: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """As product.multiply, but C is another's on the device before anybody looks at it."""
    return _with(held, link, order, before=False)


def of_operand_beside(held: WorkerContext, link: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """As of_operand, on a device that launches while the host computes."""
    with _asynchronous(held.backend):
        return of_operand(held, link, order)


def of_c_beside(held: WorkerContext, link: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """As of_c, on such a device."""
    with _asynchronous(held.backend):
        return of_c(held, link, order)


def of_slab(held: WorkerContext, link: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """As product.multiply, of what was B in the slab while it arrived."""
    np.frombuffer(held.slab, np.uint8)[order.b + _AT] ^= _BITS
    return product.multiply(held, link, order)


def on_the_way(held: WorkerContext, link: WorkerLink, chunk: Chunk) -> bool:
    """As chunked_transfer.download_chunk, but a bit of the last chunk of C is another once it is in the slab."""
    found = chunked_transfer.download_chunk(held, link, chunk)
    if chunk.end == chunk.whole:
        np.frombuffer(held.slab, np.uint8)[chunk.offset + chunk.nbytes - 1] ^= 1
    return found


@contextmanager
def _asynchronous(backend: Any) -> Iterator[None]:
    """Have a device, which waits for each launch, be an AsyncExecution inside the block."""
    waiting, run = SyncExecution(backend), backend.run
    added = {name: getattr(waiting, name) for name in ("write_rows", "read_rows", "finish", "settle")}
    added["start"] = lambda program, launch, operands, _: run(program, launch, operands)
    for name, method in added.items():
        setattr(backend, name, method)
    assert isinstance(backend, AsyncExecution)
    try:
        yield
    finally:
        for name in added:
            delattr(backend, name)


def _with(held: WorkerContext, link: WorkerLink, order: MultiplyRequest, *, before: bool) -> MultiplyResult:
    backend: Any = held.backend
    run, start = backend.run, getattr(backend, "start", None)

    def spoiled(program: Program, launch: Launch, operands: Operands) -> None:
        if before and launch == order.launch:
            flip(operands.a)
        run(program, launch, operands)
        if not before and launch == order.launch:
            flip(operands.c)

    def started(program: Program, launch: Launch, operands: Operands, after: Sequence[Any]) -> Any:
        """The same of a launch beside which the host computes."""
        if before:
            flip(operands.a)
        assert start is not None
        mark = start(program, launch, operands, after)
        if not before:
            backend.finish(mark)
            flip(operands.c)
        return mark

    def flip(buffer: Buffer) -> None:
        first = np.empty(4096, np.uint8)
        backend.download(buffer.window(0, first.nbytes), first)
        first[_AT] ^= _BITS
        backend.write(buffer.window(0, first.nbytes), first)

    backend.run = spoiled
    if start is not None:
        backend.start = started
    try:
        return product.multiply(held, link, order)
    finally:
        del backend.run
        if start is not None:
            backend.start = start
