"""Winners of each kernel of the catalogue, tuned briefly, and their exports in folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import DeviceError, TilewiseError
from app.services.exports.service import ExportSpec
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.store.records import TrialRecord
from app.tuning.budget import Budget
from kernels import CATALOGUE
from kernels.problem import Problem

PROBLEMS: Final[Mapping[str, Problem]] = {
    "tiled": Problem(200, 300, 150),
    "naive": Problem(64, 64, 64),
    "rank_k": Problem(8192, 8192, 16),
    "skinny": Problem(4, 4096, 4096),
    "batched": Problem(32, 32, 32, 4096),
    "register_tiled": Problem(1000, 1016, 1003),
    "pipelined": Problem(2048, 2048, 2048),
    "hopper": Problem(2048, 2048, 4096, dtype="bfloat16"),
    "tensor_core": Problem(1000, 1001, 1003, dtype="float16"),
    "double_tensor": Problem(1024, 1024, 1024, dtype="float64"),
    "double_hopper": Problem(2048, 2048, 2048, dtype="float64", trans_b=True),
    "tall": Problem(131072, 64, 64),
    "wmma": Problem(1000, 1016, 1003, dtype="float16", trans_a=True),
    "direct_tensor": Problem(4096, 4096, 32, dtype="float16"),
    "direct_double": Problem(189, 66, 470, dtype="float64"),
    "gemv": Problem(1, 4096, 1024, trans_b=True),
    "outer": Problem(1318, 291, 1, dtype="bfloat16"),
}
_GRACE: Final = 30.0  # seconds over a budget
_ROUNDS: Final = ("report", "final", "search")  # by how much their times are worth
_MATCHED: Final = ("exact", "stale")


@dataclass(frozen=True, slots=True)
class Winner:
    """A kernel's config for a problem and what was measured of it: /best-config's answer, or the kernel's own best.

    `match` is own where another kernel is the problem's winner.
    """

    kernel: str
    problem: Problem
    config: Mapping[str, int]
    match: str
    best_ms: float | None
    ci95_ms: tuple[float | None, float | None] | None

    @property
    def name(self) -> str:
        """The kernel and the problem."""
        return f"{self.kernel} {self.problem}"

    def spec(self, target: str) -> ExportSpec:
        """What it is taken by."""
        if self.match in _MATCHED:
            return ExportSpec(target, self.problem)
        return ExportSpec(target, self.problem, kernel=self.kernel, config=self.config)


@dataclass(frozen=True, slots=True)
class Taken:
    """A winner, the folder of each of its targets, and why there is no other."""

    winner: Winner
    folders: Mapping[str, Path]
    refused: Mapping[str, str]


def found(service: Service, kernel: str, seconds: float) -> Winner:
    """Tune a kernel's problem with it alone; raises TilewiseError."""
    problem = PROBLEMS[kernel]
    trials: Sequence[TrialRecord] = ()
    if seconds:
        spec = TuneSpec((problem,), kernels=(kernel,), budget=Budget(seconds=seconds))
        job = service.jobs.wait(service.tuning.submit(spec, ANONYMOUS).id, seconds + _GRACE)
        if job.state != "succeeded":
            print(f"{kernel}: the job is {job.state}: {job.error}", flush=True)
        trials = service.jobs.trials(job_id=job.id, kernel=kernel, state="measured")
    answer = service.best.answer(problem, None)
    if answer.kernel == kernel and answer.timing is not None and answer.match in _MATCHED:
        timing = answer.timing
        return Winner(kernel, problem, dict(answer.config), answer.match, timing.median_ms, timing.ci95_ms)
    return _own(kernel, problem, trials) or _untuned(service, kernel)


def taken(service: Service, winner: Winner, targets: Sequence[str], folder: Path) -> Taken:
    """Take a winner as each target; what refuses it is told."""
    folders, refused = dict[str, Path](), dict[str, str]()
    for target in targets:
        try:
            export = service.exports.take(winner.spec(target))
        except (TilewiseError, DeviceError) as error:
            refused[target] = error.message
            continue
        folders[target] = folder / f"{winner.kernel}-{target}"
        folders[target].mkdir(parents=True)
        for name, data in export.files.items():
            (folders[target] / name).write_bytes(data)
    return Taken(winner, folders, refused)


def asked(service: Service, kernels: Sequence[str]) -> Iterator[str]:
    """The kernels that the first device has."""
    device = service.fleet.unit(None).device
    yield from (one for one in kernels or PROBLEMS if CATALOGUE[one].covers(PROBLEMS[one], device))


def _own(kernel: str, problem: Problem, trials: Sequence[TrialRecord]) -> Winner | None:
    """The kernel's fastest trial of the round that is worth most."""
    ranked = sorted(
        (trial for trial in trials if trial.median_ms is not None),
        key=lambda trial: (_ROUNDS.index(trial.round), trial.median_ms),
    )
    if not ranked:
        return None
    best = ranked[0]
    return Winner(kernel, problem, dict(best.config), "own", best.median_ms, (best.ci95_lo_ms, best.ci95_hi_ms))


def _untuned(service: Service, kernel: str) -> Winner:
    config = CATALOGUE[kernel].default(PROBLEMS[kernel], service.fleet.unit(None).device)
    return Winner(kernel, PROBLEMS[kernel], dict(config), "default", None, None)
