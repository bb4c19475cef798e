"""The products of a public 7B decoder, tuned as one workload, beside cuBLAS's default and the fastest of all peers.

    python -m benchmarks.workloads.decoder [--out FILE.json] [--seconds 300] [--model "Mistral 7B"] [--prefill 2048]
        [--rows 16] [--steps 256] [--device cuda] [--dtype bfloat16] [--measuring 1.5] [--peers 120]

Shapes are those of the model's configuration: one prefill of so many tokens, whose last layer is of one row alone, and
so many steps of decoding so many rows; weights are stored transposed. POST /workloads?tune= is what `--seconds` are
spent by, and its report is told with its intervals. Then each winner is measured again beside cuBLAS's default, the
fastest algorithm that cuBLASLt proposes and Triton's tiles, all in turn, for `--peers` seconds at most. The bar is a
workload that takes no longer than with cuBLAS's default. Writes OUT after every step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from app.api.routes.workloads.responses import WorkloadAnswer
from app.devices.fleet import open_fleet
from app.errors import DeviceError
from app.main import opened
from app.services.principal import ANONYMOUS
from app.services.workloads.report import WorkloadReport
from app.settings import Settings
from app.workloads.options import ReadOptions
from benchmarks.kernels.drawn.models import MODELS, Model
from benchmarks.kernels.peers.__main__ import Peers, Winners, binaries
from benchmarks.kernels.peers.rows import Row
from benchmarks.kernels.peers.shapes import CANDIDATE, TRITON, TUNED, VENDOR, ShapeClass, named
from kernels.problem import Problem

RESULT: Final = Path("benchmarks/results/workloads/decoder.json")
BAR: Final = 1.0  # of the time with cuBLAS's default
LAYERS: Final = 32  # of every 7B decoder that is public
RIVALS: Final = (VENDOR, CANDIDATE, TRITON)
_GRACE: Final = 120.0  # seconds over a budget
Counts = dict[Problem, int]


def counts_of(model: Model, dtype: str, prefill: int, rows: int, steps: int) -> Counts:
    """How often each product is run by one prefill and the steps after it."""
    found = Counts()
    for layer in model.layers:
        head = layer.name == "head"
        times = 1 if head else LAYERS
        for m, count in ((1 if head else prefill, times), (rows, steps * times)):
            problem = Problem(m, layer.outputs, layer.inputs, dtype=dtype, trans_b=True)
            found[problem] = found.get(problem, 0) + count
    return found


def lines_of(counts: Counts) -> bytes:
    """The workload as lines of shapes."""
    return "".join(f"{one.m}x{one.n}x{one.k} {one.dtype} nt * {count}\n" for one, count in counts.items()).encode()


def tuned(options: argparse.Namespace, counts: Counts, data: Path) -> tuple[dict[str, Any], WorkloadReport]:
    """Have the service tune the workload; its answer and report."""
    settings = Settings(data_dir=data, devices=options.device, slab_bytes=2**28)
    with opened(settings, "a benchmark") as service:
        workloads = service.workloads
        kept, _ = workloads.create(BytesIO(lines_of(counts)), options.model, "shapes", ReadOptions(), ANONYMOUS)
        began = time.monotonic()
        job, kept = workloads.tune(kept, options.seconds, None, ANONYMOUS)
        job = service.jobs.wait(job.id, options.seconds + _GRACE)
        took = time.monotonic() - began
        report = workloads.report(kept)
        answer = WorkloadAnswer.of(kept, report).model_dump(mode="json")
        device = service.fleet.unit(None).device
    head = {"device": device.name, "environment": device.environment, "job": job.state, "took_seconds": round(took, 1)}
    return head | {"report": answer}, report


def beside_peers(options: argparse.Namespace, counts: Counts, winners: Winners, cache: Path) -> list[Row]:
    """Measure every winner beside its peers until the time is over."""
    end, rows = time.monotonic() + options.peers, list[Row]()
    own = ShapeClass("decoder", BAR, "1.0", tuple(counts), RIVALS)
    with open_fleet(options.device, cache, 2**26) as fleet:
        unit = fleet.unit()
        cubins = (
            binaries([(own, one) for one in counts], unit.device.architecture, cache)
            if options.device == "cuda"
            else {}
        )
        peers = Peers(unit, winners, cubins, 0.0, options.measuring)
        for problem in sorted(winners, key=lambda one: -counts[one] * one.flops):
            if time.monotonic() > end:
                print(f"time is over before {named(problem)}", flush=True)
                break
            try:
                rows.append(peers.row(own, problem))
            except DeviceError as error:
                print(f"{named(problem)}: {error.message}", flush=True)
            else:
                print(_line(rows[-1], counts[problem]), flush=True)
    return rows


def compared(counts: Counts, rows: Sequence[Row]) -> dict[str, Any]:
    """Milliseconds of all calls by ours, by cuBLAS's default and by the fastest of each shape's peers, as ratios."""
    whole = [row for row in rows if row.of(TUNED) and row.of(VENDOR)]
    ours, vendor = (_total(counts, whole, (name,)) for name in (TUNED, VENDOR))
    fastest, either = _total(counts, whole, RIVALS), _total(counts, whole, (TUNED, VENDOR))
    found: dict[str, Any] = {"shapes": len(whole), "of": len(counts), "ms": {"ours": ours, "cuBLAS": vendor}}
    found["ms"] |= {"fastest peer of each": fastest, "ours or cuBLAS": either}
    if whole:
        found["over_cublas"] = ours[0] / vendor[0]
        found["over_cublas_at_most"] = ours[2] / vendor[1]
        found["over_fastest_peer"] = ours[0] / fastest[0]
        found["met"] = found["over_cublas"] <= BAR and len(whole) == len(counts)
    return found


def _total(counts: Counts, rows: Sequence[Row], names: Sequence[str]) -> tuple[float, float, float]:
    """The sum of the fastest of some contestants on every shape, and between what it lies."""
    total = [0.0, 0.0, 0.0]
    for row in rows:
        there = [figure for name in names if (figure := row.of(name))]
        best = min(there, key=lambda one: one.median_ms or 0.0)
        low, high = best.ci95_ms or (best.median_ms, best.median_ms)
        for at, value in enumerate((best.median_ms, low, high)):
            total[at] += counts[row.problem] * (value or 0.0)
    return total[0], total[1], total[2]


def _line(row: Row, count: int) -> str:
    times = {one.name: f"{1e3 * one.median_ms:.2f}" for one in row.figures if one.median_ms is not None}
    said = ", ".join(f"{name} {times[name]}" for name in (TUNED, *RIVALS) if name in times)
    return f"{count:6} x {named(row.problem):28} us: {said}; winner {next(iter(row.figures)).kernel}"


def _written(out: Path, found: Mapping[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the whole tune")
    parser.add_argument("--model", choices=[one.name for one in MODELS], default="Mistral 7B")
    parser.add_argument("--prefill", type=int, default=2048, help="tokens")
    parser.add_argument("--rows", type=int, default=16, help="of a step of decoding")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--measuring", type=float, default=1.5, help="seconds of rounds a shape")
    parser.add_argument("--peers", type=float, default=120.0, help="seconds after which no shape is begun")
    return parser.parse_args()


def main() -> None:
    """Tune, tell the report, compare, and end with 1 where the bar is missed."""
    options = parsed()
    model = next(one for one in MODELS if one.name == options.model)
    counts = counts_of(model, options.dtype, options.prefill, options.rows, options.steps)
    asked = {name: getattr(options, name) for name in ("model", "prefill", "rows", "steps", "dtype", "seconds")}
    with TemporaryDirectory() as folder:
        found, report = tuned(options, counts, Path(folder) / "data")
        found = asked | found
        _written(options.out, found)
        print(found["report"]["summary"], found["report"]["before"], found["report"]["after"], sep="\n", flush=True)
        known = {one.counted.problem: one.winner for one in report.shapes if one.winner is not None}
        winners = {problem: (winner.name, dict(winner.config)) for problem, winner in known.items()}
        rows = beside_peers(options, counts, winners, Path(folder) / "kernels")
    found |= {"compared": compared(counts, rows), "peers": [row.json() for row in rows]}
    _written(options.out, found)
    print(json.dumps(found["compared"]))
    raise SystemExit(0 if found["compared"].get("met") else 1)


if __name__ == "__main__":
    main()
