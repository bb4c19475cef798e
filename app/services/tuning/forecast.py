"""Forecasts how long trials take: the cost model, corrected by what was measured on the device."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import ceil, log2
from time import monotonic
from typing import Final

from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.devices.process import CallLimit, CallStopped
from app.errors import BudgetTooSmall, TilewiseError
from app.tuning.budget import CLEARLY, Forecast
from app.tuning.outcome import FORECAST, Measured, Outcome, Rejected
from app.tuning.runner import Contender
from app.worker.measuring.calibration import PreparationRates, calibrate
from kernels import KERNELS
from kernels.arithmetic import peak
from kernels.cost_model import LAUNCH_SECONDS, predict
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

VENDOR: Final = "vendor"
_LOG: Final = logging.getLogger(__name__)
# What a slow host does: a budget that suffices even for this need not wait for a calibration.
_SLOW: Final = PreparationRates(drawn=5e7, reference=2e9, compared=5e6, tiled=4.0)
_LIKELY: Final = PreparationRates(drawn=6e7, reference=2e10, compared=2e7, tiled=1.5)
_ABOVE: Final = 2.0  # times the ratio of tiled: that of a kernel with tiles of a thread, before any was measured
_PLAIN: Final = ("naive", "tiled")
_WIDE: Final = 2.5  # times as long as drawing float32 takes drawing another dtype
_FIXED: Final = 0.1  # seconds of a trial besides its launches: a binary that is there is loaded and warmed up
# Seconds until a kernel that was never built can be launched, on a host that draws _DRAWN elements a second.
_BUILDING: Final = {"naive": 0.4, "tiled": 0.6}
_OTHERS: Final = {"opencl": 1.5, "cuda": 0.6}
_DRAWN: Final = 1e8
_PROVING: Final = 0.3  # seconds that proving a config takes before any was proved
_CALIBRATING: Final = 3.0  # seconds that a request waits for a device to be calibrated
_LOADED: Final = 0.25  # seconds in which no compiler makes anything: the binary was there
_KEPT: Final = 256  # ratios of a kernel
_NEAREST: Final = 9  # of them, in flops, that a forecast is made from
_UPPER: Final = 0.75  # of these, which is taken


@dataclass(slots=True)
class _DeviceRates:
    """What was measured on one device: its rates, and by kernel what launches took over what was predicted."""

    rates: PreparationRates | None = None
    proving: deque[float] = field(default_factory=lambda: deque(maxlen=_NEAREST))
    building: dict[str, deque[float]] = field(default_factory=dict)
    built: set[tuple[str, Config]] = field(default_factory=set)
    ratios: dict[tuple[str, str, str], deque[tuple[float, float]]] = field(default_factory=dict)


class TrialForecasts:
    """Forecasts by device; safe from any thread."""

    def __init__(self) -> None:
        self._known: dict[str, _DeviceRates] = {}
        self._lock = threading.Lock()

    def of(self, device: Device, contender: Contender) -> Forecast:
        """What a trial is expected to take."""
        known = self._of(device)
        return _forecast(device, contender, known, known.rates or _LIKELY)

    def needed(self, unit: Unit, problem: Problem, kernels: Sequence[Kernel], seconds: float | None) -> float:
        """Seconds of the least tune of a problem: preparation, one trial of the best hope, its proof, one round more.

        Where the `seconds` that it may take suffice on any host, nothing is measured; else the device is calibrated
        first, once, unless that takes long.
        """
        known, device = self._of(unit.device), unit.device
        if known.rates is None:
            slow = self._least(device, problem, kernels, known, _SLOW)
            if seconds is None or slow <= seconds / 2:
                return slow
            self._calibrate(unit, known)
        return self._least(device, problem, kernels, known, known.rates or _LIKELY)

    def learn(self, device: Device, contender: Contender, outcome: Outcome, took: float) -> None:
        """Learn what a trial took in all, and each of its launches."""
        known = self._of(device)
        with self._lock:
            if isinstance(contender, Launch) and _build(contender) not in known.built:
                launched = sum(outcome.seconds) + outcome.seconds[0] if isinstance(outcome, Measured) else 0.0
                kept = known.building.setdefault(contender.kernel, deque(maxlen=_NEAREST))
                kept.append(max(_FIXED, took - launched))
                if not (isinstance(outcome, Rejected) and outcome.stage == FORECAST):  # which was cut short
                    known.built.add(_build(contender))
            if isinstance(outcome, Measured):
                problem = contender.problem if isinstance(contender, Launch) else contender
                place = outcome.kernel, problem.dtype, problem.precision
                predicted = _predicted(device, problem, outcome.kernel, outcome.config, known.rates or _LIKELY)
                seen = outcome.timing.median_ms / 1e3 / predicted
                known.ratios.setdefault(place, deque(maxlen=_KEPT)).append((log2(problem.flops), seen))

    def built(self, device: Device, launch: Launch, took: float) -> None:
        """Learn how long a launch's build and verification took; after few seconds its binary was only loaded."""
        known = self._of(device)
        with self._lock:
            if _build(launch) not in known.built and took > _LOADED:
                known.building.setdefault(launch.kernel, deque(maxlen=_NEAREST)).append(took)
            known.built.add(_build(launch))

    def proved(self, device: Device, seconds: float) -> None:
        """Learn how long proving a config took."""
        self._of(device).proving.append(seconds)

    def _of(self, device: Device) -> _DeviceRates:
        with self._lock:
            return self._known.setdefault(device.id, _DeviceRates())

    def _calibrate(self, unit: Unit, known: _DeviceRates) -> None:
        until = monotonic() + _CALIBRATING
        with suppress(CallStopped, TilewiseError):
            known.rates = unit.trials.call(
                calibrate, priority=Priority.CHECK, until=lambda: CallLimit(until, until + _CALIBRATING)
            )
            _LOG.info("%s is calibrated: %s", unit.device.id, known.rates)

    def _least(
        self, device: Device, problem: Problem, kernels: Sequence[Kernel], known: _DeviceRates, rates: PreparationRates
    ) -> float:
        drawn = problem.batch * problem.k * (problem.m + problem.n) / rates.drawn
        drawn *= 1.0 if problem.dtype == "float32" else _WIDE
        compared = problem.batch * problem.m * problem.n / rates.compared
        prepared = drawn + problem.flops / rates.reference + compared
        expected = [_forecast(device, each, known, rates) for each in _defaults(kernels, problem, device)]
        tried = min((one.trial + one.launch for one in _promotable(expected)), default=0.0)
        return prepared + tried + compared + max(known.proving, default=_PROVING)


