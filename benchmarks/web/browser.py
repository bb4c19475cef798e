"""What the measurements of the pages share: Chromium, a service with one tuned shape, and how results are kept."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

import httpx
from playwright.sync_api import sync_playwright

from benchmarks.harness import Running, serve, stop, wait_ready

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RESULTS: Final = Path(__file__).resolve().parent.parent / "results" / "web"
SHAPE: Final = "64x48x32"
_NOTE: Final = "Other work shares the machine: figures are medians over the repeats, whose spread is told beside them."


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@contextmanager
def service(data: Path) -> Iterator[Running]:
    """A service of its own, ready."""
    data.mkdir(parents=True, exist_ok=True)
    running = serve(data)
    try:
        wait_ready(running, 180)
        yield running
    finally:
        stop(running)


def tuned(url: str) -> str:
    """A job that tuned one small shape; its id."""
    order = {"shapes": [SHAPE], "budget": {"trials": 12}, "kernels": ["naive", "tiled"]}
    job = httpx.post(f"{url}/tune", json=order, headers={"Prefer": "wait=60"}, timeout=90).json()
    if job["state"] != "succeeded":
        raise RuntimeError(f"the job ended as {job['state']}: {job['error']}")
    return str(job["id"])


def percentile(values: Sequence[float], which: int) -> float:
    """The percentile of at least two values."""
    return quantiles(values, n=100, method="inclusive")[which - 1]


def repeated(values: Sequence[float]) -> dict[str, float]:
    """The median of repeats, and the least and the largest of them."""
    return {"median": round(median(values), 2), "least": round(min(values), 2), "largest": round(max(values), 2)}


def keep(name: str, found: dict[str, Any]) -> None:
    """Write a result with what it was measured on."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    machine = {"processor": processor, "cores": os.cpu_count(), "load": [round(one, 2) for one in os.getloadavg()]}
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"note": _NOTE, "machine": machine, **found}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
