"""The recipes of all kernels: both interpreters give the service's own launch on 200 random problems of each."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from shutil import which

import pytest

from app.exports.c_recipe import tables
from app.exports.interpreter import OutsideClass, QueuedLaunches, QueuedMap, product
from app.exports.recipe import OF_SPEED
from app.exports.targets import template
from kernels import CATALOGUE
from kernels.launch import COUNTERS, OPERANDS, Launch, TensorMap
from kernels.problem import Problem
from tests.support.exports import winners
from tests.support.exports.winners import Case
from tests.support.kernels.devices import H200

PROBLEMS_EACH = 200
MOST_DRAWN = 6000
ELEMENTS = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 11}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return winners.cases()


@pytest.fixture(scope="module")
def drawn(cases: list[Case]) -> list[tuple[int, Problem, QueuedLaunches | None]]:
    """For each case random problems with what Python's interpreter makes of them, until 200 are in its class."""
    return [
        (number, problem, found)
        for number, case in enumerate(cases)
        for problem, found in _until_enough(case, seed=number)
    ]


def _until_enough(case: Case, seed: int) -> Iterator[tuple[Problem, QueuedLaunches | None]]:
    inside = 0
    for problem in islice(winners.around(case.winner.problem, seed), MOST_DRAWN):
        found = interpreted(case, problem)
        yield problem, found
        inside += found is not None
        if inside == PROBLEMS_EACH:
            return


def interpreted(case: Case, problem: Problem) -> QueuedLaunches | None:
    try:
        return product(case.manifest, problem.m, problem.n, problem.k, problem.batch)
    except OutsideClass:
        return None


def in_order(launch: Launch) -> list[Launch]:
    return [*map(launch.as_step, launch.before), launch, *map(launch.as_step, launch.after)]


def lines_of(launch: Launch) -> str:
    """A launch with its steps as interpret.c prints it, from what the service hands to the driver."""
    zeroed = 4 * COUNTERS if launch.workspace_bytes else 0
    return "; ".join([f"{launch.workspace_bytes} {zeroed}", *map(_line, in_order(launch))])


def _line(launch: Launch) -> str:
    problem = launch.problem
    more = ["p3", *map(str, launch.scalars)] if launch.scalars else []
    sizes = map(str, (problem.m, problem.n, problem.k))
    words = [launch.build.entry, str(launch.grid), *map(str, launch.block), str(launch.dynamic_smem_bytes)]
    return " ".join([*words, "p0", "p1", "p2", *sizes, *more, *map(_of_map, launch.maps)])


def _of_map(tensor: TensorMap) -> str:
    place = (OPERANDS.index(tensor.operand), tensor.offset, ELEMENTS[tensor.element])
    return " ".join(map(str, ("map", *place, *tensor.sizes, *tensor.strides, *tensor.box, SWIZZLES[tensor.swizzle])))


def lines_of_python(found: QueuedLaunches) -> str:
    """The same of what Python's interpreter gives."""
    parts = [f"{found.workspace_bytes} {found.zeroed_bytes}"]
    for launch in found.launches:
        words = [launch.entry, str(launch.grid), *map(str, launch.block), str(launch.shared_bytes)]
        parts.append(" ".join([*words, *map(_argument, launch.arguments)]))
    return "; ".join(parts)


def _argument(argument: str | int | QueuedMap) -> str:
    if isinstance(argument, QueuedMap):
        place = (OPERANDS.index(argument.operand), argument.offset, ELEMENTS[argument.element])
        return " ".join(
            map(str, ("map", *place, *argument.sizes, *argument.strides, *argument.box, SWIZZLES[argument.swizzle]))
        )
    return f"p{OPERANDS.index(argument)}" if isinstance(argument, str) else str(argument)