def _promotable(expected: Sequence[Forecast]) -> Iterator[Forecast]:
    """Of the defaults' forecasts those that may win without the last one, which is the untuned, and that one.

    Its build is expected to take as little as forecasts err by: whether it fits is seen by trying.
    """
    for one in expected[:-1]:
        if one.launch <= CLEARLY * expected[-1].launch:
            yield one
    for one in expected[-1:]:
        yield replace(one, build=one.build / CLEARLY)


def _forecast(device: Device, contender: Contender, known: _DeviceRates, rates: PreparationRates) -> Forecast:
    if not isinstance(contender, Launch):
        return Forecast(_launch(device, contender, VENDOR, Config(()), known, rates), _FIXED)
    launch = _launch(device, contender.problem, contender.kernel, contender.config, known, rates)
    return Forecast(launch, _FIXED if _build(contender) in known.built else _building(device, contender, known, rates))


def _building(device: Device, launch: Launch, known: _DeviceRates, rates: PreparationRates) -> float:
    seen = sorted(known.building.get(launch.kernel, ()))
    if not seen and launch.kernel not in _PLAIN:  # what is built of many pieces takes about as long, whichever it is
        seen = sorted(chain.from_iterable(each for name, each in known.building.items() if name not in _PLAIN))
    if seen:
        return seen[int(_UPPER * (len(seen) - 1))]
    return _BUILDING.get(launch.kernel, _OTHERS[device.platform]) * max(1.0, _DRAWN / rates.drawn)


def _launch(
    device: Device, problem: Problem, kernel: str, config: Config, known: _DeviceRates, rates: PreparationRates
) -> float:
    ratio = 1.0 if _is_near(device, kernel) else rates.tiled * (1.0 if kernel in _PLAIN else _ABOVE)
    seen, size = list(known.ratios.get((kernel, problem.dtype, problem.precision), ())), log2(problem.flops)
    if seen:
        nearest = sorted(seen, key=lambda one: abs(one[0] - size))[:_NEAREST]
        ratio = sorted(each for _, each in nearest)[int(_UPPER * (len(nearest) - 1))]
    return ratio * _predicted(device, problem, kernel, config, rates)


def _build(launch: Launch) -> tuple[str, Config]:
    return launch.build.digest, launch.config


def least_budget(needed: float) -> int:
    """Whole seconds that a budget is to have at least, a tenth over what is forecast."""
    return ceil(1.1 * needed)


def _defaults(kernels: Iterable[Kernel], problem: Problem, device: Device) -> list[Launch]:
    chosen = ((kernel, kernel.default(problem, device)) for kernel in kernels)
    return [
        kernel.launch(config, problem, device)
        for kernel, config in chosen
        if kernel.space.refusal(config, problem, device) is None
    ]


def _is_near(device: Device, kernel: str) -> bool:
    """Whether what is predicted is near what a launch takes before any was measured."""
    return kernel == VENDOR or (device.platform == "cuda" and KERNELS[kernel].seconds is not None)


def _predicted(device: Device, problem: Problem, kernel: str, config: Config, rates: PreparationRates) -> float:
    """The model's seconds of a launch, on a GPU by the kernel's own one if it has one.

    Those of the vendor's library are at half of a GPU's peak, or on a processor at the rate of the reference.
    """
    if kernel == VENDOR:
        rate = peak(problem, device) / 2 if device.platform == "cuda" else rates.reference
        started = LAUNCH_SECONDS if device.platform == "cuda" else 0.0
        return started + problem.flops / rate + problem.bytes / device.limits.bandwidth
    own = KERNELS[kernel].seconds
    if own is not None and device.platform == "cuda":
        return own(config, problem, device)
    return predict(KERNELS[kernel], config, problem, device)


def expect_affordable(seconds: float | None, problems: Sequence[Problem], needs: Sequence[float]) -> None:
    """Raise BudgetTooSmall if a job's seconds do not suffice for the least that each of its targets needs."""
    needed = sum(needs)
    if seconds is None or needed <= seconds:
        return
    what = str(problems[0]) if len(needs) == 1 else f"each of {len(needs)} problems"
    least = least_budget(needed)
    raise BudgetTooSmall(
        f"one trial of {what} is forecast to take {needed:.3g} s, over the budget of {seconds:g} s: "
        f"give it {least} seconds at least (--seconds {least})",
        needed_seconds=least,
    )
