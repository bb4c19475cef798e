"""The protocol's shared memory: callers on this host register theirs, and name it in requests in place of bytes."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import asdict
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Final, cast

import orjson
from fastapi import Path
from pydantic import Field, RootModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.body.json_body import read_document
from app.api.errors import documented, timed_out
from app.api.inference.schemas import Bytes
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import body
from app.api.params import WHOLE, StrictModel, validated
from app.api.responses import Answer
from app.api.schemas import Name
from app.api.state import service_of, threads_of
from app.services.shared_memory.memory import CudaRegion, SystemRegion
from app.services.shared_memory.registry import Kind
from kernels.problem import LARGEST

router = DirectRouter("inference")

RegionName = Annotated[str, Path(pattern="^[ -~]{1,200}$")]

RegionBytes = Annotated[int, Field(ge=1, le=2**63 - 1), WHOLE]
_SYSTEM: Final = "/v2/systemsharedmemory"
_CUDA: Final = "/v2/cudasharedmemory"


class SystemRegistration(StrictModel):
    """POSIX shared memory of the user that runs the service."""

    key: Annotated[Name, Field(description="What shm_open took.", examples=["/operands"])]
    offset: Annotated[Bytes, Field(description="Where in it the region begins.")] = 0
    byte_size: Annotated[RegionBytes, Field(description="The region's bytes.")]


class RawHandle(StrictModel):
    """A handle as cudaIpcGetMemHandle gives it."""

    b64: Annotated[str, Field(pattern="^[A-Za-z0-9+/]{86}==$", description="Its 64 bytes in base64.")]


class CudaRegistration(StrictModel):
    """Memory of a CUDA device that another process of this host allocated."""

    raw_handle: RawHandle
    device_id: Annotated[int, Field(ge=0, le=LARGEST), WHOLE]
    byte_size: Annotated[RegionBytes, Field(description="The region's bytes.")]


class SystemStatus(Answer):
    """A registered region."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaStatus(Answer):
    """A registered region."""

    name: str
    device_id: int
    byte_size: int


class SystemRegions(RootModel[list[SystemStatus]]):
    """Registered regions."""


class CudaRegions(RootModel[list[CudaStatus]]):
    """Registered regions."""


class _RegionPath(StrictModel):
    """A region's name, out of its path."""

    region: Name


_REGISTERED: Final = timed_out() | documented(
    errors.Malformed,
    errors.SharedMemoryOff,
    errors.UnknownDevice,
    errors.RegionExists,
    errors.BodyTooLarge,
    errors.Invalid,
    errors.InvalidRegion,
    errors.Unsupported,
    errors.Closing,
    errors.ChildDied,
    errors.ChildTimedOut,
    errors.LaunchFailed,
)
_STATUS: Final = documented(errors.SharedMemoryOff, errors.UnknownRegion, errors.Invalid)


@router.post(
    _SYSTEM + "/region/{region}/register",
    summary="Register system shared memory",
    response_class=Response,
    responses=_REGISTERED,
    openapi_extra={"requestBody": body(SystemRegistration)},
)
async def register_system(request: Request, region: RegionName) -> Response:
    """Have requests name POSIX shared memory of this host, which belongs to the user that runs the service."""
    expect_local(request)
    given = await read_document(SystemRegistration, request)
    taken = SystemRegion(_name(region), given.key, given.offset, given.byte_size)
    await threads_of(request).call(service_of(request).regions.register_system, principal_of(request), taken)
    return Response()


@router.post(
    _CUDA + "/region/{region}/register",
    summary="Register CUDA shared memory",
    response_class=Response,
    responses=_REGISTERED,
    openapi_extra={"requestBody": body(CudaRegistration)},
)
async def register_cuda(request: Request, region: RegionName) -> Response:
    """Have requests name memory of a CUDA device of this host, which another process allocated and exported."""
    expect_local(request)
    given = await read_document(CudaRegistration, request)
    taken, handle = CudaRegion(_name(region), given.device_id, given.byte_size), b64decode(given.raw_handle.b64)
    await threads_of(request).work(service_of(request).regions.register_cuda, principal_of(request), taken, handle)
    return Response()


