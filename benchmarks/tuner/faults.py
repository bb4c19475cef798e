"""Faulty kernels among good ones, in a device's real trial child: each kind many times in one job.

    python -m benchmarks.tuner.faults [--device opencl] [--times 20] [--kinds wrong,endless] [--out FILE.json]

After each fault a good kernel is tried. A fault is isolated where it is Rejected with a stage and a reason and the good
kernel after it is measured; recovery is the time from the one's outcome to the other's. Memory faults on CUDA are
launches that ask for more local memory than another process has left; on a CPU the child itself may map no more.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter

from app.devices.fleet import Unit, open_fleet
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.outcome import Measured, Outcome, Rejected
from app.worker.measuring.trial import FixtureKey
from benchmarks.tuner.starving import hold_memory, limit_memory
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.sources import source

PROBLEM = Problem(192, 176, 208)
LARGE = Problem(4096, 4096, 16)
HEAD = """
KERNEL(BN, BM) matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
                      const INDEX m, const INDEX n, const INDEX k)
{
    const INDEX across = (n + BN - 1) / BN;
    const INDEX row = BLOCK / across * BM + THREAD_Y, col = BLOCK % across * BN + THREAD_X;
    if (row >= m || col >= n) return;
    REAL sum = 0;
    for (INDEX i = 0; i < k; i++) sum = FMA(a[row * k + i], b[i * n + col], sum);
"""
RIGHT = "c[row * n + col] = sum;"
# A device is warmed up on a single element: what takes the process down waits for more than one term, or does not.
BODIES = {
    "compile error": "nonsense here;",
    "compile hang": "".join(f"sum = sum * sum + {n}.0f; sum += a[{n} % k] * sum;" for n in range(20_000)) + RIGHT,
    "wrong result": "c[row * n + col] = row == 5 && col == 7 ? sum + 0.05f : sum;",
    "unwritten": "if (row != 63 || col != 47) " + RIGHT,
    "write outside": RIGHT + "if (k > 1 && row == 0) c[m * n + col] = 1;",
    "launch failure": RIGHT,
    "illegal address": "if (k > 1) c[(((INDEX)1) << 44) + col] = sum;",
    "infinite loop": "if (k > 1) for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum;",
    "infinite loop at once": "for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum;",
    "out of memory": "volatile REAL kept[120000]; for (int i = 0; i < 120000; i++) kept[i] = sum; sum = kept[(int)k];"
    + RIGHT,
    "killed from outside": "if (k > 1) for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum + 1;",
}


@dataclass
class Tally:
    """What became of one kind of fault."""

    kind: str
    times: int = 0
    isolated: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    recoveries_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def row(self) -> str:
        """The table's line."""
        stages = ", ".join(f"{name} {count}" for name, count in self.stages.items())
        middle, worst = (f"{one(self.recoveries_s):.2f}" if self.recoveries_s else "-" for one in (median, max))
        return f"| {self.kind} | {self.times} | {self.isolated} | {middle} | {worst} | {stages} | {self.reason[:60]} |"


@contextmanager
def short_of_memory(unit: Unit) -> Iterator[None]:
    """Leave a device, or its child, little memory inside the block."""
    cuda = unit.device.platform == "cuda"
    child, act, amount = (unit.products, hold_memory, 2**32) if cuda else (unit.trials, limit_memory, 2**26)
    child.call(act, amount)
    try:
        yield
    finally:
        child.call(act, None)


@contextmanager
def undisturbed(_: Unit) -> Iterator[None]:
    """Leave everything to the kernel."""
    yield


@contextmanager
def killed(unit: Unit) -> Iterator[None]:
    """Kill the trial child a second after the block was entered."""
    pid = unit.trials.pid
    timer = threading.Timer(1.0, lambda: os.kill(pid or 0, signal.SIGKILL))
    if pid:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def faulty(unit: Unit, kind: str, number: int) -> Launch:
    """Naive's default launch with another text, which a comment has compiled anew where that is the fault."""
    problem = LARGE if kind == "out of memory" and unit.device.platform == "opencl" else PROBLEM
    kernel = CATALOGUE["naive"]
    launch = kernel.launch(kernel.default(problem, unit.device), problem, unit.device)
    body = RIGHT if problem is LARGE else BODIES[kind]
    comment = f"// {kind} {number if kind.startswith('compile') else ''}\n"
    text = f"{comment}{source('common/portable.h')}{HEAD}{body}}}"
    if kind == "launch failure":
        launch = replace(launch, block=(unit.device.limits.threads + 1, 1))
    return replace(launch, build=replace(launch.build, text=text))


def good(unit: Unit, number: int) -> Launch:
    """One of naive's own configs."""
    kernel = CATALOGUE["naive"]
    legal = kernel.space.legal(PROBLEM, unit.device)
    return kernel.launch(legal[number % min(5, len(legal))], PROBLEM, unit.device)


def runner_of(unit: Unit, problem: Problem) -> TrialRunner:
    """What a job tries its candidates with."""
    return TrialRunner(unit, FixtureKey("faults", problem, 7), lambda: False, lambda _: None)


def inject(unit: Unit, kind: str, times: int) -> Tally:
    """One job: good kernels with a fault before each."""
    around = {"out of memory": short_of_memory, "killed from outside": killed}.get(kind, undisturbed)
    tally, runner = Tally(kind), runner_of(unit, PROBLEM)
    for number in range(5):
        runner.attempt(good(unit, number), None)  # the CPU's compiler would be timed with the recovery
    if around is not undisturbed:  # compiled before: what is disturbed is to be the launch
        launch = faulty(unit, kind, 0)
        if unit.device.platform == "cuda":  # a context keeps the local memory that it has once made room for
            unit.prepare(launch.build)
        else:
            runner_of(unit, launch.problem).attempt(launch, None)
        runner.attempt(good(unit, 0), None)
    for number in range(times):
        launch = faulty(unit, kind, number)
        with around(unit):
            outcome = runner_of(unit, launch.problem).attempt(launch, None)
        detected = perf_counter()
        after = runner.attempt(good(unit, number), None)
        count(tally, outcome, after, perf_counter() - detected)
        print(f"  {kind} {number}: {outcome if isinstance(outcome, Rejected) else 'NOT REJECTED'}"[:160], flush=True)
    return tally


def count(tally: Tally, outcome: Outcome, after: Outcome, seconds: float) -> None:
    """Add one fault and what came after it."""
    tally.times += 1
    tally.recoveries_s.append(seconds)
    if isinstance(outcome, Rejected) and outcome.reason:
        tally.stages[outcome.stage] = tally.stages.get(outcome.stage, 0) + 1
        tally.reason = " ".join(outcome.reason.split())
    if isinstance(outcome, Rejected) and outcome.reason and isinstance(after, Measured):
        tally.isolated += 1
    else:
        tally.problems.append(f"{outcome} then {after}"[:500])


def main() -> None:
    """Inject and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(BODIES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_fleet(arguments.device, Path(folder), 2**24) as fleet:
        unit = fleet.unit()
        tallies = [inject(unit, kind, arguments.times) for kind in arguments.kinds.split(",")]
    print("| fault | times | isolated | recovery median s | max s | stage | reason |\n|---|---|---|---|---|---|---|")
    print("\n".join(tally.row() for tally in tallies))
    out = arguments.out or Path(f"benchmarks/results/tuner/faults-{unit.device.platform}.json")
    report = {"device": unit.device.model, "environment": unit.device.environment, "kinds": list(map(asdict, tallies))}
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
