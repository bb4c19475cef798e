"""What a service may refuse or fail with: a class for each stable code, all of them ClientError.

ClientError
├── UnreachableError      no answer came
│   └── TimedOut          in time
├── UnreadableAnswer      an answer came that is not what was asked for
├── Refused               the caller can mend it: any other status from 400 to 499
│   └── Malformed, NotAcceptable, BodyTooLarge, UnsupportedMediaType, Invalid, InvalidMatrix, RefusedConfig,
│       Unsupported, TooLarge, QuotaExceeded, KeyInUse, KeyReused, Cancelled, SharedMemoryOff, InvalidRegion,
│       InvalidFile, InvalidWorkload, RegionExists, BudgetTooSmall, Unauthenticated, Forbidden, CrossOrigin,
│       Misdirected, PreconditionFailed
├── NotFound              404 and 410
│   └── UnknownDevice, UnknownKernel, UnknownJob, UnknownMatrix, MatrixGone, UnknownModel, UnknownRegion, NoResult,
│       NotTuned, UnknownApiKey, UnknownImport, UnknownWorkload, UnknownMiss,
│       UnknownCacheEntry, UnknownFile
├── Busy                  429 and 503: the same request may succeed later
│   └── OverShare, RateLimited, DeviceTimeUsed, QueueFull, NoRoom, StoreFailed, Closing
└── Failed                any other status from 500
    ├── InternalError
    └── DeviceError
        └── CompileFailed, LaunchFailed, WrongResult, CertificateFailed, ChildDied, ChildTimedOut,
            ChildLost, DeviceCordoned, NoDevice

A code that is none of these is raised as the group of its status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from time import time
from typing import Any, Final

_NOT_FOUND: Final = (404, 410)
_BUSY: Final = (429, 503)


class ClientError(Exception):
    """The service refused or failed: its status, the stable code, and the body (RFC 9457 members and figures).

    `status` is None if no answer came; `retry_after` the seconds after which the service says to try again.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        code: str = "error",
        body: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.body = dict(body or {})
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.status, self.code, self.body, self.retry_after)

    @property
    def limit(self) -> float | None:
        """What may not be exceeded, where the refusal is about a size or a number."""
        return self._figure("limit")

    @property
    def size(self) -> float | None:
        """What exceeds it."""
        return self._figure("size")

    def _figure(self, name: str) -> float | None:
        value = self.body.get(name)
        return value if isinstance(value, int | float) else None


class UnreachableError(ClientError):
    """No answer came: nothing listens there, the connection broke, or the time-out passed; code unreachable."""

    def __init__(self, message: str, status: int | None = None, code: str = "unreachable", *rest: Any) -> None:
        super().__init__(message, status, code, *rest)


class TimedOut(UnreachableError, TimeoutError):
    """The service did not go on within the time-out; it may still be at work."""


class UnreadableAnswer(ClientError):
    """An answer came that is not what was asked for: another server, or a newer one; code unreadable."""


class Refused(ClientError):
    """The caller can mend it."""


class Malformed(Refused):
    """The body could not be read as what it was said to be."""


class NotAcceptable(Refused):
    """The service writes no form that was asked for."""


class PreconditionFailed(Refused):
    """What was to be replaced has changed since: body["version"]."""


class BodyTooLarge(Refused):
    """The body is over the service's `limit`."""


class UnsupportedMediaType(Refused):
    """The service does not read this form."""


class Invalid(Refused):
    """A parameter is off; body["errors"] says which."""


class InvalidMatrix(Refused):
    """Operands that are no matrices, or do not fit each other."""


class RefusedConfig(Refused):
    """A rule of the kernel's space refuses the config; body["rule"]."""


class Unsupported(Refused):
    """No kernel covers the dtype and precision on the device."""


class BudgetTooSmall(Refused):
    """One trial of every problem is forecast to take longer than the budget's seconds; the body: needed_seconds."""


class Unauthenticated(Refused):
    """No key, or none that holds."""


class Forbidden(Refused):
    """The key has not the scope that this needs."""


class CrossOrigin(Refused):
    """A page of another origin may not change anything."""


class Misdirected(Refused):
    """The service does not answer to this name of a host."""


class TooLarge(Refused):
    """A problem that can never fit: its `size` and the `limit`."""


class QuotaExceeded(Refused):
    """What is kept would be over the quota of bytes or of matrices: `limit`, `size`."""


class KeyInUse(Refused):
    """The first request with this Idempotency-Key is still under way."""


class KeyReused(Refused):
    """The Idempotency-Key came with another request before."""


class Cancelled(Refused):
    """The product was cancelled before its answer."""


class SharedMemoryOff(Refused):
    """The service's owner does not allow shared memory."""


