"""What the page of a shape has of models: the forest's bars, and occupancy over what a block takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from app.api.routes.analysis import AnalysisQuery
from app.api.routes.charts.occupancy import curves_of
from app.tuning.replay import load
from tests.browser.conftest import watching
from tests.browser.test_charts import series
from tests.browser.test_looks import found_at, script_of_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
PAGE: Final = "ui/shapes/256x256x256/float32"
_H200: Final = Path(__file__).parent.parent / "data" / "register_tiled-h200-512x512x512.replay.gz"


def test_the_bars_of_the_forest_are_the_services(chromium: Browser, replayed: str) -> None:
    told = httpx.get(f"{replayed}/importance", params=dict.fromkeys("mnk", "256"), timeout=60).raise_for_status().json()
    parts = {one["name"]: one for one in told["parameters"]}
    for one in watching(chromium, replayed):
        one.page.goto(f"{replayed}/{PAGE}")
        expect(one.page.locator("#matters [role=status]")).to_contain_text("a forest of trees, which explains")
        drawn = dict(series(one.page, replayed, "#matters .chart"))
        order = sorted(parts, key=lambda name: parts[name]["alone"])
        assert drawn["alone"] == [pytest.approx(100 * parts[name]["alone"], abs=0.051) for name in order]
        assert drawn["lost by shuffling"] == [pytest.approx(100 * parts[name]["shuffled"], abs=0.051) for name in order]
        one.page.locator("#matters summary").press("Enter")
        expect(one.page.locator("#matters tbody td").first).to_have_text(order[-1])


def of_h200(route: Route) -> None:
    """As a service on a recorded H200 answers."""
    asked = AnalysisQuery(m=256, n=256, k=256, config="BM=16,BN=16,BK=16", registers=40)
    route.fulfill(json=curves_of(asked, load(_H200)[0].device).model_dump())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_occupancy_is_drawn_over_threads_registers_and_shared_memory(
    chromium: Browser, replayed: str, theme: str
) -> None:
    asked = AnalysisQuery(m=256, n=256, k=256, config="BM=16,BN=16,BK=16", registers=40)
    told = curves_of(asked, load(_H200)[0].device)
    assert told.occupancy is not None
    for one in watching(chromium, replayed, bypass_csp=True, color_scheme=theme, reduced_motion="reduce"):
        one.page.route("**/occupancy?*", of_h200)
        one.page.goto(f"{replayed}/{PAGE}")
        one.page.locator("#occupancy .chart canvas").nth(2).wait_for(timeout=20_000)
        expect(one.page.locator("#occupancy > p")).to_contain_text(f"{told.occupancy.blocks_per_sm} blocks, limited by")
        for place, curve in enumerate(told.curves):
            unit = 1024 if curve.resource == "shared_bytes" else 1
            points = [
                [each.value / unit, pytest.approx(100 * each.occupancy.fraction, rel=1e-3)] for each in curve.points
            ]
            (_, drawn), (_, own) = series(one.page, replayed, f"#occupancy .curves > div:nth-child({place + 1}) .chart")
            assert drawn == points
            assert own == [point for point in points if point[0] == (curve.own or 0) / unit]
        one.page.locator("#occupancy summary").first.press("Enter")
        expect(one.page.locator("#occupancy tbody tr").filter(has_text="(this config)").first).to_be_visible()
        one.page.evaluate(script_of_axe())
        for width in (390, 1280):
            assert found_at(one.page, width, "#occupancy .chart, #matters .chart") == []


def test_a_device_without_multiprocessors_has_a_sentence(chromium: Browser, replayed: str) -> None:
    for one in watching(chromium, replayed):
        one.page.goto(f"{replayed}/{PAGE}")
        expect(one.page.locator("#occupancy > p")).to_contain_text("gives no figures of a multiprocessor")
        assert one.page.locator("#occupancy .chart").count() == 0
