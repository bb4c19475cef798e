"""The charts of a shape's parameters, by what they were told to draw, beside what the service says of its trials."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from tests.browser.conftest import Watched, watching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
PAGE: Final = "ui/shapes/256x256x256/float32"
SIZES: Final = {"m": "256", "n": "256", "k": "256"}
# The option of a chart once it draws what `told` says above it: [names, values on axes, data].
_OPTION = """async ([module, selector]) => {
  const { getInstanceByDom } = await import(module);
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const option = () => getInstanceByDom(document.querySelector(selector))?.getOption();
  while (!option()?.series?.length) await frame();
  const { xAxis, yAxis, parallelAxis, series } = option();
  return {
    axes: [...(xAxis ?? []), ...(yAxis ?? []), ...(parallelAxis ?? [])].map(({ name, data }) => [name, data ?? []]),
    data: series[0].data.map(each => each.value ?? each),
  };
}"""


@pytest.fixture
def at_replayed(chromium: Browser, replayed: str) -> Iterator[Watched]:
    yield from watching(chromium, replayed)


def opened(one: Watched, address: str = PAGE) -> Page:
    one.page.goto(f"{one.url}/{address}")
    one.page.locator("#take li").first.wait_for()
    return one.page


def drawn(one: Watched, selector: str) -> tuple[list[tuple[str, list[str]]], list[Any]]:
    """The axes, each with its name and values, and the data of a chart's first series."""
    found = one.page.evaluate(_OPTION, [f"{one.url}/static/vendor/echarts.js", selector])
    return [(name, values) for name, values in found["axes"]], found["data"]


def landscape(url: str, **asked: str) -> dict[str, Any]:
    """What GET /landscape says."""
    found: dict[str, Any] = httpx.get(f"{url}/landscape", params={**SIZES, **asked}).raise_for_status().json()
    return found


def cells(told: dict[str, Any]) -> dict[tuple[str, str], float | None]:
    """The time of each pair of values that was tried; None where each was rejected."""
    tried = [one for one in told["cells"] if one["state"] in {"measured", "rejected"}]
    return {(str(one["x"]), str(one["y"])): one["median_ms"] for one in tried}


def pictured(one: Watched) -> dict[tuple[str, str], float | None]:
    """The same as the chart has it."""
    ((_, xs), (_, ys)), data = drawn(one, "#landscape .chart")
    return {(xs[x], ys[y]): None if ms == "-" else ms for x, y, ms in data}


def measured(url: str) -> list[dict[str, Any]]:
    asked = {"shape": "256x256x256", "round": "search", "limit": "1000"}
    trials: list[dict[str, Any]] = httpx.get(f"{url}/trials", params=asked).raise_for_status().json()["trials"]
    return [one for one in trials if one["timing"]]


def test_the_landscape_draws_what_its_endpoint_gives(at_replayed: Watched) -> None:
    opened(at_replayed)
    (across, _), (down, _) = drawn(at_replayed, "#landscape .chart")[0]
    told = landscape(at_replayed.url)
    assert (across, down) == (told["x"], told["y"]) == ("BN", "BM")
    assert pictured(at_replayed) == cells(told)
    assert None in cells(told).values()


def choose(page: Page, name: str, typed: str) -> None:
    """Choose by the keyboard alone, which stays where it is."""
    picker = page.locator("#landscape").get_by_role("combobox", name=name, exact=True)
    picker.focus()
    page.keyboard.type(typed)
    expect(picker).to_have_value(typed)
    expect(picker).to_be_focused()


def test_the_landscapes_axes_are_chosen_by_the_keyboard_and_kept(at_replayed: Watched) -> None:
    page, asked = opened(at_replayed), {"x": "BK", "y": "BM", "aggregate": "median"}
    choose(page, "across", "BK")
    choose(page, "time", "median")
    median = cells(landscape(at_replayed.url, **asked))
    assert pictured(at_replayed) == median
    choose(page, "BN", "16")
    held = cells(landscape(at_replayed.url, **asked, held="BN=16"))
    assert pictured(at_replayed) == held
    assert held != median != cells(landscape(at_replayed.url, **{**asked, "aggregate": "best"}))
    page.reload()
    page.locator("#take li").first.wait_for()
    assert pictured(at_replayed) == held
    choose(page, "down", "BN")
    assert drawn(at_replayed, "#landscape .chart")[0][1][0] == "BN"
    page.locator("#landscape").get_by_role("combobox", name="across", exact=True).select_option(
        "BN"
    )  # they change places
    assert [name for name, _ in drawn(at_replayed, "#landscape .chart")[0]] == ["BN", "BK"]


def test_the_parameters_draw_a_line_for_each_trial(at_replayed: Watched) -> None:
    opened(at_replayed)
    axes, data = drawn(at_replayed, "#parallel .chart")
    trials = sorted(measured(at_replayed.url), key=lambda one: one["timing"]["median_ms"])
    names = list(trials[0]["config"])
    assert [name for name, _ in axes] == [*names, "time"]
    for name, values in axes[:-1]:
        assert values == [str(value) for value in sorted({one["config"][name] for one in trials})]
    lines = [[*(str(one["config"][name]) for name in names), one["timing"]["median_ms"]] for one in trials]
    assert sorted(data) == sorted(lines)
    assert [line[-1] for line in data] == [line[-1] for line in reversed(lines)]


def test_what_matters_is_the_share_of_the_variance(at_replayed: Watched) -> None:
    opened(at_replayed)
    axes, data = drawn(at_replayed, "#matters .chart")
    trials = measured(at_replayed.url)
    logs = [math.log(one["timing"]["median_ms"]) for one in trials]
    whole = sum((each - fmean(logs)) ** 2 for each in logs)
    for name, share in zip(axes[1][1], data, strict=True):
        groups = defaultdict(list)
        for one, each in zip(trials, logs, strict=True):
            groups[one["config"][name]].append(each)
        between = sum(len(group) * (fmean(group) - fmean(logs)) ** 2 for group in groups.values())
        assert share == pytest.approx(100 * between / whole, abs=0.051), name
    assert data == sorted(data)
    assert set(axes[1][1]) == {"BM", "BN", "BK"}


def in_figures(page: Page, card: str, text: str) -> None:
    """Press what a chart's figures have of a mark, by the keyboard alone."""
    page.locator(f"{card} summary").press("Enter")
    page.locator(f"{card} details button").filter(has_text=text).first.press("Enter")


def test_what_a_click_on_a_chart_opens_the_keyboard_opens_in_its_figures(at_replayed: Watched) -> None:
    page, fastest = opened(at_replayed), min(measured(at_replayed.url), key=lambda one: one["timing"]["median_ms"])
    in_figures(page, "#landscape", f"{fastest['timing']['median_ms']:.3g} ms")
    expect(page.locator("dialog[open] h2")).to_have_text(f"Trial {fastest['id']}")
    page.keyboard.press("Escape")
    in_figures(page, "#roofline", "200x300x160")
    page.wait_for_url("**/ui/shapes/200x300x160/float32**")
    page.locator("#take li").first.wait_for()
    in_figures(page, "#ladder", "naive")
    page.wait_for_url("**/ui/kernels/naive")
    page.locator("#source code").wait_for()
