"""The devices of this host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Final

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.body.json_body import read_json
from app.api.errors import documented, timed_out
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import body
from app.api.params import read_query
from app.api.responses import Answer, reply
from app.api.schemas import Cordoning, Nothing
from app.api.state import service_of, threads_of
from app.devices.fleet import Unit
from app.services.best.quarantine import QuarantinedConfig
from app.services.health.cordons import OPERATOR, Cordon

router = DirectRouter("devices")


class Limits(Answer):
    """What bounds a launch and its speed; a zero means that the device does not say."""

    threads: Annotated[int, Field(description="Threads a block.")]
    shared_bytes: Annotated[int, Field(description="Shared memory a block.")]
    warp: int
    sms: Annotated[int, Field(description="Multiprocessors, or cores.")]
    bandwidth: Annotated[float, Field(description="Bytes a second of global memory.")]
    peak: Annotated[float, Field(description="float32 operations a second.")]
    peak64: Annotated[float, Field(description="float64 operations a second.")]
    tensor_float16: Annotated[float, Field(description="float16 operations a second of tensor cores, sums in float32.")]
    tensor_bfloat16: Annotated[float, Field(description="The same of bfloat16.")]
    tensor_tf32: Annotated[float, Field(description="The same of float32 operands rounded to TF32.")]
    tensor_float64: Annotated[float, Field(description="float64 operations a second of tensor cores.")]
    registers_per_sm: int
    registers_per_thread: int
    shared_bytes_per_sm: int
    shared_bytes_reserved: int
    threads_per_sm: int
    blocks_per_sm: int
    allocation_bytes: Annotated[int, Field(description="The largest single buffer.")]
    cache_bytes: Annotated[int, Field(description="The last-level cache.")]


class Vendor(Answer):
    """The vendor's library as this device has it, or the reason why there is none."""

    name: str | None
    reason: str | None


class Quarantined(Answer):
    """A config that is not served on a device, since it failed there; the kernel below serves in its place."""

    kernel: str
    config: dict[str, int]
    dtype: Annotated[str | None, Field(description="The dtype that it is quarantined for; null: every one.")]
    precision: Annotated[str | None, Field(description="The precision that it is quarantined for; null: every one.")]
    stage: Annotated[str, Field(description="What went wrong: compile, verify, launch, timeout or died.")]
    reason: str
    since: datetime

    @classmethod
    def of(cls, entry: QuarantinedConfig) -> Quarantined:
        """Take what is held."""
        names = ("kernel", "dtype", "precision", "stage", "reason", "since")
        return cls(config=dict(entry.config), **{name: getattr(entry, name) for name in names})


class Device(Answer):
    """One device. Equal devices share a model, and with it their bests."""

    id: Annotated[str, Field(examples=["cuda:0"])]
    platform: Annotated[str, Field(description="cuda or opencl.")]
    name: str
    architecture: str
    model: str
    driver: str
    runtime: str
    compiler: str
    environment: Annotated[str, Field(description="What makes a stored timing stale when it changes.")]
    uuid: str
    memory_bytes: int
    mig: Annotated[str, Field(description="The MIG profile; empty where there is none.")]
    exclusive: Annotated[bool, Field(description="The device takes one process: products wait for trials.")]
    limits: Limits
    vendor: Vendor
    waiting: Annotated[int, Field(description="How many wait for the device now.")]
    quarantined: Annotated[list[Quarantined], Field(description="What is not served, since it failed here.")]

    @classmethod
    def of(cls, unit: Unit, entries: Iterable[QuarantinedConfig]) -> Device:
        """Take an open device, and what is quarantined on it."""
        device = unit.device
        members = asdict(device) | {"model": device.model, "environment": device.environment}
        now = {"vendor": asdict(unit.vendor), "waiting": unit.lease.waiting}
        return cls.model_validate(members | now | {"quarantined": [Quarantined.of(entry) for entry in entries]})


class Devices(Answer):
    """Every device that could be opened, and why others could not."""

    devices: list[Device]
    reasons: list[str]


class DeviceCordon(Answer):
    """Whether a device is cordoned: it makes no products and runs no tunes then."""

    device: Annotated[str, Field(examples=["cuda:0"])]
    cordoned: bool
    reason: str | None = None
    by: Annotated[str | None, Field(description="operator, or health: the service itself.")] = None
    since: datetime | None = None

    @classmethod
    def of(cls, device: str, cordon: Cordon | None) -> DeviceCordon:
        """Take a device's cordon, or that there is none."""
        if cordon is None:
            return cls(device=device, cordoned=False)
        return cls.model_validate({"device": device, "cordoned": True, **asdict(cordon)})


DeviceId = Annotated[str, Path(description="A device's id.", examples=["cuda:0"])]
_CORDONING: Final = documented(
    errors.UnknownDevice, errors.BodyTooLarge, errors.UnsupportedMediaType, errors.Invalid, errors.NoDevice
)


@router.post(
    "/devices/{device}/cordon",
    summary="Cordon a device",
    response_model=DeviceCordon,
    responses=_CORDONING | timed_out(),
    openapi_extra={"requestBody": body(Cordoning)},
)
async def cordon_device(request: Request, device: DeviceId) -> Response:
    """Have a device refuse products and tunes until it is uncordoned, over restarts; what runs on it is finished.

    A device that is cordoned already stays so for its first reason.
    """
    asked, service = await read_json(Cordoning, request), service_of(request)
    unit = service.fleet.unit(device)
    cordon = await threads_of(request).call(service.health.cordons.cordon, unit, asked.reason, OPERATOR)
    return reply(DeviceCordon.of(unit.device.id, cordon))


@router.post(
    "/devices/{device}/uncordon",
    summary="Uncordon a device",
    response_model=DeviceCordon,
    responses=documented(errors.UnknownDevice, errors.Invalid, errors.NoDevice),
)
async def uncordon_device(request: Request, device: DeviceId) -> Response:
    """Have a device serve again, from new processes; one that is not cordoned is left as it is."""
    read_query(Nothing, request)
    service = service_of(request)
    unit = service.fleet.unit(device)
    await threads_of(request).call(service.health.cordons.uncordon, unit)
    return reply(DeviceCordon.of(unit.device.id, None))


@router.get(
    "/devices", summary="The devices of this host", response_model=Devices, responses=documented(errors.Invalid)
)
async def list_devices(request: Request) -> Response:
    """Who they are, what limits them, and which vendor library each is compared with."""
    read_query(Nothing, request)
    fleet, quarantine = service_of(request).fleet, service_of(request).quarantine
    devices = [Device.of(unit, quarantine.entries(unit.device)) for unit in fleet.units]
    return reply(Devices(devices=devices, reasons=list(fleet.reasons)))
