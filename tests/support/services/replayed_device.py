"""A device of recorded facts, and a store of recorded trials: what a service shows of them is the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from sqlalchemy.orm import Session

from app.devices.backend import Vendor
from app.devices.fleet import Fleet, open_fleet
from app.main import Fleets
from app.profiling.figures import MODEL, ROLES, TIMER, KernelProfile, SourceFigures, assembled
from app.profiling.findings import findings
from app.profiling.model import predicted, rates
from app.services.tuning.request import TuneSpec
from app.store.database import migrate, open_database
from app.store.records import BestRecord, JobRecord, ProfileRecord, TrialRecord
from app.store.repository import BestRepository, JobRepository, ProfileRepository, TrialRepository
from app.tuning.budget import Budget
from app.tuning.measure.racing import timing
from app.tuning.replay import Recording, load
from kernels import CATALOGUE
from kernels.space import Config
from tests.support.services.trial_rows import trial

_DATA: Final = Path(__file__).parent.parent.parent / "data"
_RECORDINGS: Final = ("tiled-cpu-256x256x256", "tiled-cpu-200x300x160")
_BEGAN: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_VENDOR: Final = "recorded BLAS 1.0"
_REJECTED: Final = {"state": "rejected", "stage": "verify", "reason": "an element is off by 3e-2", "seconds": ()}
_FIGURES: Final = ("median_ms", "ci95_lo_ms", "ci95_hi_ms", "samples", "relative_l2", "max_scaled", "policy")
_NO_COUNTERS: Final = "a recording has none"
_LARGEST: Final = 64  # rows and columns of the tiles that were rejected, as the fixture has it


def recordings() -> tuple[Recording, ...]:
    """Whole spaces of the tiled kernel on one processor."""
    return tuple(load(_DATA / f"{name}.replay.gz")[0] for name in _RECORDINGS)


def replayed_devices(cache: Path) -> Fleets:
    """Opens this host's processor, and has it be the recorded one: products are made here, facts and times are not."""

    @contextmanager
    def opened(slab_bytes: int) -> Iterator[Fleet]:
        device = recordings()[0].device
        with open_fleet("opencl", cache, slab_bytes) as found:
            units = tuple(replace(unit, device=device, vendor=Vendor(_VENDOR, None)) for unit in found.units)
            yield replace(found, units=units)

    return opened


def fill(database: Path) -> None:
    """Make a database with a job, its trials, a best and a profile of each recording."""
    url = f"sqlite:///{database}"
    migrate(url)
    with open_database(url) as store:
        for place, recording in enumerate(recordings()):
            store.write(partial(_save, _Tune(recording, place)))


def _save(tune: _Tune, session: Session) -> None:
    JobRepository(session).add(tune.job())
    trials = TrialRepository(session)
    saved = {role: replace(one, id=trials.add(one)) for role, one in tune.trials()}
    BestRepository(session).promote(tune.best(saved))
    ProfileRepository(session).save(tune.profile(saved), 10)


