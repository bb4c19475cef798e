"""PTX and SASS beside a kernel's source: the lines that the compiler says, in the colours of the source's lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.conftest import Watched, watching
from tests.browser.test_looks import found_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser


@pytest.fixture
def at_replayed(chromium: Browser, replayed: str) -> Iterator[Watched]:
    yield from watching(chromium, replayed)


def test_ptx_and_sass_stand_beside_the_source_and_their_address_says_of_what(at_replayed: Watched) -> None:
    asked = {**dict.fromkeys("mnk", "1024"), "arch": "sm_80", "config": "BM=16,BN=16,BK=8"}
    told = httpx.get(f"{at_replayed.url}/kernels/tiled/assembly", params=asked, timeout=60)
    if not told.is_success:
        pytest.skip(f"no PTX is compiled here: {told.text}")
    (program,) = told.json()["programs"]
    page, said = at_replayed.page, at_replayed.page.locator("#ptx-said")
    page.goto(f"{at_replayed.url}/ui/kernels/tiled")
    page.locator("#ptx summary").press("Enter")
    expect(said).to_contain_text("for sm_90, 1024x1024x1024 float32 strict")
    page.locator("#ptx").get_by_role("combobox", name="architecture").select_option("sm_80")
    page.locator("#ptx").get_by_role("textbox", name="config").fill("BM=16,BN=16,BK=8")
    page.keyboard.press("Enter")
    expect(said).to_contain_text("for sm_80")
    page.reload()
    registers = program["registers"]
    words = f"tiled BM=16 BN=16 BK=8 for sm_80, 1024x1024x1024 float32 strict: matmul, {registers} registers a thread."
    expect(said).to_have_text(words)
    assert listed(page, "#ptx-body") == [(each["text"], each["source_line"]) for each in program["ptx"]]
    assert listed(page, "#sass-body") == [(each["text"], each["source_line"]) for each in program["sass"]]
    if program["sass"]:
        expect(page.locator("#sass-said")).to_be_empty()
    else:
        expect(page.locator("#sass-said")).to_have_text(f"There is no SASS: {program['reason']}.")
    source, ptx = page.locator("#source").bounding_box(), page.locator("#ptx").bounding_box()
    assert source
    assert ptx
    assert source["y"] == ptx["y"]
    assert found_at(page, 390, "#ptx :is(select, input, pre), #sass", axe=False) == []
    at_replayed.allowed.add(422)
    page.locator("#ptx").get_by_role("textbox", name="shape").fill("1024x16")
    page.keyboard.press("Enter")
    expect(page.locator("#ptx-body pre, #sass-body pre")).to_have_count(0)
    expect(said).not_to_contain_text("for sm_80")


def listed(page: Page, place: str) -> list[tuple[str, int | None]]:
    """The lines of a listing, each with the line of the source that it is said to be of."""
    rows = page.evaluate(
        """place => [...document.querySelectorAll(`${place} .row`)].map(row => [
          [...row.childNodes].slice(1).map(node => node.textContent).join("").trimEnd(), row.dataset.line ?? null])""",
        place,
    )
    return [(text, None if line is None else int(line)) for text, line in rows]


@pytest.mark.parametrize("kernel", ["tiled", "lesson03_tiled"])
def test_lines_of_source_and_assembly_have_one_colour_and_light_each_other(at_replayed: Watched, kernel: str) -> None:
    page = at_replayed.page
    page.goto(f"{at_replayed.url}/ui/kernels/{kernel}?arch=sm_90")
    page.locator("#ptx-said").filter(has_text="registers").or_(page.locator("#ptx-said.bad")).wait_for()
    stored = page.locator("#ptx-body .row").filter(has_text="st.global").last
    line = stored.get_attribute("data-line")
    assert line
    of_source = page.locator(f'#source .row[data-line="{line}"]')
    hue = next(name for name in (stored.get_attribute("class") or "").split() if name.startswith("hue"))
    expect(of_source).to_have_class(re.compile(hue))
    assert colour(stored) == colour(of_source) != colour(page.locator("#source .row").first)
    stored.hover()
    expect(of_source).to_have_class(re.compile("lit"))
    page.mouse.move(0, 0)  # on neither text, however they scroll
    expect(page.locator(".lit")).to_have_count(0)
    page.locator("#source pre").evaluate("source => { source.scrollTop = 0; }")
    page.locator(f'#ptx-body a[href="#L{line}"]').last.focus()
    expect(of_source).to_have_class(re.compile("lit"))
    expect(of_source).to_be_in_viewport()
    of_source.locator("a").focus()
    expect(stored).to_have_class(re.compile("lit"))
    expect(page.locator(f'#ptx-body .row[data-line="{line}"]').first).to_be_in_viewport()


def colour(row: Locator) -> str:
    found: str = row.evaluate("row => getComputedStyle(row).backgroundColor")
    return found
