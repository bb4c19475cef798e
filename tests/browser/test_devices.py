"""Devices held against each other: the service's bests of two, in colours and against the diagonal."""

from __future__ import annotations

import re
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


def test_gauges_are_the_service_s_and_an_absent_one_says_why(chromium: Browser, replayed: str) -> None:
    gone = {"value": None, "reason": "NVIDIA's management library does not tell it of this GPU"}
    told = {
        "device": "opencl:0",
        "busy": {"value": 0.43, "reason": None},
        "sm_mhz": {"value": 1980.0, "reason": None},
        "memory_mhz": gone,
        "watts": {"value": 512.4, "reason": None},
        "celsius": {"value": 61.0, "reason": None},
        "memory_used_bytes": {"value": 2.0**33, "reason": None},
        "memory_bytes": 2**34,
        "waiting": 3,
        "throttled": ["power cap"],
    }
    shared = {"waiting": 5, "queue": 512, "slab_lent_bytes": 2**20, "slab_bytes": 2**30}
    for one in watching(chromium, replayed, bypass_csp=True, reduced_motion="reduce"):
        one.page.goto(f"{replayed}/ui/devices")
        figures = one.page.locator(".gauges dd")
        expect(figures.first).to_contain_text(re.compile("^([0-9.]+ %|not known: )"))
        expect(figures.nth(4)).to_have_text("not known: it is read of GPUs alone")
        one.page.route("**/devices/gauges", lambda route: route.fulfill(json={"devices": [told], **shared}))
        expect(figures).to_have_text(
            [
                "43 %",
                "1.98 GHz",
                f"not known: {gone['reason']}",
                "8.00 GiB of 16.0 GiB",
                "512 W",
                "61 \N{DEGREE SIGN}C",
                "power cap",
                "3 for it; 5 of 512 products in all",
                "1.00 MiB of 1.00 GiB",
            ]
        )
        meters = one.page.locator(".gauges meter").evaluate_all("all => all.map(one => one.value)")
        assert meters == pytest.approx([0.43, 0.5, 5 / 512, 1 / 1024])
        one.page.evaluate(script_of_axe())
        for width in (390, 1280):
            assert found_at(one.page, width, ".gauges dd") == []
