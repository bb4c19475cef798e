"""The page at the widths of a phone to a wall, light and dark: nothing cut off, and no finding of axe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from app.cli.spawn import Started
from tests.browser.conftest import watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
WIDTHS = [390, 768, 1280, 1920]


@pytest.fixture(scope="module")
def tuned(service: Started) -> Started:
    """The service, with a best to show, of the longest config there is for its shape."""
    body = {"shapes": ["64x64x64"], "budget": {"trials": 4}}
    job = httpx.post(f"{service.url}/tune", json=body).json()["id"]
    with httpx.stream("GET", f"{service.url}/jobs/{job}/events", timeout=60) as events:
        assert "event: end" in events.read().decode()
    return service


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_is_in_view_and_axe_finds_nothing(
    chromium: Browser, tuned: Started, width: int, theme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for one in watching(
        chromium, tuned.url, viewport={"width": width, "height": 844}, color_scheme=theme, bypass_csp=True
    ):
        page = one.page
        page.goto(tuned.url)
        page.locator("#bests td", has_text="64x64x64").wait_for()
        page.locator("#kernels td").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for cell in page.locator("#bests tr").first.locator("td").all():
            box = cell.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width, cell.inner_text()
        inside = page.evaluate(
            "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('#bests').closest('.scroll'))"
        )
        assert inside, "the bests' table is wider than its frame"
        told = axe.run(page).response
        assert len(told["passes"]) > 20
        found = told["violations"]
        assert [
            (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in {"serious", "critical"}
        ] == []
