"""A session with the database alone: stored records are read and no device is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

import tilewise
from app.api import responses
from app.api.paging import bests_page, jobs_page, misses_page, trials_page
from app.api.params import validated
from app.api.routes.charts.landscape import LandscapeQuery, time_grid
from app.api.routes.charts.profiles import ProfilesQuery, profiles_page
from app.api.routes.charts.roofline import RooflineQuery, ceilings_and_points
from app.api.routes.interchange import imports
from app.api.routes.interchange.export import ExportQuery, ExportSources, exported
from app.api.schemas import BestsQuery, JobsQuery, MissesQuery, TrialsQuery
from app.devices.last_devices import remembered
from app.errors import Invalid, NoDevice, UnknownDevice
from app.interchange.formats import FileSubject
from app.services.best.known_devices import KnownDevices
from app.services.best.lookup import BestConfigs
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.interchange.export import ResultsExport
from app.services.interchange.imports import ImportLimits, ImportService
from app.services.jobs.service import JobService
from app.services.principal import ANONYMOUS
from app.settings import Settings
from app.store.database import Database, migrate, open_database, owned
from app.store.repository import DeviceRepository, JobRepository
from kernels import CATALOGUE
from kernels.cost_model import analyse
from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config
from tilewise import Analysis, Best, Job, Miss, Page, Trial
from tilewise.decoding import from_json

T = TypeVar("T")


@dataclass(frozen=True)
class LastDevice:
    """A device that is not open."""

    device: Device


@dataclass(frozen=True)
class LastDevices:
    """The devices of this host as they were when they were last open."""

    units: tuple[LastDevice, ...]

    def unit(self, device_id: str | None = None) -> LastDevice:
        """Give a device, or the first; raises NoDevice if there is none, UnknownDevice for an unknown id."""
        for unit in self.units:
            if device_id in {None, unit.device.id}:
                return unit
        if not self.units:
            raise NoDevice("no device of this host is known here: run tilewise devices")
        names = ", ".join(unit.device.id for unit in self.units)
        raise UnknownDevice(f"there is no device {device_id}; there are: {names}", known=names)


class Stored:
    """The client's methods that need no device, over what is stored; `devices` are those that answers are for.

    With `unattended` that database is open here alone, and nobody works on its jobs.
    """

    def __init__(
        self,
        jobs: JobService,
        best: BestConfigs,
        misses: MissCounter,
        devices: KnownDevices,
        results: ExportSources,
        unattended: Database | None = None,
    ) -> None:
        self._jobs, self._best, self._misses, self._devices = jobs, best, misses, devices
        self._results = results
        self._unattended = unattended

    def best(
        self, problem: tilewise.Problem, *, device: str | None = None, match: Literal["exact"] | None = None
    ) -> Best:
        """As Records.best."""
        answer = self._best.answer(problem_of(problem), device, exact=match == "exact")
        answer = self._results.imports.answer(answer, ANONYMOUS)
        self._misses.noted(answer)
        return read_answer(Best, responses.Best.of(answer))

    def tile_cost(self, problem: tilewise.Problem, tile: int, kernel: str, *, device: str | None = None) -> Analysis:
        """As Records.tile_cost."""
        meant, where = problem_of(problem), self._devices.unit(device).device
        config = Config.of(dict.fromkeys(CATALOGUE[kernel].space.parameters, tile))
        found = analyse(CATALOGUE[kernel], config, meant, where)
        told = {"device": where.id, "problem": asdict(meant), "kernel": kernel, "config": dict(config)}
        return from_json(Analysis, told | asdict(found))

    def bests(
        self, *, device: str | None = None, dtype: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Best]:
        """As Client.bests."""
        units = self._devices.units if device is None else (self._devices.unit(device),)
        ids = {unit.device.model: unit.device.id for unit in reversed(units)}
        page = bests_page(self._best, ids, validated(BestsQuery, {"dtype": dtype, "cursor": cursor, "limit": limit}))
        return Page((read_answer(Best, one) for one in page.bests), page.next)

    def landscape(
        self, problem: tilewise.Problem, *, kernel: str | None = None, device: str | None = None
    ) -> tilewise.TimeGrid:
        """As Client.landscape."""
        asked = validated(LandscapeQuery, asdict(problem) | {"kernel": kernel, "device": device})
        return read_answer(tilewise.TimeGrid, time_grid(self._jobs, asked, self._devices.unit(device).device))

    def profiles(
        self,
        problem: tilewise.Problem | None = None,
        *,
        device: str | None = None,
        job_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[tilewise.Profile]:
        """As Client.profiles."""
        members = {} if problem is None else asdict(problem)
        where = {"device": device, "job_id": job_id, "cursor": cursor, "limit": limit}
        model = None if device is None else self._devices.unit(device).device.model
        page = profiles_page(self._jobs, validated(ProfilesQuery, members | where), model)
        return Page((read_answer(tilewise.Profile, one) for one in page.profiles), page.next)

    def roofline(
        self, problem: tilewise.Problem, *, points: str = "bests", device: str | None = None
    ) -> tilewise.Roofline:
        """As Client.roofline."""
        asked = validated(RooflineQuery, asdict(problem) | {"points": points, "device": device})
        found = ceilings_and_points(self._jobs, self._best, asked, self._devices.unit(device).device)
        return read_answer(tilewise.Roofline, found)

    def misses(self, *, device: str | None = None, cursor: str | None = None, limit: int = 100) -> Page[Miss]:
        """As Client.misses."""
        model = None if device is None else self._devices.unit(device).device.model
        page = misses_page(self._misses, model, validated(MissesQuery, {"cursor": cursor, "limit": limit}))
        return Page((read_answer(Miss, one) for one in page.misses), page.next)

    def dismiss_miss(self, problem: tilewise.Problem, *, device: str | None = None) -> None:
        """As Client.dismiss_miss."""
        self._misses.dismiss(self._devices.unit(device).device.model, problem_of(problem))

    def jobs(
        self, *, state: str | None = None, kind: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Job]:
        """As Client.jobs."""
        asked = {"state": state, "kind": kind, "cursor": cursor, "limit": limit}
        page = jobs_page(self._jobs, validated(JobsQuery, asked))
        return Page((read_answer(Job, one) for one in page.jobs), page.next)

    def job(self, job_id: str) -> Job:
        """As Client.job."""
        return read_answer(Job, responses.Job.of(self._jobs.get(job_id)))

    def cancel(self, job_id: str) -> Job:
        """As Client.cancel; a job that an earlier process left running ends at once where nobody works on it."""
        if self._unattended is not None:
            self._unattended.write(lambda session: JobRepository(session).postpone(job_id))
        return read_answer(Job, responses.Job.of(self._jobs.cancel(job_id, ANONYMOUS)))

    def trials(
        self,
        *,
        kernel: str | None = None,
        state: str | None = None,
        job_id: str | None = None,
        round: str | None = None,  # noqa: A002 - the parameter's name over HTTP
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Trial]:
        """As Client.trials."""
        filters = {"kernel": kernel, "state": state, "job_id": job_id, "round": round}
        page = trials_page(self._jobs, filters, validated(TrialsQuery, {"cursor": cursor, "limit": limit}))
        return Page((read_answer(Trial, one) for one in page.trials), page.next)

    def recording(self, job_id: str) -> str:
        """As Client.recording."""
        return "".join(self._jobs.recordings(job_id=job_id))

    def export_results(
        self,
        format: str = "bundle",  # noqa: A002 - the client's name for it
        *,
        problem: tilewise.Problem | None = None,
        device: str | None = None,
        kernel: str | None = None,
        job_id: str | None = None,
        import_id: str | None = None,
    ) -> bytes:
        """As Client.export_results."""
        asked = {"device": device, "kernel": kernel, "job_id": job_id, "import_id": import_id}
        query = validated(ExportQuery, asked | ({} if problem is None else asdict(problem)))
        return b"".join(exported(self._results, format, query, ANONYMOUS))

    def import_results(
        self,
        data: bytes,
        format: str = "bundle",  # noqa: A002 - the client's name for it
        *,
        problem: tilewise.Problem | None = None,
        device: str | None = None,
        kernel: str | None = None,
    ) -> tilewise.Imported:
        """As Client.import_results."""
        subject = FileSubject(device, kernel, {} if problem is None else asdict(problem))
        record, report = self._results.imports.add(format, data, subject, ANONYMOUS)
        return read_answer(tilewise.Imported, imports.Imported.of(record, report))

    def imports(self) -> list[tilewise.Import]:
        """As Client.imports."""
        found = self._results.imports.list(ANONYMOUS)
        return [read_answer(tilewise.Import, imports.Import.of(record)) for record in found]

    def delete_import(self, import_id: str) -> None:
        """As Client.delete_import."""
        self._results.imports.delete(import_id, ANONYMOUS)


def read_answer(kind: type[T], answer: responses.Answer) -> T:
    """What the service would answer, as its client reads it: so every kind of session says the same."""
    return from_json(kind, answer.model_dump(mode="json"))


def problem_of(problem: tilewise.Problem) -> Problem:
    """The domain's value of what a command was given; raises Invalid."""
    try:
        return Problem(**asdict(problem))
    except ValueError as error:
        raise Invalid(str(error)) from error


@contextmanager
def stored(settings: Settings, who: str) -> Iterator[Stored]:
    """Open the database alone; raises DatabaseOwned, SchemaUnknown, StartRefused."""
    with owned(settings.database, who):
        migrate(settings.database)
        with open_database(settings.database) as database:
            devices = _last(settings, database)
            quarantine = Quarantine.load(database)
            best = BestConfigs.load(devices, database, quarantine)
            misses, jobs = MissCounter(database), JobService(database)
            limits = ImportLimits(settings.import_bytes, settings.import_days)
            held = ImportService(database, best, quarantine, limits)
            results = ExportSources(jobs, held, ResultsExport(jobs, best), devices)
            yield Stored(jobs, best, misses, devices, results, database)
            misses.flush()


def _last(settings: Settings, database: Database) -> LastDevices:
    """Give this host's devices where they are known, else every one that was ever open on this database."""
    known = remembered(settings.cache, settings.devices)
    devices = database.read(lambda session: DeviceRepository(session).all()) if known is None else known
    return LastDevices(tuple(LastDevice(device) for device in devices))
