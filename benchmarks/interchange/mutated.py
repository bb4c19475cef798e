"""Reads mutated files of results in every format, and says what was refused, how long it took, and what memory grew.

python -m benchmarks.interchange.mutated --count 10000 -o benchmarks/results/interchange/mutated.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from app.errors import InvalidFile
from app.interchange.formats import FORMATS, FileSubject, parse, write
from app.interchange.results import BestResult, ConfigResult, ResultsFile, TuningResults
from kernels.problem import Problem

_TOKENS: Final = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\\ud800"),
    *(b"NaN", b"Infinity", b"1e999", b"-1", b"0", b"null", b"true", b"9" * 400, b"[" * 2000, b'{"a":' * 500),
    *(b'"__error__":"InvalidConfig"', b'"kind":"end"', b'"tilewise":{}', b"1.7976931348623157e308", b"5e-324"),
)


def files() -> dict[str, bytes]:
    """A valid file of each format; of Parquet where pyarrow is installed, whose own reader is then what is tried."""
    problem = Problem(64, 48, 32)
    compiled = {"compile_time": 1.5, "compilation_data": {"registers": 40, "local_size": {"x": 32, "y": 8, "z": 1}}}
    results = tuple(
        ConfigResult((first, second), 0.25 + first / 64, (0.25, 0.25 + first / 32), extra=compiled)
        if (first + second) % 3
        else ConfigResult((first, second), failure="compile", reason="too many threads")
        for first in (8, 16, 32)
        for second in (4, 8, 16)
    )
    space = TuningResults(
        *("A device", "tiled", ("BM", "BN"), results, problem, (64, 48, 32), {"BM": (8, 16, 32), "BN": (4, 8, 16)}),
        digest="0f",
    )
    config = space.config(results[0])
    best = BestResult("A device", problem, "tiled", config, 0.25, "2026-11-23T00:00:00+00:00", (0.2, 0.3), 7)
    file = ResultsFile((space,), (best,))
    names = [name for name in FORMATS if name != "parquet" or find_spec("pyarrow") is not None]
    return {name: b"".join(write(name, file, "Tilewise 1", lambda *_: [])) for name in names}


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The file with one to four changes: cut, bytes flipped, tokens put in, pieces repeated or taken out."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        end = min(len(changed), at + draw.randint(1, 64))
        changes: tuple[Callable[[], object], ...] = (
            lambda at=at: changed.__delitem__(slice(at, None)),  # type: ignore[misc]
            lambda at=at, end=end: changed.__delitem__(slice(at, end)),  # type: ignore[misc]
            lambda at=at: changed.__setitem__(slice(at, at), draw.choice(_TOKENS)),  # type: ignore[misc]
            lambda at=at, end=end: changed.__setitem__(slice(at, end), draw.randbytes(end - at)),  # type: ignore[misc]
            lambda at=at, end=end: changed.__setitem__(  # type: ignore[misc]
                slice(at, at), changed[at:end] * draw.randint(1, 40)
            ),
        )
        draw.choice(changes)()
    return bytes(changed)


def cases(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Mutated files, of each format in turn."""
    draw, known = random.Random(seed), list(files().items())  # noqa: S311 - no secret
    for number in range(count):
        name, data = known[number % len(known)]
        yield name, mutated(data, draw)


def outcome(name: str, data: bytes) -> str:
    """Read, or refused; whatever else is raised is a fault."""
    try:
        parse(name, data, FileSubject())
    except InvalidFile as refusal:
        return "refused" if {"line", "column"} <= refusal.facts.keys() else "refused without a place"
    return "read"


def run(count: int, seed: int) -> Mapping[str, Any]:
    """Read all of them."""
    found: Counter[str] = Counter()
    longest, warm = 0.0, 0
    for number, (name, data) in enumerate(cases(count, seed)):
        started = perf_counter()
        found[f"{name}: {outcome(name, data)}"] += 1
        longest = max(longest, perf_counter() - started)
        if number == count // 10:
            warm = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - warm
    told: dict[str, Any] = {
        "count": count,
        "seed": seed,
        "longest_seconds": round(longest, 4),
        "grown_kib_after_a_tenth": grown,
    }
    told |= {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}  # others' work slows the longest
    return told | {"outcomes": dict(sorted(found.items()))}


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    text = json.dumps(run(options.count, options.seed), indent=1) + "\n"
    print(text, end="")
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text)


if __name__ == "__main__":
    main()
