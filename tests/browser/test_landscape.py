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

    from playwright.sync_api import Browser, Page, Route, expect
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
    """The trial of each config that was measured last: of its report, else its finals, else the search."""
    trials = httpx.get(f"{url}/trials", params={"shape": "256x256x256", "limit": "1000"}).raise_for_status().json()
    found: dict[str, dict[str, Any]] = {}
    for wanted in ("search", "final", "report"):
        tried = (one for one in trials["trials"] if one["round"] == wanted and one["kernel"] == "tiled")
        found |= {str(one["config"]): one for one in tried}
    return [one for one in found.values() if one["timing"]]


def test_the_landscape_draws_what_its_endpoint_gives(at_replayed: Watched) -> None:
    opened(at_replayed)
    (across, _), (down, _) = drawn(at_replayed, "#landscape .chart")[0]
    told = landscape(at_replayed.url)
    assert (across, down) == (told["x"], told["y"]) == ("BN", "BM")
    assert pictured(at_replayed) == cells(told)
    assert None in cells(told).values()


def test_a_config_s_time_is_of_its_report_as_the_endpoint_has_it(at_replayed: Watched) -> None:
    fastest = min(measured(at_replayed.url), key=lambda one: one["timing"]["median_ms"])

    def lucky(route: Route) -> None:
        """The search found the fastest config twice as fast as the report did."""
        answer = route.fetch()
        told = answer.json()
        for one in told["trials"]:
            if one["round"] == "search" and one["config"] == fastest["config"]:
                one["timing"]["median_ms"] /= 2
        route.fulfill(response=answer, json=told)

    at_replayed.page.route("**/trials?*", lucky)
    page = opened(at_replayed)
    assert pictured(at_replayed) == cells(landscape(at_replayed.url))
    expect(page.locator("#landscape")).to_contain_text(
        "of its best round: the report, else the finals, else the search"
    )


def test_cells_that_no_config_may_have_are_hatched_with_their_rule(at_replayed: Watched) -> None:
    left = {(str(one["config"]["BN"]), str(one["config"]["BM"])) for one in measured(at_replayed.url)}
    kept = {(x, y) for x, y in left if x in {"4", "8"}}

    def ruled(route: Route) -> None:
        answer = route.fetch()
        told = answer.json()
        told["cells"] = [{**one, "state": "illegal", "reason": "a rule of a test"} for one in told["cells"]]
        route.fulfill(response=answer, json=told)

    at_replayed.page.route("**/landscape?*", ruled)
    opened(at_replayed, f"{PAGE}?brush=BN:4..8")
    assert set(pictured(at_replayed)) == kept
    at_replayed.page.locator("#landscape .chart").evaluate("chart => chart.scrollIntoView()")
    # The cells come by a request of their own, after what was measured.
    option = at_replayed.page.wait_for_function(
        """async module => {
          const { getInstanceByDom } = await import(module);
          const { data } = getInstanceByDom(document.querySelector("#landscape .chart")).getOption().series[1];
          return data.length ? data : null; }""",
        arg=f"{at_replayed.url}/static/vendor/echarts.js",
    ).json_value()
    (_, xs), (_, ys) = drawn(at_replayed, "#landscape .chart")[0]
    assert {(xs[one["value"][0]], ys[one["value"][1]]) for one in option} == {(x, y) for x in xs for y in ys} - kept
    assert {one["cell"]["reason"] for one in option} == {"a rule of a test"}


def rows_shown(page: Page) -> str:
    return page.locator("#trials [role=status]").inner_text()


def areas(one: Watched) -> dict[str, list[list[float]]]:
    """What is drawn along the axes of the parameters, in places of values."""
    found: dict[str, list[list[float]]] = one.page.evaluate(
        """async module => {
          const { getInstanceByDom } = await import(module);
          const model = getInstanceByDom(document.querySelector("#parallel .chart")).getModel();
          const all = model.queryComponents({ mainType: "parallelAxis" });
          return Object.fromEntries(all.map(axis => [axis.get("name"), axis.activeIntervals])); }""",
        f"{one.url}/static/vendor/echarts.js",
    )
    return found


def test_parameters_are_brushed_by_the_keyboard_as_by_the_pointer(at_replayed: Watched) -> None:
    page = opened(at_replayed)
    page.locator("#parallel details").filter(has_text="Keep by values").locator("summary").press("Enter")
    least = page.get_by_role("combobox", name="BN from")
    least.focus()
    page.keyboard.type("16")
    expect(least).to_have_value("16")
    expect(least).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("32")
    expect(page.get_by_role("combobox", name="BN to")).to_have_value("32")
    expect(page.locator("#parallel [role=status]")).to_have_text("50 of 125 configs are kept.")
    kept = {(x, y): ms for (x, y), ms in cells(landscape(at_replayed.url)).items() if x in {"16", "32"}}
    assert pictured(at_replayed) == kept
    assert areas(at_replayed) == {"BM": [], "BN": [[1.7, 3.3]], "BK": [], "time": []}
    by_keyboard = rows_shown(page)
    assert page.url.endswith("brush=BN%3A16..32")
    page.reload()
    page.locator("#take li").first.wait_for()
    assert pictured(at_replayed) == kept
    assert areas(at_replayed)["BN"] == [[1.7, 3.3]]
    assert rows_shown(page) == by_keyboard != "129 of 129 trials"
    page.get_by_role("button", name="Keep all").press("Enter")
    assert areas(at_replayed)["BN"] == []
    assert rows_shown(page) == "129 of 129 trials"
    brushed_by_the_pointer(page, "BN")
    expect(page.get_by_role("combobox", name="BN from")).not_to_have_value("4")
    assert "brush=BN" in page.url
    assert rows_shown(page) != "129 of 129 trials"


def brushed_by_the_pointer(page: Page, name: str) -> None:
    """Draw along the upper half of an axis."""
    place = page.locator("#parallel .chart")
    place.evaluate("chart => chart.scrollIntoView({ block: 'center' })")
    box = place.bounding_box()
    assert box
    across = box["x"] + 30 + (box["width"] - 90) * ["BM", "BN", "BK", "time"].index(name) / 3
    page.mouse.move(across, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(across, box["y"] + box["height"] / 3, steps=5)
    page.mouse.move(across, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()


def test_the_fastest_are_kept_by_their_time(at_replayed: Watched) -> None:
    page = opened(at_replayed, f"{PAGE}?brush=time:0..2")
    fast = [one for one in measured(at_replayed.url) if one["timing"]["median_ms"] <= 2]
    expect(page.locator("#parallel [role=status]")).to_have_text(f"{len(fast)} of 125 configs are kept.")
    least = page.get_by_role("combobox", name="time to")
    least.focus()
    page.keyboard.press("Home")
    expect(page.locator("#parallel [role=status]")).to_have_text("1 of 125 configs are kept.")


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
