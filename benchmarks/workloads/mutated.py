"""Reads mutated workload files of every source, and says what was refused, how long it took, and what memory grew.

    python -m benchmarks.workloads.mutated [--count 10000] [--seed 1]

Half of the files are plain, a quarter are changed before they are compressed and a quarter after. What a file is, is
seen from its beginning in every other case, and said in the rest: a changed file may be taken for another source's.
Writes benchmarks/results/workloads/mutated.json.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from app.errors import InvalidWorkload
from app.workloads.reader import read_workload
from benchmarks.interchange.mutated import mutated
from benchmarks.workloads import samples
from benchmarks.workloads.trace import events

RESULT: Final = Path("benchmarks/results/workloads/mutated.json")
BARS: Final = {"longest_seconds": 2.0}
_MODELS: Final = Path("tests/data/workloads")


def files() -> dict[str, bytes]:
    """A valid file of each source; of a model what a converter wrote, with its shapes."""
    trace = {"schemaVersion": 1, "traceEvents": list(events(0, 1))}
    texts = {
        "tunableop": samples.TUNABLEOP,
        "cublaslt": samples.CUBLASLT,
        "aiter": samples.AITER,
        "cutlass": samples.CUTLASS,
        "hipblaslt": samples.HIPBLASLT,
        "shapes": samples.SHAPES,
        "torch.profiler": json.dumps(trace),
    }
    model = gzip.decompress((_MODELS / "inferred.onnx.gz").read_bytes())
    return {**{name: text.encode() for name, text in texts.items()}, "onnx": model}


def cases(count: int, seed: int) -> Iterator[tuple[str, str | None, bytes]]:
    """The source of which each mutated file was, what is said of it, None: nothing, and the file."""
    draw, known = random.Random(seed), list(files().items())  # noqa: S311 - no secret
    for number in range(count):
        name, data = known[number % len(known)]
        turn = number // len(known)
        said = name if turn % 2 else None
        if turn % 4 < 2:
            yield name, said, mutated(data, draw)
        elif turn % 4 == 2:
            yield name, said, gzip.compress(mutated(data, draw), 1)
        else:
            yield name, said, mutated(gzip.compress(data, 1), draw)


def outcome(said: str | None, data: bytes) -> str:
    """Read, or refused; whatever else is raised is a fault."""
    try:
        read_workload(io.BytesIO(data), said)
    except InvalidWorkload:
        return "refused"
    return "read"


def run(count: int, seed: int) -> Mapping[str, Any]:
    """Read all of them."""
    found: Counter[str] = Counter()
    longest, warm = 0.0, 0
    for number, (name, said, data) in enumerate(cases(count, seed)):
        started = perf_counter()
        found[f"{name}: {outcome(said, data)}"] += 1
        longest = max(longest, perf_counter() - started)
        if number == count // 10:
            warm = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - warm
    told = {"count": count, "seed": seed, "longest_seconds": round(longest, 4), "grown_kib_after_a_tenth": grown}
    return told | {"bars": BARS, "outcomes": dict(sorted(found.items()))}


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    text = json.dumps(run(options.count, options.seed), indent=1) + "\n"
    print(text, end="")
    RESULT.write_text(text)


if __name__ == "__main__":
    main()
