"""What every strategy owes the tuner, and what each adds."""

from __future__ import annotations

import pytest

from app.tuning.search import STRATEGIES, Strategy, strategy
from kernels.space import Config


def configs(count: int) -> list[Config]:
    return [Config.of({"BM": number // 8, "BN": number % 8}) for number in range(count)]


def asked(one: Strategy) -> list[Config]:
    order = []
    while (config := one.ask()) is not None:
        order.append(config)
        one.tell(config, None if len(order) % 3 == 0 else 1e-3 * len(order))
    return order


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("count", [1, 2, 64, 65, 200])
class TestStrategy:
    def test_asks_for_the_default_first(self, name: str, count: int) -> None:
        space = configs(count)
        assert strategy(name, space, space[-1], seed=3).ask() == space[-1]

    def test_asks_for_every_config_exactly_once(self, name: str, count: int) -> None:
        space = configs(count)
        order = asked(strategy(name, space, space[count // 2], seed=3))
        assert len(order) == count
        assert set(order) == set(space)

    def test_never_asks_for_what_it_was_told_unasked(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, space, space[0], seed=3)
        for config in space[::2]:
            one.tell(config, 1e-3)
        assert set(asked(one)) == set(space[1::2])

    def test_takes_in_a_config_of_another_space(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, space, space[0], seed=3)
        one.tell(Config.of({"gone": 1}), 1e-9)
        assert len(asked(one)) == count

    def test_leaves_an_illegal_default_out(self, name: str, count: int) -> None:
        space = configs(count)
        assert set(asked(strategy(name, space, Config.of({"BM": 99, "BN": 99}), seed=3))) == set(space)

    def test_goes_the_same_way_for_the_same_seed(self, name: str, count: int) -> None:
        space = configs(count)
        first, second = (asked(strategy(name, space, space[0], seed=5)) for _ in range(2))
        assert first == second

    def test_stays_at_its_end(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, space, space[0], seed=3)
        asked(one)
        assert one.ask() is None


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_empty_space_has_nothing_to_ask_for(name: str) -> None:
    assert strategy(name, [], Config.of({"BM": 1}), seed=0).ask() is None


def test_exhaustive_keeps_the_spaces_order_after_the_default() -> None:
    space = configs(100)
    assert asked(strategy("exhaustive", space, space[7], seed=1)) == [space[7], *space[:7], *space[8:]]


def test_random_goes_another_way_for_another_seed() -> None:
    space = configs(100)
    assert asked(strategy("random", space, space[0], seed=1)) != asked(strategy("random", space, space[0], seed=2))


def test_auto_is_exhaustive_up_to_64_configs_and_random_beyond() -> None:
    small, large = configs(64), configs(65)
    assert asked(strategy("auto", small, small[0], seed=1)) == small
    assert asked(strategy("auto", large, large[0], seed=1)) == asked(strategy("random", large, large[0], seed=1))
    assert asked(strategy("auto", large, large[0], seed=1)) != large


def test_an_unknown_strategy_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="auto, exhaustive, random, got 'luck'"):
        strategy("luck", [], Config.of({}), seed=0)
