"""Any config of any space, on problems of its kernel's kind: refused by a named rule, or it compiles and is right.

Thirty configs a kernel are tried by `pytest -m sampling --dist worksteal`, TEST_SAMPLES=… others, of each class of
the kernel's in turn; TEST_SEED=… has a run's again. What no processor runs is compiled, and of configs for small
problems eight a kernel are interpreted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.worker.serving import launch_class
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from tests.support.kernels.devices import H200
from tests.support.kernels.interpretable_samples import FOR_LARGE, expect_interpreted, is_interpreted, small
from tests.support.kernels.pocl_runner import queue
from tests.support.kernels.random_samples import (
    DEVICES,
    POINTS,
    Sample,
    anywhere,
    built_up,
    drawn,
    edges,
    expect_binary,
    expect_products,
    expect_sound,
    on_processor,
    places,
    sample,
    seed,
)

ALL = int(os.environ.get("TEST_SAMPLES", "30"))
INTERPRETED = min(8, ALL)
LARGE = 2**40  # products: a launch is planned, and not made
BUILT = 10
WARP = 32


def numbered(names: Iterable[str], count: int) -> list[Any]:
    """A test for each of a kernel's samples."""
    return [
        pytest.param(name, number, marks=pytest.mark.sampling, id=f"{name}-{number}")
        for name in names
        for number in range(count)
    ]


def announced(kernel: Kernel, where: str, number: int) -> Sample:
    one = sample(kernel, DEVICES[where], number, seed())
    print(f"TEST_SEED={seed()} {where}: {one}")
    return one


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests' are kept: steps before and after launches are the same for many."""
    return tmp_path_factory.mktemp("binaries")


@pytest.mark.parametrize(("name", "number"), numbered(CATALOGUE, ALL))
def test_a_config_at_random_compiles_and_is_right(name: str, number: int, binaries: Path) -> None:
    pytest.importorskip("app.devices.cuda")
    for where in places(CATALOGUE[name]):
        one = announced(CATALOGUE[name], where, number)
        expect_sound(one)
        if where != "opencl":
            expect_binary(one, binaries)
        else:
            queue()
            expect_products(one, on_processor(one.launch))


ALONE = [name for name, kernel in CATALOGUE.items() if is_interpreted(kernel)]


@pytest.mark.parametrize(("name", "number"), numbered(ALONE, INTERPRETED))
def test_a_config_at_random_multiplies_as_interpreted(name: str, number: int) -> None:
    pytest.importorskip("app.devices.cuda")
    one = small(CATALOGUE[name], number, seed())
    print(f"TEST_SEED={seed()} {one.device.architecture}: {one}")
    expect_interpreted(one)


def of_many_splits(kernel: Kernel, rng: Random) -> Launch:
    """A launch of a long k in many splits, by the smallest of tiles, which are soon interpreted."""
    parameters = dict(kernel.space.parameters)
    for side in ("BM", "BN"):
        parameters[side] = tuple(each for each in parameters[side] if each <= 64)
    splits = [each for each in parameters["SPLIT_K"] if 8 < each <= 24]
    while True:
        space = replace(kernel.space, parameters={**parameters, "SPLIT_K": (rng.choice(splits),)})
        turned = rng.random() < 0.5, rng.random() < 0.5
        sizes = rng.randint(65, 200), rng.randint(65, 200), rng.randint(3000, 12000)
        problem = Problem(*sizes, 1, *rng.choice(kernel.classes), *turned)
        legal = space.legal(problem, H200) if kernel.supports(problem) else []
        if legal:
            least = min(each["BM"] * each["BN"] for each in legal)
            smallest = [each for each in legal if each["BM"] * each["BN"] == least]
            return kernel.launch(rng.choice(smallest), problem, H200)


@pytest.mark.parametrize("name", [name for name in ALONE if "SPLIT_K" in CATALOGUE[name].space.parameters])
def test_the_product_that_is_checked_before_serving_is_right_as_interpreted(name: str) -> None:
    pytest.importorskip("app.devices.cuda")
    kernel, rng = CATALOGUE[name], Random(f"{seed()} {name}")  # noqa: S311 - configs, not secrets
    launch = of_many_splits(kernel, rng)
    print(f"TEST_SEED={seed()}: {launch.config} {launch.problem}")
    problem = launch_class.sample(launch)
    checked = kernel.for_problem(launch, problem)
    assert [step.build.entry for step in checked.after] == [step.build.entry for step in launch.after]
    expect_interpreted(Sample(checked, H200, ()))
    few_splits = replace(problem, k=2 * launch.config["BK"] + problem.k % launch.config["BK"])
    expect_interpreted(Sample(kernel.for_problem(launch, few_splits), H200, ()))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", CATALOGUE)
