"""One of several devices chosen in the frame: its figures alone, in the address and on the way to other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.conftest import watching
from tests.browser.test_charts import series
from tests.browser.test_devices import twofold
from tests.browser.test_looks import found_at, script_of_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_chosen_device_is_shown_alone_and_goes_along(chromium: Browser, replayed: str, theme: str) -> None:
    bests = httpx.get(f"{replayed}/bests").json()["bests"]
    rates = sorted(float(f"{one['gflops']:.4g}") for one in bests)
    for one in watching(chromium, replayed, bypass_csp=True, color_scheme=theme, reduced_motion="reduce"):
        page = one.page
        page.route(f"{replayed}/devices", twofold)
        for pattern in ("**/bests?*", "**/bests"):
            page.route(pattern, twofold)
        page.goto(f"{replayed}/")
        choice = page.get_by_role("combobox", name="Device", exact=True)
        expect(choice.locator("option")).to_have_text(["all devices", "opencl:0", "opencl:1"])
        expect(page.locator("#roofline-opencl-0, #roofline-opencl-1")).to_have_count(2)
        choice.focus()
        page.keyboard.press("End")
        expect(page.locator("[id^=roofline]")).to_have_count(1)
        expect(page.locator("h1 small")).to_contain_text("opencl:1")
        assert page.url.endswith("?device=opencl%3A1")
        drawn = dict(series(page, replayed, "#roofline-opencl-1 .chart"))
        assert sorted(float(f"{value[1]:.4g}") for value in drawn["tuned"]) == rates
        page.evaluate(script_of_axe())
        for width in (390, 1280):
            assert found_at(page, width, "#device, #gains tbody tr:first-child td") == []
        page.reload()
        expect(choice).to_have_value("opencl:1")
        page.locator('nav [data-page="shapes"]').click()
        expect(page.locator("#bests tbody tr")).to_have_count(len(bests))
        assert page.url.endswith("/ui/shapes?device=opencl%3A1")
        choice.select_option("all devices")
        expect(page.locator("#bests tbody tr")).to_have_count(2 * len(bests))
        assert page.url.endswith("/ui/shapes")


def test_one_device_is_no_choice(chromium: Browser, replayed: str) -> None:
    for one in watching(chromium, replayed):
        with one.page.expect_response(f"{replayed}/devices"):
            one.page.goto(f"{replayed}/")
        one.page.locator("#gains td").first.wait_for()
        expect(one.page.locator("#device")).to_be_hidden()
