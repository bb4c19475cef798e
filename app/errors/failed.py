"""What the service cannot do now, a device's failures, and why it does not start."""

from __future__ import annotations

from app.errors.base import TilewiseError


class Busy(TilewiseError):
    """The service cannot now; the same request may succeed after `retry_after` seconds."""

    status, retry_after = 503, 1


class OverShare(Busy):
    """The caller holds as much as TILEWISE_MAX_CLIENT_SHARE allows one; facts: limit, size."""

    code, status = "over_share", 429


class RateLimited(Busy):
    """The caller's key allows fewer requests a second; facts: limit, retry_after, principal."""

    code, status = "rate_limited", 429


class DeviceTimeUsed(Busy):
    """The caller has used the device seconds that its key allows an hour; facts: limit, size, retry_after."""

    code, status = "device_time_used", 429


class QueueFull(Busy):
    """More requests wait than TILEWISE_QUEUE allows; facts: limit, size, retry_after."""

    code = "queue_full"


class NoRoom(Busy):
    """The bytes for this product are lent to others now; facts: limit, size, retry_after."""

    code = "no_room"


class StoreFailed(Busy):
    """The database cannot be read or written now: its disk is full, or its server is gone."""

    code = "store_failed"


class ClaimLost(TilewiseError):
    """Another service runs the job: this one was away for longer than its lease. No request is answered with it."""


class Closing(Busy):
    """The service is shutting down."""

    code = "closing"


class DeviceError(TilewiseError):
    """A device or its child failed."""


class InternalError(DeviceError):
    """The service has a fault; its log says which, by the fact id where there is one."""

    code = "internal_error"


class CompileFailed(DeviceError):
    """A compiler refused the text; the message is the compiler's own."""

    code = "compile_failed"


class LaunchFailed(DeviceError):
    """The device refused or broke off a launch."""

    code = "launch_failed"


class WrongResult(DeviceError):
    """A kernel's answer is outside its tolerance: it is not served."""

    code = "wrong_result"


class CertificateFailed(DeviceError):
    """A product differs from what its operands make by more than its class errs: it is not served.

    Facts: residual, limit, and batch, row and column as far as they are known.
    """

    code = "certificate_failed"


class ChildDied(DeviceError):
    """The process that holds the device died while it worked."""

    code, status, retry_after = "child_died", 503, 1


class ChildTimedOut(DeviceError):
    """The process that holds the device outlived its deadline and was killed."""

    code, status, retry_after = "child_timed_out", 503, 1


class ChildLost(DeviceError):
    """The process that holds the device was killed and does not end, or its node is lost: the device is not asked."""

    code, status, retry_after = "child_lost", 503, 5


class DeviceCordoned(DeviceError):
    """The device is cordoned, by an operator or since it failed: it makes no products and runs no tunes."""

    code, status, retry_after = "device_cordoned", 503, 60


class NoDevice(DeviceError):
    """No device could be opened."""

    code, status, retry_after = "no_device", 503, 5


class StartRefused(TilewiseError):
    """The service does not start."""


class DatabaseOwned(StartRefused):
    """Another running service owns the database."""

    code = "database_owned"


class BackupBroken(StartRefused):
    """A backup that is not, to the byte, what was written."""

    code = "backup_broken"


class SchemaUnknown(StartRefused):
    """The database's schema is newer than this program."""

    code = "schema_unknown"
