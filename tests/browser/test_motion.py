"""Who asks for reduced motion gets charts, styles and the trace at rest; who does not sees them move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.cli.spawn import Started
from tests.browser.conftest import watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
# What the options of so many charts say of animation: as soon as all say what is wanted, or as they are in the end.
_ANIMATED = """async ([module, count, wanted]) => {
  const { getInstanceByDom } = await import(module);
  const said = () => [...document.querySelectorAll(".chart")].map(getInstanceByDom)
    .map(chart => chart?.getOption()).filter(option => option?.series?.length)
    .map(option => [option.animation, ...option.series.map(one => one.animation ?? option.animation)]);
  const holds = () => said().length >= count && said().flat().every(one => one === wanted);
  for (let left = 600; left && !holds(); left -= 1) await new Promise(done => requestAnimationFrame(done));
  return [said().length >= count, ...said().flat()];
}"""
# What the sheet gives an element that was to move: the page's own has no transition now, and may have one tomorrow.
_DURATIONS = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("@keyframes turn { to { rotate: 1turn } }"
    + "*, ::before, ::after { transition: all 2s; animation: turn 2s }");
  document.adoptedStyleSheets.push(sheet);
  const found = [...document.querySelectorAll("*")].flatMap(one => [null, "::before", "::after"].flatMap(part => {
    const style = getComputedStyle(one, part);
    return [style.transitionDuration, style.animationName === "none" ? "0s" : style.animationDuration];
  }));
  document.adoptedStyleSheets.pop();
  return [...new Set(found)];
}"""
_MOVING = "() => document.getAnimations().length"


def all_say(page: Page, url: str, *, wanted: bool) -> bool:
    """Whether six charts are drawn, or come to be, whose options all say of animation what is wanted."""
    enough, *said = page.evaluate(_ANIMATED, [f"{url}/static/vendor/echarts.js", 6, wanted])
    return enough and set(said) == {wanted}


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_charts_styles_and_the_trace_rest_where_motion_is_reduced(
    chromium: Browser, tuned: Started, motion: str
) -> None:
    moves = motion != "reduce"
    for one in watching(chromium, tuned.url, reduced_motion=motion):
        page = one.page
        page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
        page.locator("#take li").first.wait_for()
        assert all_say(page, tuned.url, wanted=moves)
        assert page.evaluate(_DURATIONS) == (["2s"] if moves else ["0s"])
        page.goto(f"{tuned.url}/ui/learn")
        page.locator("#step").click()
        assert (page.evaluate(_MOVING) > 0) == moves


def test_charts_come_to_rest_when_motion_is_reduced_while_they_are_shown(chromium: Browser, tuned: Started) -> None:
    for one in watching(chromium, tuned.url, reduced_motion="no-preference"):
        one.page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
        one.page.locator("#take li").first.wait_for()
        assert all_say(one.page, tuned.url, wanted=True)
        one.page.emulate_media(reduced_motion="reduce")
        assert all_say(one.page, tuned.url, wanted=False)
