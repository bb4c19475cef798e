"""Divisions by what a launch knows: their multipliers, and those of tile indices."""

from __future__ import annotations

import random
import secrets

from kernels.common.division import divider, tile_order


def test_a_multiplier_divides_as_whole_numbers_do() -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)  # noqa: S311  divisors, no secrets
    for _ in range(2000):
        divisor = dice.choice(
            (dice.randint(1, 70), 2 ** dice.randint(0, 30) + dice.randint(0, 1), dice.randint(1, 2**31 - 1))
        )
        multiplier = divider(divisor)
        assert multiplier < 2**63
        most = (2**31 - 1) // divisor * divisor
        for dividend in (dice.randint(0, 2**31 - 1), most, most - 1, 2**31 - 1):
            assert dividend * multiplier >> 62 == dividend // divisor


def test_tiles_are_divided_by_products_splits_groups_and_their_rows() -> None:
    assert tile_order(10, 7, 3, 4) == tuple(map(divider, (70, 3, 28, 4, 2)))
    assert tile_order(8, 7, 1, 4) == tuple(map(divider, (56, 1, 28, 4, 4)))
    assert tile_order(3, 5, 2, 16) == tuple(map(divider, (15, 2, 15, 3, 3)))
