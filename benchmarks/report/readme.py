"""Write the tables and the picture of the README and of docs/ from the committed JSON in benchmarks/results.

python -m benchmarks.report.readme [--check]     with --check only say which pages differ
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.settings import Settings
from benchmarks.report import accuracy_table, drawn_table
from benchmarks.report.peer_summary import summary
from benchmarks.report.peer_table import legend, section
from benchmarks.report.rung_chart import chart

DERIVED = {
    "data_dir": "~/.local/share/tilewise",
    "database_url": "sqlite:///$TILEWISE_DATA_DIR/tilewise.db",
    "cache_dir": "$TILEWISE_DATA_DIR/cache",
}
ROOT = Path(__file__).resolve().parents[2]
LEGEND = "Milliseconds a launch; gain is naive over best tiled; error is relative L2 against float64."
RESULTS = ROOT / "benchmarks" / "results"


def tiles(name: str) -> str:
    """The seeds' kind of table, one row a shape: milliseconds, and what tiling gains."""
    report: dict[str, Any] = json.loads(next(RESULTS.rglob(f"{name}.json")).read_text())
    squares = sorted({key for row in report["shapes"].values() for key in row if key.startswith("tiled ")}, key=tile_of)
    head = ["shape", "naive", *(f"{tile_of(key)}x{tile_of(key)}" for key in squares), "best tiled", "its tile", "gain"]
    lines = [
        f"{report['device']} ({report['vendor']}; {report['environment']}), {report['measured_at'][:10]}. {LEGEND}",
        "",
        line([*head, "vendor", "error"]),
        line(["---", *["---:"] * (len(head) + 1)]),
    ]
    for shape, row in report["shapes"].items():
        best = min((each for name, each in row.items() if name.startswith("tiled")), key=lambda each: each["median_ms"])
        config = best["config"]
        cells = [shape, ms(row["naive"]), *(ms(row.get(key)) for key in squares), f"**{ms(best)}**"]
        cells += ["x".join(str(config[name]) for name in ("BM", "BN", "BK"))]
        cells += [f"{row['naive']['median_ms'] / best['median_ms']:.2f}x", ms(row.get("vendor"))]
        lines.append(line([*cells, f"{best['relative_l2']:.1e}"]))
    return "\n".join(lines)


def tile_of(name: str) -> int:
    """The square tile in a contestant's name."""
    return int(name.split()[1])


def ms(row: dict[str, Any] | None) -> str:
    """Milliseconds to three significant digits, or a dash."""
    return "-" if row is None else f"{row['median_ms']:.3g}" if row["median_ms"] < 1000 else f"{row['median_ms']:.0f}"


def line(cells: list[str]) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def serving() -> str:
    """What serving costs, from the other benchmarks."""
    answers, overhead = load("answers"), load("overhead")
    storm, kill = load("load"), load("kill")
    rows = {
        "`GET /best-config` against an empty FastAPI route (64 connections)": (
            f"{answers['rate_ratio']:.2f} of its requests a second, {answers['p99_ratio']:.2f} of its p99"
        ),
        "a tune job's time spent compiling, verifying and measuring": (
            f"{overhead['inside_share']:.1%}; {overhead['outside_ms_a_trial']:.1f} ms a trial outside"
        ),
        "a product's p99, idle and beside a tune": (
            f"{overhead['idle_p99_ms']:.1f} ms and {overhead['tuning_p99_ms']:.1f} ms"
        ),
        f"{storm['clients']} clients mixing all paths for {storm['seconds']:.0f} s": (
            f"{sum(storm['answers'].values())} answers, {storm['failures']} failures"
        ),
        f"kill -9, {kill['kills']} times": (
            f"{kill['trials_seen']} trials seen, {kill['trials_lost_or_changed']} lost,"
            f" {kill['attempted_again_after_saved']} repeated; {kill['jobs_not_succeeded']} of {kill['jobs']} jobs"
            " unfinished"
        ),
        **faults(),
    }
    head = [line(["what", "measured (2 cores and no GPU, or as it says)"]), line(["---", "---"])]
    return "\n".join([*head, *(line([what, figure]) for what, figure in (rows | wire()).items())])


def faults() -> dict[str, str]:
    """What killed and stopped processes cost: rows of the same table."""
    kills, stops = load("kill-any"), load("stops")
    killed, jobs = kills["killed"], kills["products_as_jobs"]
    return {
        f"kill -9 of the service ({killed['server']}), of workers for products ({killed['products']}) and for trials"
        f" ({killed['trials']}), beside products and tunes": (
            f"{len(kills['lost'])} of what was acknowledged lost, {len(kills['wrong'])} wrong; of"
            f" {sum(jobs.values())} products taken as jobs {jobs['failed']} ended as failed, which each says"
        ),
        f"SIGSTOP of the worker for products, {stops['stops']} times": (
            f"a product again after {stops['median_s']:.1f} s, at most {stops['worst_s']:.1f}; readiness said so"
            f" {stops['readiness_said_503']} times"
        ),
        **{
            f"mixed load for {soak['minutes']:.0f} minutes, {where}": (
                f"{sum(soak['answers'].values())} answers, {len(soak['wrong'])} wrong;"
                f" descriptors and threads {'flat' if is_flat(soak) else 'rising'};"
                f" memory of the service {grown(soak, 'service')}, of its workers {grown(soak, 'children')}"
            )
            for soak, where in ((load("soak"), "2 cores"), (load("soak-h200"), "on an H200's host"))
        },
    }


