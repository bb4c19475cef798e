"""Resident matrices: put once under a name, used by as many products as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.preconditions import IF_MATCH, IF_NONE_MATCH, etag, version_condition_of
from app.api.admission.request_guard import principal_of
from app.api.body.dispatch import ANSWERS, FORMS, answer_media, media_of, receive
from app.api.body.operand_sinks import RAW, body_context
from app.api.errors import documented, timed_out
from app.api.formats import json_matrix
from app.api.formats.operand_spec import ONE, Fill, Places, ProductOptions, TensorSpec, TensorSpecs, check_shape
from app.api.negotiation import VARY, listed
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import header
from app.api.params import paged, read_query
from app.api.response import SlabResponse, encode
from app.api.responses import Answer, reply
from app.api.schemas import MatricesQuery, MatrixQuery, Nothing
from app.api.state import service_of, threads_of
from app.dtypes import Array, numpy_dtype
from app.services.best.kernel_order import covering
from app.services.matmul.resident_matrices import NAME, PendingMatrix, ResidentMatrix, check_name
from app.services.principal import Principal
from app.services.service import Service
from kernels.problem import Problem

router = DirectRouter("matrices")

MatrixName = Annotated[str, Path(description="The matrix's name.", pattern=f"^{NAME}$", examples=["weights"])]
_BINARY: Final = {"type": "string", "format": "binary"}
CONDITIONS: Final = [
    header(IF_MATCH, "Only if the matrix has this ETag; `*`: only if there is one."),
    header(IF_NONE_MATCH, "`*`: only if there is no matrix of that name; an ETag: unless it is that version."),
]
_ROWS: Final = {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1}}


class Matrix(Answer):
    """A resident matrix, or a batch of them. Its bytes never change: what is put later is another version."""

    name: str
    version: Annotated[int, Field(description="No two matrices of one run of the service have the same.")]
    dtype: str
    shape: Annotated[list[int], Field(description="Rows and columns as stored; before them the batch, if it is one.")]
    nbytes: int
    evictable: Annotated[bool, Field(description="It may be dropped where room is needed.")]
    devices: Annotated[list[str], Field(description="The devices that have a copy: a product need not send it again.")]
    created_at: datetime
    used_at: datetime

    @classmethod
    def of(cls, service: Service, resident: ResidentMatrix, used_at: datetime | None = None) -> Matrix:
        """Take the domain's value; never used is used when it was made."""
        return cls(
            name=resident.name,
            version=resident.key,
            dtype=resident.dtype,
            shape=list(resident.shape),
            nbytes=resident.nbytes,
            evictable=resident.evictable,
            devices=service.matmul.device_cache.devices(resident.key),
            created_at=resident.created_at,
            used_at=used_at or resident.created_at,
        )


class Matrices(Answer):
    """A page of resident matrices by name; `next` asks for the page after it."""

    matrices: list[Matrix]
    next: str | None


_ETAG: Final = {"ETag": {"description": "The version's entity tag, for If-Match.", "schema": {"type": "string"}}}
_LOCATION: Final = _ETAG | {"Location": {"description": "The matrix's place.", "schema": {"type": "string"}}}
LEFT: Final[dict[int | str, dict[str, Any]]] = {
    201: {"model": Matrix, "description": "With `?c=`: C, which was left resident.", "headers": _LOCATION}
}
_PUT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": Matrix, "description": "The matrix, which took the place of another version.", "headers": _ETAG},
    201: {"model": Matrix, "description": "The matrix, which is new.", "headers": _LOCATION},
}
_GOT: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "model": Matrix,
        "description": "What it is, or its data by Accept.",
        "content": {media: {"schema": _BINARY} for media in ANSWERS if media != json_matrix.MEDIA},
        "headers": _ETAG
        | {
            name: {"description": f"With data: its {text}.", "schema": {"type": "string"}}
            for name, text in {"X-Shape": "sizes", "X-Dtype": "type", "X-Version": "version"}.items()
        },
    }
}


