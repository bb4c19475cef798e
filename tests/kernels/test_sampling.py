"""Any config of any space, on problems of its kernel's kind: refused by a named rule, or it compiles and is right.

Thirty configs a kernel are tried by `pytest -m sampling --dist worksteal`; TILEWISE_SEED=… has a run's again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from poclrunner import queue
from sampled import (
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

from kernels import CATALOGUE
from kernels.kernel import Kernel

ALL = 30
NUMBERS = [
    pytest.param(name, number, marks=pytest.mark.sampling, id=f"{name}-{number}")
    for name in CATALOGUE
    for number in range(ALL)
]


def announced(kernel: Kernel, where: str, number: int) -> Sample:
    one = sample(kernel, DEVICES[where], number, seed())
    print(f"TILEWISE_SEED={seed()} {where}: {one}")
    return one


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_a_config_at_random_compiles_and_is_right(name: str, number: int, tmp_path: Path) -> None:
    pytest.importorskip("app.devices.cuda")
    for where in places(CATALOGUE[name]):
        one = announced(CATALOGUE[name], where, number)
        expect_sound(one)
        if where != "opencl":
            expect_binary(one, tmp_path)
        else:
            queue()
            expect_products(one, on_processor(one.launch))


@pytest.mark.parametrize("name", CATALOGUE)
def test_any_point_of_a_space_is_a_launch_or_is_refused_by_a_rules_name(name: str) -> None:
    kernel, seen = CATALOGUE[name], Counter[str]()
    print(f"TILEWISE_SEED={seed()}")
    for where in places(kernel):
        rng, device = Random(f"{seed()} {where} {name}"), DEVICES[where]  # noqa: S311 - configs, not secrets
        for _ in range(POINTS):
            config, problem = anywhere(kernel, rng), drawn(kernel, rng, most=2**40)
            refusal = kernel.space.refusal(config, problem, device)
            seen[refusal or "legal"] += 1
            if refusal is None:
                expect_sound(Sample(kernel.launch(config, problem, device), device, ()))
            else:
                assert refusal in kernel.space.rules
                with pytest.raises(ValueError) as raised:  # noqa: PT011 - compared whole, below
                    kernel.launch(config, problem, device)
                assert str(raised.value) == refusal
    print(seen)
    assert seen.total() > seen["legal"], "nothing was refused"


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


def test_the_sizes_around_a_tile_are_the_same_binarys() -> None:
    """A large sample may have no such sizes that are soon multiplied: of a few, some have."""
    found = 0
    for number in range(20):
        one = announced(CATALOGUE["tiled"], "opencl", number)
        near = list(edges(one))
        assert {each.build for each in near} <= {one.launch.build}
        found += len({each.problem for each in near}) > 1
    assert found