@pytest.mark.rotating
def test_every_kernel_of_the_catalogue_has_a_case(cases: list[Case]) -> None:
    assert {case.winner.kernel for case in cases} == set(CATALOGUE)
    entries = {launch.build.entry for case in cases for launch in in_order(case.launch)}
    assert {"pack_mn_major", "pack_k_major", "split_k_reduce", "row_absmax", "split_fp16"} <= entries
    assert any(case.launch.maps for case in cases)


@pytest.mark.rotating
def test_python_gives_the_launch_of_the_service(
    cases: list[Case], drawn: list[tuple[int, Problem, QueuedLaunches | None]]
) -> None:
    inside = dict.fromkeys(CATALOGUE, 0)
    for number, problem, found in drawn:
        if found is not None:
            inside[cases[number].winner.kernel] += 1
            assert lines_of_python(found) == lines_of(cases[number].service(problem)), (number, problem)
    assert min(inside.values()) >= PROBLEMS_EACH, inside
    assert any(found is None for _, _, found in drawn)


def test_what_the_service_would_launch_of_a_config_is_in_its_class_unless_a_need_says_not(cases: list[Case]) -> None:
    for case in cases:
        found = interpreted(case, case.winner.problem)
        assert found is not None
        assert lines_of_python(found) == lines_of(case.launch)


@pytest.mark.rotating
@pytest.mark.skipif(which("gcc") is None, reason="there is no gcc")
def test_c_gives_the_launch_of_the_service_and_refuses_what_python_refuses(
    cases: list[Case], drawn: list[tuple[int, Problem, QueuedLaunches | None]], tmp_path: Path
) -> None:
    program = _compiled(cases, tmp_path)
    asked = "".join(f"{number} {p.m} {p.n} {p.k} {p.batch}\n" for number, p, _ in drawn)
    answered = subprocess.run([program], input=asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answered) == len(drawn)
    for (number, problem, found), line in zip(drawn, answered, strict=True):
        expected = "outside" if found is None else lines_of(cases[number].service(problem))
        assert line == expected, (number, problem)


def _compiled(cases: Sequence[Case], folder: Path) -> Path:
    (folder / "tilewise_launch.h").write_bytes(template("c/tilewise_launch.h"))
    names = [f"r{number}" for number in range(len(cases))]
    rows = [
        row for case, name in zip(cases, names, strict=True) for row in tables(case.manifest, name, with_binaries=False)
    ]
    pointers = ", ".join(f"&{name}_the_recipe" for name in names)
    (folder / "tables.h").write_text("\n".join([*rows, f"static const tw_recipe *const recipes[] = {{{pointers}}};\n"]))
    source = Path(winners.__file__).with_name("interpret.c")
    program = folder / "interpret"
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable"]
    subprocess.run(["gcc", *warnings, f"-I{folder}", "-o", program, source], check=True)
    return program


@pytest.mark.parametrize("name", [name for name, one in CATALOGUE.items() if "CLUSTER_K" in one.space.parameters])
def test_a_cluster_that_shares_k_is_for_other_k_and_for_more_tiles_than_there_are_sms(name: str) -> None:
    kernel = CATALOGUE[name]
    dtype, precision = kernel.classes[-1]
    problem = Problem(4 if name == "gemv" else 24, 504, 2000, dtype=dtype, precision=precision)
    legal = [config for config in kernel.space.legal(problem, H200) if config.get("SPLIT_K", 1) == 1]
    case = winners.case(name, problem, config=max(legal, key=lambda config: config["CLUSTER_K"]))
    assert case.winner.config["CLUSTER_K"] > 1
    for other in filter(kernel.supports, (replace(problem, k=200), replace(problem, n=24 * 2048))):
        found = interpreted(case, other)
        assert found is not None, other
        assert lines_of_python(found) == lines_of(case.service(other))


def test_rules_that_are_of_speed_alone_are_rules_of_kernels() -> None:
    named = {rule for kernel in CATALOGUE.values() for rule in kernel.space.rules}
    assert named >= OF_SPEED
