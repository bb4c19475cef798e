"""Frames of the Shape page among 20,000 trials, scrolling and brushing: python -m benchmarks.web.frames."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import create_engine, insert, select

from app.store.tables import TrialRow
from benchmarks.web.browser import SHAPE, chromium, keep, percentile, repeated, service, tuned

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from sqlalchemy import Table

BAR_MS: Final = 100
TRIALS: Final = 20_000
_VALUES: Final = {
    "BM": (16, 32, 64, 128, 256),
    "BN": (16, 32, 64, 128, 256),
    "BK": (8, 16, 32),
    "TM": (4, 8),
    "TN": (4, 8),
    "WN": (16, 32, 64),
    "STAGES": (1, 2, 3),
    "GROUP_M": (1, 2, 4, 8),
    "SPLIT_K": (1, 2, 4),
}
_TIMES: Final = ("median_ms", "ci95_lo_ms", "ci95_hi_ms")
_RECORD: Final = """() => {
  window.frames_ = []; window.recording_ = true;
  let last = performance.now();
  const next = now => { frames_.push(now - last); last = now; if (recording_) requestAnimationFrame(next); };
  requestAnimationFrame(now => { last = now; requestAnimationFrame(next); });
}"""
_ENDED: Final = "() => { recording_ = false; return frames_; }"
_SCROLL: Final = """() => new Promise(done => {
  const view = document.querySelector(".rows");
  let left = 180;
  const step = () => { view.scrollTop += view.scrollHeight / 181; left -= 1;
    left ? requestAnimationFrame(step) : done(); };
  view.scrollTop = 0; step();
})"""


def fill(database: Path) -> None:
    """Copies of one measured trial, with configs and times of their own, until there are 20,000."""
    table = cast("Table", TrialRow.__table__)
    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        row = connection.execute(select(table).where(table.c.state == "measured", table.c.round == "search")).first()
        if row is None:
            raise RuntimeError("no trial was measured")
        kept = {name: value for name, value in row._mapping.items() if name != "id"}  # noqa: SLF001 - its documented name
        configs = itertools.islice(itertools.product(*_VALUES.values()), TRIALS)
        made = [
            kept
            | {"kernel": "register_tiled", "config": dict(zip(_VALUES, values, strict=True)), "config_key": str(values)}
            | dict.fromkeys(_TIMES, 1 + (number * 7919 % 1000) / 500 + values[0] / 100)
            for number, values in enumerate(configs)
        ]
        connection.execute(insert(table), made)
    engine.dispose()


def box(page: Page, selector: str) -> tuple[float, float, float, float]:
    """Where an element is, once it has been scrolled into view."""
    element = page.locator(selector).first
    element.scroll_into_view_if_needed()
    found = element.bounding_box()
    if found is None:
        raise RuntimeError(f"{selector} is not on the page")
    return found["x"], found["y"], found["width"], found["height"]


def scroll(page: Page) -> None:
    """From the first trial to the last in three seconds."""
    page.locator(".rows").scroll_into_view_if_needed()
    page.evaluate(_SCROLL)


def brush(page: Page) -> None:
    """Along the first axis of the parameters, down and longer: the trials below follow."""
    x, y, _, height = box(page, "#parallel .chart")
    page.mouse.move(x + 30, y + 40)
    page.mouse.down()
    for step in range(40):
        page.mouse.move(x + 30, y + 40 + (height - 70) * step / 40)
    page.mouse.up()
    page.mouse.click(x + 30, y + 36)


def sweep(page: Page) -> None:
    """Over the landscape's cells, and its choice of parameters twice."""
    x, y, width, height = box(page, "#landscape .chart")
    for step in range(60):
        page.mouse.move(x + 60 + (width - 90) * step / 60, y + 30 + (height - 80) * (step % 20) / 20)


WAYS: Final[dict[str, Callable[[Page], None]]] = {"scrolling": scroll, "brushing": brush, "landscape": sweep}


def measured(repeats: int) -> dict[str, Any]:
    """The 99th percentile of the frames of each way, of every repeat."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        with service(data) as running:
            tuned(running.url)
        fill(data / "tilewise.db")
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        with service(data) as running, chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 844})
            page.set_default_timeout(120_000)
            page.goto(f"{running.url}/ui/shapes/{SHAPE}/float32")
            page.locator("#take li").first.wait_for()
            shown = page.locator("#trials [role=status]").inner_text()
            for _ in range(repeats):
                for name, way in WAYS.items():
                    page.wait_for_timeout(500)
                    page.evaluate(_RECORD)
                    way(page)
                    found[name].append(percentile(page.evaluate(_ENDED), 99))
    ways = {name: repeated(each) for name, each in found.items()}
    return {"bar_p99_frame_ms": BAR_MS, "repeats": repeats, "shown": shown, "p99_frame_ms": ways}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=5)
    keep("frames", measured(arguments.parse_args().repeats))
