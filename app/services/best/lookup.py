"""Best-config lookup: exact, provisional, stale, nearest or default, from a snapshot in memory that needs no lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Protocol, Self

from app.errors import NotTuned, Unsupported
from app.services.best.answer import Baseline, BestAnswer, accuracy_of, baselines_of, gflops, stored, timing_of
from app.services.best.kernel_order import default_launch, unemulated, untuned
from app.services.best.known_devices import KnownDevices
from app.services.best.transfer_records import (
    ReadCrossed,
    ServingRules,
    TunedFamily,
    WinnerTimes,
    is_current,
    launch_of,
)
from app.store.database import Database
from app.store.records import BestRecord, CrossRecord, TrialRecord
from app.store.repository import BestRepository
from app.tuning.transfer import TransferChoice, TransferEstimate, Transferred, beats, distance
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

__all__ = [
    "Baseline",
    "BestAnswer",
    "BestConfigs",
    "accuracy_of",
    "baselines_of",
    "distance",
    "gflops",
    "is_current",
    "timing_of",
]

_MOST: Final = 4096  # answers kept, some megabytes


def _forget_oldest(answers: dict[tuple[str | None, Problem, bool], BestAnswer]) -> None:
    with suppress(RuntimeError, StopIteration):  # where another thread adds one or forgets it at this moment
        answers.pop(next(iter(answers)), None)


class ConfigFilter(Protocol):
    """Knows the configs that failed here, and the kernels whose default is not verified."""

    def holds(self, device: Device, kernel: str, config: Config, problem: Problem | None = None) -> str | None:
        """Why a config may not serve a problem (None: any) on such a device, or None where it may."""
        ...

    def withholds(self, device: Device, kernel: str) -> bool:
        """Whether a kernel is not to be taken untuned on a device."""
        ...


@dataclass(frozen=True)
class _Snapshot:
    """All bests of one generation by model and problem, and the answers given so far by device id and problem.

    `families` say, by model and family, what the tuned problems tell of the others.
    """

    exact: dict[tuple[str, Problem], BestRecord] = field(default_factory=dict)
    provisional: dict[tuple[str, Problem], BestRecord] = field(default_factory=dict)
    families: dict[tuple[str, str], TunedFamily] = field(default_factory=dict)
    answers: dict[tuple[str | None, Problem, bool], BestAnswer] = field(default_factory=dict)

    def with_records(self, records: Iterable[BestRecord]) -> _Snapshot:
        fresh = {(record.device_model, record.problem): record for record in records}
        provisional = {key: record for key, record in self.provisional.items() if key not in fresh}
        return _Snapshot({**self.exact, **fresh}, provisional, self.families)


class BestConfigs:
    """Every best of this database, in memory: an answer takes no lock, no query and no device.

    `generation` rises whenever any answer may have changed. What the quarantine holds is never answered.
    """

    def __init__(
        self,
        fleet: KnownDevices,
        records: Iterable[BestRecord] = (),
        quarantine: ConfigFilter | None = None,
        crossed: ReadCrossed = lambda *_: (),
    ) -> None:
        self.generation = 0
        self._fleet, self._quarantine, self._times = fleet, quarantine, WinnerTimes(crossed)
        # The snapshot's, and the families': whoever takes both takes the second first, since learning is long.
        self._changing, self._learning = threading.Lock(), threading.Lock()
        self._snapshot = _Snapshot()
        self._last_default: tuple[int, BestAnswer | None] = 0, None
        self.promoted(records)

    @classmethod
    def load(cls, fleet: KnownDevices, database: Database, quarantine: ConfigFilter | None = None) -> Self:
        """Read every stored best once; what winners took on each other's problems is read on at each promotion."""
        records = database.read(lambda session: BestRepository(session).all())

        def crossed(around: Collection[BestRecord] | None, first: Collection[BestRecord]) -> Iterable[CrossRecord]:
            return database.read(lambda session: BestRepository(session).crossed(around, first))

        return cls(fleet, records, quarantine, crossed)

    def promoted(self, records: Iterable[BestRecord]) -> None:
        """Take what was just committed; what was provisional for the same problems is forgotten.

        Then works out what that says of the other problems.
        """
        taken = list(records)
        with self._changing:
            self._take(self._snapshot.with_records(taken))
        self._learn(taken)

    def deleted(self, model: str, problem: Problem) -> None:
        """Forget a best that was just deleted from the store, and what it said of other problems."""
        with self._changing:
            now, place = self._snapshot, (model, problem.family)
            exact = {key: record for key, record in now.exact.items() if key != (model, problem)}
            families = {key: known for key, known in now.families.items() if key != place}
            self._take(replace(now, exact=exact, families=families, answers={}))
        with self._learning:
            self._times.deleted(place, problem)
            self._renew({place})

    def provisional(self, record: BestRecord) -> None:
        """Take the best so far of a tune under way, to be answered where nothing current is stored.

        It is measured and its trial need not be saved. Every kernel's default should have been tried before: a first
        trial may be far slower than the nearest shape's config.
        """
        with self._changing:
            now, key = self._snapshot, (record.device_model, record.problem)
            self._take(replace(now, provisional={**now.provisional, key: record}, answers={}))

    def withdraw(self, model: str, problem: Problem) -> None:
        """Forget what is provisional for a problem: its tune ended without a promotion."""
        with self._changing:
            now = self._snapshot
            left = {key: record for key, record in now.provisional.items() if key != (model, problem)}
            self._take(replace(now, provisional=left, answers={}))

    def changed(self) -> None:
        """Forget what was answered: the quarantine holds other configs now."""
        with self._changing:
            self._take(replace(self._snapshot, answers={}))

    def all(self) -> list[BestRecord]:
        """Every best, in no order."""
        return list(self._snapshot.exact.values())

    def devices(self) -> list[Device]:
        """The devices that answers are for."""
        return [unit.device for unit in self._fleet.units]

    def record(self, model: str, problem: Problem) -> BestRecord | None:
        """The stored best of one device model and problem."""
        return self._snapshot.exact.get((model, problem))

    def knows(self, problem: Problem, device_id: str) -> bool:
        """Whether `answer` need not work it out."""
        return (device_id, problem, False) in self._snapshot.answers

    def answer(self, problem: Problem, device_id: str | None = None, *, exact: bool = False) -> BestAnswer:
        """Answer exact, else provisional, else stale, else nearest, else the model's default.

        Nearest is left out where it is not sure enough to be faster than the default.
        With `exact` only what a finished tune measured under today's conditions will do: else NotTuned is raised.
        A problem to be emulated that no kernel here can emulate has the answer of the strict one, and says why. Raises
        UnknownDevice, NoDevice, and Unsupported where no kernel covers the problem.
        """
        snapshot = self._snapshot
        known = snapshot.answers.get((device_id, problem, exact))
        if known is not None and self._may_serve(known):
            return known
        device = self._fleet.unit(device_id).device
        reason = unemulated(problem, device)
        if reason is not None:
            strict = self.answer(replace(problem, precision="strict"), device_id, exact=exact)
            return replace(strict, problem=problem, declined=reason)
        answer = self._measured(snapshot, problem, device, exact=exact)
        if answer is None and exact:
            raise NotTuned(f"{problem} has not been tuned on {device.id}", problem=asdict(problem), device=device.id)
        if answer is None:
            answer = self._untuned(snapshot, problem, device)
        if len(snapshot.answers) >= _MOST:
            _forget_oldest(snapshot.answers)
        snapshot.answers[device_id, problem, exact] = answer
        return answer

    def below(self, problem: Problem, device_id: str, failed: Collection[tuple[str, Config]]) -> BestAnswer:
        """What to take untuned once some kernels' configs have failed; raises Unsupported where nothing is left."""
        return self._default(problem, self._fleet.unit(device_id).device, failed)

    def _take(self, snapshot: _Snapshot) -> None:
        self._snapshot = snapshot
        self.generation += 1

    def _learn(self, records: Sequence[BestRecord]) -> None:
        """Work out what these bests say of other problems."""
        here = {unit.device.model for unit in self._fleet.units}
        with self._learning:
            self._times.promoted([one for one in records if one.device_model in here])
            self._renew({(one.device_model, one.problem.family) for one in records})

    def _renew(self, places: set[tuple[str, str]]) -> None:
        if not places:
            return
        fresh = self._families(places)
        with self._changing:
            kept = {place: known for place, known in self._snapshot.families.items() if place not in places}
            self._take(replace(self._snapshot, families={**kept, **fresh}, answers={}))

    def _families(self, changed: set[tuple[str, str]]) -> dict[tuple[str, str], TunedFamily]:
        """What these models and families say now, as far as a device of the model is here."""
        devices = {unit.device.model: unit.device for unit in reversed(self._fleet.units)}
        now = self._snapshot
        bests = {place: list[BestRecord]() for place in changed if place[0] in devices}
        for record in now.exact.values():
            if (of := bests.get((record.device_model, record.problem.family))) is not None:
                of.append(record)
        return {
            place: TunedFamily(of, self._times.of(place), self._rules(devices[place[0]]), now.families.get(place))
            for place, of in bests.items()
            if of
        }

    def _rules(self, device: Device) -> ServingRules:
        def default(problem: Problem) -> TransferChoice | None:
            try:
                answer = self._first_default(problem, device)
            except Unsupported:
                return None
            return answer.kernel, answer.config

        return ServingRules(device, self._server(device), default)

    def _server(self, device: Device) -> Callable[[str, Config, Problem], bool]:
        return lambda kernel, config, problem: self._serves(device, kernel, config, problem)

    def _serves(self, device: Device, kernel: str, config: Config, problem: Problem | None = None) -> bool:
        return self._quarantine is None or self._quarantine.holds(device, kernel, config, problem) is None

    def _measured(self, snapshot: _Snapshot, problem: Problem, device: Device, *, exact: bool) -> BestAnswer | None:
        """What was measured for this very problem."""
        record = snapshot.exact.get((device.model, problem))
        launch = self._launch(record.trial, problem, device) if record else None
        if record and launch and is_current(record.trial, device):
            return stored(record, device, launch, "exact")
        if exact:
            return None
        so_far = snapshot.provisional.get((device.model, problem))
        if so_far and not (record and launch and _slower(so_far, record)):
            running = self._launch(so_far.trial, problem, device)
            if running:
                return stored(so_far, device, running, "exact", provisional=True)
        return stored(record, device, launch, "stale") if record and launch else None

    def _untuned(self, snapshot: _Snapshot, problem: Problem, device: Device) -> BestAnswer:
        """The config of a problem nearby where that is surely better, else the model's choice; raises Unsupported."""
        family = snapshot.families.get((device.model, problem.family))
        if family is None:
            return self._default(problem, device)
        transfer = family.transfer(problem)
        found, foretold = transfer.choose(problem), transfer.default(problem)
        nearest = self._nearest(snapshot, problem, device, found) if found else None
        try:
            default = _foretold(self._first_default(problem, device), foretold)
        except Unsupported:
            if nearest is None:
                raise
            return nearest
        return nearest if nearest and found and beats(found, foretold) else default

    def _nearest(self, snapshot: _Snapshot, problem: Problem, device: Device, found: Transferred) -> BestAnswer | None:
        record = snapshot.exact.get((device.model, found.source))  # None if it was deleted just now
        launch = launch_of(found.kernel, found.config, problem, device)
        if record is None or launch is None or not self._serves(device, found.kernel, found.config, problem):
            return None
        return _foretold(stored(record, device, launch, "nearest"), found)

    def _default(self, problem: Problem, device: Device, failed: Collection[tuple[str, Config]] = ()) -> BestAnswer:
        """What the model chooses, untuned: the first of those that may be served and have not failed.

        Kernels that are withheld come last. Raises Unsupported where no kernel can.
        """
        refused = []
        for kernel in self._rungs(problem, device):
            try:
                launch = default_launch(kernel, problem, device)
            except Unsupported as refusal:
                refused.append(refusal.message)
                continue
            if (kernel.name, launch.config) in failed:
                refused.append(f"{kernel.name} {launch.config} has just failed on {device.id}")
            elif self._serves(device, kernel.name, launch.config, problem):
                return BestAnswer(device, problem, kernel.name, launch.config, launch, "default")
            else:
                refused.append(f"{kernel.name} {launch.config} is quarantined on {device.id}")
        raise Unsupported("; ".join(refused))

    def _first_default(self, problem: Problem, device: Device) -> BestAnswer:
        """As `_default`; the last one is remembered, because one answer asks for it more than once."""
        generation, last = self._last_default
        known = generation == self.generation and last is not None and self._may_serve(last)
        if last is None or not known or (last.problem, last.device) != (problem, device):
            last = self._default(problem, device)
            self._last_default = self.generation, last
        return last

    def _may_serve(self, answer: BestAnswer) -> bool:
        return self._serves(answer.device, answer.kernel, answer.config, answer.launch.problem)

    def _rungs(self, problem: Problem, device: Device) -> Iterator[Kernel]:
        """The kernels in the order in which they are taken untuned."""
        quarantine, withheld = self._quarantine, list[Kernel]()
        for kernel in untuned(problem, device):
            if quarantine is not None and quarantine.withholds(device, kernel.name):
                withheld.append(kernel)
            else:
                yield kernel
        yield from withheld

    def _launch(self, trial: TrialRecord, problem: Problem, device: Device) -> Launch | None:
        """The launch of a stored config on a problem, or None where it is illegal there or not to be served."""
        launch = launch_of(trial.kernel, trial.config, problem, device)
        return launch if launch and self._serves(device, launch.kernel, launch.config, problem) else None


def _foretold(answer: BestAnswer, told: TransferEstimate) -> BestAnswer:
    return replace(answer, expected_loss=told.expected_loss, loss_bound=told.loss_bound)


def _slower(one: BestRecord, other: BestRecord) -> bool:
    return (one.trial.median_ms or 0.0) > (other.trial.median_ms or 0.0)
