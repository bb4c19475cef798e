"""What a profile says, one sentence a finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from app.profiling.figures import MODEL, NCU, PERF, STALL, KernelProfile, ProfileFigure

_HIGH: Final = 60.0  # per cent of a peak from which a kernel counts as bound by it
_MANY: Final = 2.0  # times the fewest bytes
_APART: Final = 0.05  # of a time, within which two are not told apart
_LOW_CYCLE: Final = 1.0


def findings(kernels: Sequence[KernelProfile]) -> list[str]:
    """The findings of each kernel, then those that compare naive with tiled and the winner with the vendor's."""
    found = [sentence for one in kernels for sentence in _of_kernel(one)]
    by_role = {one.role: one for one in kernels}
    for role, other in (("tiled", "naive"), ("winner", "tiled"), ("winner", "vendor")):
        if role in by_role and other in by_role:
            found += _compared(by_role[role], by_role[other])
    return found


def _of_kernel(one: KernelProfile) -> Iterator[str]:
    name = _called(one)
    if one.refusal is not None:
        yield f"{name} was not profiled: {one.refusal}."
        return
    yield from _bound(one, name)
    yield from _memory(one, name)
    yield from _waiting(one, name)
    if (conflicts := _value(one, "bank_conflicts")) is not None:
        yield (
            f"{name} meets {conflicts:,.0f} bank conflicts of shared memory."
            if conflicts
            else (f"{name} meets no bank conflicts of shared memory.")
        )
    if (local := _value(one, "local_bytes")) and _value(one, "registers") is not None:
        yield f"{name} spills: {local:,.0f} bytes of local memory a thread."


def _bound(one: KernelProfile, name: str) -> Iterator[str]:
    arithmetic, memory = one.figure("sm_throughput_percent"), one.figure("memory_throughput_percent")
    if arithmetic is None or arithmetic.value is None:
        return
    if memory is None or memory.value is None:
        yield f"{name} reaches {arithmetic.value:.3g} % of the peak of its instructions{_by(arithmetic)}."
        return
    if max(arithmetic.value, memory.value) < _HIGH:
        bound = "bound by neither, it waits"
    else:
        bound = "bound by arithmetic" if arithmetic.value >= memory.value else "bound by memory"
    yield f"{name} is {bound}: {arithmetic.value:.3g} % of the SMs' peak, {memory.value:.3g} % of memory's."


def _memory(one: KernelProfile, name: str) -> Iterator[str]:
    moved = one.figure("dram_bytes")
    if moved is not None and moved.source in {NCU, PERF} and moved.value and moved.predicted:
        ratio = moved.value / moved.predicted
        more = f"{ratio:.3g} times the bytes of A, B and C" if ratio >= _MANY else "hardly more than A, B and C have"
        yield f"{name} moves {moved.value:,.0f} bytes of device memory, {more}."
    loaded = one.figure("loaded_bytes")
    if loaded is not None and loaded.value and moved is not None and moved.predicted:
        yield f"{name}'s blocks load {loaded.value / moved.predicted:.3g} times the bytes of A, B and C{_by(loaded)}."


def _waiting(one: KernelProfile, name: str) -> Iterator[str]:
    stalls = [figure for figure in one.figures if figure.name.startswith(STALL) and figure.value]
    if stalls:
        cause = stalls[0].name.removeprefix(STALL).replace("_", " ")
        yield f"{name}'s warps wait most for {cause}: {stalls[0].value:.3g} warps each time that one issues."
    reached = one.figure("occupancy_percent")
    if reached is not None and reached.value is not None:
        beside = f", the model says {reached.predicted:.3g} %" if reached.predicted and reached.source != MODEL else ""
        yield f"{name} keeps {reached.value:.3g} % of an SM's warps resident{_by(reached)}{beside}."
    cores, rate = _value(one, "busy_cores"), _value(one, "instructions_per_cycle")
    if cores is not None:
        yield f"{name} keeps {cores:.3g} cores busy."
    if rate is not None:
        slow = ": it waits more than it computes" if rate < _LOW_CYCLE else ""
        yield f"{name} runs {rate:.3g} instructions a cycle{slow}."


def _compared(one: KernelProfile, other: KernelProfile) -> Iterator[str]:
    times = _value(one, "time_ms"), _value(other, "time_ms")
    first, second = _called(one), _called(other)
    if (one.kernel, one.config) == (other.kernel, other.config):
        return
    if times[0] and times[1]:
        ratio = times[1] / times[0]
        close = abs(ratio - 1) < _APART
        yield f"{first} is as fast as {second}." if close else f"{first} is {ratio:.3g} times as fast as {second}."
    hits = _value(one, "l1_hit_percent"), _value(other, "l1_hit_percent")
    if other.role == "naive" and hits[0] is not None and hits[1] is not None:
        yield (
            f"{first} finds {hits[0]:.3g} % of its sectors in L1, {second} {hits[1]:.3g} %: "
            "what lies in shared memory is not looked for in L1."
        )


def _called(one: KernelProfile) -> str:
    return f"{one.role} ({one.kernel})" if one.role != one.kernel else one.kernel


def _by(figure: ProfileFigure) -> str:
    return " by the model" if figure.source == MODEL else ""


def _value(one: KernelProfile, name: str) -> float | None:
    figure = one.figure(name)
    return None if figure is None else figure.value
