"""Reads an inference request's operands from its JSON, its binary tensors, or shared memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.requests import Request

from app.api.body.operand_sinks import lent
from app.api.body.stream import Body, staging
from app.api.formats import json_matrix
from app.api.formats.operand_spec import bytes_of
from app.api.inference import json_tensors
from app.api.inference.schemas import Inference, Listed, RegionRef, Tensor, understood
from app.api.state import service_of, state_of, threads_of
from app.dtypes import Array
from app.errors import Malformed
from app.services.matmul.buffers import OperandBuffers
from app.services.principal import Principal
from app.services.service import Service
from app.services.shared_memory.memory import HostSpan
from app.services.shared_memory.registry import RegionWindow

LENGTH: Final = "Inference-Header-Content-Length"
_DIGITS: Final = 18  # of a number of 64 bits


@dataclass(frozen=True, slots=True)
class PlacedOperands:
    """Operands and C in the slab, and the memory that C is wanted in, or None."""

    buffers: OperandBuffers
    output: RegionWindow | None

    @property
    def c(self) -> HostSpan:
        """C's bytes."""
        return HostSpan(bytes_of(self.buffers.c), self.buffers.offsets[2])


async def read(request: Request, body: Body) -> Inference:
    """The request's JSON part; raises Malformed, BodyTooLarge and what `understood` does."""
    threads = threads_of(request)
    async with _text(_length(request, body), body, request) as text:
        return await threads.parse(len(text), understood, text)


@contextmanager
def placing(service: Service, asked: Inference, principal: Principal) -> Iterator[PlacedOperands]:
    """Buffers of a product, filled with what does not follow the JSON; raises as MatmulService.reserve and window."""
    reserve = partial(service.matmul.reserve, device_id=asked.device, principal=principal)
    with (
        reserve(asked.problem, stacked=asked.stacked) as buffers,
        ExitStack() as used,
    ):

        def window(part: RegionRef) -> RegionWindow:
            lent = service.regions.window(principal, part.name, part.offset, part.nbytes)
            return used.enter_context(lent)

        output = None if asked.region is None else window(asked.region)
        for tensor, offset in zip(asked.operands, buffers.offsets, strict=False):
            array = operand(buffers, tensor)
            if isinstance(tensor.source, RegionRef):
                window(tensor.source).read(HostSpan(bytes_of(array), offset))
            elif isinstance(tensor.source, Listed):
                json_tensors.fill(tensor.source.data, tensor.described, array)
        yield PlacedOperands(buffers, output)


def operand(buffers: OperandBuffers, tensor: Tensor) -> Array:
    """An operand's place."""
    return buffers.a if tensor.described.name == "A" else buffers.b


def _length(request: Request, body: Body) -> int | None:
    """Bytes of the JSON part, None if it ends with a body of unknown length; raises Malformed, BodyTooLarge."""
    given = request.headers.get(LENGTH)
    if given is None:
        length = body.length
    elif not given.isdecimal() or not given.isascii() or len(given) > _DIGITS:
        raise Malformed(f"{LENGTH} is no number of bytes")
    else:
        length = int(given)
        if not length:
            raise Malformed("a request of bytes alone says nothing of two matrices: its JSON is missing")
        if body.length is not None and length > body.length:
            raise Malformed(f"{LENGTH} is {length}, the body has {body.length} bytes")
    json_matrix.check_length(length or 0)
    return length


@asynccontextmanager
async def _text(length: int | None, body: Body, request: Request) -> AsyncIterator[memoryview]:
    """The JSON part, in the slab where it is long."""
    lend, slow = partial(lent, service_of(request).fleet.slab), state_of(request.app).slow_transfers
    async with staging(length or 0, lend, threads_of(request), slow) as area:
        body.hold(area.lent_bytes)
        if length is None:
            await area.receive_pieces(body, json_matrix.check_length)
        else:
            await area.receive_next(body, length)
        yield area.data
