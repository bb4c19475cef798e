"""MatmulMethods: products as numpy.matmul gives them, of operands that are sent or that the service keeps."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from tilewise._certificates import parse_certificate
from tilewise._files import ProductOperand, ServiceFile, ask_for_files, put_into, read_product
from tilewise._http1 import HttpRequest, target
from tilewise._npy import MEDIA as NPY
from tilewise._operands import Array, Operand, OperandPlan, arrayed, check_out, flat, is_room, plan
from tilewise._pool import KEY, Transport, into
from tilewise._requests import RequestMethods
from tilewise._sansio import Flow, Operation, Work
from tilewise._shared_memory import Shared
from tilewise.arguments import Placement, ProductArguments
from tilewise.decoding import decoded
from tilewise.errors import UnreadableAnswer
from tilewise.models import Job, Matrix, Product

RAW: Final = "application/octet-stream"
_LARGE: Final = 2**20  # bytes that are worth a thread of their own where an event loop would wait for them


def plan_of(a: Operand, b: Operand, arguments: ProductArguments, *, folded: bool = True) -> OperandPlan:
    """As operands.plan, of the transposes that are asked for."""
    turned = _turned(a, arguments.trans_a), _turned(b, arguments.trans_b)
    return plan(*turned, arguments.precision, folded=folded)


def _turned(operand: Operand, transposed: bool) -> Operand:
    if not transposed:
        return operand
    return operand.T if isinstance(operand, Matrix) else arrayed(operand).swapaxes(-1, -2)


class MatmulMethods(RequestMethods):
    """Products. Every method raises ClientError if the service refuses."""

    def __init__(self, transport: Transport, *, shared_memory: bool) -> None:
        super().__init__(transport)
        self.shared = Shared(transport, allowed=shared_memory)

    @Operation
    def matmul(
        self,
        a: ProductOperand,
        b: ProductOperand,
        out: Array | tuple[Array] | None = None,
        *,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
        verify: str | None = None,
        placement: Placement | None = None,
    ) -> Flow[Array]:
        """numpy.matmul(a, b, out) of floats: vectors, batches of any rank, broadcasting, empty operands, mixed dtypes.

        Operands are arrays, whatever has __array__ or __dlpack__, and matrices and files that the service has: beside a
        ServiceFile the other is a matrix or a batch of them too, as long as it. Raises TypeError
        for other than floats, ValueError where they do not fit each other. `out` is undefined where the service fails.
        With verify="freivalds" C is certified before it is answered: CertificateFailed where it is not right.
        `placement` is "one" device, "all" that compute it alike, or by default "auto": all where that pays.
        """
        arguments = ProductArguments(device, kernel, precision, trans_a, trans_b, verify, placement)
        return (yield from self._product(a, b, arguments, out)).c

    @Operation
    def product(
        self,
        a: ProductOperand,
        b: ProductOperand,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
        out: Array | tuple[Array] | None = None,
        verify: str | None = None,
        placement: Placement | None = None,
    ) -> Flow[Product]:
        """As matmul, with the kernel, config, match, certificate, and the service's own timing."""
        arguments = ProductArguments(device, kernel, precision, trans_a, trans_b, verify, placement)
        return (yield from self._product(a, b, arguments, out))

    @Operation
    def keep(
        self,
        name: str,
        a: ProductOperand,
        b: ProductOperand,
        *,
        evictable: bool = False,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
        verify: str | None = None,
        placement: Placement | None = None,
    ) -> Flow[Matrix]:
        """Multiply, and leave C with the service under `name`.

        Operands are two matrices, or two batches of matrices as long as each other.
        """
        arguments = ProductArguments(device, kernel, precision, trans_a, trans_b, verify, placement)
        if isinstance(a, ServiceFile) or isinstance(b, ServiceFile):
            ask = yield from ask_for_files(a, b, arguments, {}, c=name, evictable=evictable or None)
            return self._as(Matrix, (yield from self.transport.exchange(ask)))
        asked = plan_of(a, b, arguments, folded=False)
        if asked.problem is None or len(asked.shape) not in {2, 3} or asked.shape != asked.made:
            raise ValueError(f"what the service keeps is a matrix or a batch of them, not empty, got {asked.shape}")
        ask = yield from self._asked(asked, arguments, {"Content-Type": RAW}, c=name, evictable=evictable or None)
        return self._as(Matrix, (yield from self.transport.exchange(ask)))

    def _queued(
        self, a: ProductOperand, b: ProductOperand, arguments: ProductArguments
    ) -> Flow[tuple[OperandPlan | None, Job | None]]:
        """Have a product made as a job, if there is anything to compute; no plan where the service knows the sizes."""
        headers = {"Prefer": "respond-async", KEY: key()}
        if isinstance(a, ServiceFile) or isinstance(b, ServiceFile):
            ask = yield from ask_for_files(a, b, arguments, headers)
            return None, self._as(Job, (yield from self.transport.exchange(ask)))
        asked = plan_of(a, b, arguments)
        if asked.problem is None:
            return asked, None
        ask = yield from self._asked(asked, arguments, {"Content-Type": RAW, **headers})
        return asked, self._as(Job, (yield from self.transport.exchange(ask)))

    def _product(
        self, a: ProductOperand, b: ProductOperand, arguments: ProductArguments, out: Array | tuple[Array] | None
    ) -> Flow[Product]:
        if isinstance(a, ServiceFile) or isinstance(b, ServiceFile):
            ask = yield from ask_for_files(a, b, arguments, {"Accept": NPY})
            told, made = yield from self.transport.read_answer(ask, read_product)
            return _made(put_into(out, made), told)
        return (yield from self._planned(plan_of(a, b, arguments), arguments, out))

    def _planned(
        self, asked: OperandPlan, arguments: ProductArguments, out: Array | tuple[Array] | None
    ) -> Flow[Product]:
        given = check_out(out, asked)
        straight = given is not None and is_room(given, asked)
        room = given.reshape(asked.made) if given is not None and straight else np.empty(asked.made, asked.dtype)
        headers: Mapping[str, str] = {}
        if asked.problem is None:
            room[...] = 0
        else:
            headers = yield from self._receive_into(asked, arguments, room)
        if given is None:
            c = asked.answer(room)
            return _made(c if c.ndim else c[()], headers)
        if not straight:
            np.copyto(given, asked.answer(room), casting="same_kind")
        return _made(given, headers)

    def _receive_into(self, asked: OperandPlan, arguments: ProductArguments, room: Array) -> Flow[Mapping[str, str]]:
        """Have C put into `room`, through shared memory where both sides have it; gives the answer's headers."""
        if arguments.verify or arguments.placement:  # what goes through shared memory is told of neither
            return (yield from self._sent(asked, arguments, room))
        options = {name: value for name, value in asdict(arguments).items() if name not in {"verify", "placement"}}
        options |= {"trans_a": asked.a.transposed, "trans_b": asked.b.transposed}
        headers = yield from self.shared.product(asked, options, room)
        return headers if headers is not None else (yield from self._sent(asked, arguments, room))

    def _sent(self, asked: OperandPlan, arguments: ProductArguments, room: Array) -> Flow[Mapping[str, str]]:
        ask = yield from self._asked(asked, arguments, {"Content-Type": RAW, "Accept": RAW})
        return (yield from self.transport.read_answer(ask, into(flat(room)))).headers

    def _asked(
        self, asked: OperandPlan, arguments: ProductArguments, headers: Mapping[str, str], **more: object | None
    ) -> Flow[HttpRequest]:
        if asked.problem is None:
            raise ValueError("an empty product asks the service for nothing")
        used = {"a": asked.a.name, "b": asked.b.name}
        names = {**used, **more}
        how = {name: getattr(arguments, name) for name in ("device", "kernel", "verify", "placement")}
        where = target("/matmul", {**asdict(asked.problem), **how, **names})
        body = yield from bytes_of(asked)
        # A product changes nothing at the service, or puts the same in the same place: it may be asked for twice, but
        # where it takes the place of its own operand.
        again = "c" not in names or names["c"] not in used.values()
        return HttpRequest("POST", where, body, headers, again=again)


