"""SearchWorkers: strategies in processes of each device, so that neither tunes nor trials wait for an interpreter."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final

from app.devices.fleet import Unit
from app.devices.process import Worker
from app.errors import Closing, TilewiseError
from app.tuning.search.search_task import SearchTask, StrategyFactory, make_strategy
from app.tuning.search.strategy import Strategy
from app.worker import search
from kernels import KERNELS
from kernels.space import Config

_LOG = logging.getLogger(__name__)
SEARCHES: Final = 3  # processes of a device
_DEADLINE: Final = 300.0  # seconds: listing the largest spaces and predicting them takes some


def search_processes(units: Sequence[Unit]) -> dict[str, int]:
    """How many processes search for each device: some where builds are made beside its trials; else one, or none alone.

    A process lists one space at a time, and is asked by one kernel's search at a time.
    """
    ahead = {unit.device.id: SEARCHES for unit in units if unit.width > 1}
    return dict.fromkeys((unit.device.id for unit in units if len(units) > 1), 1) | ahead


class SearchWorkers:
    """Processes in which devices' strategies search, so many of each by its id; each starts at its first question.

    Two searches in threads of one interpreter take twice as long each, while their devices wait. And a call of a
    device's worker waits for the interpreter while a thread lists a space: on two cores 16 ms for 0.2, and 93 ms while
    three do. Devices that have no process search in threads.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._workers = {
            name: [Worker(f"{name} search {number}", search.strategies, ()) for number in range(many)]
            for name, many in processes.items()
        }
        self._numbers = count()
        self._starting = threading.Thread(target=self._start, name="starting searches", daemon=True)

    def start(self) -> None:
        """Start all processes in a thread, and return at once."""
        self._starting.start()

    def factory(self, device_id: str) -> StrategyFactory:
        """What makes the strategies of a device's tunes: of its processes in turn."""
        workers = self._workers.get(device_id)

        def make(task: SearchTask) -> Strategy:
            if not workers or task.strategy != "auto" or KERNELS.get(task.kernel.name) is not task.kernel:
                return make_strategy(task)
            number = next(self._numbers)
            return _RemoteStrategy(workers[number % len(workers)], number, task)

        return make

    def pids(self) -> dict[str, int]:
        """The processes that there are, by name."""
        return {one.name: one.pid for workers in self._workers.values() for one in workers if one.pid is not None}

    def close(self) -> None:
        """End the processes."""
        for workers in self._workers.values():
            for worker in workers:
                worker.close()
        if self._starting.is_alive():
            self._starting.join()

    def _start(self) -> None:
        with suppress(TilewiseError):  # one that cannot start is met again, and said, at its first question
            for workers in self._workers.values():
                for worker in workers:
                    worker.start()


class _RemoteStrategy:
    """A strategy in another process, which is made here from what it was told if that process is lost."""

    def __init__(self, worker: Worker, number: int, task: SearchTask) -> None:
        self._worker, self._number, self._task = worker, number, task
        self._told: list[tuple[Config, float | None]] = []
        self._asked: dict[Config, None] = {}  # without an outcome yet
        self._sent, self._here = 0, None if self._call(search.make, number, task)[0] else make_strategy(task)

    def ask(self, count: int) -> list[Config]:
        """As Strategy."""
        found: list[Config] | None = self._there(search.ask, count)
        if found is None:
            here = self._made_here()
            found = [config for config in here.ask(count + len(self._asked)) if config not in self._asked]
        self._asked |= dict.fromkeys(found)
        return found

    def tell(self, config: Config, seconds: float | None) -> None:
        """As Strategy."""
        self._told.append((config, seconds))
        self._asked.pop(config, None)
        if self._here is not None:
            self._here.tell(config, seconds)

    def gain(self) -> float:
        """As Strategy."""
        found: float | None = self._there(search.gain)
        return self._made_here().gain() if found is None else found

    def _there(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the process says, once it was told what is new; None where it is lost, or has another strategy's."""
        if self._here is not None:
            return None
        told = self._told[self._sent :]
        found = self._call(function, self._number, told, *arguments)[1]
        self._sent += len(told)
        return found

    def _call(self, function: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
        """Whether the process answered, and what; raises Closing at the end."""
        try:
            return True, self._worker.call(function, *arguments, deadline=_DEADLINE)
        except Closing:
            raise
        except TilewiseError as error:
            _LOG.warning("%s; the strategy is made anew in the service", error.message)
            return False, None

    def _made_here(self) -> Strategy:
        if self._here is None:
            self._here = make_strategy(self._task)
            for outcome in self._told:
                self._here.tell(*outcome)
        return self._here
