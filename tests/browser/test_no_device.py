"""The first page of a service that opened no device: why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.conftest import watching
from tests.browser.test_looks import found_at, script_of_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
_WHY = "cuda: the driver is not loaded"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_page_says_why_there_is_no_device_and_what_to_do(
    chromium: Browser, deviceless: str, theme: str
) -> None:
    assert httpx.get(f"{deviceless}/devices").json() == {"devices": [], "reasons": []}
    for one in watching(chromium, deviceless, bypass_csp=True, color_scheme=theme, reduced_motion="reduce"):
        one.allowed.add(503)  # the service is not ready, and says so
        page = one.page
        page.goto(f"{deviceless}/")
        expect(page.locator("#deviceless li")).to_have_text(["None was asked for: TILEWISE_DEVICES is none."])
        expect(page.locator("#deviceless pre")).to_have_text("tilewise doctor")
        expect(page.locator("#tune-form")).to_have_count(0)
        page.evaluate(script_of_axe())
        for width in (390, 1280):
            assert found_at(page, width, "#deviceless :is(pre, a, button)") == []
        page.route(f"{deviceless}/devices", lambda route: route.fulfill(json={"devices": [], "reasons": [_WHY]}))
        page.reload()
        expect(page.locator("#deviceless li")).to_have_text([_WHY])
        page.locator("#deviceless a").press("Enter")
        page.locator("#kernels td").first.wait_for()
