"""A job's page: more time for one that runs, and the sensors of a device that has some."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from app.cli.spawn import Started
from tests.browser.conftest import Watched, watching
from tests.browser.test_charts import series
from tests.browser.test_looks import found_at

if TYPE_CHECKING:
    from playwright.sync_api import Browser, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
FIRST = f"{1:032x}"  # the job of the first recording


def test_a_tune_that_runs_is_extended_from_its_page(service: Started, watched: Watched) -> None:
    order = {"shapes": ["640x640x640"], "budget": {"seconds": 60, "trials": 512}, "kernels": ["tiled"], "retune": True}
    job = httpx.post(f"{service.url}/tune", json=order).json()["id"]
    page = watched.page
    page.goto(f"{watched.url}/ui/jobs/{job}")
    expect(page.locator("#figures")).to_contain_text("of 60 s", timeout=60_000)
    page.get_by_role("button", name="Extend +20 s").press("Enter")
    expect(page.locator("#figures")).to_contain_text("of 80 s")
    page.get_by_role("button", name="Stop").press("Enter")
    expect(page.locator("#said")).to_have_text("The job was stopped.", timeout=60_000)
    expect(page.get_by_role("button", name="Extend +20 s")).to_be_hidden()


def sensed(number: int) -> dict[str, object]:
    """What a GPU's sensors say at a trial: it lowers its clocks at each tenth."""
    slowed = number % 10 == 0
    clock = 1200.0 if slowed else 1900.0 + number
    throttled = ["sw_power_cap"] if slowed else []
    return {"sm_mhz": clock, "memory_mhz": 2600.0, "watts": 500.0 + number, "celsius": 55.0, "throttled": throttled}


def test_clocks_and_power_are_drawn_where_a_device_has_sensors(chromium: Browser, replayed: str) -> None:
    text = httpx.get(f"{replayed}/jobs/{FIRST}/events", timeout=60).text
    numbers = iter(range(1, 1000))

    def with_sensors(found: re.Match[str]) -> str:
        number = next(numbers)
        also = {"conditions": sensed(number), "retaken": int(number % 25 == 0)}
        return f"event: trial\ndata: {json.dumps(json.loads(found.group(1)) | also)}\n"

    told = re.sub(r"event: trial\ndata: (.*)\n", with_sensors, text)
    count = next(numbers) - 1
    assert count > 100
    for one in watching(chromium, replayed, bypass_csp=True, reduced_motion="reduce"):
        one.page.goto(f"{replayed}/ui/jobs/{FIRST}")
        one.page.locator("#trials [role=row]").first.wait_for()
        expect(one.page.locator("#sensors")).to_be_hidden()
        one.page.route(
            f"**/jobs/{FIRST}/events", lambda route: route.fulfill(body=told, content_type="text/event-stream")
        )
        one.page.reload()
        one.page.locator("#sensors .chart canvas").wait_for()
        drawn = dict(series(one.page, replayed, "#sensors .chart"))
        clocks = [[number, sensed(number)["sm_mhz"]] for number in range(1, count + 1)]
        assert drawn["clock"] == clocks
        assert drawn["power"] == [[number, sensed(number)["watts"]] for number in range(1, count + 1)]
        assert drawn["throttled"] == [[number, 1200.0] for number in range(10, count + 1, 10)]
        assert drawn["taken again"] == [[number, sensed(number)["sm_mhz"]] for number in range(25, count + 1, 25)]
        one.page.locator("#sensors summary").press("Enter")
        expect(one.page.locator("#sensors tbody tr").last).to_contain_text("55 °C")
        for width in (390, 1280):
            assert found_at(one.page, width, "#sensors td", axe=False) == []


def test_the_search_is_drawn_over_seconds_and_the_fastest_with_their_intervals(
    chromium: Browser, replayed: str
) -> None:
    text = httpx.get(f"{replayed}/jobs/{FIRST}/events", timeout=60).text
    trials = [json.loads(line) for line in re.findall(r"event: trial\ndata: (.*)\n", text)]
    began = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for place, trial in enumerate(trials):
        trial["created_at"] = (began + timedelta(seconds=place / 4)).isoformat()
    each_trial = iter(trials)
    told = re.sub(r"event: trial\ndata: .*\n", lambda _: f"event: trial\ndata: {json.dumps(next(each_trial))}\n", text)
    search = [
        (place / 4, one) for place, one in enumerate(trials) if (one["round"], one["kernel"]) == ("search", "tiled")
    ]
    fastest: dict[str, dict[str, Any]] = {}
    for one in trials:
        if one["median_ms"] and not (fastest.get(one["kernel"]) or one)["median_ms"] < one["median_ms"]:
            fastest[one["kernel"]] = one
    for one in watching(chromium, replayed, reduced_motion="reduce"):
        page = one.page
        page.route(f"**/jobs/{FIRST}/events", lambda route: route.fulfill(body=told, content_type="text/event-stream"))
        page.goto(f"{replayed}/ui/jobs/{FIRST}")
        expect(page.locator("#trials [role=status]")).to_have_text(f"{len(trials)} of {len(trials)} trials")
        page.get_by_label("over").select_option("seconds")
        assert page.url.endswith("?by=seconds")
        page.reload()
        expect(page.locator("#trials [role=status]")).to_have_text(f"{len(trials)} of {len(trials)} trials")
        expect(page.get_by_label("over")).to_have_value("seconds")
        page.wait_for_timeout(300)
        drawn = dict(series(page, replayed, "#search .chart"))
        wanted = [[seconds - search[0][0], each["median_ms"]] for seconds, each in search if each["median_ms"]]
        assert drawn["tiled"] == wanted
        bars = sorted(fastest.values(), key=lambda each: float(each["gflops"]))
        _, (_, ends) = series(page, replayed, "#race .chart")
        rates = [[each["gflops"] * each["median_ms"] / end for end in each["ci95_ms"]] for each in bars]
        assert [pair[1:] for pair in ends] == [pytest.approx(pair) for pair in rates]
