"""What a GPU's driver reports of its health, and what follows from it: rules alone, no library and no device.

The numbers and what is to be done about each are those of NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors):
an application that is to be restarted is a device's processes here, a GPU that is to be reset or replaced is cordoned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeAlias

Action: TypeAlias = Literal["note", "check", "replace", "cordon"]


@dataclass(frozen=True, slots=True)
class Xid:
    """One kind of the driver's errors: what it means, and what is done about the device.

    `note`: nothing. `check`: the fault is of one process's work, which hears of it itself: a verification product tells
    whether the others still serve. `replace`: its processes, whose work is lost. `cordon`: no work until an operator
    has seen to it.
    """

    meaning: str
    action: Action


_CHECKED: Final = {
    11: "an invalid push buffer",
    13: "an exception of the graphics engine",
    31: "a fault of the memory management unit",
    32: "an invalid push buffer",
    43: "the GPU stopped a channel's work",
    69: "a class error of the graphics engine",
}
_REPLACED: Final = {
    8: "the GPU stopped processing",
    94: "a contained error of memory",
    109: "a timeout of a context switch",
}
_CORDONED: Final = {
    46: "the GPU stopped processing and was not recovered",
    48: "a double bit error of memory",
    62: "the internal micro-controller halted",
    64: "a row of memory could not be remapped",
    74: "an error of NVLink",
    79: "the GPU has fallen off the bus",
    95: "an uncontained error of memory",
    110: "a security fault",
    119: "a timeout of the GPU's system processor",
    120: "an error of the GPU's system processor",
    136: "a timeout of a link's training",
    140: "an unrecovered error of memory",
    143: "the GPU could not be initialised",
}
_NOTED: Final = {
    45: "channels were cleaned up after an earlier error",
    63: "a row of memory was remapped, or is at the next reset",
    92: "a high rate of corrected errors of memory",
    121: "a corrected error of the chip-to-chip link",
}
XIDS: Final[Mapping[int, Xid]] = MappingProxyType(
    {number: Xid(meaning, "check") for number, meaning in _CHECKED.items()}
    | {number: Xid(meaning, "replace") for number, meaning in _REPLACED.items()}
    | {number: Xid(meaning, "cordon") for number, meaning in _CORDONED.items()}
    | {number: Xid(meaning, "note") for number, meaning in _NOTED.items()}
)
_UNKNOWN: Final = Xid("an error that this version does not know", "note")
_HOT: Final = 5  # degrees below the temperature at which the GPU slows down
_HARDWARE: Final = (
    "hardware slowdown",
    "hardware thermal",
    "power brake",
)  # throttling that says that something is wrong


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU; None: the GPU does not say.

    `xids` came since the look before; `uncorrected` errors of memory since the driver was loaded. `is_lost` says that
    the driver cannot reach it any more. `busy` is the share of its last moments, up to a second, in which a kernel ran.
    """

    uuid: str
    xids: tuple[int, ...] = ()
    is_lost: bool = False
    uncorrected: int | None = None
    corrected: int | None = None
    remapped_rows: int | None = None
    remap_is_pending: bool = False
    remap_failed: bool = False
    celsius: float | None = None
    slowdown_celsius: float | None = None
    watts: float | None = None
    throttled: tuple[str, ...] = ()
    busy: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    memory_used_bytes: float | None = None


class GpuReader(Protocol):
    """Reads the health of GPUs."""

    def read(self, seconds: float) -> list[GpuReading]:
        """Wait for events for at most so long, and read every GPU."""
        ...


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """What follows from a reading: what is to be done and why, and what else is wrong with the GPU now."""

    action: Action
    reason: str
    warnings: tuple[str, ...] = ()


def judge(now: GpuReading, before: GpuReading | None = None) -> GpuVerdict:
    """Judge a reading, by what has come since the one before: the worst of what happened is what is done."""
    found = [(XIDS.get(number, _UNKNOWN), number) for number in now.xids]
    cordons = [*_lost(now), *(_named(xid, number) for xid, number in found if xid.action == "cordon")]
    checks = [_named(xid, number) for xid, number in found if xid.action == "check"]
    replaces = [_named(xid, number) for xid, number in found if xid.action == "replace"]
    notes = [_named(xid, number) for xid, number in found if xid.action == "note"]
    warnings = (*notes, *_warnings(now))
    fresh = None if before is None or before.uncorrected is None else (now.uncorrected or 0) - before.uncorrected
    if fresh is not None and fresh > 0 and not replaces:
        replaces.append(f"{fresh} uncorrected errors of memory")
    if cordons:
        return GpuVerdict("cordon", "; ".join(cordons), warnings)
    if replaces:
        return GpuVerdict("replace", "; ".join(replaces), warnings)
    return GpuVerdict("check" if checks else "note", "; ".join(checks), warnings)


def _lost(now: GpuReading) -> list[str]:
    found = ["the driver has lost the GPU"] if now.is_lost else []
    return [*found, "a row of memory could not be remapped"] if now.remap_failed else found


def _named(xid: Xid, number: int) -> str:
    return f"Xid {number}: {xid.meaning}"


def _warnings(now: GpuReading) -> list[str]:
    found = [f"it is slowed down: {reason}" for reason in now.throttled if reason in _HARDWARE]
    if now.remap_is_pending:
        found.append("a row of memory is remapped at the next reset")
    if now.celsius is not None and now.slowdown_celsius is not None and now.celsius > now.slowdown_celsius - _HOT:
        found.append(f"it is at {now.celsius:g} degrees, and slows down at {now.slowdown_celsius:g}")
    return found
