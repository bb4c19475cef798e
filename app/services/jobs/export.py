"""A job's stored trials as a recording, which can be replayed with no device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.store.records import TrialRecord
from app.tuning.outcome import Rejected
from app.tuning.replay import Recording
from kernels.device import Device
from kernels.space import Config

_VENDOR = "vendor"
_Key = tuple[str, str, str, str]


def recordings(trials: Iterable[TrialRecord], devices: Iterable[Device]) -> Iterator[Recording]:
    """One recording for each device model, problem, kernel text and policy; the vendor's library is no space.

    A config's samples are those of all its rounds; one that was rejected in any of them is Rejected. Devices give the
    models their limits: trials of a model that none of them has are left out.
    """
    models = {device.model: device for device in devices}
    groups: dict[_Key, list[TrialRecord]] = {}
    for trial in trials:
        if trial.kernel != _VENDOR and trial.device_model in models:
            groups.setdefault((trial.device_model, trial.problem.key, trial.kernel, trial.kernel_digest), []).append(
                trial
            )
    for group in groups.values():
        first = group[0]
        for policy in dict.fromkeys(trial.policy for trial in group if trial.policy):
            of_policy = [trial for trial in group if trial.policy in {None, policy}]
            device = models[first.device_model]
            yield Recording(device, first.kernel, first.kernel_digest, first.problem, policy, _outcomes(of_policy))


def _outcomes(trials: Iterable[TrialRecord]) -> dict[Config, tuple[float, ...] | Rejected]:
    outcomes: dict[Config, tuple[float, ...] | Rejected] = {}
    for trial in trials:
        before = outcomes.get(trial.config, ())
        if trial.state == "rejected" or isinstance(before, Rejected):
            rejected = Rejected(trial.kernel, trial.config, trial.stage or "", trial.reason or "")
            outcomes[trial.config] = before if isinstance(before, Rejected) else rejected
        else:
            outcomes[trial.config] = before + (trial.seconds or ((trial.median_ms or 0.0) / 1e3,))
    return outcomes
