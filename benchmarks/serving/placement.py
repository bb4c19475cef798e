"""Products on one device and on several, in turn in one service, from operands in the slab to C there.

python -m benchmarks.serving.placement [--size 32768] [--dtype float32] [--devices cuda:0,cuda:1] [--limit 8589934592]
    [--each 8 16] [--rounds 3] [--seconds 150] [--out FILE]

Each product is made with all of a device's memory, and with little: out of core where one device then needs tiles.
`--devices twice` is this host's CPU as two devices, for a try. Rates are of the wall's seconds; `kernel` is the rate of
one device's kernel.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np

from app.devices.fleet import Fleet
from app.main import opened
from app.services.matmul.buffers import OperandBuffers
from app.services.matmul.placement import Placement
from app.services.matmul.tiles.memory import EACH
from app.services.service import Service
from app.settings import Settings
from benchmarks.serving.out_of_core import fill
from benchmarks.serving.two_cpus import two_cpus
from kernels.problem import Problem

_ONE: Final = 0  # tiles a device where one makes the product
_CHECKED: Final = 64  # rows and columns of C whose elements are compared
_ERROR: Final = 1e-2  # relative, of a dtype of 16 bits


def main() -> None:
    """Measure in core and out of core, print a line each, and write the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=32768)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument(
        "--limit", type=int, default=2**33, help="bytes of a device that a product may take out of core"
    )
    of_each = "tiles a device where they do not overlap copies: on a CPU, of batches, of small shares"
    parser.add_argument("--each", type=int, nargs="+", default=[EACH], help=of_each)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=150.0, help="after which no further round begins")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    problem = Problem(arguments.size, arguments.size, arguments.size, dtype=arguments.dtype)
    until = monotonic() + arguments.seconds
    rows = []
    print(f"{problem.key}\n{'':12} {'each':>5} {'one':>9} {'all':>9} {'ratio':>7} {'kernel':>9}  tiles, by device")
    for limit, end in ((None, (until + monotonic()) / 2), (arguments.limit, until)):
        for row in measured(problem, arguments, limit, end):
            name = "out of core" if row["tiles"][0] > 1 else "in core"
            rows.append({"where": name, "limit": limit, **row})
            rates = f"{row['one']:9.2f} {row['all']:9.2f} {row['ratio']:7.3f} {row['kernel']:9.2f}"
            print(f"{name:12} {row['each']:5} {rates}  {row['tiles']}, {row['devices']}", flush=True)
    if arguments.out is not None:
        found = {"size": arguments.size, "dtype": arguments.dtype, "devices": arguments.devices, "rows": rows}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def measured(problem: Problem, arguments: argparse.Namespace, limit: int | None, until: float) -> list[dict[str, Any]]:
    """Rates in TFLOP/s, of the fastest of the rounds; the first of each placement, which compiles, does not count."""
    with tempfile.TemporaryDirectory() as folder:
        room = problem.bytes + 2**26
        twice = arguments.devices == "twice"
        given = Settings(
            data_dir=Path(folder),
            devices="opencl" if twice else arguments.devices,
            slab_bytes=room,
            device_bytes=limit,
            max_body_bytes=room,
        )
        fleets: Callable[[int], AbstractContextManager[Fleet]] | None = None
        if twice:
            fleets = partial(two_cpus, cache_dir=Path(folder))
        with opened(given, "a benchmark", fleets=fleets) as service:
            return compared(service, problem, arguments, until)


def compared(service: Service, problem: Problem, arguments: argparse.Namespace, until: float) -> list[dict[str, Any]]:
    """Placements in turn, from the same operands: what each took at best, and what made it."""
    planner, memory, made = service.matmul.planner, service.matmul.memory, dict[int, list[dict[str, Any]]]()
    with service.matmul.reserve(problem, placement="all") as placed:
        fill(placed.a)
        fill(placed.b)
        for number in range(arguments.rounds + 1):
            for each in (_ONE, *arguments.each):
                memory.each = each
                where: Placement = "all" if each else "one"
                placed.c[...] = np.nan
                plan = planner.plan(problem, where, None, resident=False, arriving=False)
                found = product(service, replace(placed, plan=plan))
                made.setdefault(each, []).append(found)
                if number == 0:
                    check(placed)
            if number and monotonic() > until:
                break
    best = {each: min(found[1:], key=lambda one: float(one["wall"])) for each, found in made.items()}
    return [told(problem, service.fleet.unit().device.model, best, made, each) for each in arguments.each]


def told(
    problem: Problem, model: str, best: dict[int, dict[str, Any]], made: dict[int, list[dict[str, Any]]], each: int
) -> dict[str, Any]:
    """A row: rates in TFLOP/s of one device, and of all with so many tiles each."""
    one, several, flops = best[_ONE], best[each], problem.flops / 1e12
    return {
        "model": model,
        "each": each,
        "one": flops / one["wall"],
        "all": flops / several["wall"],
        "ratio": one["wall"] / several["wall"],
        "kernel": flops / one["seconds"]["kernel"],
        "tiles": [one["tiles"], several["tiles"]],
        "devices": several["devices"],
        "made": {"one": made[_ONE], "all": made[each]},
    }


def product(service: Service, placed: OperandBuffers) -> dict[str, Any]:
    """One product: its wall seconds, and its phases."""
    started = perf_counter()
    made = service.matmul.multiply(placed)
    wall = perf_counter() - started
    what = {"tiles": made.tiles, "devices": dict(made.devices), "kernel": made.kernel, "config": dict(made.config)}
    return {"wall": wall, "seconds": made.seconds, **what}


def check(placed: OperandBuffers) -> None:
    """Compare some elements of C with float64; raises RuntimeError."""
    rng = np.random.default_rng(2)
    rows, columns = (rng.integers(0, size, _CHECKED) for size in placed.c.shape)
    wanted = placed.a[rows].astype(np.float64) @ placed.b[:, columns].astype(np.float64)
    error = np.linalg.norm(placed.c[np.ix_(rows, columns)] - wanted) / np.linalg.norm(wanted)
    if not error < _ERROR:
        raise RuntimeError(f"C is off by {error:.1e}")


if __name__ == "__main__":
    main()
