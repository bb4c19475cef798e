"""Where operands of a product go: buffers in the slab, or resident matrices by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.api.body.dispatch import ReceivedBody
from app.api.formats.operand_spec import (
    OPERANDS,
    Fill,
    Places,
    ProductOptions,
    TensorSpec,
    TensorSpecs,
    is_stacked,
    problem_of,
    told_problem,
)
from app.api.schemas import ProductQuery
from app.errors import Invalid
from app.server.thread_pool import RequestThreads
from app.services.matmul.buffers import OperandBuffers
from app.services.matmul.chunked_transfer import ChunkedTransfer
from app.services.matmul.resident_matrices import ResidentMatrix
from app.services.principal import ANONYMOUS
from app.services.service import Service
from kernels.problem import Problem


@dataclass(frozen=True, slots=True)
class ResidentRefs:
    """The resident matrices that a product names: its operands, and what its result shall be called."""

    a: str | None = None
    b: str | None = None
    c: str | None = None
    evictable: bool | None = None

    @property
    def sent(self) -> tuple[str, ...]:
        """The operands that the body has."""
        return tuple(name for name in OPERANDS if getattr(self, name) is None)

    @classmethod
    def of(cls, asked: ProductQuery) -> ResidentRefs:
        """Take the query's; raises Invalid."""
        if asked.evictable is not None and asked.c is None:
            raise Invalid("evictable is about a result that is left resident, and c names none", member="evictable")
        return cls(asked.a, asked.b, asked.c, asked.evictable)


class ProductSink:
    """Where the operands of one product go: those with a name are resident, the body has the others.

    `placement` is there once they have their places.
    """

    def __init__(self, service: Service, residents: dict[str, ResidentMatrix], named: ResidentRefs) -> None:
        self.residents, self.named = residents, named
        self.placement: OperandBuffers | None = None
        self.stacked = False
        self.wanted = ProductOptions()
        self._service = service
        self._described = {name: TensorSpec(name, each.dtype, each.shape) for name, each in residents.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that the body has."""
        return self.named.sent

    @property
    def passage(self) -> ChunkedTransfer | None:
        """The copies to and from the device that go on while the body lands and C is sent, where they are large."""
        return self.placement.passage if self.placement is not None else None

    @property
    def left(self) -> ResidentMatrix | None:
        """What the result is, where it stays resident."""
        draft = self.placement.left if self.placement is not None else None
        return draft.resident if draft is not None else None

    def received(self) -> ReceivedBody:
        """The operands, which have arrived; raises RuntimeError before they have their places."""
        if self.placement is None:
            raise RuntimeError("the operands have no places yet")
        return ReceivedBody(self.placement, self.stacked, self.wanted)

    def headers(self) -> dict[str, str]:
        """Which versions of which matrices the product was made of, and which its result is."""
        versions = {f"X-{name.upper()}-Version": str(each.key) for name, each in self.residents.items()}
        if self.left is not None:
            versions |= {"X-C-Version": str(self.left.key), "Location": f"/matrices/{self.left.name}"}
        return versions

    def plain(self, wanted: ProductOptions) -> TensorSpecs:
        """A's and B's sizes by the query; what a resident operand tells of them need not be said."""
        return self._shaped(told_problem(_told(self._described, wanted)))

    def nbytes(self, found: TensorSpecs, wanted: ProductOptions) -> int:
        """Bytes of the slab for the operands in the body, and for C."""
        return self._problem(found, wanted).c_bytes + sum(each.nbytes for each in found.values())

    @contextmanager
    def room(self, found: TensorSpecs, wanted: ProductOptions, fill: Fill | None) -> Iterator[Places]:
        """Lend places for the operands in the body, and for C."""
        problem = self._problem(found, wanted)
        self.wanted, self.stacked = wanted, is_stacked({**self._described, **found}["a"])
        with ExitStack() as stack:
            named, draft = self.named, None
            if named.c is not None:
                shape = (*((problem.batch,) if self.stacked else ()), problem.m, problem.n)
                coming, how = self._service.matrices.coming, {"evictable": bool(named.evictable), "backed": bool(fill)}
                draft = stack.enter_context(coming(ANONYMOUS, named.c, problem.dtype, shape, **how))
            a, b = (self.residents.get(name) for name in OPERANDS)
            place = partial(self._service.matmul.place, device_id=wanted.device, backed=bool(fill))
            self.placement = stack.enter_context(place(problem, a, b, draft))
            placement = self.placement
            places = {name: getattr(placement, name) for name in found}
            if fill is not None:
                fill(places)
            yield places

    def is_fresh(self) -> bool:
        """Whether the system has yet to find pages of the places."""
        return self.placement is not None and self._service.matmul.is_fresh(self.placement)

    def back(self) -> None:
        """Have them found; raises NoRoom."""
        if self.placement is not None:
            self._service.matmul.back(self.placement)

    def _problem(self, found: TensorSpecs, wanted: ProductOptions) -> Problem:
        both = {**self._described, **found}
        return problem_of(both["a"], both["b"], wanted)

    def _shaped(self, problem: Problem) -> TensorSpecs:
        """The operands in the body of a problem."""
        stack = next((each.shape[:-2] for each in self._described.values()), (problem.batch,) * (problem.batch > 1))
        shapes = {"a": problem.a_shape, "b": problem.b_shape}
        return {name: TensorSpec(name, problem.dtype, (*stack, *shapes[name])) for name in self.names}


def _told(described: TensorSpecs, wanted: ProductOptions) -> ProductOptions:
    """What is asked for, and what operands that are known say of the problem where nothing is."""
    told: dict[str, Any] = {}
    for name, each in described.items():
        transposed = wanted.trans_a if name == "a" else wanted.trans_b
        sizes = each.shape[-2:][::-1] if transposed else each.shape[-2:]
        told |= {**dict(zip("mk" if name == "a" else "kn", sizes, strict=False)), "dtype": each.dtype}
    return ProductOptions(**(told | wanted.said()))


async def open_sink(
    service: Service, threads: RequestThreads, named: ResidentRefs, stack: AsyncExitStack
) -> ProductSink:
    """The sink of a product, its resident operands pinned until the stack closes; raises UnknownMatrix, MatrixGone."""
    if len(named.sent) == len(OPERANDS):
        return ProductSink(service, {}, named)
    return await stack.enter_async_context(threads.entered(_held(service, named)))


@contextmanager
def _held(service: Service, named: ResidentRefs) -> Iterator[ProductSink]:
    with ExitStack() as stack:
        names = {"a": named.a, "b": named.b}
        residents = {
            operand: stack.enter_context(service.matrices.used(ANONYMOUS, name))
            for operand, name in names.items()
            if name is not None
        }
        yield ProductSink(service, residents, named)