def is_flat(soak: dict[str, Any]) -> bool:
    """Whether the intervals of the slopes of descriptors and threads reach down to nothing."""
    return all(soak["an_hour"][name]["low"] <= 0 for name in ("descriptors", "threads"))


def grown(soak: dict[str, Any], who: str) -> str:
    """How memory grew after the warm-up, with its interval."""
    slope = {name: value / 1e6 for name, value in soak["an_hour"][who].items()}
    return f"{slope['slope']:.1f} MB an hour ({slope['low']:.1f} to {slope['high']:.1f})"


def wire() -> dict[str, str]:
    """How matrices travel: rows of the same table."""
    path, client, crowd = load("wire"), load("client"), load("overload-null")
    busy, sizes, far = load("overload"), load("big")["products"], load("whole-h200")
    made = [each for each in sizes if each["status"] == 200]

    def worst(figure: str) -> float:
        return max(float(crowd[figure]), float(busy[figure]))

    wrong = sum(each["wrong"] for each in made)
    ingest, emit, latency, ours = path["ingest"], path["emit"], path["latency"], client["ways"]["ours"]
    return {
        f"receiving {path['mib']} MiB over TCP, against a bare `recv_into` loop": (
            f"{ingest['ratio']:.2f} of its speed, {ingest['cpu_s_per_gb']:.2f} CPU-seconds a GB,"
            f" {max(ingest['memory_share'], 0):.1%} of the body in memory beside the slab"
        ),
        f"sending {path['mib']} MiB, against a bare `sendall`": f"{emit['ratio']:.2f} of its speed",
        "a 1 x 1 product, against an empty FastAPI POST route (500 a second, open loop; the second best of three)": (
            f"median {latency['median_ratio']:.1f} times, p99 {latency['p99_ratio']:.1f} times"
        ),
        f"our client's product of two matrices of {client['mib_a_matrix']:.0f} MiB, no device, beside `tritonclient`": (
            f"{ours['of_tritonclient']:.2f} of its time ({ours['median_ms']:.0f} ms)"
        ),
        f"ten times more products than can be made, {crowd['seconds']:.0f} s; medians of several rounds, once warm": (
            f"{min(1, crowd['goodput_of_peak']):.0%} of the peak's products made"
            f" ({busy['goodput_of_peak']:.0%} where they take the same two cores),"
            f" refusals in {worst('refusal_p50_ms'):.1f} ms"
            f" (p99 {worst('refusal_p99_ms'):.0f}, most {worst('refusal_max_ms'):.0f}),"
            f" memory {'flat' if worst('memory_growth_bytes') < 2**23 else 'grows'}"
        ),
        f"products of {' and '.join(each['name'] for each in made)} of operands, on the processor": (
            f"{f'{wrong} elements wrong' if wrong else 'every element right'},"
            f" {' and '.join(format(each['seconds'], '.0f') for each in made)} s"
        ),
        f"a product of {far['size']}^3 {far['dtype']} over loopback, on an H200's host": (
            f"{far['product_ms']:.0f} ms, where a bare socket takes {far['bare_ms']:.0f} ms for the bytes"
            f" (the kernel {far['kernel_ms']:.1f} ms)"
        ),
        f"{path['aborts']['count']} uploads broken off at random points": (
            "nothing left behind" if not path["aborts"]["left"] else ", ".join(path["aborts"]["left"])
        ),
    }


