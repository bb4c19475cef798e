"""What a person has chosen on a page is in its address: it survives a reload, and a link shows another the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Watched, watching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Locator, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
SHAPE = "ui/shapes/256x256x256/float32"


@pytest.fixture
def at_replayed(chromium: Browser, replayed: str) -> Iterator[Watched]:
    yield from watching(chromium, replayed)


def figures(one: Watched) -> Locator:
    return one.page.locator(".figure b")


def test_units_are_chosen_kept_and_linked(chromium: Browser, at_replayed: Watched) -> None:
    page = at_replayed.page
    page.goto(f"{at_replayed.url}/{SHAPE}?device=opencl:0")
    expect(figures(at_replayed).first).to_have_text("1.07 ms")
    page.get_by_role("combobox", name="Units").focus()
    page.keyboard.type("ms")
    expect(figures(at_replayed).nth(1)).to_have_text("0.0313 TFLOP/s")
    page.keyboard.press("ArrowUp")
    expect(figures(at_replayed).first).to_have_text("1072 µs")
    expect(figures(at_replayed).nth(1)).to_have_text("31.3 GFLOP/s")
    page.reload()
    expect(figures(at_replayed).first).to_have_text("1072 µs")
    link = page.url
    assert link == f"{at_replayed.url}/{SHAPE}?device=opencl%3A0&units=us"
    page.goto(f"{at_replayed.url}/ui/shapes")
    expect(page.locator("#bests tbody tr").filter(has_text="256x256x256").locator("td").nth(2)).to_have_text("1072 µs")
    for other in watching(chromium, at_replayed.url):
        other.page.goto(link)
        expect(figures(other).first).to_have_text("1072 µs")


def test_a_filter_and_an_order_of_trials_survive_a_reload(at_replayed: Watched) -> None:
    page = at_replayed.page
    page.goto(f"{at_replayed.url}/{SHAPE}")
    rows = page.locator("#trials [role=row]:visible")
    rows.first.wait_for()
    page.fill("#trials input[type=search]", "BK=16 round:search")
    expect(page.locator("#trials [role=status]")).to_have_text("25 of 129 trials")
    page.locator("#trials .rowhead button").filter(has_text="Config").press("Enter")
    page.locator("#trials .rowhead button").filter(has_text="Config").press("Enter")
    shown = rows.first.inner_text()
    page.reload()
    rows.first.wait_for()
    expect(page.locator("#trials [role=status]")).to_have_text("25 of 129 trials")
    assert rows.first.inner_text() == shown
    assert "BM=8 BN=8 BK=16" in shown


def test_a_filter_of_shapes_survives_a_reload(at_replayed: Watched) -> None:
    page = at_replayed.page
    page.goto(f"{at_replayed.url}/ui/shapes")
    expect(page.locator("#bests tbody tr")).to_have_count(2)
    page.get_by_role("searchbox", name="Filter").fill("200x300")
    expect(page.locator("#bests tbody tr")).to_have_count(1)
    page.reload()
    expect(page.locator("#bests tbody tr")).to_have_count(1)
    expect(page.get_by_role("searchbox", name="Filter")).to_have_value("200x300")


def test_the_kernel_that_another_is_held_against_survives_a_reload(at_replayed: Watched) -> None:
    page = at_replayed.page
    page.goto(f"{at_replayed.url}/ui/kernels/wmma#L3")
    page.locator("#changed summary").focus()
    page.keyboard.press("Enter")
    page.locator("#changed select").select_option("tiled")
    page.wait_for_url("**/ui/kernels/wmma?from=tiled#L3")
    page.reload()
    page.locator("#changed .good").first.wait_for()
    expect(page.locator("#changed select")).to_have_value("tiled")
    page.locator("#changed summary").press("Enter")
    page.wait_for_url("**/ui/kernels/wmma#L3")


def test_the_pace_of_the_trace_is_chosen_and_kept(at_replayed: Watched) -> None:
    page = at_replayed.page
    page.goto(f"{at_replayed.url}/ui/learn/3?tile=2")
    pace = page.locator("#trace").get_by_role("combobox", name="pace")
    pace.select_option("fast")
    page.locator("#trace").get_by_role("button", name="Play").press("Enter")
    expect(page.locator("#trace-said")).to_contain_text("Step 3:", timeout=4000)  # at the usual pace it takes 3.6 s
    page.locator("#trace").get_by_role("button", name="Pause").press("Enter")
    page.reload()
    expect(pace).to_have_value("fast")


def test_the_step_of_the_trace_survives_a_reload_and_another_rung(at_replayed: Watched) -> None:
    page = at_replayed.page
    page.goto(f"{at_replayed.url}/ui/learn/3")
    page.locator("#trace").get_by_role("combobox", name="tile").press("ArrowUp")
    expect(page.locator("#trace-said")).to_contain_text("Step 1: the thread of C[0][0]")
    page.locator("#next-tile").press("Enter")
    expect(page.locator("#trace-said")).to_contain_text("C[0][2]")
    page.locator("#step").press("Enter")
    page.locator("#step").press("Enter")
    page.locator("#rungs a").first.press("Enter")
    page.locator("#rung h2").filter(has_text="1. ").wait_for()
    page.reload()
    expect(page.locator("#trace-said")).to_contain_text("Step 3: the thread of C[0][2]")
    page.locator("#rung h2").filter(has_text="1. ").wait_for()
    expect(page.locator("#trace").get_by_role("combobox", name="tile")).to_have_value("2")
