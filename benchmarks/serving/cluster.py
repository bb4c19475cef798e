"""A Ray cluster on one machine: what a product of another node costs, and what is left when nodes are killed.

python -m benchmarks.serving.cluster [--shapes 200] [--longest 1500] [--note TEXT]

Each shape is a job of one kernel and twelve trials, on one of the three nodes that are killed in turn; a fourth has the
service. Products are made on any of them meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np

from app.errors import TilewiseError
from app.main import opened
from app.services.jobs.service import ENDED
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.settings import Settings
from app.tuning.budget import Budget
from kernels.problem import Problem
from tests.support.cluster.history import TrialHistory
from tests.support.cluster.local_cluster import LocalCluster, local_cluster
from tests.support.waiting import until

RESULT: Final = Path("benchmarks/results/serving/cluster.json")
_PAIRS: Final = 20
_KILLED_EVERY: Final = 20.0  # seconds
_NODES: Final = ("a", "b", "c")


def main() -> None:
    """Measure both, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--longest", type=float, default=1500.0, help="seconds until what has not ended is told so")
    parser.add_argument("--note", default="", help="what else the machine did")
    asked = parser.parse_args()
    with local_cluster(*_NODES) as cluster, serving(cluster.address) as remote:
        faults = killed(cluster, remote, asked.shapes, asked.longest)
        until(lambda: all(unit.takes_products for unit in remote.fleet.units))
        with serving("off") as local:
            cost = compared(local, remote)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    found = {"machine": machine, "note": asked.note, "product": cost}
    RESULT.write_text(json.dumps(found | {"killed": faults}, indent=1) + "\n")


@contextmanager
def serving(address: str) -> Iterator[Service]:
    """A service of the CPUs of a cluster, or of this host, whose defaults are verified."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = Settings(data_dir=folder, ray=address, devices="opencl", slab_bytes=2**28, jobs=1000)
        service = stack.enter_context(opened(settings, "a benchmark"))
        service.defaults.start()
        for unit in service.fleet.units:
            service.defaults.await_settled(unit, lambda: False)
        yield service


def compared(local: Service, remote: Service) -> dict[str, Any]:
    """Milliseconds of a product of 1024^3 here and on another node, in turn."""
    problem = Problem(m=1024, n=1024, k=1024)
    seconds: tuple[list[float], list[float]] = [], []
    sides = (local, local.fleet.unit().device.id), (remote, remote.fleet.unit("a:opencl:0").device.id)
    for number in range(2 + _PAIRS):
        for (service, device), taken in zip(sides, seconds, strict=True):
            started = perf_counter()
            product(service, problem, device, number)
            taken.append(perf_counter() - started)
    here, there = (1e3 * median(taken[2:]) for taken in seconds)
    ratios = [b / a for a, b in zip(*(taken[2:] for taken in seconds), strict=True)]
    return {"pairs": _PAIRS, "local_ms": here, "node_ms": there, "median_of_ratios": median(ratios)}


def product(service: Service, problem: Problem, device: str | None, seed: int) -> bool:
    """Make a product of integers; whether it is right to the bit."""
    rng = np.random.default_rng(seed % 4)
    with service.matmul.reserve(problem, device_id=device) as buffers:
        for operand in (buffers.a, buffers.b):
            operand[...] = rng.integers(-8, 8, operand.shape)
        buffers.c[...] = np.nan
        service.matmul.multiply(buffers, device)
        return bool(np.array_equal(buffers.c, buffers.a @ buffers.b))


def killed(cluster: LocalCluster, service: Service, shapes: int, longest: float) -> dict[str, Any]:
    """Tune shapes on all nodes and make products while a node is killed every so often, and started again."""
    units = [unit.device.id for unit in service.fleet.units if unit.device.id[0] in _NODES]
    jobs = [_submitted(service, 64 + 8 * number, units[number % len(units)]) for number in range(shapes)]
    histories, stopping, outcomes = [TrialHistory(service, job) for job in jobs], threading.Event(), Counter[str]()
    maker = threading.Thread(target=_make, args=(service, stopping, outcomes))
    maker.start()
    started, kills, at = monotonic(), 0, _KILLED_EVERY
    while _open(service, jobs) and monotonic() - started < longest:
        for history in histories:
            history.look()
        if monotonic() - started > at:
            name = _NODES[kills % len(_NODES)]
            cluster.kill(name)
            cluster.add(name)
            kills, at = kills + 1, at + _KILLED_EVERY
        stopping.wait(0.5)
    seconds = monotonic() - started
    stopping.set()
    maker.join()
    for history in histories:
        history.check()
    states = Counter(service.jobs.get(job).state for job in jobs)
    errors = [service.jobs.get(job).error for job in jobs if service.jobs.get(job).error]
    trials = sum(history.look() for history in histories)
    told = {"shapes": shapes, "nodes": len(_NODES) + 1, "seconds": seconds, "kills": kills, "jobs": states}
    return told | {"trials_saved": trials, "trials_lost_or_twice": 0, "products": outcomes, "errors": errors}


def _submitted(service: Service, size: int, device: str) -> str:
    problems = (Problem(m=size, n=96, k=128),)
    return service.tuning.submit(
        TuneSpec(problems, devices=(device,), kernels=("tiled",), budget=Budget(trials=12)), ANONYMOUS
    ).id


def _open(service: Service, jobs: list[str]) -> list[str]:
    return [job for job in jobs if service.jobs.get(job).state not in ENDED]


def _make(service: Service, stopping: threading.Event, outcomes: Counter[str]) -> None:
    """Make products on whichever device, and count how they end."""
    seed = 0
    while not stopping.is_set():
        seed += 1
        try:
            outcomes["right" if product(service, Problem(m=96, n=80, k=64), None, seed) else "wrong"] += 1
        except TilewiseError as error:
            outcomes[error.code] += 1
        stopping.wait(0.05)


if __name__ == "__main__":
    main()
