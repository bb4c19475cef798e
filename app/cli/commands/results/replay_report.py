"""Replays tunes on recordings: evaluations, what is chosen, and its regret."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path

from rich import box
from rich.table import Table

from app.cli.figures import config_text
from app.errors import Malformed
from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport, best_of
from app.tuning.replay import FORMAT, Recording, Replay, load
from app.tuning.search.strategy import STRATEGIES
from app.tuning.task import Task
from app.tuning.tuner import tune


@dataclass(frozen=True, slots=True)
class Played:
    """What a tune of one recorded space came to; `regret` is the chosen config's true time over the optimum, less 1.

    `reported_ms` is the median that the tune tells, `mean_ms` the mean of all that was recorded of the config.
    """

    problem: str
    device: str
    kernel: str
    configs: int
    evaluations: int
    config: dict[str, int]
    reported_ms: float
    mean_ms: float
    optimum_ms: float
    regret: float


def play(file: Path, strategy: str, seed: int, trials: int | None) -> list[Played]:
    """Tune every recording of a file; raises ValueError if the file or the strategy is none."""
    if strategy not in STRATEGIES:
        raise ValueError(f"a strategy is one of {', '.join(STRATEGIES)}, got {strategy!r}")
    try:
        return [_played(recording, strategy, seed, trials) for recording in load(file)]
    except (UnicodeDecodeError, EOFError, BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file} is no recording: its first line is no {FORMAT} header") from error
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error
    except Malformed as error:
        headless = error.message.startswith("line 1 ")
        reason = f"its first line is no {FORMAT} header" if headless else error.message
        raise ValueError(f"{file} is no recording: {reason}") from error


def table(results: list[Played]) -> Table:
    """The results, a recording a line."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("Problem", "Kernel", "Configs", "Evaluations", "Best found", "Time (ms)", "Optimum (ms)", "Regret"):
        rows.add_column(name, overflow="fold")
    for one in results:
        figures = f"{one.mean_ms:.4g}", f"{one.optimum_ms:.4g}", f"{100 * one.regret:.2f} %"
        rows.add_row(one.problem, one.kernel, str(one.configs), str(one.evaluations), config_text(one.config), *figures)
    return rows


def _played(recording: Recording, strategy: str, seed: int, trials: int | None) -> Played:
    runner = Replay(recording, seed)
    task = Task([recording.space()], recording.problem, recording.device, strategy, seed)
    steps = list(tune(task, runner, lambda: Budget(trials=trials)))
    finals = [step for step in steps if isinstance(step, FinalReport)]
    chosen = finals[0].best if finals else best_of(step for step in steps if not isinstance(step, FinalReport))
    if chosen is None:
        raise ValueError(f"no config of {recording.problem} could be measured")
    mean = recording.seconds(chosen.config) or 0.0
    return Played(
        problem=str(recording.problem),
        device=recording.device.name,
        kernel=recording.kernel,
        configs=len(recording.outcomes),
        evaluations=runner.evaluations,
        config=dict(chosen.config),
        reported_ms=chosen.timing.median_ms,
        mean_ms=1e3 * mean,
        optimum_ms=1e3 * recording.optimum,
        regret=mean / recording.optimum - 1,
    )
