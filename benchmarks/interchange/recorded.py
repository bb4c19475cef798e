"""Whole recorded spaces of Kernel Tuner through every format and back, and replayed by Kernel Tuner from our own files.

    python -m benchmarks.interchange.recorded FILE.json.gz ... [-o FILE.json]

A round trip is lossless where what is read again equals what was written, but for what the format has no place for:
`store-results` and wisdom hold the best of a space. The replay is `tune_kernel` in simulation mode on the cache that
was written here. The files are not part of the project, so their paths are given.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from app.interchange import bundle, kernel_tuner, store_results, t4, table, wisdom
from app.interchange.results import ConfigResult, ResultsFile, TuningResults

RESULT: Final = Path("benchmarks/results/interchange/recorded.json")


def space_of(path: Path) -> TuningResults:
    """The space of a file, which may be compressed."""
    data = path.read_bytes()
    return kernel_tuner.read((gzip.decompress(data) if path.suffix == ".gz" else data).decode())


def plainly(space: TuningResults) -> TuningResults:
    """A space without what a format tells of its own accord: results in order, no choices, no seconds that are 0."""
    results = sorted((_plain(one) for one in space.results), key=lambda one: str(one.values))
    return replace(space, results=tuple(results), choices={}, extra={})


def _plain(one: ConfigResult) -> ConfigResult:
    seconds = kernel_tuner.SECONDS
    return replace(one, extra={name: value for name, value in one.extra.items() if name not in seconds or value})


def best_of(space: TuningResults, count: int) -> list[tuple[Any, ...]]:
    """The values and times of the fastest."""
    measured = [one for one in space.results if one.time_ms is not None]
    return [(one.values, one.time_ms) for one in sorted(measured, key=lambda one: one.time_ms or 0.0)[:count]]


def round_trips(space: TuningResults) -> dict[str, dict[str, Any]]:
    """Of each format: whether what is read again is what was written, in how many bytes and seconds."""
    whole: Mapping[str, tuple[Callable[[], str], Callable[[str], TuningResults]]] = {
        "kernel-tuner": (lambda: "".join(kernel_tuner.lines(space)), kernel_tuner.read),
        "t4": (lambda: "".join(t4.lines(space, {"compute_api": "CUDA"})), lambda text: t4.read(text, "", "")),
        "bundle": (
            lambda: "".join(bundle.lines(ResultsFile((space,)), "a benchmark")),
            lambda text: bundle.read(text).spaces[0],
        ),
        "csv": (lambda: "".join(table.csv_lines([space])), lambda text: table.read_csv(text)[0]),
    }
    some: Mapping[str, tuple[Callable[[], str], Callable[[str], TuningResults]]] = {
        "store-results": (lambda: "".join(store_results.lines([space])), lambda text: store_results.read(text)[0]),
        "wisdom": (lambda: "".join(wisdom.lines([space])), lambda text: wisdom.read(text)[0]),
    }
    told = {name: _trip(*one, lambda found: plainly(found) == plainly(space)) for name, one in whole.items()}
    return told | {
        name: _trip(*one, lambda found: best_of(found, 1 << 30) == best_of(space, len(found.results)))
        for name, one in some.items()
    }


def _trip(
    write: Callable[[], str], read: Callable[[str], TuningResults], same: Callable[[TuningResults], bool]
) -> dict[str, Any]:
    began = perf_counter()
    text = write()
    written = perf_counter()
    found = read(text)
    ended = perf_counter()
    told = {"lossless": same(found), "configs": len(found.results), "bytes": len(text.encode())}
    return told | {"write_seconds": round(written - began, 3), "read_seconds": round(ended - written, 3)}


def replayed(space: TuningResults) -> dict[str, Any]:
    """Kernel Tuner's own replay of the cache that is written here: how many times equal ours."""
    tuner: Any = import_module("kernel_tuner")
    names, known = space.parameters, {one.values: one for one in space.results}

    def allowed(values: dict[str, Any]) -> bool:  # a function: it reads the text of a lambda
        return tuple(values[name] for name in names) in known

    began = perf_counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "cache.json"
        path.write_text("".join(kernel_tuner.lines(space)))
        found, _ = tuner.tune_kernel(
            space.kernel,
            f"__global__ void {space.kernel}() {{}}",
            space.size,
            [],
            kernel_tuner.choices(space),
            cache=str(path),
            restrictions=allowed,
            simulation_mode=True,
            lang="CUDA",
            quiet=True,
            block_size_names=list(names)[:1],
        )
    equal = sum(_same(row, known[tuple(row[name] for name in names)]) for row in found)
    return {"configs": len(known), "replayed": len(found), "equal": equal, "seconds": round(perf_counter() - began, 1)}


def _same(row: Mapping[str, Any], one: ConfigResult) -> bool:
    times = row.get("time"), tuple(row.get("times") or ())
    return ("__error__" in row) == (one.failure is not None) and times == (one.time_ms, one.samples_ms)


def main() -> None:
    """Read, write, replay, and end with 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    told: dict[str, Any] = {}
    for path in options.files:
        space = space_of(path)
        told[path.name] = {
            "device": space.device,
            "configs": len(space.results),
            "failed": sum(one.failure is not None for one in space.results),
            "round_trips": round_trips(space),
            "kernel_tuner_replay": replayed(space),
        }
        print(json.dumps({path.name: told[path.name]}, indent=1), flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    trips = all(one["lossless"] for each in told.values() for one in each["round_trips"].values())
    equal = all(each["kernel_tuner_replay"]["equal"] == each["configs"] for each in told.values())
    raise SystemExit(0 if trips and equal else 1)


if __name__ == "__main__":
    main()
