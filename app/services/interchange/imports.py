"""Imports: files of results that principals bring, which are no more than priors until they are measured here."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final
from uuid import uuid4

from app.errors import NoRoom, QuotaExceeded, UnknownImport
from app.interchange import bundle
from app.interchange.formats import FileSubject, parse
from app.interchange.results import BestResult, ConfigResult, ResultsFile, TuningResults
from app.services.best.answer import AnswerSource, BestAnswer
from app.services.best.lookup import BestConfigs, distance
from app.services.best.quarantine import Quarantine
from app.services.best.transfer_records import launch_of
from app.services.interchange.report import ImportReport, KnownTime, ReportLine, best_line, line_of
from app.services.principal import ANONYMOUS, Principal
from app.store.database import Database
from app.store.records import ImportedSpaceRecord, ImportRecord, TrialRecord
from app.store.repository import ImportRepository, TrialRepository
from app.tuning.measure.racing import EVENTS
from app.tuning.outcome import Timing
from app.tuning.search.inputs import PriorTimes
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config

MOST_BYTES: Final = 2**25  # of a file
AT_ONCE: Final = 4  # files that are read
_LEAST: Final = 512  # bytes that a space counts as at least
_TRIALS: Final = 5000  # read at once
_SOURCES: Final = 8  # of a search's priors
_PLACES: Final = {"nearest", "default"}  # the answers that an import's takes the place of


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """How many bytes one principal's imports may take, and the days after which they expire; None: never."""

    nbytes: int
    days: float | None


@dataclass(frozen=True, slots=True)
class _Prior:
    """The fastest config of an imported space, and whose it is."""

    space: ImportedSpaceRecord
    record: ImportRecord
    config: Config
    time_ms: float


