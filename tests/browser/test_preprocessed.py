"""A kernel's source as a config compiles, by its address and by the keyboard, beside what the service says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.browser.conftest import watching
from tests.browser.test_looks import found_at, script_of_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser


def told(url: str, **asked: str) -> list[list[Any]]:
    """What the service says of the only program."""
    query = {**dict.fromkeys("mnk", "1024"), **asked}
    answer = httpx.get(f"{url}/kernels/tiled/preprocessed", params=query).raise_for_status().json()
    (program,) = answer["programs"]
    return [[str(line["number"]), line["text"]] for line in program["lines"]]


def shown(page: Page) -> list[list[Any]]:
    """The same as the page has it."""
    found: list[list[Any]] = page.locator("#compiled-body .row").evaluate_all(
        """rows => rows.map(row => [row.firstChild.textContent,
          [...row.childNodes].slice(1).map(node => node.textContent).join("").slice(0, -1)])"""
    )
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_lines_that_stay_are_the_services(chromium: Browser, replayed: str, theme: str) -> None:
    for one in watching(chromium, replayed, bypass_csp=True, color_scheme=theme, reduced_motion="reduce"):
        page, said = one.page, one.page.locator("#compiled-said")
        page.goto(f"{replayed}/ui/kernels/tiled")
        page.locator("#compiled summary").press("Enter")
        expect(said).to_contain_text("for sm_90, float32 strict")
        assert shown(page) == told(replayed, arch="sm_90")
        page.locator("#compiled").get_by_role("textbox", name="config").fill("BM=8,BN=16,BK=4")
        page.keyboard.press("Enter")
        expect(said).to_contain_text("BM=8 BN=16 BK=4")
        page.locator("#compiled").get_by_role("combobox", name="type").select_option("float16 strict")
        expect(said).to_contain_text("float16 strict")
        page.reload()
        expect(said).to_have_text("tiled BM=8 BN=16 BK=4 for sm_90, float16 strict.")
        assert shown(page) == told(replayed, arch="sm_90", dtype="float16", config="BM=8,BN=16,BK=4")
        page.evaluate(script_of_axe())
        for width in (390, 1280):
            assert found_at(page, width, "#compiled :is(select, input, pre)") == []
        one.allowed.add(422)
        page.locator("#compiled").get_by_role("textbox", name="config").fill("BM=7")
        page.keyboard.press("Enter")
        expect(said).to_contain_text("no config")
        assert shown(page) == []
