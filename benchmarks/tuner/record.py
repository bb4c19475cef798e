"""Record whole spaces: every legal config of a kernel for some problems, as files that Replay plays.

Every config is compiled, verified and raced as in a tune; those within 1.5 times of the best are then measured 32
times, interleaved and in random order, and 3 samples are kept of the others. Each outcome is appended to the file as it
comes: a run that was stopped goes on where it was when the same command is given again.

    python -m benchmarks.tuner.record KERNEL OUT.replay MxNxK[xBATCH] ... [--device cuda] [--seconds 500]
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from app.devices.fleet import Unit, open_fleet
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.measure.racing import policy_of
from app.tuning.outcome import Measured, Rejected
from app.tuning.replay import Recording, dump, lines, read
from app.worker.measuring.trial import FixtureKey
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config

CLOSE, MANY, FEW = 1.5, 32, 3
HEAT = 24  # contenders interleaved at once
HEATS_AHEAD = 4  # whose binaries are made meanwhile
AHEAD = 8  # launches prepared for each compiler: configs that differ in arguments alone share a binary
SEED = 20261121


def problem_of(text: str) -> Problem:
    """A problem of its sizes, such as 1024x1024x1024 or 64x64x64x8 (batch last)."""
    m, n, k, *batch = map(int, text.split("x"))
    return Problem(m, n, k, batch[0] if batch else 1)


def attempt_all(unit: Unit, kernel: Kernel, problem: Problem, partial: Path, until: float) -> Iterator[None]:
    """Attempt every config that the file does not have yet; appends outcomes, ends at `until`."""
    runner = TrialRunner(unit, FixtureKey("record", problem, SEED), lambda: False, lambda _: None)
    known = _read(partial)
    done = set(known.outcomes) if known else set()
    if known is None:
        empty = Recording(unit.device, kernel.name, kernel.digest, problem, "events", {})
        _append(partial, next(lines([empty])).replace('"parameters":[]', f'"parameters":{_names(kernel)}'))
    waiting = deque(config for config in kernel.space.legal(problem, unit.device) if config not in done)
    ahead: deque[Config] = deque()
    while waiting or ahead:
        while waiting and len(ahead) < AHEAD * runner.width:
            ahead.append(waiting.popleft())
            runner.prepare(kernel.launch(ahead[-1], problem, unit.device))
        launch = kernel.launch(ahead.popleft(), problem, unit.device)
        outcome = runner.attempt(launch, None)
        seconds = outcome.seconds[:FEW] if isinstance(outcome, Measured) else outcome
        policy = outcome.timing.policy if isinstance(outcome, Measured) else "events"
        one = Recording(unit.device, kernel.name, kernel.digest, problem, policy, {launch.config: seconds})
        _append(partial, list(lines([one]))[1])
        yield
        if time.monotonic() > until:
            raise TimeoutError


def sample_close(unit: Unit, kernel: Kernel, known: Recording, partial: Path, until: float) -> None:
    """Measure what is close to the best many times, a heat of contenders at a time; appends what they took."""
    runner = TrialRunner(unit, FixtureKey("record", known.problem, SEED), lambda: False, lambda _: None)
    samples = {config: found for config, found in known.outcomes.items() if not isinstance(found, Rejected)}
    limit = CLOSE * min(map(median, samples.values()), default=0.0)
    waiting = [config for config, found in samples.items() if len(found) < MANY and median(found) <= limit]
    parts = [waiting[start : start + HEAT] for start in range(0, len(waiting), HEAT)]
    heats = [[kernel.launch(config, known.problem, unit.device) for config in part] for part in parts]
    for number, part in enumerate(parts):
        for launch in chain.from_iterable(heats[number : number + HEATS_AHEAD]):
            runner.prepare(launch)  # a run that goes on may find none of the binaries that the first one had
        for launch in heats[number]:
            unit.prepare(launch.build)
        sample_interleaved = runner.sample(heats[number], MANY)
        sampled = replace(
            known, policy=sample_interleaved.policy, outcomes=dict(zip(part, sample_interleaved.seconds, strict=True))
        )
        _append(partial, "".join(list(lines([sampled]))[1:]))
        if time.monotonic() > until:
            raise TimeoutError


def record(unit: Unit, kernel: Kernel, problem: Problem, out: Path, until: float) -> None:
    """Record one problem into a file of its own, unless that is there already."""
    if out.exists():
        return
    partial = out.with_suffix(".partial")
    started = time.monotonic()
    for count, _ in enumerate(attempt_all(unit, kernel, problem, partial, until), 1):
        if count % 200 == 0:
            print(f"{problem.key}: {count} in {time.monotonic() - started:.1f} s", flush=True)
    attempted = _read(partial)
    if attempted is None:
        return
    sample_close(unit, kernel, attempted, partial, until)
    whole = replace(_read(partial) or attempted, policy=policy_of(problem, unit.device))
    dump([whole], out)
    failed = sum(isinstance(found, Rejected) for found in whole.outcomes.values())
    print(
        f"{problem.key}: {len(whole.outcomes)} configs, {failed} failed, best {1e6 * whole.optimum:.2f} us", flush=True
    )


def _names(kernel: Kernel) -> str:
    return "[" + ",".join(f'"{name}"' for name in kernel.space.parameters) + "]"


def _read(partial: Path) -> Recording | None:
    """What has been recorded so far; a last line that was cut off is left out."""
    if not partial.exists():
        return None
    text = partial.read_text(encoding="utf-8")
    return read(text[: text.rfind("\n") + 1].splitlines())[0]


def _append(partial: Path, line: str) -> None:
    with partial.open("a", encoding="utf-8") as file:
        file.write(line)


def main() -> None:
    """Record every problem given, each into OUT with the problem's sizes in its name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=list(CATALOGUE))
    parser.add_argument("out", type=Path, help="a folder")
    parser.add_argument("problems", nargs="+", type=problem_of)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1e6, help="stop after so long; the same command goes on")
    parser.add_argument("--cache", type=Path, default=None, help="compiled kernels, kept from run to run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    with TemporaryDirectory() as fresh, open_fleet(options.device, options.cache or Path(fresh), 2**26) as fleet:
        for problem in options.problems:
            sizes = "x".join(map(str, (problem.m, problem.n, problem.k, problem.batch)))
            name = f"{options.kernel}-{fleet.unit().device.architecture}-{sizes}.replay"
            try:
                record(fleet.unit(), CATALOGUE[options.kernel], problem, options.out / name, until)
            except TimeoutError:
                print("time is over: the same command goes on from here", flush=True)
                return


if __name__ == "__main__":
    main()
