"""The recorded tune that the pages play without a device: python -m benchmarks.web.recorded_tune.

The search is the tuner's own. What it asks for is answered from a recording of every config of one kernel's space on an
H200, three samples each, from which more are drawn: their medians are told, and no intervals, which would be narrower
than three samples allow. Naive, tiled and the vendor's library stand beside it as they were measured on an H200 in the
comparison with other libraries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from app.tuning.budget import Budget
from app.tuning.outcome import VENDOR, FinalReport, Outcome, Rejected
from app.tuning.replay import Recording, Replay, load
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.web import STATIC

ROOT: Final = Path(__file__).parent.parent.parent
RECORDING: Final = ROOT / "tests/data/register_tiled-h200-1024x1024x1024.replay.gz"
PEERS: Final = ROOT / "benchmarks/results/kernels/peers-h200.json"
TARGET: Final = STATIC / "recorded/h200.json"
RECORDED_ON: Final = "2026-11-22"  # when the space was measured, which a recording does not tell
TRIALS: Final = 240
SEED: Final = 1
_BESIDE: Final = ("naive", "tiled", VENDOR)
_DIGITS: Final = 5
_Row = list[Any]


def recorded_tune() -> dict[str, Any]:
    """What the page plays: whose times they are, the kernels' parameters, and the trials in the order of trying.

    A trial is [kernel, round, values of its parameters, median in milliseconds], or [kernel, round, values, stage,
    reason] of one that was rejected.
    """
    (recording,) = load(RECORDING)
    peers = json.loads(PEERS.read_text(encoding="utf-8"))
    shape = next(one for one in peers["shapes"] if one["problem"] == asdict(recording.problem))
    figures = {one["name"]: one for one in shape["figures"]}
    beside = [figures[name] for name in _BESIDE]
    parameters = {one["name"]: list(one["config"]) for one in beside}
    return {
        "device": {name: getattr(recording.device, name) for name in ("name", "architecture", "driver", "compiler")},
        "vendor": peers["vendor"],
        "problem": asdict(recording.problem),
        "recorded_on": RECORDED_ON,
        "compared_on": shape["measured_at"][:10],
        "space": len(recording.outcomes),
        "kernels": parameters | {recording.kernel: list(next(iter(recording.outcomes)))},
        "trials": [*map(_peer, beside), *_trials(recording)],
    }


def text() -> str:
    """The file, a trial a line."""
    found = recorded_tune()
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in found.pop("trials"))
    return json.dumps(found)[:-1] + f', "trials": [\n{lines}\n]}}\n'


def _peer(figure: dict[str, Any]) -> _Row:
    return [figure["name"], "search", list(figure["config"].values()), _short(figure["median_ms"])]


def _trials(recording: Recording) -> Iterator[_Row]:
    """What a tune of the recorded space tells, the vendor's place in it aside."""
    task = Task([recording.space()], recording.problem, recording.device, "auto", SEED)
    for step in tune(task, Replay(recording, SEED, width=1), lambda: Budget(trials=TRIALS)):
        if isinstance(step, FinalReport):
            yield from (_row(one, "final") for one in step.finalists)
            yield _row(step.best, "report")
        elif step.kernel != VENDOR:
            yield _row(step, "search")


def _row(one: Outcome, round_name: str) -> _Row:
    head: _Row = [one.kernel, round_name, list(one.config.values())]
    if isinstance(one, Rejected):
        return [*head, one.stage, one.reason]
    return [*head, _short(one.timing.median_ms)]


def _short(milliseconds: float) -> float:
    return float(f"{milliseconds:.{_DIGITS}g}")


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text(), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1000:.1f} KB")
