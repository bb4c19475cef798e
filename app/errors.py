"""The tree of errors. Each has a stable code and an HTTP status; one handler in app/api/errors.py renders them.

TilewiseError
├── Refused                   the caller can mend it
│   ├── Malformed             400 malformed
│   ├── NotAcceptable         406 not_acceptable
│   ├── BodyTooLarge          413 body_too_large
│   ├── UnsupportedMediaType  415 unsupported_media_type
│   ├── Invalid               422 invalid
│   ├── InvalidMatrix         422 invalid_matrix
│   ├── RefusedConfig         422 refused_config
│   ├── Unsupported           422 unsupported
│   └── TooLarge              422 too_large
├── NotFound
│   ├── UnknownDevice         404 unknown_device
│   ├── UnknownKernel         404 unknown_kernel
│   ├── UnknownJob            404 unknown_job
│   ├── NoResult              404 no_result
│   └── NotTuned              404 not_tuned
├── Busy                      try again after retry_after seconds
│   ├── QueueFull             503 queue_full
│   ├── NoRoom                503 no_room
│   ├── StoreFailed           503 store_failed
│   └── Closing               503 closing
├── DeviceError               a device or its child failed
│   ├── CompileFailed         500 compile_failed
│   ├── LaunchFailed          500 launch_failed
│   ├── WrongResult           500 wrong_result
│   ├── ChildDied             503 child_died
│   ├── ChildTimedOut         503 child_timed_out
│   └── NoDevice              503 no_device
└── StartRefused              the service does not start
    ├── DatabaseOwned         500 database_owned
    └── SchemaUnknown         500 schema_unknown
"""

from __future__ import annotations

from typing import ClassVar


class TilewiseError(Exception):
    """Whatever Tilewise raises on purpose. `facts` are figures for the answer's body, such as a limit and a size."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retry_after: ClassVar[int | None] = None

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[TilewiseError], message: str, facts: dict[str, object]) -> TilewiseError:
    return kind(message, **facts)


class Refused(TilewiseError):
    """The caller can mend it."""


class Malformed(Refused):
    """A body that cannot be read as what it says it is."""

    code, status = "malformed", 400


class NotAcceptable(Refused):
    """The Accept header names nothing that the service writes."""

    code, status = "not_acceptable", 406


class BodyTooLarge(Refused):
    """A body over TILEWISE_MAX_BODY_BYTES; facts: limit, size."""

    code, status = "body_too_large", 413


class UnsupportedMediaType(Refused):
    """The Content-Type is none of those the service reads."""

    code, status = "unsupported_media_type", 415


class Invalid(Refused):
    """A request whose members are off; facts: errors."""

    code, status = "invalid", 422


class InvalidMatrix(Refused):
    """Operands that are no matrices, or do not fit each other."""

    code, status = "invalid_matrix", 422


class RefusedConfig(Refused):
    """A rule of the kernel's space refuses the config; facts: rule."""

    code, status = "refused_config", 422


class Unsupported(Refused):
    """No kernel covers the problem's dtype and precision on the device."""

    code, status = "unsupported", 422


class TooLarge(Refused):
    """A problem that can never fit; facts: limit, size."""

    code, status = "too_large", 422


class NotFound(TilewiseError):
    """What was named does not exist."""

    code, status = "not_found", 404


class UnknownDevice(NotFound):
    """No device of that id."""

    code = "unknown_device"


class UnknownKernel(NotFound):
    """No kernel of that name."""

    code = "unknown_kernel"


class UnknownJob(NotFound):
    """No job of that id."""

    code = "unknown_job"


class NoResult(NotFound):
    """The job has no result: not ended yet, failed, or its result's time is over."""

    code = "no_result"


class NotTuned(NotFound):
    """An exact answer was asked for, and there is none."""

    code = "not_tuned"


class Busy(TilewiseError):
    """The service cannot now; the same request may succeed after `retry_after` seconds."""

    status, retry_after = 503, 1


class QueueFull(Busy):
    """More requests wait than TILEWISE_QUEUE allows."""

    code = "queue_full"


class NoRoom(Busy):
    """The host bytes for this product are lent to others now; facts: limit, size."""

    code = "no_room"


class StoreFailed(Busy):
    """The database cannot be read or written now: its disk is full, or its server is gone."""

    code = "store_failed"


class Closing(Busy):
    """The service is shutting down."""

    code = "closing"


class DeviceError(TilewiseError):
    """A device or its child failed."""


class CompileFailed(DeviceError):
    """A compiler refused the text; the message is the compiler's own."""

    code = "compile_failed"


class LaunchFailed(DeviceError):
    """The device refused or broke off a launch."""

    code = "launch_failed"


class WrongResult(DeviceError):
    """A kernel's answer is outside its tolerance: it is not served."""

    code = "wrong_result"


class ChildDied(DeviceError):
    """The process that holds the device died while it worked."""

    code, status, retry_after = "child_died", 503, 1


class ChildTimedOut(DeviceError):
    """The process that holds the device outlived its deadline and was killed."""

    code, status, retry_after = "child_timed_out", 503, 1


class NoDevice(DeviceError):
    """No device could be opened."""

    code, status, retry_after = "no_device", 503, 5


class StartRefused(TilewiseError):
    """The service does not start."""


class DatabaseOwned(StartRefused):
    """Another running service owns the database."""

    code = "database_owned"


class SchemaUnknown(StartRefused):
    """The database's schema is newer than this program."""

    code = "schema_unknown"
