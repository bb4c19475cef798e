"""Devices held against each other: the service's bests of two, in colours and against the diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.browser.conftest import watching
from tests.browser.test_charts import series
from tests.browser.test_looks import found_at, script_of_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser


def twofold(route: Route) -> None:
    """As a service with a second device would answer, which takes three times as long."""
    answer = route.fetch()
    told: dict[str, Any] = answer.json()
    if "devices" in told:
        told["devices"] += [{**one, "id": "opencl:1"} for one in told["devices"]]
    else:
        timing = [{**one["timing"], "median_ms": 3 * one["timing"]["median_ms"]} for one in told["bests"]]
        slower = zip(told["bests"], timing, strict=True)
        told["bests"] += [{**one, "device": "opencl:1", "timing": each} for one, each in slower]
    route.fulfill(response=answer, json=told)


def test_two_devices_are_compared_in_colours_and_against_the_diagonal(chromium: Browser, replayed: str) -> None:
    bests = httpx.get(f"{replayed}/bests").json()["bests"]
    times = sorted(one["timing"]["median_ms"] for one in bests)
    for one in watching(chromium, replayed, bypass_csp=True, reduced_motion="reduce"):
        one.page.route(f"{replayed}/devices", twofold)
        one.page.route("**/bests?*", twofold)
        one.page.goto(f"{replayed}/ui/devices")
        one.page.locator("#compared .chart canvas").wait_for()
        drawn = dict(series(one.page, replayed, "#compared .chart"))
        assert sorted(drawn["problems"]) == [[each, pytest.approx(3 * each)] for each in times]
        rows = one.page.locator("#compared tbody tr")
        expect(rows).to_have_count(len(bests))
        expect(rows.first.locator("td").nth(1)).to_contain_text("1.00\N{MULTIPLICATION SIGN}")
        expect(rows.first.locator("td").nth(2)).to_contain_text("3.00\N{MULTIPLICATION SIGN}")
        colours = rows.first.locator(".heat").evaluate_all(
            "all => all.map(one => getComputedStyle(one).backgroundColor)"
        )
        assert len(set(colours)) == 2
        one.page.evaluate(script_of_axe())
        for width in (390, 1280):
            assert found_at(one.page, width, "#compared td") == []
