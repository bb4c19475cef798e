"""Each page at the widths of a phone to a wall, light and dark: nothing cut off, and no finding of axe."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from app.cli.spawn import Started
from tests.browser.conftest import watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
WIDTHS = [390, 768, 1280, 1920]
# Each page, what shows that it is whole, and the cells that must be in view at every width.
PAGES = {
    "": ("#gains td", "#gains tbody tr:first-child td"),
    "ui/shapes": ("#bests td", "#bests tbody tr:first-child td"),
    "ui/shapes/64x48x32/float32": (
        "#take li",
        "#trials [role=row]:not([hidden]) > :is(:nth-child(1), :nth-child(4), :nth-child(5))",
    ),
    "ui/jobs": ("#jobs td", "#jobs tbody tr:first-child td"),
    "ui/jobs/JOB": ("#result td", "#result tbody tr:first-child td"),
    "ui/kernels": ("#kernels td", "#kernels tbody tr:first-child td"),
    "ui/kernels/tiled": ("#source code", "#parameters tbody tr:first-child td"),
    "ui/devices": ("#devices dd", "#devices dd"),
    "ui/multiply": ("#try-form", "#try-form textarea"),
    "ui/workloads": ("#workloads td", "#workloads tbody tr:first-child td"),
    "ui/learn": ("#calculated td", ":is(#calculated, #rungs, #tree, #tried) tbody td"),
}
_CUT_OFF = """([cells, width]) => [...document.querySelectorAll(cells)].filter(cell => {
  const box = cell.getBoundingClientRect();
  return box.width < 1 || box.left < 0 || box.right > width + 0.5;
}).map(cell => cell.textContent)"""
_TWICE = """() => [...document.querySelectorAll("[id]")].map(one => one.id)
  .filter((id, place, all) => all.indexOf(id) !== place).map(id => `two elements are #${id}`)"""
_AXE = """async () => (await axe.run(document, { resultTypes: ["violations"], preload: false })).violations
  .filter(one => ["serious", "critical"].includes(one.impact)).map(one => [one.id, one.nodes[0].html])"""


def script_of_axe() -> str:
    module = pytest.importorskip("axe_playwright_python.base")
    return str(module.AXE_SCRIPT)


def found_at(page: Page, width: int, cells: str, *, axe: bool = True) -> list[Any]:
    """What is wrong with the page at a width: that it is wider, cells out of view, an id twice, findings of axe."""
    page.set_viewport_size({"width": width, "height": 844})
    page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert page.locator(cells).count() > 0
    sideways = [f"{wide} wide"] if wide > width else []
    cut = page.evaluate(_CUT_OFF, [cells, width])
    return [*sideways, *cut, *page.evaluate(_TWICE), *(page.evaluate(_AXE) if axe else [])]


def expect_whole(chromium: Browser, url: str, path: str, shown: tuple[str, str], theme: str) -> None:
    """A page has nothing wrong with it at any width; `shown` is what tells that it is whole, and its cells."""
    whole, cells = shown
    options = {"color_scheme": theme, "reduced_motion": "reduce", "bypass_csp": True}
    for one in watching(chromium, url, viewport={"width": 1280, "height": 844}, **options):
        one.page.goto(f"{url}/{path}")
        one.page.locator(whole).first.wait_for()
        one.page.evaluate(script_of_axe())
        assert {width: found_at(one.page, width, cells) for width in WIDTHS} == {width: [] for width in WIDTHS}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_at_every_width(chromium: Browser, tuned: Started, path: str, theme: str) -> None:
    whole, cells = PAGES[path]
    job = httpx.get(f"{tuned.url}/jobs?kind=tune&state=succeeded").json()["jobs"][0]["id"]
    expect_whole(chromium, tuned.url, path.replace("JOB", job), (whole, cells), theme)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_shape_with_its_profile_is_whole_at_every_width(chromium: Browser, replayed: str, theme: str) -> None:
    shown = "#findings li", "#profile tbody td, #profile-now"
    expect_whole(chromium, replayed, "ui/shapes/256x256x256/float32", shown, theme)


@pytest.mark.skipif(find_spec("cupy") is None, reason="NVRTC is loaded by CuPy")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_source_beside_its_assembly_is_whole_at_every_width(chromium: Browser, replayed: str, theme: str) -> None:
    expect_whole(
        chromium, replayed, "ui/kernels/tiled?arch=sm_90", ("#ptx-body .row", "#ptx select, #ptx input"), theme
    )
