"""Where operands in a body go: buffers in the slab, beside resident matrices; and what body readers need for that."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from starlette.requests import Request

from app.api.admission.request_guard import principal_of
from app.api.body.flow_control import SlowTransfers
from app.api.body.operand_files import OperandFile, opened_file
from app.api.body.stream import Body, Lend, StagedBody
from app.api.body.upload_overlap import UploadOverlap
from app.api.formats.operand_spec import (
    OPERANDS,
    Fill,
    ParsedBody,
    Places,
    ProductOptions,
    TensorSpec,
    TensorSpecs,
    bytes_of,
    is_stacked,
    problem_of,
    told_problem,
)
from app.api.state import service_of, state_of, threads_of
from app.devices.slab import Slab
from app.errors import TooLarge
from app.server.thread_pool import RequestThreads
from app.services.matmul.buffers import OperandBuffers
from app.services.matmul.certificates.certificate import Certifier
from app.services.matmul.chunked_transfer import ChunkedTransfer
from app.services.matmul.resident_matrices import ResidentMatrix
from app.services.principal import Principal
from app.services.service import Service
from kernels.problem import Problem

RAW: Final = "application/octet-stream"


class OperandSink(Protocol):
    """Where the matrices of a body go."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the matrices: a, b, both or neither of a product; ONE if only one matrix is wanted."""
        ...

    @property
    def transfer(self) -> ChunkedTransfer | None:
        """The copies to and from the device that go on meanwhile, once a large product has its buffers."""
        ...

    @property
    def certifier(self) -> Certifier | None:
        """What reads the operands meanwhile, of a product that is to be verified and has its buffers."""
        ...

    def describe_raw(self, options: ProductOptions) -> TensorSpecs:
        """The matrices of a body without a header, in order; raises Invalid if the query does not tell."""
        ...

    def nbytes(self, specs: TensorSpecs, options: ProductOptions) -> int:
        """Bytes of the slab that the matrices, and the result, will take; raises InvalidMatrix, Invalid."""
        ...

    def allocate(
        self, specs: TensorSpecs, options: ProductOptions, fill: Fill | None
    ) -> AbstractContextManager[Places]:
        """Lend buffers, filled if `fill` is known; raises what the slab and the matrices' owner refuse."""
        ...

    def is_uncommitted(self) -> bool:
        """Whether pages of buffers that were lent unfilled are not committed yet."""
        ...

    def commit(self) -> None:
        """Commit the pages (page-fault them in). Blocks; raises NoRoom."""
        ...


@dataclass
class BodyContext:
    """What a body reader needs: a sink for operands, staging memory, threads, and the stack that releases them."""

    sink: OperandSink
    lend: Lend
    threads: RequestThreads
    stack: AsyncExitStack
    max_body_bytes: int
    slab_bytes: int
    slow: SlowTransfers
    _upload: UploadOverlap | None = field(default=None, init=False)

    async def allocate(self, specs: TensorSpecs, options: ProductOptions, fill: Fill | None = None) -> Places:
        """Buffers of the matrices, until the stack closes; raises TooLarge, NoRoom, Unsupported."""
        size = self.sink.nbytes(specs, options) if fill else 0

        def attempt() -> Awaitable[Places]:
            buffers = self.sink.allocate(specs, options, fill)
            return self.stack.enter_async_context(self.threads.entered(buffers, size))

        places = await self.slow.make_room(attempt)
        if self.sink.is_uncommitted():
            await self.threads.call(self.sink.commit)
        return places

    async def receive_operand(self, body: Body, name: str, view: memoryview) -> None:
        """Receive a matrix into its buffer; raises as Body.fill.

        A large product's operands are uploaded to the device, and those of one that is to be verified are read, while
        the rest is received.
        """
        transfer, certifier = self.sink.transfer, self.sink.certifier
        if self._upload is None and (transfer is not None or certifier is not None):
            self._upload = UploadOverlap(transfer, self.threads, self.stack, certifier)
        await (body.fill(view) if self._upload is None else self._upload.fill(body, name, view))

    async def fill(self, parsed: ParsedBody, area: StagedBody) -> None:
        """Fill buffers from a body that is whole; raises TooLarge, NoRoom, Unsupported."""
        self.expect(parsed.found, parsed.wanted, area.lent_bytes + parsed.beside)
        await self.allocate(parsed.found, parsed.wanted, parsed.fill)

    def expect(self, specs: TensorSpecs, options: ProductOptions, beside: int) -> None:
        """Raise TooLarge if the slab can never hold the matrices and `beside` bytes more."""
        size = beside + self.sink.nbytes(specs, options)
        if size > self.slab_bytes:
            message = f"what is sent and made takes {size} bytes with its copies: send {RAW}, which needs none"
            raise TooLarge(message, limit=self.slab_bytes, size=size)


