"""A compiler that takes too much memory costs its own process what it took, and nobody else anything."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devices import worker_entry
from app.devices.fleet import Fleet, open_fleet
from app.devices.process.worker_main import compiler_memory
from app.errors import ChildDied, ChildTimedOut, CompileFailed
from tests.support.devices import child_functions, device_functions
from tests.support.devices.child_factory import Making

MIB, GIB = 2**20, 2**30
# Each name stands for twice the one before: forty doublings are more text than any memory holds.
DOUBLING = "\n".join(
    ["#define T0 c[0] += c[c[1]];", *(f"#define T{n + 1} T{n} T{n}" for n in range(40))],
)
ENDLESS = f"{DOUBLING}\n__kernel void matmul(__global int *c) {{ T40 }}\n"


@pytest.fixture(scope="module")
def fleet(binaries: Path) -> Iterator[Fleet]:
    with open_fleet("opencl", binaries, 2**24) as fleet:
        yield fleet


def test_phase_over_its_memory_limit_ends_its_child(make: Making) -> None:
    child = make()
    with pytest.raises(ChildDied, match=r"during compile \(it took more than 0\.25 GiB of memory\)") as failure:
        child.call(child_functions.take_memory, GIB, 256 * MIB)
    assert failure.value.facts["stage"] == "compile"
    assert "outside" not in failure.value.facts, "nobody else killed it: it would be tried again"
    assert child.call(child_functions.echo, 1) == ("state", 1)


@pytest.mark.rotating
def test_memory_that_is_allowed_is_had(make: Making) -> None:
    child = make()
    assert child.call(child_functions.take_memory, 512 * MIB, None) == 512 * MIB
    assert child.call(child_functions.take_memory, 512 * MIB, 0) == 512 * MIB
    assert child.generation == 1


@pytest.mark.rotating
def test_bound_of_compiling_is_lifted_after_it(make: Making) -> None:
    child = make()
    before = child.call(child_functions.data_limit)
    assert child.call(child_functions.take_memory_after, 256 * MIB, 64 * MIB) == 512 * MIB
    child.call(child_functions.take_memory, 16 * MIB, 64 * MIB)
    assert child.call(child_functions.data_limit) == before
    assert child.generation == 1


def test_compiler_that_dies_otherwise_is_no_memory_fault(make: Making) -> None:
    with pytest.raises(ChildDied, match="killed by SIGABRT"):
        make().call(child_functions.abort_compiling)


def test_compiler_is_left_memory_on_any_host() -> None:
    assert GIB <= compiler_memory() <= 4 * GIB


@pytest.mark.slow
def test_text_that_compiles_into_any_memory_costs_one_candidate(fleet: Fleet) -> None:
    unit = fleet.unit()
    serving = unit.products.pid
    with pytest.raises(ChildDied, match=r"it took more than 0\.125 GiB of memory"):
        unit.trials.call(device_functions.compile_text, ENDLESS, 100.0, GIB // 8)
    assert unit.products.pid == serving
    with pytest.raises(CompileFailed):
        unit.trials.call(device_functions.compile_text, "#error no", 20.0, GIB)


@pytest.mark.rotating
def test_text_that_compiles_for_ever_costs_its_deadline(fleet: Fleet) -> None:
    unit = fleet.unit()
    unit.trials.start()
    started = time.monotonic()
    with pytest.raises(ChildTimedOut, match=r"compile took more than 0\.5 s") as failure:
        unit.trials.call(device_functions.compile_text, ENDLESS, 0.5, 8 * GIB)
    assert failure.value.facts["stage"] == "compile"
    assert time.monotonic() - started < 20


@pytest.mark.rotating
def test_cuda_text_that_compiles_into_any_memory_costs_its_compiler(make: Making, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    text = DOUBLING + '\nextern "C" __global__ void matmul(int *c) { T40 }\n'
    child = make(worker_entry.compiler, tmp_path)
    child.start()
    with pytest.raises((ChildDied, CompileFailed), match=r"it took more than 0\.125 GiB of memory|out of memory"):
        child.call(device_functions.compile_cuda_text, text, tmp_path, GIB // 8)
    plain = 'extern "C" __global__ void matmul(int *c) { *c = 1; }'
    child.call(device_functions.compile_cuda_text, plain, tmp_path, GIB)