class MatrixSink:
    """The sink of one matrix that is put; `pending` is set once its buffer is allocated."""

    names = ONE
    transfer = None
    certifier = None

    def __init__(self, service: Service, owner: Principal, name: str, asked: MatrixQuery) -> None:
        self.pending: PendingMatrix | None = None
        self._service, self._owner, self._name, self._asked = service, owner, name, asked

    def describe_raw(self, wanted: ProductOptions) -> TensorSpecs:
        """The matrix by the query."""
        if self._asked.shape is None:
            raise errors.Invalid(f"{RAW} needs its shape in the query, such as ?shape=256x128", missing=["shape"])
        return {ONE[0]: TensorSpec(ONE[0], wanted.dtype or "float32", self._asked.sizes)}

    def nbytes(self, found: TensorSpecs, wanted: ProductOptions) -> int:
        """Bytes of the slab for it."""
        self._expect(found[ONE[0]], wanted)
        return found[ONE[0]].nbytes

    @contextmanager
    def allocate(self, found: TensorSpecs, wanted: ProductOptions, fill: Fill | None) -> Iterator[Places]:
        """Lend its buffer, within its owner's quota."""
        described, matrices = found[ONE[0]], self._service.matrices
        self._expect(described, wanted)
        kind = (described.dtype, described.shape)
        reserve = partial(matrices.reserve, evictable=self._asked.evictable, committed=bool(fill))
        with reserve(self._owner, self._name, *kind) as pending:
            self.pending = pending
            places = {ONE[0]: _array(self._service, pending.resident)}
            if fill is not None:
                fill(places)
            yield places

    def is_uncommitted(self) -> bool:
        """Whether pages of its buffer are not committed yet."""
        return self.pending is not None and self._service.fleet.slab.is_uncommitted(self.pending.resident.region)

    def commit(self) -> None:
        """Commit the pages; raises NoRoom."""
        if self.pending is not None:
            self._service.fleet.slab.commit(self.pending.resident.region)

    def _expect(self, described: TensorSpec, wanted: ProductOptions) -> None:
        """Refuse what is no matrix, is not as the query says, or what no kernel multiplies."""
        check_shape(described)
        found = {"shape": "x".join(map(str, described.shape)), "dtype": described.dtype}
        for name, value in {"shape": self._asked.shape, "dtype": wanted.dtype}.items():
            if value is not None and value != found[name]:
                raise errors.Invalid(f"{name} is {found[name]}, the request says {value}", member=name)
        covering(Problem(1, 1, 1, dtype=described.dtype), self._service.fleet.unit(None).device)


@router.get(
    "/matrices/{name}",
    summary="One resident matrix",
    responses=_GOT | documented(errors.UnknownMatrix, errors.MatrixGone, errors.NotAcceptable, errors.Invalid),
    openapi_extra={"parameters": [header("Accept", f"One of {', '.join(ANSWERS)}: application/json tells of it.")]},
)
async def get_matrix(request: Request, name: MatrixName) -> Response:
    """What a matrix is, or, where Accept names a form of binary data, the matrix itself, which counts as a use."""
    read_query(Nothing, request)
    media = answer_media(listed(request, "accept"), json_matrix.MEDIA)
    service, threads = service_of(request), threads_of(request)
    if media == json_matrix.MEDIA:
        resident, used_at = await threads.call(service.matrices.get, principal_of(request), name)
        return reply(Matrix.of(service, resident, used_at), headers={"ETag": etag(resident.key), **VARY})
    async with AsyncExitStack() as stack:
        using = service.matrices.pin(principal_of(request), name)
        resident = await stack.enter_async_context(threads.entered(using))
        array = _array(service, resident)
        shape = "x".join(map(str, resident.shape))
        headers = {"X-Shape": shape, "X-Dtype": resident.dtype, "X-Version": str(resident.key)}
        headers |= {"ETag": etag(resident.key), **VARY}
        held = AsyncExitStack() if request.method == "HEAD" else stack.pop_all()  # nothing is sent that must be held
        return SlabResponse(await encode(media, array, threads), media, headers, held)