def body_context(request: Request, sink: OperandSink, stack: AsyncExitStack) -> BodyContext:
    """The context in which a request's body is read."""
    service, threads = service_of(request), threads_of(request)
    slab = service.fleet.slab
    slow = state_of(request.app).slow_transfers
    return BodyContext(sink, partial(lent, slab), threads, stack, service.matmul.max_bytes, slab.nbytes, slow)


@contextmanager
def lent(slab: Slab, nbytes: int) -> Iterator[memoryview]:
    """Slab bytes for a body that is not parsed yet: they count as every other operand's do."""
    region = slab.lend(nbytes)
    try:
        yield slab.view(region)[:nbytes]
    finally:
        slab.release(region)


class ProductSink:
    """The sink of a product: operands with a name are resident, the body has the others.

    `buffers` is set once they are allocated; `options` are the query's, then with the body's.
    """

    def __init__(
        self,
        service: Service,
        owner: Principal,
        options: ProductOptions,
        residents: dict[str, ResidentMatrix] | None = None,
        files: dict[str, OperandFile] | None = None,
    ) -> None:
        self.residents, self.options, self.files = residents or {}, options, files or {}
        self._service, self._owner = service, owner
        self._buffers: OperandBuffers | None = None
        self._described = {name: TensorSpec(name, each.dtype, each.shape) for name, each in self.residents.items()}
        self._described |= {name: each.described for name, each in self.files.items()}
        self._known: tuple[TensorSpecs, ProductOptions, Problem] | None = None  # the problem that was computed last

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that the body has."""
        return self.options.sent

    @property
    def buffers(self) -> OperandBuffers:
        """The operands' buffers; raises RuntimeError before they are allocated."""
        if self._buffers is None:
            raise RuntimeError("the operands have no buffers yet")
        return self._buffers

    @property
    def transfer(self) -> ChunkedTransfer | None:
        """The copies to and from the device during upload and download, of a large product."""
        return self._buffers.transfer if self._buffers is not None else None

    @property
    def certifier(self) -> Certifier | None:
        """As OperandSink."""
        return self._buffers.certifier if self._buffers is not None else None

    @property
    def result(self) -> ResidentMatrix | None:
        """The resident matrix that C becomes, if it is kept."""
        pending = self._buffers.pending_result if self._buffers is not None else None
        return pending.resident if pending is not None else None

    def headers(self) -> dict[str, str]:
        """The versions of the resident matrices that the product was made of, and of its result."""
        versions = {f"X-{name.upper()}-Version": str(each.key) for name, each in self.residents.items()}
        if self.result is not None:
            versions |= {"X-C-Version": str(self.result.key), "Location": f"/matrices/{self.result.name}"}
        return versions

    def describe_raw(self, options: ProductOptions) -> TensorSpecs:
        """A and B by the query; what a resident operand tells need not be said."""
        problem = told_problem(_with_described(options, self._described))
        specs = self._specs(problem)
        if not self._described:
            self._known = specs, options, problem
        return specs

    def nbytes(self, specs: TensorSpecs, options: ProductOptions) -> int:
        """Bytes of the slab for the operands in the body and in files, and for C."""
        there = (*specs.values(), *(each.described for each in self.files.values()))
        return self._problem(specs, options).c_bytes + sum(each.nbytes for each in there)

    @contextmanager
    def allocate(self, specs: TensorSpecs, options: ProductOptions, fill: Fill | None) -> Iterator[Places]:
        """Lend buffers for the operands in the body, and for C."""
        problem, service = self._problem(specs, options), self._service
        stacked, committed = is_stacked({**self._described, **specs}["a"]), bool(fill)
        self.options = options
        with ExitStack() as stack:
            pending = None
            if options.c is not None:
                shape = (*((problem.batch,) if stacked else ()), problem.m, problem.n)
                evictable = bool(options.evictable)
                reserved = service.matrices.reserve(
                    self._owner, options.c, problem.dtype, shape, evictable=evictable, committed=committed
                )
                pending = stack.enter_context(reserved)
            a, b = (self.residents.get(name) for name in OPERANDS)
            reserve = partial(service.matmul.reserve, device_id=options.device, committed=committed, stacked=stacked)
            reserve = partial(reserve, placement=options.placement or "auto", principal=self._owner)
            self._buffers = stack.enter_context(reserve(problem, a, b, pending))
            if options.verify is not None:
                certifier = stack.enter_context(closing(service.matmul.certifier(self._buffers)))
                self._buffers = replace(self._buffers, certifier=certifier)
            places = {name: self._buffers.a if name == "a" else self._buffers.b for name in specs}
            if fill is not None:
                fill(places)
            yield places

    def read_files(self) -> None:
        """Read the operands that are files into their buffers; raises InvalidMatrix. Blocks."""
        for name, file in self.files.items():
            file.read_into(bytes_of(self.buffers.a if name == "a" else self.buffers.b))

    def is_uncommitted(self) -> bool:
        """Whether pages of the buffers are not committed yet."""
        return self._buffers is not None and self._service.matmul.is_uncommitted(self._buffers)

    def commit(self) -> None:
        """Commit the buffers' pages; raises NoRoom."""
        if self._buffers is not None:
            self._service.matmul.commit(self._buffers)

    def _problem(self, specs: TensorSpecs, options: ProductOptions) -> Problem:
        """The problem of a body's operands, computed once; raises InvalidMatrix, Invalid."""
        if self._known is not None and self._known[0] is specs and self._known[1] is options:
            return self._known[2]
        both = {**self._described, **specs}
        problem = problem_of(both["a"], both["b"], options)
        self._known = specs, options, problem
        return problem

    def _specs(self, problem: Problem) -> TensorSpecs:
        """The operands in the body of a problem."""
        stack = next((each.shape[:-2] for each in self._described.values()), (problem.batch,) * (problem.batch > 1))
        shapes = {"a": problem.a_shape, "b": problem.b_shape}
        return {name: TensorSpec(name, problem.dtype, (*stack, *shapes[name])) for name in self.names}