class ImportService:
    """What principals imported. To whoever is anonymous, where nobody has a name, all of it belongs.

    `generation` rises whenever an answer may have changed. Every method but `answer` blocks for a query.
    """

    def __init__(self, database: Database, best: BestConfigs, quarantine: Quarantine, limits: ImportLimits) -> None:
        self.generation = 0
        self._database, self._best, self._quarantine, self._limits = database, best, quarantine, limits
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._priors: dict[Problem, list[_Prior]] = {}
        self._owners: frozenset[str] = frozenset()
        self._changing = threading.Lock()
        self._load()

    def slot(self) -> _Slot:
        """A turn to read a file, as a context manager; raises NoRoom while others have them all."""
        return _Slot(self._slots)

    def add(
        self, name: str, data: bytes, subject: FileSubject, principal: Principal
    ) -> tuple[ImportRecord, ImportReport]:
        """Import a file of a format; raises InvalidFile, QuotaExceeded, Unsupported. A refused file leaves nothing."""
        file = parse(name, data, subject)
        self.expire()
        report, kept = self._compared(file, principal)
        now, import_id = datetime.now(UTC), uuid4().hex
        spaces = [*_packed_spaces(import_id, kept), *_packed_bests(import_id, kept)]
        nbytes = sum(max(_LEAST, len(space.packed)) for space in spaces)
        expires = None if self._limits.days is None else now + timedelta(days=self._limits.days)
        digest, counts = sha256(data).hexdigest(), report.counts
        record = ImportRecord(import_id, principal.name, name, digest, nbytes, counts, now, expires)
        with self._changing:
            used = self._database.read(lambda session: ImportRepository(session).used(principal.name))
            if used + nbytes > self._limits.nbytes:
                told = {"limit": self._limits.nbytes, "used": used, "size": nbytes}
                raise QuotaExceeded(f"imports of {principal.name} may take {self._limits.nbytes} bytes", **told)
            self._database.write(lambda session: ImportRepository(session).add(record, spaces))
        self._load()
        return record, report

    def list(self, principal: Principal) -> Sequence[ImportRecord]:
        """A principal's imports, newest first."""
        now = datetime.now(UTC)
        found = self._database.read(lambda session: ImportRepository(session).list(_owner(principal)))
        return [record for record in found if not _is_over(record, now)]

    def get(self, import_id: str, principal: Principal) -> ImportRecord:
        """One of a principal's imports; raises UnknownImport."""
        found = self._database.read(lambda session: ImportRepository(session).get(import_id, _owner(principal)))
        if found is None or _is_over(found, datetime.now(UTC)):
            raise UnknownImport(f"there is no import {import_id}")
        return found

    def delete(self, import_id: str, principal: Principal) -> None:
        """Delete one; raises UnknownImport."""
        self.get(import_id, principal)
        self._database.write(lambda session: ImportRepository(session).delete(import_id))
        self._load()

    def file(self, import_id: str, principal: Principal) -> ResultsFile:
        """What one holds; raises UnknownImport."""
        self.get(import_id, principal)
        found = self._database.read(lambda session: ImportRepository(session).spaces(import_id))
        spaces = tuple(_space(record) for record in found if record.kind == "space")
        return ResultsFile(spaces, tuple(_best(record) for record in found if record.kind == "best"))

    def expire(self) -> None:
        """Delete what is over."""
        now = datetime.now(UTC)
        over = self._database.read(lambda session: ImportRepository(session).expired(now))
        if over:
            self._database.write(lambda session: ImportRepository(session).delete(*over))
            self._load()

    def priors(self, principal: str, kernel: str, problem: Problem) -> Sequence[PriorTimes]:
        """The times that a principal imported of a kernel's configs: of this problem, then of others of its family."""
        owner = None if principal == ANONYMOUS.name else principal
        if not any(known.family == problem.family for known in list(self._priors)):
            return []
        self.expire()
        found = self._database.read(lambda session: ImportRepository(session).spaces(None, owner, problem.family))
        of_kernel = [record for record in found if record.kernel == kernel and record.best_config is not None]
        nearest = sorted(of_kernel, key=lambda record: distance(record.problem, problem))[:_SOURCES]
        return [PriorTimes(_seconds(_space(record)), distance(record.problem, problem)) for record in nearest]

    def fastest(self, principal: str, device: Device, problem: Problem) -> Sequence[tuple[str, Config]]:
        """The kernels and configs that were fastest in what a principal imported of a problem on such a device."""
        now, owner = datetime.now(UTC), None if principal == ANONYMOUS.name else principal
        mine = [one for one in self._priors.get(problem, ()) if owner in {None, one.record.principal}]
        of_device = [one for one in mine if one.space.device in {device.model, device.name}]
        return [(one.space.kernel, one.config) for one in of_device if not _is_over(one.record, now)]

    def concerns(self, principal: Principal) -> bool:
        """Whether any answer to a principal may rest on an import."""
        owner = _owner(principal)
        return bool(self._owners) if owner is None else owner in self._owners

    def answer(self, answer: BestAnswer, principal: Principal) -> BestAnswer:
        """An answer that was not measured here for its problem, replaced by what was imported for device and problem.

        Its match is nearest, and its `source` tells where it comes from. No query, no device.
        """
        if answer.match not in _PLACES:
            return answer
        now, device = datetime.now(UTC), answer.device
        for prior in reversed(self._priors.get(answer.problem, ())):
            is_device = prior.space.device in {device.model, device.name}
            if is_device and _sees(principal, prior) and not _is_over(prior.record, now):
                found = self._replaced(answer, prior)
                if found is not None:
                    return found
        return answer

    def _replaced(self, answer: BestAnswer, prior: _Prior) -> BestAnswer | None:
        """The imported config as the answer; None where it is not legal or is not to be served here."""
        kernel, device, problem = prior.space.kernel, answer.device, answer.problem
        launch = launch_of(kernel, prior.config, problem, device)
        if launch is None or self._quarantine.holds(device, kernel, prior.config, problem) is not None:
            return None
        record = prior.record
        return BestAnswer(
            device=device,
            problem=problem,
            kernel=kernel,
            config=prior.config,
            launch=launch,
            match="nearest",
            timing=Timing(prior.time_ms, None, 0, limited=False, dropped=False, policy=EVENTS),
            gflops=problem.flops / prior.time_ms / 1e6,
            matched_problem=problem,
            source=AnswerSource(record.id, record.format, prior.space.device, record.created_at),
        )

    def _compared(self, file: ResultsFile, principal: Principal) -> tuple[ImportReport, ResultsFile]:
        """The report of a file's lines, and what of the file is kept: all that is neither refused nor there twice."""
        lines, spaces, bests = list[ReportLine](), list[TuningResults](), list[BestResult]()
        for space in file.spaces:
            known, seen, kept = self._known(space, principal), set[object](), []
            for one in space.results:
                is_first = one.values not in seen
                line = line_of(space, one, known.get(one.values), is_first=is_first)
                seen.add(one.values)
                lines.append(line)
                kept += [one] if is_first and line.outcome != "refused" else []
            spaces.append(replace(space, results=tuple(kept)))
        for best in file.bests:
            line = best_line(best, self._known_best(best, principal))
            lines.append(line)
            bests += [best] if line.outcome != "refused" else []
        report = ImportReport(sorted(lines, key=lambda line: line.line))
        return report, ResultsFile(tuple(space for space in spaces if space.results), tuple(bests))

    def _known(self, space: TuningResults, principal: Principal) -> Mapping[object, KnownTime]:
        """What is known here of a space's configs by their values: imported, and before that, measured here."""
        found: dict[object, KnownTime] = {}
        if space.problem is None:
            return found
        family = space.problem.family
        before = self._database.read(lambda session: ImportRepository(session).spaces(None, _owner(principal), family))
        for record in before:
            if (record.device, record.problem, record.kernel) == (space.device, space.problem, space.kernel):
                earlier = _space(record)
                for one in earlier.results:
                    values = earlier.members(one)
                    key = tuple(values.get(name) for name in space.parameters)
                    found[key] = KnownTime(one.median_ms, one.interval_ms, earlier.digest)
        for trial in self._trials(space):
            key = tuple(trial.config.get(name) for name in space.parameters)
            found[key] = KnownTime(trial.median_ms, _interval(trial), trial.kernel_digest)
        return found

    def _trials(self, space: TuningResults) -> Iterator[TrialRecord]:
        """The stored trials of a space, oldest first."""
        after, problem = 0, space.problem
        model, key = self._model(space.device), problem.key if problem else ""
        while page := self._database.read(
            lambda session, after=after: TrialRepository(session).search(  # type: ignore[misc]
                model, key, kernel=space.kernel, after=after, limit=_TRIALS
            )
        ):
            yield from page
            after = page[-1].id or 0

    def _known_best(self, best: BestResult, principal: Principal) -> KnownTime | None:
        record = self._best.record(self._model(best.device), best.problem)
        if record is not None:
            trial = record.trial
            interval = _interval(trial)
            return KnownTime(trial.median_ms, interval, trial.kernel_digest, trial.config, trial.kernel)
        for prior in reversed(self._priors.get(best.problem, ())):
            if prior.space.device == best.device and _sees(principal, prior):
                return KnownTime(prior.time_ms, None, None, prior.config, prior.space.kernel)
        return None

    def _model(self, device: str) -> str:
        """The model of a device of ours that has this name, or the name."""
        models = (known.model for known in self._best.devices() if device in {known.model, known.name})
        return next(models, device)

    def _load(self) -> None:
        """Take up what is stored of whom."""
        records, spaces = self._database.read(
            lambda session: (ImportRepository(session).list(), ImportRepository(session).bests())
        )
        by_id = {record.id: record for record in records}
        found: dict[Problem, list[_Prior]] = {}
        for space in spaces:
            if space.best_config is not None and space.best_ms is not None and space.import_id in by_id:
                prior = _Prior(space, by_id[space.import_id], space.best_config, space.best_ms)
                found.setdefault(space.problem, []).append(prior)
        self._priors = found
        self._owners = frozenset(one.record.principal for known in found.values() for one in known)
        self.generation += 1