@router.put(
    "/matrices/{name}",
    summary="Keep a matrix",
    responses=_PUT
    | timed_out()
    | documented(
        errors.Malformed,
        errors.PreconditionFailed,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
        errors.InvalidMatrix,
        errors.Unsupported,
        errors.TooLarge,
        errors.QuotaExceeded,
        errors.NoRoom,
        errors.NoDevice,
    ),
    query=MatrixQuery,
    openapi_extra={
        "parameters": CONDITIONS,
        "requestBody": {
            "required": True,
            "content": {media: {"schema": _BINARY} for media in FORMS}
            | {json_matrix.MEDIA: {"schema": _ROWS, "example": [[1, 2], [3, 4]]}},
        },
    },
)
async def put_matrix(request: Request, name: MatrixName) -> Response:
    """Keep a matrix, or a three-dimensional batch, until it is deleted, replaced, or the service ends.

    It comes as rows of JSON numbers, as one .npy, as an archive, a form or a safetensors file with one member, or as
    plain bytes, little-endian, with `shape` in the query; gzip or deflate may be its
    Content-Encoding. Products that began with the version before end with it. One that is `evictable` may be dropped,
    the least recently used first, where others need its room. `If-Match` with an ETag replaces that version alone,
    `If-None-Match: *` none at all: the answer is 412 otherwise, and nothing is kept.
    """
    asked, condition = read_query(MatrixQuery, request), version_condition_of(request)
    check_name(name)
    media = media_of(request, ONE)
    service, threads = service_of(request), threads_of(request)
    if condition is not None:
        service.matrices.expect(principal_of(request), name, condition)
    sink = MatrixSink(service, principal_of(request), name, asked)
    async with AsyncExitStack() as stack:
        await receive(
            request, media, ProductOptions(dtype=asked.dtype, convert=asked.convert), body_context(request, sink, stack)
        )
        if sink.pending is None:
            raise RuntimeError("the matrix has no place yet")
        has_replaced = await threads.call(sink.pending.keep, condition)
        resident = sink.pending.resident
        place = {} if has_replaced else {"Location": f"/matrices/{name}"}
        return reply(Matrix.of(service, resident), 200 if has_replaced else 201, {"ETag": etag(resident.key), **place})


@router.delete(
    "/matrices/{name}",
    summary="Forget a matrix",
    status_code=204,
    responses=documented(errors.UnknownMatrix, errors.MatrixGone, errors.PreconditionFailed, errors.Invalid),
    openapi_extra={"parameters": CONDITIONS},
)
async def delete_matrix(request: Request, name: MatrixName) -> Response:
    """Forget a matrix, under the same conditions as it is put. Products that began with it end with it."""
    read_query(Nothing, request)
    delete, condition = service_of(request).matrices.delete, version_condition_of(request)
    await threads_of(request).call(delete, principal_of(request), name, condition)
    return Response(status_code=204)


@router.get(
    "/matrices",
    summary="List resident matrices by name",
    response_model=Matrices,
    responses=documented(errors.Invalid),
    query=MatricesQuery,
)
async def list_matrices(request: Request) -> Response:
    """A page of matrices. `next` is the page after it: give it as `cursor`."""
    asked = read_query(MatricesQuery, request)
    service, threads = service_of(request), threads_of(request)
    (after,) = asked.place(str) or ("",)
    found = await threads.call(service.matrices.list, principal_of(request), after, asked.limit + 1)
    page, following = paged(found, asked.limit, lambda one: (one[0].name,))
    return reply(Matrices(matrices=[Matrix.of(service, *each) for each in page], next=following))


def _array(service: Service, resident: ResidentMatrix) -> Array:
    """The numbers of a matrix that is held, in its slab bytes."""
    return np.frombuffer(service.matrices.view(resident), numpy_dtype(resident.dtype)).reshape(resident.shape)
