"""What the tuned problems of a device model say of the others: the store's records, as transfer takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from app.store.records import BestRecord, CrossRecord, TrialRecord
from app.tuning.policy import policy_of
from app.tuning.transfer import Choice, Transfer, Tuned
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Launch
from kernels.model import predict
from kernels.problem import Problem
from kernels.space import Config

_ENOUGH: Final = 8  # current records of a family with which its stale ones are not needed
_ROUNDS: Final = ("final", "search")  # the better first

Times: TypeAlias = Mapping[tuple[str, Config, str], float]


def launch_of(kernel_name: str, config: Config, problem: Problem, device: Device) -> Launch | None:
    """The launch of a stored config on a problem, or None where there is none: the space may have changed since."""
    kernel = CATALOGUE.get(kernel_name)
    if kernel is None or not kernel.covers(problem, device):
        return None
    try:
        return kernel.launch(kernel.space.config(config), problem, device)
    except ValueError:
        return None


def is_current(trial: TrialRecord, device: Device) -> bool:
    """Whether driver, runtime, compiler, kernel text and timing policy are those the trial was measured with."""
    kernel = CATALOGUE.get(trial.kernel)
    same_text = kernel is not None and trial.kernel_digest == kernel.digest
    same_clock = trial.policy == policy_of(trial.problem, device)
    return same_text and same_clock and trial.environment == device.environment


def transfer_of(
    records: Iterable[BestRecord],
    crossed: Iterable[CrossRecord],
    device: Device,
    serves: Callable[[str, Config], bool],
) -> Transfer:
    """What the records of one model and family say; stale ones are taken in only where too few are current."""
    usable = [one for one in records if launch_of(one.trial.kernel, one.trial.config, one.problem, device)]
    current = [one for one in usable if is_current(one.trial, device)]
    times: dict[Problem, dict[tuple[str, Config, str], float]] = {}
    for one in crossed:
        times.setdefault(one.problem, {})[one.kernel, one.config, one.round] = one.median_ms

    def legal(choice: Choice, problem: Problem) -> bool:
        return serves(*choice) and launch_of(*choice, problem, device) is not None

    def seconds(choice: Choice, problem: Problem) -> float:
        return predict(CATALOGUE[choice[0]], choice[1], problem, device)

    best = current if len(current) >= _ENOUGH else usable
    return Transfer((_tuned(one, times.get(one.problem, {})) for one in best), legal, seconds)


def _tuned(record: BestRecord, times: Times) -> Tuned:
    """A record with what other winners took; each is set against the winner's time in the same round."""
    trial = record.trial
    own = (trial.median_ms or 0.0) / 1e3
    others: dict[Choice, float] = {}
    for which in _ROUNDS:
        base = times.get((trial.kernel, trial.config, which))
        for (kernel, config, round_), median_ms in times.items():
            if round_ == which:
                others.setdefault((kernel, config), own * median_ms / base if base else median_ms / 1e3)
    return Tuned(record.problem, trial.kernel, trial.config, own, others)