class InvalidRegion(Refused):
    """Shared memory that is not there, not the caller's to lend, or too small: `limit`, `size`."""


class InvalidFile(Refused):
    """A file to be imported that is not of its format, or is cut: `line`, `column`."""


class InvalidWorkload(Refused):
    """A file that no workload can be read from: `line`, `column`, `offset`, `limit` where there are such."""


class RegionExists(Refused):
    """Shared memory is registered under this name already."""


class NotFound(ClientError):
    """What was named does not exist."""


class UnknownMiss(NotFound):
    """Nothing is counted of that problem on that device."""


class UnknownCacheEntry(NotFound):
    """The caller keeps nothing under that key of the namespace."""


class UnknownWorkload(NotFound):
    """The caller keeps no workload of that id."""


class UnknownDevice(NotFound):
    """No device of that id."""


class UnknownKernel(NotFound):
    """No kernel of that name."""


class UnknownJob(NotFound):
    """No job of that id."""


class UnknownMatrix(NotFound):
    """No resident matrix of that name."""


class UnknownFile(NotFound):
    """No such file in the service's folder of operands."""


class MatrixGone(NotFound):
    """The matrix was evicted to make room: put it again; body["evicted_at"]."""


class UnknownModel(NotFound):
    """No model of that name in the Open Inference Protocol."""


class UnknownRegion(NotFound):
    """No shared memory was registered under that name."""


class NoResult(NotFound):
    """The job has no result: not ended yet, failed, or its result's time is over."""


class NotTuned(NotFound):
    """An exact answer was asked for, and there is none."""


class UnknownImport(NotFound):
    """The caller has imported nothing of that id, or it has expired."""


class UnknownApiKey(NotFound):
    """There is no key with this id."""


class Busy(ClientError):
    """The service cannot now; the same request may succeed after `retry_after` seconds."""


class RateLimited(Busy):
    """The key allows fewer requests a second."""


class DeviceTimeUsed(Busy):
    """The device seconds that the key allows an hour are used."""


class OverShare(Busy):
    """The caller holds as much of the service as one may: `limit`, `size`."""


class QueueFull(Busy):
    """As many requests wait as the service allows: `limit`, `size`."""


class NoRoom(Busy):
    """The host bytes for this product are lent to others now: `limit`, `size`."""


class StoreFailed(Busy):
    """The service's database cannot be read or written now."""


class Closing(Busy):
    """The service is shutting down."""


class Failed(ClientError):
    """The service has a fault; its log says which."""


class InternalError(Failed):
    """The service has a fault; its log says which, by body["id"] where there is one."""


class DeviceError(Failed):
    """A device or its child failed."""


class CompileFailed(DeviceError):
    """The device's compiler refused the kernel."""


class LaunchFailed(DeviceError):
    """The device refused or broke off the launch."""


class WrongResult(DeviceError):
    """A kernel's answer was outside its tolerance, and was not served."""


class CertificateFailed(DeviceError):
    """The product differed from what its operands make by more than its class errs, and was not served."""


class ChildDied(DeviceError):
    """The process that holds the device died while it worked."""


class ChildTimedOut(DeviceError):
    """The process that holds the device outlived its deadline."""


class ChildLost(DeviceError):
    """The process that holds the device does not end, and the device is lost until it does."""


class DeviceCordoned(DeviceError):
    """The device was taken out of service, by an operator or because it failed."""


class NoDevice(DeviceError):
    """The service's host has no device."""


def error_of(status: int | None, body: object, retry_after: str | None = None) -> ClientError:
    """The error that an answer or a failed job tells of, whoever wrote it (a proxy's page has no code)."""
    members = body if isinstance(body, dict) else {}
    told = members.get("code")
    code = told if isinstance(told, str) else "error"
    said = (members.get(name) for name in ("error", "detail", "title"))
    message = next((text for text in said if isinstance(text, str) and text), None)
    kind = _kinds().get(code) or _group(status)
    return kind(message or f"the service answered {status}", status, code, members, seconds_of(retry_after))


def seconds_of(retry_after: str | None) -> float | None:
    """Retry-After in seconds from now, be it a number or a date; None if it is neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time())
    except ValueError:
        return None


@cache
def _kinds() -> dict[str, type[ClientError]]:
    """A class's code is its name, in small letters: QueueFull's is queue_full."""
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in _below(ClientError)}


def _below(kind: type[ClientError]) -> Iterator[type[ClientError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _group(status: int | None) -> type[ClientError]:
    if status is None:
        return ClientError
    if status in _NOT_FOUND:
        return NotFound
    if status in _BUSY:
        return Busy
    return Refused if 400 <= status < 500 else Failed if status >= 500 else ClientError  # noqa: PLR2004
