"""Strategies in a process of their device: they ask what they would ask here, and survive that process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import Closing
from app.services.tuning.search_workers import SEARCHES, SearchWorkers, search_processes
from app.tuning.search.search_task import SearchTask, make_strategy
from app.tuning.search.strategy import Strategy
from benchmarks.serving.nulldevice import DEVICE
from kernels import KERNELS
from kernels.problem import Problem
from kernels.space import Config
from tests.support.waiting import until

KERNEL, PROBLEM = KERNELS["register_tiled"], Problem(512, 512, 512)
TASK = SearchTask(KERNEL, KERNEL.default(PROBLEM, DEVICE), PROBLEM, DEVICE, "auto", 3)


def seconds(config: Config) -> float | None:
    """A time that the config decides; some are refused."""
    values = sum(value * number for number, (_, value) in enumerate(sorted(dict(config).items()), 1))
    return None if values % 7 == 0 else 1e-3 * (1 + values % 101)


def tried(strategy: Strategy, trials: int, count: int = 6) -> list[Config]:
    found: list[Config] = []
    while len(found) < trials:
        batch = strategy.ask(count)
        assert batch
        found += batch
        for config in batch:
            strategy.tell(config, seconds(config))
    return found


@pytest.fixture
def workers() -> Iterator[SearchWorkers]:
    with closing(SearchWorkers({"first": 1, "second": 1})) as made:
        yield made


@pytest.mark.slow
def test_it_asks_what_it_would_ask_here(workers: SearchWorkers) -> None:
    there, here = workers.factory("second")(TASK), make_strategy(TASK)
    assert type(there) is not type(here)
    assert tried(there, 48) == tried(here, 48)
    assert there.gain() == here.gain()


@pytest.mark.slow
def test_strategies_of_one_process_are_apart(workers: SearchWorkers) -> None:
    make = workers.factory("first")
    other = replace(TASK, seed=4)
    one, two = make(TASK), make(other)
    found = [one.ask(5), two.ask(5), one.ask(5), two.ask(5)]
    alone = make_strategy(TASK), make_strategy(other)
    assert found == [alone[0].ask(5), alone[1].ask(5), alone[0].ask(5), alone[1].ask(5)]


@pytest.mark.slow
def test_one_whose_process_is_killed_goes_on_and_asks_nothing_twice(workers: SearchWorkers) -> None:
    there = workers.factory("first")(TASK)
    before = tried(there, 30)
    waiting = there.ask(4)
    os.kill(workers.pids()["first search 0"], signal.SIGKILL)
    after = tried(there, 30)
    for config in waiting:
        there.tell(config, seconds(config))
    everything = [*before, *waiting, *after]
    assert len(set(everything)) == len(everything)
    again = workers.factory("first")(TASK)
    assert tried(again, 12) == before[:12], "another process is in its place"


def unit(name: str, width: int) -> Any:
    return SimpleNamespace(device=SimpleNamespace(id=name), width=width)


def test_processes_search_where_builds_are_made_beside_trials_or_several_devices_tune() -> None:
    assert search_processes([unit("cuda:0", 15)]) == {"cuda:0": SEARCHES}
    assert search_processes([unit("cuda:0", 15), unit("opencl:0", 1)]) == {"cuda:0": SEARCHES, "opencl:0": 1}
    assert search_processes([unit("opencl:0", 1)]) == {}


@pytest.mark.slow
def test_a_devices_strategies_are_made_in_its_processes_in_turn() -> None:
    with closing(SearchWorkers({"first": 2})) as workers:
        workers.start()
        made = [workers.factory("first")(TASK) for _ in range(4)]
        until(lambda: len(workers.pids()) == 2)
        assert [each.ask(3) for each in made] == [make_strategy(TASK).ask(3)] * 4


def test_one_device_alone_and_cheap_strategies_think_here(workers: SearchWorkers) -> None:
    with closing(SearchWorkers({})) as alone:
        assert type(alone.factory("only")(TASK)) is type(make_strategy(TASK))
    listed = replace(TASK, strategy="random")
    assert type(workers.factory("first")(listed)) is type(make_strategy(listed))
    assert workers.pids() == {}


def test_at_the_end_nothing_is_asked(workers: SearchWorkers) -> None:
    there = workers.factory("first")(TASK)
    workers.close()
    with pytest.raises(Closing):
        there.ask(1)