def _with_described(options: ProductOptions, described: TensorSpecs) -> ProductOptions:
    """The options, with what known operands say of the problem where they say nothing."""
    told: dict[str, Any] = {}
    for name, each in described.items():
        transposed = options.trans_a if name == "a" else options.trans_b
        sizes = each.shape[-2:][::-1] if transposed else each.shape[-2:]
        told |= {**dict(zip("mk" if name == "a" else "kn", sizes, strict=False)), "dtype": each.dtype}
    return ProductOptions(**(told | options.said())) if told else options


async def open_sink(request: Request, options: ProductOptions, stack: AsyncExitStack) -> ProductSink:
    """The sink of a product, its resident operands pinned, and its files open, until the stack closes.

    Raises UnknownMatrix, MatrixGone, UnknownFile, InvalidMatrix.
    """
    service = service_of(request)
    if len(options.sent) == len(OPERANDS):
        return ProductSink(service, principal_of(request), options)
    pinned = _pinned(service, principal_of(request), options, state_of(request.app).operands)
    return await stack.enter_async_context(threads_of(request).entered(pinned))


@contextmanager
def _pinned(service: Service, owner: Principal, options: ProductOptions, folder: Path | None) -> Iterator[ProductSink]:
    with ExitStack() as stack:
        names = {"a": options.a, "b": options.b}
        residents = {
            operand: stack.enter_context(service.matrices.pin(owner, name))
            for operand, name in names.items()
            if name is not None
        }
        files = {
            operand: stack.enter_context(opened_file(folder, name, operand, options.dtype))
            for operand, name in options.files.items()
        }
        yield ProductSink(service, owner, options, residents, files)
