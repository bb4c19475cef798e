"""Each page's weight and first paint on loopback, with nothing cached: python -m benchmarks.web.loads."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.web.browser import SHAPE, chromium, keep, repeated, service, tuned

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BARS: Final = {"first_paint_ms": 300, "weight_kb": 700}
# Each page's address, and what shows that it is whole.
PAGES: Final = {
    "overview": ("", "#gains td"),
    "shapes": ("ui/shapes", "#bests td"),
    "shape": (f"ui/shapes/{SHAPE}/float32", "#take li"),
    "jobs": ("ui/jobs", "#jobs td"),
    "job": ("ui/jobs/JOB", "#result td"),
    "kernels": ("ui/kernels", "#kernels td"),
    "kernel": ("ui/kernels/tiled", "#source code"),
    "devices": ("ui/devices", "#devices dd"),
    "multiply": ("ui/multiply", "#try-form"),
    "workloads": ("ui/workloads", "#workloads td"),
    "learn": ("ui/learn", "#calculated td"),
    "recorded": ("ui/recorded?trial=100", "#trials [role=row]"),
}
_MEASURED: Final = """() => {
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const sum = member => all.reduce((total, one) => total + one[member], 0);
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return { paint: paint.startTime, sent: sum("transferSize"), decoded: sum("decodedBodySize"), requests: all.length };
}"""


def load(browser: Browser, address: str, whole: str) -> dict[str, float]:
    """One visit by a fresh session, until the page is whole and asks for nothing more."""
    with browser.new_context(viewport={"width": 1280, "height": 844}) as session:
        page = session.new_page()
        page.goto(address)
        page.locator(whole).first.wait_for()
        page.wait_for_timeout(700)  # a chart's library comes last
        found: dict[str, float] = page.evaluate(_MEASURED)
        return found


def measured(repeats: int) -> dict[str, Any]:
    """Every page, `repeats` times in turn."""
    visits: dict[str, list[dict[str, float]]] = {name: [] for name in PAGES}
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as running, chromium() as browser:
        job = tuned(running.url)
        for _ in range(repeats):
            for name, (path, whole) in PAGES.items():
                visits[name].append(load(browser, f"{running.url}/{path.replace('JOB', job)}", whole))
    pages = {
        name: {
            "first_paint_ms": repeated([one["paint"] for one in each]),
            "weight_kb": round(max(one["sent"] for one in each) / 1000, 1),
            "decoded_kb": round(max(one["decoded"] for one in each) / 1000, 1),
            "requests": max(one["requests"] for one in each),
        }
        for name, each in visits.items()
    }
    return {"bars": BARS, "repeats": repeats, "weight": "all bytes sent, headers too, nothing cached", "pages": pages}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=7)
    keep("loads", measured(arguments.parse_args().repeats))
