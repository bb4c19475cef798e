"""The compact tables of exports: checks beside /best-config, and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LONG_MS, SHARE, NEAR_MS = 0.05, 0.05, 0.002


def within(own_ms: float | None, best_ms: float | None) -> bool | None:
    """Whether a time is 5 % from /best-config's over 50 us, 2 us below; None where there is none to be near to."""
    if not best_ms:
        return None
    return own_ms is not None and abs(own_ms - best_ms) <= (SHARE * best_ms if best_ms > LONG_MS else NEAR_MS)


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of each check: the kernel, the target, whether it is right, its own and /best-config's microseconds."""
    return "\n".join(_line(row) for row in rows)


def calls_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of each winner and target: microseconds of a call, its launches and tensor maps."""
    lines = []
    for row in rows:
        own = f", cuda.core itself {row['cuda_core_us']:.2f}" if row["cuda_core_us"] else ""
        said = f"{row['us_a_call']:.2f} us{own}" if row["us_a_call"] else f"failed: {row['reason']}"
        maps = ", tensor maps" if row["tensor_maps"] else ""
        held = {True: "met", False: "MISSED", None: "told"}[row["met"]]
        lines.append(f"call {row['kernel']:15} {row['target']:10} {said}; {row['launches']} launches{maps}: {held}")
    return "\n".join(lines)


def kept(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is written, with how many of each part hold."""
    checks, calls = found["checks"], found["calls"]
    counts = {
        "right": _counted([row["right"] for row in checks]),
        "within": _counted([row["within"] for row in checks]),
        "calls": _counted([row["met"] for row in calls]),
    }
    return {**found, "summary": counts}


def _counted(held: Sequence[bool | None]) -> str:
    return f"{sum(one is True for one in held)} of {sum(one is not None for one in held)}"


def _line(row: Mapping[str, Any]) -> str:
    own, best = row["own_ms"], row["best_ms"]
    times = f"{1e3 * own:9.2f} us beside {1e3 * best:9.2f} ({own / best - 1:+.1%})" if own and best else "no time"
    held = {True: "within", False: "OUTSIDE", None: "-"}[row["within"]]
    right = "right" if row["right"] else f"WRONG: {row['reason'] or row['said']}"
    return f"{row['kernel']:15} {row['target']:10} {times} {held:8} {right}"