class _Slot:
    """One of the turns to read a file."""

    def __init__(self, slots: threading.BoundedSemaphore) -> None:
        self._slots = slots

    def __enter__(self) -> None:
        if not self._slots.acquire(blocking=False):
            raise NoRoom(f"{AT_ONCE} files are being imported, which is as many as may be at once")

    def __exit__(self, *_: object) -> None:
        self._slots.release()


def _owner(principal: Principal) -> str | None:
    return None if principal.name == ANONYMOUS.name else principal.name


def _sees(principal: Principal, prior: _Prior) -> bool:
    return _owner(principal) in {None, prior.record.principal}


def _is_over(record: ImportRecord, now: datetime) -> bool:
    return record.expires_at is not None and record.expires_at <= now


def _interval(trial: TrialRecord) -> tuple[float, float] | None:
    bounded = trial.ci95_lo_ms is not None and trial.ci95_hi_ms is not None
    return (trial.ci95_lo_ms or 0.0, trial.ci95_hi_ms or 0.0) if bounded else None


def _seconds(space: TuningResults) -> dict[Config, float]:
    """The times of a space's configs that are ours, in seconds."""
    found: dict[Config, float] = {}
    for one in space.results:
        if one.median_ms is not None and all(type(value) is int for value in one.values):
            found[_ordered(space, one)] = one.median_ms / 1e3
    return found


def _ordered(space: TuningResults, one: ConfigResult) -> Config:
    """A config with its parameters in the order of the kernel's space, by which configs are equal."""
    kernel, config = CATALOGUE.get(space.kernel), space.config(one)
    return config if kernel is None else kernel.space.config(config)


def _packed_spaces(import_id: str, file: ResultsFile) -> Iterator[ImportedSpaceRecord]:
    for space in file.spaces:
        if space.problem is not None:
            yield _record(import_id, "space", space, "".join(bundle.space_lines(space)))


def _packed_bests(import_id: str, file: ResultsFile) -> Iterator[ImportedSpaceRecord]:
    for best in file.bests:
        yield _record(import_id, "best", best.results(), bundle.best_text(best))


def _record(import_id: str, kind: str, space: TuningResults, text: str) -> ImportedSpaceRecord:
    best, problem = space.best, space.problem
    if problem is None:
        raise ValueError("a space is of a problem")
    ours = best is not None and all(type(value) is int for value in best.values)
    config, time = (_ordered(space, best), best.median_ms) if best is not None and ours else (None, None)
    packed = zlib.compress(text.encode())
    return ImportedSpaceRecord(import_id, kind, space.device, problem, space.kernel, config, time, packed)


def _text(record: ImportedSpaceRecord) -> str:
    return zlib.decompress(record.packed).decode()


def _space(record: ImportedSpaceRecord) -> TuningResults:
    return bundle.read_space(_text(record)) if record.kind == "space" else _best(record).results()


def _best(record: ImportedSpaceRecord) -> BestResult:
    return bundle.read_best(_text(record))
