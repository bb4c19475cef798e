"""What is tried before a tune's search begins: the vendor's library and kernels' defaults, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from app.tuning.budget import CLEARLY, Deadline, Forecast
from app.tuning.kernel_search import BASELINES, KernelSearch
from app.tuning.outcome import VENDOR, Outcome, Rejected, best_of
from app.tuning.runner import Contender
from app.tuning.task import Task
from kernels.launch import Launch

Turn: TypeAlias = tuple[KernelSearch | None, Contender | Rejected]

_CLOSE: Final = 0.25  # of the seconds: where every default and the vendor take more, the best hope comes first
_UNTUNED: Final = 0.75  # of the seconds, which the untuned default may take first: little else is promoted without it
_DOUBT: Final = 2.0  # times what is left that the untuned default's trial may be forecast to take, and be tried


def first_trials(
    task: Task, given: Deadline, searches: Sequence[KernelSearch], saved: Sequence[Outcome], *, ahead: bool
) -> tuple[list[Turn], bool]:
    """The vendor's library (as None) and the defaults that come first, in order, and whether they have to hurry.

    They have to if they may take over a quarter of the seconds, builds one after the other unless they are made
    `ahead`. Then the untuned default comes first if three quarters of the seconds suffice for it, if it is forecast to
    be clearly the fastest, without which nothing is promoted, or if not even all suffice and it is forecast to be the
    fastest; else the shortest trial of a default.
    """
    vendor: list[Turn] = [(None, task.problem)]
    if any(outcome.kernel == VENDOR for outcome in saved):
        vendor.clear()
    waiting = [search for search in searches if search.default not in search.told]
    defaults = [(search, search.launch(search.default, task)) for search in waiting]
    untuned = task.untuned
    if _together([*vendor, *defaults], task, ahead=ahead) <= _CLOSE * given.left():
        first = sorted(defaults, key=lambda turn: turn[1] != untuned)
        return [*vendor, *(turn for turn in first if _comes_first(turn, untuned, task))], False
    defaults.sort(key=lambda turn: _seconds(turn, task))
    launches = [each for _, each in defaults if isinstance(each, Launch)]
    if untuned is None or untuned not in launches or not _is_first(untuned, launches, task, given.left()):
        return [*defaults[:1], *vendor, *defaults[1:]], True
    own = [turn for turn in defaults if turn[1] == untuned]
    others = [turn for turn in defaults if turn[1] != untuned and _comes_first(turn, untuned, task)]
    return [*own, *vendor, *others], True


def _is_first(untuned: Launch, defaults: Sequence[Launch], task: Task, left: float) -> bool:
    """Whether the untuned default comes first in a hurry."""
    expected = task.forecast(untuned)
    rival = min((task.forecast(each).launch for each in defaults if each != untuned), default=math.inf)
    is_decisive = CLEARLY * expected.launch < rival or (expected.trial > left and expected.launch <= rival)
    return expected.trial <= _UNTUNED * left or (is_decisive and decides(untuned, task, (), left))


def _comes_first(turn: Turn, untuned: Launch | None, task: Task) -> bool:
    """Whether a default is tried before the search begins: the untuned one, and the baselines, whose figures are told.

    The other kernels' have their turns later: where a GPU has newer instructions, most are several times slower.
    """
    search, contender = turn
    is_told = search is None or search.kernel.name in BASELINES or contender == untuned
    return is_told or untuned is None or task.strategy != "auto"


def decides(contender: Contender | Rejected, task: Task, found: Sequence[Outcome], left: float) -> bool:
    """Whether it is the untuned default, without which nothing may be promoted: a build may take less than forecast."""
    if not isinstance(contender, Launch) or contender != task.untuned:
        return False
    expected, best = task.forecast(contender), best_of(found)
    is_faster = best is None or expected.launch < best.timing.median_ms / 1e3
    return is_faster and 2 * expected.launch <= left and expected.trial <= _DOUBT * left


def _together(turns: Iterable[Turn], task: Task, *, ahead: bool) -> float:
    """Forecast seconds of all trials; builds that are made ahead are made at the same time."""
    expected = [Forecast() if isinstance(each, Rejected) else task.forecast(each) for _, each in turns]
    builds = [each.build for each in expected]
    return sum(each.trial for each in expected) - (sum(builds) - max(builds, default=0.0) if ahead else 0.0)


def _seconds(turn: Turn, task: Task) -> float:
    """Forecast seconds of a trial."""
    return 0.0 if isinstance(turn[1], Rejected) else task.forecast(turn[1]).trial