def bytes_of(asked: OperandPlan) -> Flow[list[memoryview]]:
    """Both operands' bytes: copied, where they must be, without keeping an event loop."""

    def gathered() -> list[memoryview]:
        return [*asked.a.pieces(), *asked.b.pieces()]

    if asked.a.array.nbytes + asked.b.array.nbytes < _LARGE:
        return gathered()
    pieces: list[memoryview] = yield Work(gathered)
    return pieces


def key() -> str:
    """A new Idempotency-Key."""
    return f'"{uuid.uuid4()}"'


def _made(c: Any, headers: Mapping[str, str]) -> Product:
    return Product(
        c,
        headers.get("x-kernel", ""),
        parse_config(headers.get("x-config", "")),
        headers.get("x-match", ""),
        parse_server_timing(headers.get("server-timing", "")),
        headers.get("x-device"),
        headers.get("x-instructions", ""),
        headers.get("x-precision", "strict"),
        headers.get("x-declined"),
        parse_certificate(headers),
        parse_config(headers.get("x-devices", "")),
    )


def parse_config(header: str) -> Mapping[str, int]:
    """Read X-Config: an object, or BM=16,BN=16; raises UnreadableAnswer if it is neither."""
    try:
        if header.startswith("{"):
            return dict(decoded(header))
        return {name: int(value) for name, _, value in (pair.partition("=") for pair in header.split(",") if pair)}
    except ValueError as error:
        raise UnreadableAnswer("the answer's config cannot be read", None, "unreadable") from error


def parse_server_timing(header: str) -> Mapping[str, float]:
    """Read Server-Timing's durations in milliseconds, by name."""
    entries = [entry.strip().split(";") for entry in header.split(",")]
    return {name: float(each[4:]) for name, *parameters in entries for each in parameters if each.startswith("dur=")}