def test_any_point_of_a_space_is_a_launch_or_is_refused_by_a_rules_name(name: str) -> None:
    kernel, seen = CATALOGUE[name], Counter[str]()
    print(f"TEST_SEED={seed()}")
    for where in places(kernel):
        rng, device = Random(f"{seed()} {where} {name}"), DEVICES[where]  # noqa: S311 - configs, not secrets
        for _ in range(POINTS):
            config, problem = anywhere(kernel, rng), drawn(kernel, rng, rng.choice(kernel.classes), LARGE)
            refusal = kernel.space.refusal(config, problem, device)
            seen[refusal or "legal"] += 1
            if refusal is None:
                expect_sound(Sample(kernel.launch(config, problem, device), device, ()))
            else:
                assert refusal in kernel.space.rules
                with pytest.raises(ValueError) as raised:  # noqa: PT011 - compared whole, below
                    kernel.launch(config, problem, device)
                assert str(raised.value) == refusal
        for kind in kernel.classes * BUILT:
            problem = drawn(kernel, rng, kind, LARGE)
            found = built_up(kernel.space, problem, device, rng)
            assert found is not None, f"{name} suits {problem.key} and has no config for it"
            expect_sound(Sample(kernel.launch(found, problem, device), device, ()))
    print(seen)
    assert seen.total() > seen["legal"], "nothing was refused"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", CATALOGUE)
def test_what_is_drawn_is_listed_and_drawn_again_from_the_same_seed(name: str) -> None:
    kernel = CATALOGUE[name]
    for where in places(kernel):
        one = announced(kernel, where, 0)
        assert one == sample(kernel, DEVICES[where], 0, seed())
        listed = kernel.space.legal(one.launch.problem, one.device)
        assert one.launch.config in listed
        rng = Random(f"{seed()} {name}")  # noqa: S311 - configs, not secrets
        assert built_up(kernel.space, one.launch.problem, one.device, rng) in listed
        others = {sample(kernel, DEVICES[where], number, seed()).digest for number in range(5)}
        assert len(others) > 1


def test_a_small_sample_that_multiplies_wrong_or_races_is_told() -> None:
    pytest.importorskip("app.devices.cuda")
    kernel = CATALOGUE["wmma"]
    samples = (small(kernel, number, seed()) for number in range(100))
    one = next(each for each in samples if each.launch.threads > WARP and each.launch.problem.k > 1)
    print(f"TEST_SEED={seed()} {one.device.architecture}: {one}")
    for line, other, told in (
        ("BARRIER(); // the tiles are whole", "", "no barrier"),
        ("REAL acc[8] = {};", "REAL acc[8] = {1.0f};", str(one)),
    ):
        build = one.launch.build
        assert build.text.count(line) == 1
        wrong = replace(build, text=build.text.replace(line, other))
        with pytest.raises(AssertionError) as raised:
            expect_interpreted(replace(one, launch=replace(one.launch, build=wrong)))
        assert told in str(raised.value)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ALONE)
def test_small_samples_are_legal_and_repeat_with_their_seed(name: str) -> None:
    kernel, devices = CATALOGUE[name], {device.architecture: device for device in DEVICES.values()}
    drawn_ones = [small(kernel, number, seed()) for number in range(len(kernel.classes))]
    assert {(each.launch.problem.dtype, each.launch.problem.precision) for each in drawn_ones} == set(kernel.classes)
    for number, one in enumerate(drawn_ones):
        assert one == small(kernel, number, seed())
        whole = devices[one.device.architecture]
        assert one.device == replace(whole, limits=replace(whole.limits, sms=one.device.limits.sms))
        refused = [kernel.space.rules[reason] for reason in kernel.space.rules if reason not in FOR_LARGE]
        assert all(holds(one.launch.config, one.launch.problem, one.device) for holds in refused)
        assert len(kernel.space.rules) - len(refused) <= 2


def test_the_sizes_around_a_tile_are_the_same_binarys() -> None:
    """A large sample may have no such sizes that are soon multiplied: of a few, some have."""
    found = 0
    for number in range(20):
        one = announced(CATALOGUE["tiled"], "opencl", number)
        near = list(edges(one))
        assert {each.build for each in near} <= {one.launch.build}
        found += len({each.problem for each in near}) > 1
    assert found
