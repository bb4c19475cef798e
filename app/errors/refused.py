"""What the caller can mend, and what it names that does not exist."""

from __future__ import annotations

from app.errors.base import TilewiseError


class Refused(TilewiseError):
    """The caller can mend it."""


class Malformed(Refused):
    """A body that cannot be read as what it says it is."""

    code, status = "malformed", 400


class Unauthenticated(Refused):
    """No key, or none that holds: unknown, expired, revoked, or of a certificate that was granted nothing."""

    code, status = "unauthenticated", 401


class Forbidden(Refused):
    """The caller's key has not the scope that this needs; facts: scope, principal."""

    code, status = "forbidden", 403


class CrossOrigin(Refused):
    """A page of another origin asks for something that would change the service."""

    code, status = "cross_origin", 403


class SharedMemoryOff(Refused):
    """TILEWISE_SHARED_MEMORY does not allow callers to lend their memory, or not callers on other hosts."""

    code, status = "shared_memory_off", 403


class NotAcceptable(Refused):
    """The Accept header names nothing that the service writes."""

    code, status = "not_acceptable", 406


class RegionExists(Refused):
    """The caller has registered shared memory under this name already."""

    code, status = "region_exists", 409


class KeyInUse(Refused):
    """The first request with this Idempotency-Key is still under way."""

    code, status, retry_after = "key_in_use", 409, 1


class Cancelled(Refused):
    """The product was cancelled before its answer, by its caller or because the caller went away."""

    code, status = "cancelled", 409


class PreconditionFailed(Refused):
    """The resource is not as If-Match or If-None-Match says; facts: version, what it is now, null if it is not."""

    code, status = "precondition_failed", 412


class BodyTooLarge(Refused):
    """A body over TILEWISE_MAX_BODY_BYTES; facts: limit, size."""

    code, status = "body_too_large", 413


class UnsupportedMediaType(Refused):
    """The Content-Type is none of those the service reads."""

    code, status = "unsupported_media_type", 415


class Misdirected(Refused):
    """The Host header names a host that is not this service: TILEWISE_HOSTS lists those that are."""

    code, status = "misdirected", 421


class Invalid(Refused):
    """A request whose members are off; facts: errors."""

    code, status = "invalid", 422


class InvalidFile(Refused):
    """A file that is not of its format, or is cut; facts: line, column, both from 1."""

    code, status = "invalid_file", 422


class InvalidMatrix(Refused):
    """Operands that are no matrices, or do not fit each other."""

    code, status = "invalid_matrix", 422


class InvalidWorkload(Refused):
    """A file that no workload can be read from; facts may have line, column, offset, limit."""

    code, status = "invalid_workload", 422


class InvalidRegion(Refused):
    """Shared memory that is not there, not the caller's to lend, or too small; facts may have limit, size."""

    code, status = "invalid_region", 422


class RefusedConfig(Refused):
    """A rule of the kernel's space refuses the config; facts: rule."""

    code, status = "refused_config", 422


class Unsupported(Refused):
    """No kernel covers the problem's dtype and precision on the device."""

    code, status = "unsupported", 422


class KeyReused(Refused):
    """The Idempotency-Key came with another request before: another path, query or body."""

    code, status = "key_reused", 422


class TooLarge(Refused):
    """A problem that can never fit; facts: limit, size."""

    code, status = "too_large", 422


class BudgetTooSmall(Refused):
    """One trial of every problem is forecast to take longer than the budget's seconds; facts: needed_seconds."""

    code, status = "budget_too_small", 422


class QuotaExceeded(Refused):
    """What the caller keeps would be over its quota of bytes or of matrices; facts: limit, used, size."""

    code, status = "quota_exceeded", 507


class NotFound(TilewiseError):
    """What was named does not exist."""

    code, status = "not_found", 404


class UnknownDevice(NotFound):
    """No device of that id."""

    code = "unknown_device"


class UnknownKernel(NotFound):
    """No kernel of that name."""

    code = "unknown_kernel"


class UnknownModel(NotFound):
    """No model, or no version of it, of that name in the Open Inference Protocol."""

    code = "unknown_model"


class UnknownRegion(NotFound):
    """The caller has registered no shared memory under that name."""

    code = "unknown_region"


class UnknownMatrix(NotFound):
    """The caller keeps no matrix of that name."""

    code = "unknown_matrix"


class UnknownFile(NotFound):
    """No file of that name in the operator's folder of operands, or none that may be read."""

    code = "unknown_file"


class MatrixGone(NotFound):
    """The matrix was evicted to make room, as its owner allowed; facts: evicted_at."""

    code, status = "matrix_gone", 410


class UnknownApiKey(NotFound):
    """There is no API key with this id."""

    code = "unknown_api_key"


class UnknownJob(NotFound):
    """No job of that id."""

    code = "unknown_job"


class UnknownImport(NotFound):
    """The caller has imported nothing of that id, or it has expired."""

    code = "unknown_import"


class UnknownMiss(NotFound):
    """Nothing is counted of that problem on that device: it was not asked for since, or it has been tuned."""

    code = "unknown_miss"


class UnknownCacheEntry(NotFound):
    """The caller keeps nothing under that key of the namespace, or its time is over."""

    code = "unknown_cache_entry"


class UnknownWorkload(NotFound):
    """The caller keeps no workload of that id."""

    code = "unknown_workload"


class NoResult(NotFound):
    """The job has no result: not ended yet, failed, or its result's time is over."""

    code = "no_result"


class NotTuned(NotFound):
    """An exact answer was asked for, and there is none."""

    code = "not_tuned"