@dataclass(frozen=True)
class _Tune:
    """What a tune of a recorded space would have stored, had the clock stood at a second a trial."""

    recording: Recording
    place: int

    @property
    def _id(self) -> str:
        return f"{self.place + 1:032x}"

    @property
    def _began(self) -> datetime:
        return _BEGAN + timedelta(hours=self.place)

    def job(self) -> JobRecord:
        """One that succeeded."""
        spec = TuneSpec((self.recording.problem,), (self.recording.device.id,), ("tiled",), budget=Budget(200, 60.0))
        many, best_ms = len(self.recording.outcomes), 1e3 * self.recording.optimum
        ends = None, None, False, self._began, self._began, self._began + timedelta(seconds=60)
        return JobRecord(self._id, "tune", "succeeded", self._id, spec.to_json(), many, many, best_ms, *ends)

    def trials(self) -> Iterator[tuple[str, TrialRecord]]:
        """Those of the search, in a fixed order, whose largest tiles were rejected; then those of the report."""
        order = sorted(self.recording.outcomes, key=lambda config: sha256(str(config).encode()).digest())
        for config in order:
            is_rejected = config["BM"] == config["BN"] == _LARGEST
            yield "", self._rejected(config) if is_rejected else self._measured("tiled", config, self._seconds(config))
        usable = [config for config in order if not config["BM"] == config["BN"] == _LARGEST]
        slow, fast = (choose(usable, key=self._mean) for choose in (max, min))
        naive = CATALOGUE["naive"].default(self.recording.problem, self.recording.device)
        untuned = usable[0]
        for role, kernel, config, seconds in (
            ("naive", "naive", naive, self._seconds(slow)),
            ("tiled", "tiled", untuned, self._seconds(untuned)),
            ("winner", "tiled", fast, self._seconds(fast)),
            ("vendor", "vendor", Config(()), [0.8 * each for each in self._seconds(fast)]),
        ):
            yield role, self._measured(kernel, config, seconds, round="report")

    def best(self, saved: Mapping[str, TrialRecord]) -> BestRecord:
        """The winner beside its baselines, which have been saved."""
        winner, naive, tiled, vendor = (saved[role] for role in ("winner", "naive", "tiled", "vendor"))
        ended = self._began + timedelta(minutes=1)
        return BestRecord(winner.device_model, winner.problem, winner, naive, tiled, vendor, None, ended, tiled)

    def profile(self, saved: Mapping[str, TrialRecord]) -> ProfileRecord:
        """What the timer and the model say of the four."""
        device = self.recording.device
        found = [self._profiled(role, saved[role]) for role in ROLES]
        content = {"kernels": [one.to_json() for one in found], "findings": findings(found)}
        about = device.id, device.model, device.environment, self.recording.problem
        return ProfileRecord(self._id, *about, content, self._began + timedelta(minutes=2))

    def _profiled(self, role: str, one: TrialRecord) -> KernelProfile:
        device, problem, time = self.recording.device, one.problem, one.median_ms
        kernel = CATALOGUE.get(one.kernel)
        foreseen = {} if kernel is None else predicted(kernel, one.config, problem, device)
        modelled = {name: value for name, value in foreseen.items() if name != "time_ms"}
        timed = SourceFigures(TIMER, {"time_ms": time or 0.0})
        sources = [timed, SourceFigures(MODEL, modelled | rates("fma", problem, device, time))]
        figures = assembled(device.platform, role, sources, foreseen, _NO_COUNTERS)
        return KernelProfile(role, one.kernel, dict(one.config), figures)

    def _seconds(self, config: Config) -> list[float]:
        found = self.recording.outcomes[config]
        assert isinstance(found, tuple), found
        return list(found)

    def _mean(self, config: Config) -> float:
        return fmean(self._seconds(config))

    def _measured(self, kernel: str, config: Config, seconds: Sequence[float], **members: Any) -> TrialRecord:
        timed = timing(seconds, self.recording.policy)
        low, high = timed.ci95_ms or (None, None)
        digest = _VENDOR if kernel == "vendor" else CATALOGUE[kernel].digest
        told = {"kernel": kernel, "kernel_digest": digest, "config": config, "seconds": tuple(seconds), **members}
        figures = {"median_ms": timed.median_ms, "ci95_lo_ms": low, "ci95_hi_ms": high, "samples": timed.samples}
        return trial(self.recording.device, self.recording.problem, **self._own(), **told, **figures)

    def _rejected(self, config: Config) -> TrialRecord:
        told = {**dict.fromkeys(_FIGURES), **_REJECTED, "config": config}
        return trial(self.recording.device, self.recording.problem, **self._own(), **told)

    def _own(self) -> dict[str, Any]:
        return {"id": None, "job_id": self._id, "created_at": self._began}
