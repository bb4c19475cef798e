"""The tree of errors. Each has a stable code and an HTTP status; one handler in app/api/errors.py renders them.

TilewiseError
├── Refused                   the caller can mend it
│   ├── Malformed             400 malformed
│   ├── Unauthenticated       401 unauthenticated
│   ├── Forbidden             403 forbidden
│   ├── CrossOrigin           403 cross_origin
│   ├── SharedMemoryOff       403 shared_memory_off
│   ├── NotAcceptable         406 not_acceptable
│   ├── RegionExists          409 region_exists
│   ├── KeyInUse              409 key_in_use
│   ├── Cancelled             409 cancelled
│   ├── PreconditionFailed    412 precondition_failed
│   ├── BodyTooLarge          413 body_too_large
│   ├── UnsupportedMediaType  415 unsupported_media_type
│   ├── Misdirected           421 misdirected
│   ├── Invalid               422 invalid
│   ├── InvalidFile           422 invalid_file
│   ├── InvalidMatrix         422 invalid_matrix
│   ├── InvalidRegion         422 invalid_region
│   ├── InvalidWorkload       422 invalid_workload
│   ├── RefusedConfig         422 refused_config
│   ├── Unsupported           422 unsupported
│   ├── KeyReused             422 key_reused
│   ├── TooLarge              422 too_large
│   ├── BudgetTooSmall        422 budget_too_small
│   └── QuotaExceeded         507 quota_exceeded
├── NotFound
│   ├── UnknownDevice         404 unknown_device
│   ├── UnknownKernel         404 unknown_kernel
│   ├── UnknownModel          404 unknown_model
│   ├── UnknownRegion         404 unknown_region
│   ├── UnknownMatrix         404 unknown_matrix
│   ├── UnknownFile           404 unknown_file
│   ├── MatrixGone            410 matrix_gone
│   ├── UnknownApiKey         404 unknown_api_key
│   ├── UnknownJob            404 unknown_job
│   ├── UnknownImport         404 unknown_import
│   ├── UnknownMiss           404 unknown_miss
│   ├── UnknownWorkload       404 unknown_workload
│   ├── UnknownCacheEntry     404 unknown_cache_entry
│   ├── NoResult              404 no_result
│   └── NotTuned              404 not_tuned
├── Busy                      try again after retry_after seconds
│   ├── OverShare             429 over_share
│   ├── RateLimited           429 rate_limited
│   ├── DeviceTimeUsed        429 device_time_used
│   ├── QueueFull             503 queue_full
│   ├── NoRoom                503 no_room
│   ├── StoreFailed           503 store_failed
│   └── Closing               503 closing
├── DeviceError               a device or its child failed
│   ├── InternalError         500 internal_error
│   ├── CompileFailed         500 compile_failed
│   ├── LaunchFailed          500 launch_failed
│   ├── WrongResult           500 wrong_result
│   ├── CertificateFailed     500 certificate_failed
│   ├── ChildDied             503 child_died
│   ├── ChildLost             503 child_lost
│   ├── DeviceCordoned        503 device_cordoned
│   ├── ChildTimedOut         503 child_timed_out
│   └── NoDevice              503 no_device
└── StartRefused              the service does not start
    ├── BackupBroken          500 backup_broken
    ├── DatabaseOwned         500 database_owned
    └── SchemaUnknown         500 schema_unknown
"""

from __future__ import annotations

from app.errors.base import TilewiseError
from app.errors.failed import (
    BackupBroken,
    Busy,
    CertificateFailed,
    ChildDied,
    ChildLost,
    ChildTimedOut,
    ClaimLost,
    Closing,
    CompileFailed,
    DatabaseOwned,
    DeviceCordoned,
    DeviceError,
    DeviceTimeUsed,
    InternalError,
    LaunchFailed,
    NoDevice,
    NoRoom,
    OverShare,
    QueueFull,
    RateLimited,
    SchemaUnknown,
    StartRefused,
    StoreFailed,
    WrongResult,
)
from app.errors.refused import (
    BodyTooLarge,
    BudgetTooSmall,
    Cancelled,
    CrossOrigin,
    Forbidden,
    Invalid,
    InvalidFile,
    InvalidMatrix,
    InvalidRegion,
    InvalidWorkload,
    KeyInUse,
    KeyReused,
    Malformed,
    MatrixGone,
    Misdirected,
    NoResult,
    NotAcceptable,
    NotFound,
    NotTuned,
    PreconditionFailed,
    QuotaExceeded,
    Refused,
    RefusedConfig,
    RegionExists,
    SharedMemoryOff,
    TooLarge,
    Unauthenticated,
    UnknownApiKey,
    UnknownCacheEntry,
    UnknownDevice,
    UnknownFile,
    UnknownImport,
    UnknownJob,
    UnknownKernel,
    UnknownMatrix,
    UnknownMiss,
    UnknownModel,
    UnknownRegion,
    UnknownWorkload,
    Unsupported,
    UnsupportedMediaType,
)

__all__ = [
    "BackupBroken",
    "BodyTooLarge",
    "BudgetTooSmall",
    "Busy",
    "Cancelled",
    "CertificateFailed",
    "ChildDied",
    "ChildLost",
    "ChildTimedOut",
    "ClaimLost",
    "Closing",
    "CompileFailed",
    "CrossOrigin",
    "DatabaseOwned",
    "DeviceCordoned",
    "DeviceError",
    "DeviceTimeUsed",
    "Forbidden",
    "InternalError",
    "Invalid",
    "InvalidFile",
    "InvalidMatrix",
    "InvalidRegion",
    "InvalidWorkload",
    "KeyInUse",
    "KeyReused",
    "LaunchFailed",
    "Malformed",
    "MatrixGone",
    "Misdirected",
    "NoDevice",
    "NoResult",
    "NoRoom",
    "NotAcceptable",
    "NotFound",
    "NotTuned",
    "OverShare",
    "PreconditionFailed",
    "QueueFull",
    "QuotaExceeded",
    "RateLimited",
    "Refused",
    "RefusedConfig",
    "RegionExists",
    "SchemaUnknown",
    "SharedMemoryOff",
    "StartRefused",
    "StoreFailed",
    "TilewiseError",
    "TooLarge",
    "Unauthenticated",
    "UnknownApiKey",
    "UnknownCacheEntry",
    "UnknownDevice",
    "UnknownFile",
    "UnknownImport",
    "UnknownJob",
    "UnknownKernel",
    "UnknownMatrix",
    "UnknownMiss",
    "UnknownModel",
    "UnknownRegion",
    "UnknownWorkload",
    "Unsupported",
    "UnsupportedMediaType",
    "WrongResult",
]
