"""Stored trials and bests as results that formats can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from app.errors import NotTuned
from app.interchange.results import OWN, BestResult, ConfigResult, ResultsFile, TuningResults, size_of
from app.services.best.lookup import BestConfigs
from app.services.jobs.service import JobService
from app.services.tuning.trial_records import compilation_of
from app.store.records import BestRecord, TrialRecord
from app.tuning.outcome import Compilation
from kernels import CATALOGUE
from kernels.launch import dtype_macros
from kernels.space import Config

_VENDOR: Final = "vendor"
_ROUNDS: Final = ("report", "final", "search")  # whose median counts, the first that there is
# Of the stages at which trials are rejected: what other tuners call the failure.
_FAILURES: Final = {"space": "constraints", "forecast": "timeout", "compile": "compile", "verify": "correctness"}
_BESIDE: Final = ("vendor", "default", "naive", "tiled")


class ResultsExport:
    """What the store holds, by the filters of a list of trials: device_model, problem, kernel, state, job_id, round."""

    def __init__(self, jobs: JobService, best: BestConfigs) -> None:
        self._jobs, self._best = jobs, best

    def spaces(self, filters: Mapping[str, Any]) -> Iterator[TuningResults]:
        """The trials of each space, one space in memory at a time; the vendor's library is no space."""
        for trials in self._jobs.trials_by_space(**filters):
            yield from results_of(trials)

    def bests(self, filters: Mapping[str, Any]) -> list[BestResult]:
        """The bests of those problems, models, kernels and jobs."""
        return [best_of(record) for record in self._best.all() if _concerns(record, filters)]

    def file(self, filters: Mapping[str, Any]) -> ResultsFile:
        """Both; raises NotTuned where there is nothing."""
        found = ResultsFile(tuple(self.spaces(filters)), tuple(self.bests(filters)))
        if not found.count:
            raise NotTuned("nothing is stored of what was asked for: tune it first")
        return found


def results_of(trials: Sequence[TrialRecord]) -> Iterator[TuningResults]:
    """The trials of one space as results, one for each environment and timing policy."""
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    policies = {trial.environment: trial.policy for trial in trials if trial.policy}
    for trial in trials:
        policy = trial.policy or policies.get(trial.environment) or ""
        groups.setdefault((trial.environment, policy), []).append(trial)
    for (environment, policy), group in groups.items():
        first, configs = group[0], dict[Config, list[TrialRecord]]()
        for trial in group:
            configs.setdefault(trial.config, []).append(trial)
        yield TuningResults(
            device=first.device_model,
            kernel=first.kernel,
            parameters=tuple(first.config),
            results=tuple(_result(rows) for rows in configs.values()),
            problem=first.problem,
            size=size_of(first.problem),
            choices=_choices(first.kernel, configs),
            digest=first.kernel_digest,
            environment=environment,
            policy=policy or None,
        )


def best_of(record: BestRecord) -> BestResult:
    """A stored best as bundles have it."""
    trial = record.trial
    beside = {name: getattr(getattr(record, name), "median_ms", None) for name in _BESIDE}
    return BestResult(
        device=record.device_model,
        problem=record.problem,
        kernel=trial.kernel,
        config=trial.config,
        time_ms=trial.median_ms or 0.0,
        tuned_at=record.tuned_at.isoformat(),
        interval_ms=_interval(trial),
        samples=trial.samples or 0,
        digest=trial.kernel_digest,
        environment=trial.environment,
        policy=trial.policy,
        beside={name: float(time) for name, time in beside.items() if time is not None},
    )


def _result(rows: Sequence[TrialRecord]) -> ConfigResult:
    """All rounds of one config: rejected in any, it failed; else all samples, and the best round's median."""
    values = tuple(rows[0].config.values())
    for row in rows:
        if row.state == "rejected":
            failure = _FAILURES.get(row.stage or "", "runtime")
            return ConfigResult(values, None, (), failure, (row.reason or "")[:4000] or None, _extra(row))
    told = min(rows, key=lambda row: _ROUNDS.index(row.round) if row.round in _ROUNDS else len(_ROUNDS))
    samples = tuple(round(1e9 * seconds) / 1e6 for row in rows for seconds in row.seconds if seconds > 0)
    time = fmean(samples) if samples else told.median_ms
    return ConfigResult(values, time, samples, extra=_extra(told))


def _extra(row: TrialRecord) -> dict[str, Any]:
    """When, what compiling took by others' names, and what no other tuner has a name for."""
    own = {
        "median_ms": row.median_ms,
        "ci95_ms": None if (interval := _interval(row)) is None else list(interval),
        "registers": row.registers,
        "compilation": row.compilation and dict(row.compilation),
        "relative_l2": row.relative_l2,
        "max_scaled": row.max_scaled,
        "stage": row.stage,
        "job": row.job_id,
    }
    told = {name: value for name, value in own.items() if value is not None}
    return {"timestamp": row.created_at.isoformat(), **_compiled(compilation_of(row)), OWN: told}


def _compiled(known: Compilation | None) -> dict[str, Any]:
    """Milliseconds of the compiler as Kernel Tuner has them, and T4's compilation_data where every member is known.

    Its words are OpenCL's: local memory is a block's shared, private a thread's local memory, global_size of threads.
    """
    if known is None:
        return {}
    told: dict[str, Any] = {} if known.seconds is None else {"compile_time": 1e3 * known.seconds}
    sizes: dict[str, Any] = {
        "max_work_group_size": known.max_threads,
        "local_memory_size": known.shared_bytes,
        "private_memory_size": known.local_bytes,
        "constant_memory_size": known.constant_bytes,
        "registers": known.registers,
    }
    if known.grid is None or known.block is None or None in sizes.values():
        return told
    x, y = known.block
    sizes |= {"global_size": {"x": known.grid * x, "y": y, "z": 1}, "local_size": {"x": x, "y": y, "z": 1}}
    return told | {"compilation_data": sizes}


def _interval(row: TrialRecord) -> tuple[float, float] | None:
    return None if row.ci95_lo_ms is None or row.ci95_hi_ms is None else (row.ci95_lo_ms, row.ci95_hi_ms)


def _choices(kernel: str, configs: Iterable[Config]) -> dict[str, tuple[int, ...]]:
    """The values of each parameter: of the kernel's space where it is the one that was tuned, else those tried."""
    first, *others = configs
    known = CATALOGUE.get(kernel)
    if known is not None and list(known.space.parameters) == list(first):
        return {name: tuple(values) for name, values in known.space.parameters.items()}
    return {name: tuple(sorted({config[name] for config in (first, *others)})) for name in first}


def _concerns(record: BestRecord, filters: Mapping[str, Any]) -> bool:
    own = {"device_model": record.device_model, "kernel": record.trial.kernel, "job_id": record.trial.job_id}
    problem = filters.get("problem") or {}
    return all(filters.get(name) in {None, value} for name, value in own.items()) and all(
        getattr(record.problem, name) == value for name, value in problem.items()
    )


def macros_of(space: TuningResults, one: ConfigResult) -> Sequence[tuple[str, str]]:
    """What a config defines for the compiler: of a kernel here all that its build has, else its parameters."""
    members = [(name, str(value)) for name, value in space.members(one).items()]
    kernel = CATALOGUE.get(space.kernel)
    if kernel is None or space.problem is None:
        return members
    return [*((name, value) for name, value in members if name not in kernel.arguments), *dtype_macros(space.problem)]