def tuner() -> str:
    """How good the tuner's answers are, and what they cost."""
    wall = load("wall-h200")
    repeat, measurement = load("repeat-h200")["tunes"], load("measurement")["figures"]
    faults = [kind for name in ("faults-opencl", "faults-h200") for kind in load(name)["kinds"]]
    saved = [each["figure"] for each in measurement if each["what"] == "kernel time saved by racing"]
    regret = [each["figure"] for each in measurement if each["what"] == "regret of the choice, mean"]
    ratios = [row["ratio"] for row in repeat]
    found = [
        each for name in ("search", "search-h200") for each in load(name)["summary"] if each["contestant"] == "auto"
    ]
    medians = [f"{each['median_0.95']:.0f}" for each in found]
    rows = {
        "evaluations until 95 % of a recorded space's best, medians of 11 seeds (CLBlast's Xgemm, 17,956 configs, on an"
        " RTX 2080 Ti and 3090; register_tiled, 6,566, 6,509 and 4,305, on an H200)": (
            f"{', '.join(medians)}; the most {max(each['most_0.95'] for each in found):.0f}"
        ),
        "time until 95 % of the best of register_tiled's 6,566 configs (512x512x512, one H200, nothing compiled), each"
        " rival, which lists the space first, beside a run of ours": "; ".join(map(timed, wall)),
        f"two independent tunes of {len(repeat)} shapes on one H200, 6 or 20 s each, winners side by side": (
            f"within 1 % of each other in {sum(each <= 1.01 for each in ratios)}, the furthest {max(ratios) - 1:.1%}"
        ),
        "kernel time that racing saves of 32 runs a config, on two recorded spaces in a search's order and in any": (
            f"{min(saved):.1%} to {max(saved):.1%}"
        ),
        "regret of the choice on recorded noise, mean": f"{max(regret):.2%} at most",
        "faults injected (hangs, wild writes, wrong results, kills, ...) on the CPU and one H200": (
            f"{sum(kind['isolated'] for kind in faults)} of {sum(kind['times'] for kind in faults)} cost one trial"
        ),
    }
    head = [line(["what", "measured"]), line(["---", "---"])]
    return "\n".join([*head, *(line([what, figure]) for what, figure in rows.items())])


def timed(row: dict[str, Any]) -> str:
    """One side of a run against the clock: when it had found a good config, or that it had not."""
    found = row["seconds_to_95"]
    when = f"{found:.1f} s" if found is not None else f"not in {row['seconds']:.0f} s"
    return f"{row['who']} {when}, {row['evaluations']} evaluations"


PEERS = ("peers-h200", "peers-tensor-h200")


def peers() -> str:
    """README's table of ratios."""
    return summary([load(name) for name in PEERS])


def drawn() -> str:
    """The tables of drawn shapes, a seed after the other."""
    return drawn_table.sections(drawn_reports())


def drawn_reports(devices: str = "*") -> list[dict[str, Any]]:
    """The reports of drawn shapes on some devices, in the order of their measurement."""
    found = sorted(RESULTS.rglob(f"drawn-{devices}-*.json"))
    return sorted((load(path.stem) for path in found), key=lambda one: min(x["measured_at"] for x in one["shapes"]))


def accuracy() -> str:
    """The table on how exact emulated products are."""
    return accuracy_table.section(load("accuracy-h200"))


def load(name: str) -> Any:
    """One benchmark's committed result."""
    return json.loads(next(RESULTS.rglob(f"{name}.json")).read_text())


def settings() -> str:
    """Every setting with its default and meaning."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = DERIVED.get(name, "" if field.default is None else str(field.default))
        rows.append(line([f"`TILEWISE_{name.upper()}`", f"`{default}`" if default else "", field.description or ""]))
    return "\n".join([line(["variable", "default", "meaning"]), line(["---"] * 3), *rows])


TABLES: dict[str, Callable[[], str]] = {
    "summary": peers,
    "tiles-h200": lambda: tiles("tiles-h200"),
    "tiles-cpu": lambda: tiles("tiles-cpu"),
    "peers-legend": lambda: legend(load("peers-h200")),
    "peers-h200": lambda: section(load("peers-h200")),
    "peers-tensor-h200": lambda: section(load("peers-tensor-h200")),
    "drawn": drawn,
    "accuracy-h200": accuracy,
    "tuner": tuner,
    "serving": serving,
    "settings": settings,
}
CHART = ROOT / "docs" / "images" / "rungs.svg"
_BLOCK = re.compile(r"(<!-- generated: ([\w./-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may have generated blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def generated(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """A page with each generated block as its table says; blocks of other names stay."""

    def block(found: re.Match[str]) -> str:
        start, name, end = found.groups()
        return f"{start}{tables[name]()}\n{end}" if name in tables else found.group()

    return _BLOCK.sub(block, text)


def blocks(text: str) -> list[str]:
    """The names of a page's generated blocks."""
    return [found[2] for found in _BLOCK.finditer(text)]


def written() -> Iterator[tuple[Path, str]]:
    """Every page and the picture, as they have to be."""
    for path in pages():
        yield path, generated(path.read_text(encoding="utf-8"), TABLES)
    yield CHART, chart([load(name) for name in PEERS], drawn_reports("h200"))


def fill(files: Iterator[tuple[Path, str]], *, check: bool) -> None:
    """Write what differs, or name it and end with 1."""
    differing = [(path, text) for path, text in files if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check:
        raise SystemExit("\n".join(str(path.relative_to(ROOT)) for path, _ in differing) or 0)
    for path, text in differing:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    fill(written(), check=parser.parse_args().check)


if __name__ == "__main__":
    main()