@router.get(_SYSTEM + "/status", summary="System shared memory", response_model=SystemRegions, responses=_STATUS)
async def system_status(request: Request) -> Response:
    """Every region that the caller has registered."""
    return _listed(request, "system", None)


@router.get(
    _SYSTEM + "/region/{region}/status",
    summary="A region of system shared memory",
    response_model=SystemRegions,
    responses=_STATUS,
)
async def one_system_status(request: Request, region: RegionName) -> Response:
    """The region of a name."""
    return _listed(request, "system", _name(region))


@router.get(_CUDA + "/status", summary="CUDA shared memory", response_model=CudaRegions, responses=_STATUS)
async def cuda_status(request: Request) -> Response:
    """Every region that the caller has registered."""
    return _listed(request, "cuda", None)


@router.get(
    _CUDA + "/region/{region}/status",
    summary="A region of CUDA shared memory",
    response_model=CudaRegions,
    responses=_STATUS,
)
async def one_cuda_status(request: Request, region: RegionName) -> Response:
    """The region of a name."""
    return _listed(request, "cuda", _name(region))


@router.post(
    _SYSTEM + "/unregister",
    summary="Forget all system shared memory",
    response_class=Response,
    responses=documented(errors.SharedMemoryOff),
)
async def unregister_system(request: Request) -> Response:
    """Forget every region that the caller has registered; none is no error."""
    return await _unregistered(request, "system", None)


@router.post(
    _SYSTEM + "/region/{region}/unregister",
    summary="Forget a region of system shared memory",
    response_class=Response,
    responses=documented(errors.SharedMemoryOff, errors.Invalid),
)
async def unregister_one_system(request: Request, region: RegionName) -> Response:
    """Forget the region of a name; none is no error."""
    return await _unregistered(request, "system", _name(region))


@router.post(
    _CUDA + "/unregister",
    summary="Forget all CUDA shared memory",
    response_class=Response,
    responses=documented(errors.SharedMemoryOff),
)
async def unregister_cuda(request: Request) -> Response:
    """Forget every region that the caller has registered; none is no error, with or without a GPU."""
    return await _unregistered(request, "cuda", None)


@router.post(
    _CUDA + "/region/{region}/unregister",
    summary="Forget a region of CUDA shared memory",
    response_class=Response,
    responses=documented(errors.SharedMemoryOff, errors.Invalid),
)
async def unregister_one_cuda(request: Request, region: RegionName) -> Response:
    """Forget the region of a name; none is no error."""
    return await _unregistered(request, "cuda", _name(region))


def expect_local(request: Request) -> None:
    """Refuse to speak of shared memory, where it is on, with callers on other hosts; raises SharedMemoryOff."""
    if service_of(request).regions.allowed and not is_local(request.scope):
        message = "shared memory is off for callers on other hosts: come by a loopback address or the Unix socket"
        raise errors.SharedMemoryOff(message)


def is_local(scope: Scope) -> bool:
    """Whether a request came by a loopback address or a Unix socket, which alone has a place and no port.

    A TCP client that is gone has no address either.
    """
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return server is not None and server[1] is None
    try:
        address = ip_address(client[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _name(region: str) -> str:
    """A region's name; raises Invalid."""
    return validated(_RegionPath, {"region": region}).region


def _listed(request: Request, kind: Kind, name: str | None) -> Response:
    expect_local(request)
    found = service_of(request).regions.listed(principal_of(request), kind, name)
    members = [asdict(cast("Any", region)) for region in found]
    return Response(orjson.dumps(members), media_type="application/json")


async def _unregistered(request: Request, kind: Kind, name: str | None) -> Response:
    expect_local(request)
    await threads_of(request).work(service_of(request).regions.unregister, principal_of(request), kind, name)
    return Response()
