"""Configs that failed where products are served: not served again on that device model, environment and kernel text.

A wrong answer counts for every problem and for good. What did not compile, killed its process or outlived its deadline
is suspected at first: it is tried again in the background, and stored once it fails a second time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.errors import StoreFailed
from app.store.database import Database
from app.store.records import FaultRecord
from app.store.repository import FaultRepository
from kernels import KERNELS
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

WRONG = "wrong"
_BUILDING = frozenset({"compile", "verify"})
_STAGES = {WRONG: "verify", "compile": "compile", "timeout": "timeout", "died": "died", "launch": "launch"}
_LOG = logging.getLogger(__name__)
_Place = tuple[str, str, str, Config]  # device model, environment, kernel, config


@dataclass(frozen=True, slots=True)
class QuarantinedConfig:
    """A config that is held: for which problems (FaultRecord's scope), what it failed of, and since when.

    `serving` says that a product or a default found it, not a tune. With a `launch` it is only suspected, and is to be
    tried again; `strikes` counts its failures.
    """

    kernel: str
    config: Config
    scope: str
    kind: str
    reason: str
    since: datetime
    serving: bool
    launch: Launch | None = None
    strikes: int = 1

    @property
    def stage(self) -> str:
        """What went wrong: compile, verify, launch, timeout or died."""
        return _STAGES.get(self.kind, "launch")

    @property
    def dtype(self) -> str | None:
        """The dtype that it is held for; None: for every one."""
        return self.scope.split("/")[0] if self.scope else None

    @property
    def precision(self) -> str | None:
        """The precision that it is held for; None: for every one."""
        return self.scope.split("/")[1] if self.scope else None

    def concerns(self, problem: Problem | None) -> bool:
        """Whether the config must not serve a problem; None: every problem."""
        return not self.scope or (problem is not None and self.scope in {problem.family, problem.key})


class Quarantine:
    """Every config that is held, in memory: asking takes no lock, no query and no device.

    A kernel whose text has changed since is another kernel: its old faults are not held against it. Kernels that are
    *withheld* on a device are not taken untuned there: their default is not verified yet, or was put aside. Devices
    that are *unready* have no verified default.
    """

    def __init__(self, database: Database, faults: Iterable[FaultRecord] = ()) -> None:
        self._database = database
        self._held: dict[_Place, dict[str, QuarantinedConfig]] = {}
        self._withheld: frozenset[tuple[str, str]] = frozenset()
        self._changing = threading.Lock()
        self.unready: frozenset[str] = frozenset()
        self.remember(*faults)

    @classmethod
    def load(cls, database: Database) -> Quarantine:
        """Read once what is stored: every wrong answer, and what failed twice where products are served."""
        return cls(database, database.read(lambda session: FaultRepository(session).held()))

    def holds(self, device: Device, kernel: str, config: Config, problem: Problem | None = None) -> str | None:
        """Why a config must not serve a problem (None: any) on a device; None where nothing is known against it."""
        found = self._held.get((device.model, device.environment, kernel, config))
        if found is None:
            return None
        return next((entry.reason for entry in found.values() if entry.concerns(problem)), None)

    def entries(self, device: Device) -> list[QuarantinedConfig]:
        """What is held on a device, the oldest first."""
        held = [each for place, each in list(self._held.items()) if place[:2] == (device.model, device.environment)]
        return sorted((entry for each in held for entry in list(each.values())), key=lambda entry: entry.since)

    def withholds(self, device: Device, kernel: str) -> bool:
        """Whether a kernel is not to be taken untuned on a device."""
        return (device.id, kernel) in self._withheld

    def withhold(self, device: Device, kernel: str) -> None:
        """Have a kernel not taken untuned on a device, until it is allowed."""
        with self._changing:
            self._withheld |= {(device.id, kernel)}

    def allow(self, device: Device, kernel: str) -> None:
        """Have a kernel taken untuned on a device: its default was verified."""
        with self._changing:
            self._withheld -= {(device.id, kernel)}

    def add(self, *faults: FaultRecord) -> None:
        """Hold faults from now on, and store them."""
        self.remember(*faults)
        self._database.write(lambda session: FaultRepository(session).add(*faults))

    def condemn(self, device: Device, launch: Launch, reason: str) -> None:
        """Hold and store what a device answered wrong outside any job."""
        self.add(_fault(device, launch, "", WRONG, "verify", reason))

    def suspect(self, device: Device, launch: Launch, kind: str, stage: str, reason: str) -> None:
        """Hold what failed of another kind, until it is released; at its second failure, for good."""
        scope = launch.problem.family if stage in _BUILDING else launch.problem.key
        fault = _fault(device, launch, scope, kind, stage, reason)
        place = _place(fault)
        if place is None:
            return
        with self._changing:
            before = self._held.setdefault(place, {}).get(scope)
            entry = replace(_entry(fault), launch=launch, strikes=before.strikes + 1 if before else 1)
            self._held[place][scope] = replace(entry, since=before.since) if before else entry
        _LOG.warning("%s %s is quarantined on %s: %s", launch.kernel, launch.config, device.id, reason)
        if entry.strikes > 1:
            self._store(place, scope, fault)

    def release(self, device: Device, entry: QuarantinedConfig) -> None:
        """Hold no longer what was suspected, and did well since."""
        place = device.model, device.environment, entry.kernel, entry.config
        with self._changing:
            left = {scope: each for scope, each in self._held.get(place, {}).items() if scope != entry.scope}
            if left:
                self._held[place] = left
            else:
                self._held.pop(place, None)
        _LOG.warning("%s %s is no longer quarantined on %s", entry.kernel, entry.config, device.id)

    def remember(self, *faults: FaultRecord) -> None:
        """Hold faults that somebody has stored; of a tune's only wrong answers are held."""
        for fault in faults:
            place = _place(fault)
            if place is not None and (fault.kind == WRONG or fault.job_id is None):
                with self._changing:
                    self._held.setdefault(place, {}).setdefault(fault.scope, _entry(fault))
                _LOG.warning("%s %s is quarantined: %s", fault.kernel, fault.config, fault.reason)

    def _store(self, place: _Place, scope: str, fault: FaultRecord) -> None:
        """Keep a fault for good; where it cannot be written it stays suspected, and is tried again."""
        try:
            self._database.write(lambda session: FaultRepository(session).add(fault))
        except StoreFailed as error:
            _LOG.warning("the fault of %s %s is not stored: %s", fault.kernel, fault.config, error.message)
            return
        with self._changing:
            self._held[place][scope] = replace(self._held[place][scope], launch=None)


def _fault(device: Device, launch: Launch, scope: str, kind: str, stage: str, reason: str) -> FaultRecord:
    return FaultRecord(
        device_model=device.model,
        environment=device.environment,
        kernel=launch.kernel,
        kernel_digest=KERNELS[launch.kernel].digest,
        config=launch.config,
        scope=scope,
        kind=kind,
        stage=stage,
        reason=reason,
        job_id=None,
        at=datetime.now(UTC),
    )


def _entry(fault: FaultRecord) -> QuarantinedConfig:
    return QuarantinedConfig(
        fault.kernel, fault.config, fault.scope, fault.kind, fault.reason, fault.at, fault.job_id is None
    )


def _place(fault: FaultRecord) -> _Place | None:
    """What a fault is held against, if it is still there: this kernel text, and this config in its space."""
    kernel = KERNELS.get(fault.kernel)
    if kernel is None or kernel.digest != fault.kernel_digest:
        return None
    try:
        return fault.device_model, fault.environment, fault.kernel, kernel.space.config(fault.config)
    except ValueError:
        return None
