"""What every strategy owes the tuner, and what each adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from app.tuning.search.strategy import STRATEGIES, SearchInputs, Strategy, strategy
from kernels.space import Config

Times = Callable[[Config], float | None]


def configs(count: int) -> list[Config]:
    return [Config.of({"BM": 1 << number // 10, "BN": 1 + number % 10, "BK": 8}) for number in range(count)]


def inputs(space: Sequence[Config], first: Config | None = None) -> SearchInputs:
    features = {config: (math.log(config["BM"]), float(config["BN"])) for config in space}
    return SearchInputs(space, space[0] if first is None else first, features.__getitem__)


def timed(config: Config) -> float | None:
    """A third is rejected, the rest is a valley with its bottom inside."""
    if (config["BM"] + config["BN"]) % 3 == 0:
        return None
    return 1e-3 * (1 + (math.log2(config["BM"]) - 3) ** 2 + abs(config["BN"] - 6))


def run(one: Strategy, times: Times = timed, batch: int = 16) -> list[Config]:
    order: list[Config] = []
    while asked := one.ask(batch):
        assert len(asked) <= batch
        for config in asked:
            order.append(config)
            one.tell(config, times(config))
    return order


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("count", [1, 2, 64, 100])
class TestStrategy:
    def test_asks_for_the_default_first(self, name: str, count: int) -> None:
        space = configs(count)
        assert strategy(name, inputs(space, space[-1]), seed=3).ask(5)[0] == space[-1]

    @pytest.mark.drawn(2)
    def test_asks_for_every_config_exactly_once_and_then_for_none(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, inputs(space, space[count // 2]), seed=3)
        order = run(one)
        assert len(order) == count
        assert set(order) == set(space)
        assert one.ask(8) == []
        assert one.gain() == 0

    def test_asks_for_no_more_than_it_is_asked_to(self, name: str, count: int) -> None:
        one = strategy(name, inputs(configs(count)), seed=3)
        assert one.ask(0) == []
        assert len(one.ask(1)) == 1
        assert len(one.ask(40)) == min(40, count - 1)

    def test_goes_on_while_nothing_is_told_yet(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, inputs(space), seed=3)
        pending: list[Config] = []
        while asked := one.ask(8):
            pending += asked
        assert len(pending) == count
        assert set(pending) == set(space)

    @pytest.mark.drawn(2)
    def test_goes_on_while_a_batch_is_pending(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, inputs(space), seed=3)
        asked, told = one.ask(16), 0
        while told < len(asked):
            for config in asked[told : told + 8]:
                one.tell(config, timed(config))
            told = min(told + 8, len(asked))
            asked += one.ask(8)
        assert len(asked) == count
        assert set(asked) == set(space)

    @pytest.mark.drawn(2)
    def test_never_asks_for_what_it_was_told_unasked(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, inputs(space), seed=3)
        for config in space[::2]:
            one.tell(config, timed(config))
        assert set(run(one)) == set(space[1::2])

    def test_asks_for_the_default_first_after_others_were_told(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, inputs(space, space[-1]), seed=3)
        for config in space[:-1]:
            one.tell(config, timed(config))
        assert one.ask(8) == [space[-1]]

    @pytest.mark.rotating
    def test_takes_in_a_config_of_another_space(self, name: str, count: int) -> None:
        one = strategy(name, inputs(configs(count)), seed=3)
        one.tell(Config.of({"gone": 1}), 1e-9)
        one.tell(Config.of({"gone": 2}), None)
        assert len(run(one)) == count

    def test_leaves_an_illegal_default_out(self, name: str, count: int) -> None:
        space = configs(count)
        one = strategy(name, inputs(space, Config.of({"BM": 99, "BN": 99, "BK": 8})), seed=3)
        assert set(run(one)) == set(space)

    def test_goes_through_a_space_whose_every_config_is_rejected(self, name: str, count: int) -> None:
        space = configs(count)
        assert set(run(strategy(name, inputs(space), seed=3), lambda _: None)) == set(space)

    def test_goes_through_a_space_whose_configs_all_take_the_same_time(self, name: str, count: int) -> None:
        space = configs(count)
        assert set(run(strategy(name, inputs(space), seed=3), lambda _: 1e-3)) == set(space)

    @pytest.mark.drawn(2)
    def test_goes_the_same_way_for_the_same_seed(self, name: str, count: int) -> None:
        space = configs(count)
        first, second = (run(strategy(name, inputs(space), seed=5)) for _ in range(2))
        assert first == second

    @pytest.mark.drawn(2)
    def test_goes_the_same_way_from_the_same_saved_outcomes(self, name: str, count: int) -> None:
        space = configs(count)
        ways = []
        for _ in range(2):
            one = strategy(name, inputs(space), seed=5)
            for config in space[::3]:
                one.tell(config, timed(config))
            ways.append(run(one))
        assert ways[0] == ways[1]

    @pytest.mark.drawn(2)
    def test_believes_the_last_that_it_was_told(self, name: str, count: int) -> None:
        one = strategy(name, inputs(configs(count)), seed=3)
        for seconds in (1e-3, None, 2e-3):
            one.tell(configs(count)[0], seconds)
        assert len(run(one)) == count - 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_empty_space_has_nothing_to_ask_for(name: str) -> None:
    one = strategy(name, SearchInputs([], Config.of({"BM": 1}), lambda _: (0.0,)), seed=0)
    assert one.ask(8) == []
    assert one.gain() == 0


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_config_that_is_listed_twice_is_asked_for_once(name: str) -> None:
    space = configs(100)
    assert len(run(strategy(name, inputs([*space, *space]), seed=1))) == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_expected_gain_is_unknown_then_falls_under_a_percent(name: str) -> None:
    space = [Config.of({"BM": bm, "BN": bn, "BK": bk}) for bm in range(16) for bn in range(16) for bk in range(4)]
    one = strategy(name, landscape_of_a_bowl(space), seed=2)
    assert one.gain() == math.inf
    gains = []
    for _ in range(25):
        for config in one.ask(8):
            one.tell(config, bowl(config))
        gains.append(one.gain())
    assert gains[0] == math.inf
    assert all(gain >= 0 for gain in gains)
    assert gains[3] > 0.002
    assert gains[-1] < 0.02


def bowl(config: Config) -> float:
    return 1e-3 * (2 + 0.02 * (config["BM"] - 5) ** 2 + 0.01 * (config["BN"] - 9) ** 2 + 0.1 * config["BK"])


def landscape_of_a_bowl(space: Sequence[Config]) -> SearchInputs:
    return SearchInputs(space, space[0], lambda _: (0.0,))


def test_exhaustive_keeps_the_spaces_order_after_the_default() -> None:
    space = configs(100)
    assert run(strategy("exhaustive", inputs(space, space[7]), seed=1)) == [space[7], *space[:7], *space[8:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto", "genetic", "random"])
def test_another_seed_goes_another_way(name: str) -> None:
    space = inputs(configs(100))
    assert run(strategy(name, space, seed=1)) != run(strategy(name, space, seed=2))


def test_auto_is_exhaustive_up_to_64_configs() -> None:
    assert run(strategy("auto", inputs(configs(64)), seed=1)) == configs(64)
    assert run(strategy("auto", inputs(configs(65)), seed=1)) != configs(65)


def test_an_unknown_strategy_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="auto, exhaustive, genetic, random, got 'luck'"):
        strategy("luck", SearchInputs([], Config.of({}), lambda _: ()), seed=0)
