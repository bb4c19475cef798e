"""Background tuning: what an idle device tunes of its own accord, the most frequent misses and stale bests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from app.services.best.lookup import BestConfigs, is_current
from app.services.best.misses import MissCounter
from app.services.tuning.executor import is_exact
from app.services.tuning.search_scope import configs_of
from app.store.database import Database
from app.store.repository import TrialRepository
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem

SECONDS: Final = 10.0  # that a shape may take: a caller who wants more orders a tune
_QUIET: Final = 3.0  # seconds without a product before a device counts as idle
_TOP: Final = 8  # configs of a stale best that are tried again


class BackgroundTuning:
    """Chooses work for idle devices, each problem once in a process's life. `quiet` gives seconds since a product."""

    def __init__(self, database: Database, best: BestConfigs, misses: MissCounter, quiet: Callable[[], float]) -> None:
        self._database, self._best, self._misses, self._quiet = database, best, misses, quiet
        self._chosen: set[tuple[str, Problem]] = set()

    def next(self, device: Device) -> dict[str, Any] | None:
        """The request of the job to do now on a device; None where there is nothing, or products come."""
        if self._quiet() < _QUIET:
            return None
        for problem, configs in self._candidates(device):
            if (device.model, problem) not in self._chosen:
                self._chosen.add((device.model, problem))
                return _request(device, problem, configs)
        return None

    def _candidates(self, device: Device) -> Iterator[tuple[Problem, list[dict[str, Any]] | None]]:
        for miss in self._misses.most_wanted(device_model=device.model):
            if is_exact(self._best, miss.problem, device.id):
                self._misses.forget(device.model, miss.problem)
            else:
                yield miss.problem, self._stored_top(miss.problem, device)
        for record in self._best.all():
            if record.device_model == device.model and not is_current(record.trial, device):
                yield record.problem, self._stored_top(record.problem, device)

    def _stored_top(self, problem: Problem, device: Device) -> list[dict[str, Any]] | None:
        """The fastest configs of a stale best that can still be launched; None where all is to be searched."""
        record = self._best.record(device.model, problem)
        if record is None:
            return None
        job = record.trial.job_id
        rows = self._database.read(lambda session: TrialRepository(session).top(job, device.model, problem, _TOP))
        legal = []
        for row in rows:
            kernel = CATALOGUE.get(row.kernel)
            try:
                if kernel is not None and kernel.covers(problem, device):
                    legal.append((row.kernel, kernel.launch(kernel.space.config(row.config), problem, device).config))
            except ValueError:
                continue  # the kernel has changed since, and its space refuses this now
        return configs_of(legal) or None


def _request(device: Device, problem: Problem, configs: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {
        "problems": [asdict(problem)],
        "devices": [device.id],
        "kernels": None,
        "strategy": "auto" if configs is None else "exhaustive",
        "trials": None,
        "seconds": SECONDS,
        "gain_percent": None,
        "idle": True,
    } | ({} if configs is None else {"configs": configs})
