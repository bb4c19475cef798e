"""Background tuning: an idle device tunes the most frequent misses and stale bests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from app.services.best.lookup import BestConfigs, is_current
from app.services.best.misses import MissCounter
from app.services.tuning.executor import is_exact
from app.services.tuning.request import ListedConfig, TuneSpec
from app.store.database import Database
from app.store.repository import TrialRepository
from app.tuning.budget import Budget
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem

SECONDS: Final = 10.0  # that a shape may take: a caller who wants more orders a tune
_QUIET: Final = 3.0  # seconds without a product before a device counts as idle
_TOP: Final = 8  # configs of a stale best that are tried again


class BackgroundTuning:
    """Chooses work for idle devices, each problem once a process. `quiet` gives the seconds since the last product."""

    def __init__(self, database: Database, best: BestConfigs, misses: MissCounter, quiet: Callable[[], float]) -> None:
        self._database, self._best, self._misses, self._quiet = database, best, misses, quiet
        self._chosen: set[tuple[str, Problem]] = set()

    def next(self, device: Device) -> TuneSpec | None:
        """The next job of a device; None if there is none, or products are being made."""
        if self._quiet() < _QUIET:
            return None
        for problem, configs in self._candidates(device):
            if (device.model, problem) not in self._chosen:
                self._chosen.add((device.model, problem))
                return _spec(device, problem, configs)
        return None

    def _candidates(self, device: Device) -> Iterator[tuple[Problem, tuple[ListedConfig, ...] | None]]:
        self._misses.flush()
        for miss in self._misses.most_frequent(device_model=device.model):
            if is_exact(self._best, miss.problem, device.id):
                self._misses.forget(device.model, miss.problem)
            else:
                yield miss.problem, self._stored_top(miss.problem, device)
        for record in self._best.all():
            if record.device_model == device.model and not is_current(record.trial, device):
                yield record.problem, self._stored_top(record.problem, device)

    def _stored_top(self, problem: Problem, device: Device) -> tuple[ListedConfig, ...] | None:
        """The fastest configs of a stale best that can still be launched; None if the whole space is to be searched."""
        record = self._best.record(device.model, problem)
        if record is None:
            return None
        job = record.trial.job_id
        rows = self._database.read(lambda session: TrialRepository(session).top(job, device.model, problem, _TOP))
        legal = list[ListedConfig]()
        for row in rows:
            kernel = CATALOGUE.get(row.kernel)
            try:
                if kernel is not None and kernel.covers(problem, device):
                    config = kernel.launch(kernel.space.config(row.config), problem, device).config
                    legal.append(ListedConfig(row.kernel, config))
            except ValueError:
                continue  # the kernel has changed since, and its space refuses this now
        return tuple(legal) or None


def _spec(device: Device, problem: Problem, configs: tuple[ListedConfig, ...] | None) -> TuneSpec:
    return TuneSpec(
        (problem,),
        (device.id,),
        strategy="auto" if configs is None else "exhaustive",
        budget=Budget(seconds=SECONDS),
        configs=configs,
        idle=True,
    )
