"""Count contradictions: winners that are slower than a figure of our own beside them, in JSON and in the printed table.

Each round is what a demo does: a fresh service, a few shapes tuned together, the bests asked for, the table printed.
Shapes and their order are drawn from the seed, which is printed and kept.

    python -m benchmarks.tuner.contradictions [--demos 50] [--seconds 3] [--shapes 3] [--seed N]
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from app.cli.commands.demo import ON_CPU
from app.cli.figures import comparison
from app.cli.render import plain
from app.cli.spawn import started
from tilewise import Best, BudgetTooSmall, Client, Job, NotTuned, Shape

RESULT: Final = Path("benchmarks/results/tuner/contradictions.json")
OURS: Final = ("naive", "tiled", "default")
WIDE: Final = 200  # columns: nothing is folded


def drawn(generator: random.Random, count: int) -> list[Shape]:
    """A demo's shapes: one of its own at least, the others of sizes up to 512."""
    others = [Shape(*(generator.randint(1, 512) for _ in range(3))) for _ in range(max(0, count - 1))]
    return generator.sample([generator.choice(ON_CPU), *others], max(1, count))


def ready(client: Client) -> None:
    """Wait until products can be served; raises TimeoutError after 90 s."""
    until = time.monotonic() + 90
    while not client.ready():
        if time.monotonic() > until:
            raise TimeoutError("the service did not become ready within 90 s")
        time.sleep(0.1)


def in_json(best: dict[str, Any]) -> list[str]:
    """The names of our own figures beside a best that are faster than it."""
    own = best["timing"]["median_ms"]
    entries = ((name, (best["baselines"].get(name) or {}).get("timing")) for name in OURS)
    return [name for name, timing in entries if timing and timing["median_ms"] < own]


def in_result(winner: dict[str, Any]) -> list[str]:
    """The same of a job's result."""
    return [name for name in OURS if winner[name] and winner[name]["median_ms"] < winner["median_ms"]]


def in_table(best: Best) -> list[str]:
    """The same of the table that is printed, read back from its text."""
    out = io.StringIO()
    Console(file=out, width=WIDE, highlight=False).print(comparison([best]))
    rows = list(printed(out.getvalue()))
    (own,) = [ms for name, ms in rows if name.endswith("*")]
    return [name for name, ms in rows if ms < own and name != "vendor" and not name.endswith("*")]


def printed(table: str) -> Iterator[tuple[str, float]]:
    """The kernel and the time of each row that has one."""
    for line in table.splitlines():
        found = re.search(r"(\w+(?: \*)?)\s+(?:[A-Z_]+=\S*)?\s+~?([\d.]+(?:e[+-]?\d+)?)(?: ±\S+)?\s+[\d.]+\s", line)
        if found:
            yield found[1], float(found[2])


def figures(best: dict[str, Any]) -> dict[str, Any]:
    """What a best says of times: medians in milliseconds, and the reason where there is none."""
    told = {
        name: each["timing"]["median_ms"] if each["timing"] else each["reason"]
        for name, each in best["baselines"].items()
        if each
    }
    return {"kernel": best["kernel"], "best": best["timing"]["median_ms"], **told}


def demo(shapes: Sequence[Shape], seconds: float) -> list[dict[str, Any]]:
    """One demo's rows: each shape's figures, and what contradicts itself in them."""
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as service, Client(service.url) as client:
        ready(client)
        job = client.wait(submitted(client, shapes, seconds).id)
        winners = {
            json.dumps(winner["problem"]): winner for winner in (job.result or {}).get("best", []) if "kernel" in winner
        }
        return [row(client, shape, winners) for shape in shapes]


def submitted(client: Client, shapes: Sequence[Shape], seconds: float) -> Job:
    """The job that tunes them, of more seconds where the service says that it needs them, as a demo's."""
    try:
        return client.tune(shapes, seconds=seconds)
    except BudgetTooSmall as refusal:
        return client.tune(shapes, seconds=int(refusal.body["needed_seconds"]))


def row(client: Client, shape: Shape, winners: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A shape's figures and contradictions; none where its budget was too small for a winner."""
    try:
        best = client.best_config(**asdict(shape), match="exact")
    except NotTuned:
        return {"kernel": None, "shape": str(shape), "json": [], "table": []}
    told, sizes = plain(best), asdict(shape)
    found = next(each for name, each in winners.items() if sizes.items() <= json.loads(name).items())
    return figures(told) | {
        "shape": str(shape),
        "json": in_json(told),
        "table": in_table(best),
        "result": in_result(found),
    }


def main() -> None:
    """Print a line for each demo as it comes and the count at last; write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demos", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3.0, help="of tuning each demo's shapes")
    parser.add_argument("--shapes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    generator = random.Random(arguments.seed)  # noqa: S311  no secret
    demos = []
    for number in range(arguments.demos):
        rows = demo(drawn(generator, arguments.shapes), arguments.seconds)
        demos.append(rows)
        found = sum(1 for row in rows if row["json"] or row["table"] or row.get("result"))
        missing = sum(1 for row in rows for name in (*OURS, "vendor") if isinstance(row.get(name), str))
        shapes = " ".join(row["shape"] for row in rows)
        print(f"demo {number + 1}: {shapes}: {found} contradictions, {missing} figures not afforded", flush=True)
    count = sum(1 for rows in demos for row in rows if row["json"] or row["table"] or row.get("result"))
    total = sum(map(len, demos))
    without = sum(1 for rows in demos for row in rows if row["kernel"] is None)
    print(f"contradictions: {count} of {total} rows in {len(demos)} demos (bar: 0); {without} shapes without a winner")
    RESULT.write_text(
        json.dumps(
            {"seed": arguments.seed, "contradictions": count, "rows": total, "without": without, "demos": demos},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
