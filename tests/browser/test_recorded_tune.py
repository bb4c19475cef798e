"""The recorded tune, played in the page of a service that has no device: what is drawn is what the file says."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from app.web import STATIC
from tests.browser.conftest import watching
from tests.browser.test_charts import series
from tests.browser.test_looks import found_at, script_of_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
FILE: dict[str, Any] = json.loads((STATIC / "recorded/h200.json").read_text(encoding="utf-8"))
TIMES = [[kernel, round_name, told[0]] for kernel, round_name, _, *told in FILE["trials"] if len(told) == 1]


def landscape() -> dict[tuple[int, int], float]:
    """The best time of each BM and BN of register_tiled, of each config's best round."""
    rounds, found = ("search", "final", "report"), dict[tuple[int, ...], tuple[int, float]]()
    for kernel, round_name, values, *told in FILE["trials"]:
        if kernel == "register_tiled" and len(told) == 1:
            rank = rounds.index(round_name)
            if rank >= found.get(tuple(values), (0, 0.0))[0]:
                found[tuple(values)] = rank, told[0]
    cells: dict[tuple[int, int], float] = {}
    for (bm, bn, *_), (_, time) in found.items():
        cells[bm, bn] = min(time, cells.get((bm, bn), time))
    return cells


def test_the_recorded_tune_plays_to_its_end_without_a_device(chromium: Browser, deviceless: str) -> None:
    for one in watching(chromium, deviceless):
        one.allowed.add(503)  # the service is not ready, and says so
        page = one.page
        page.goto(deviceless)
        page.locator("#see a").press("Enter")
        expect(page.locator("#recorded")).to_contain_text("This is a recording.")
        expect(page.locator("#recorded")).to_contain_text(f"{FILE['device']['name']} (sm_90, ")
        expect(page.locator("h1")).to_contain_text(FILE["recorded_on"])
        expect(page.locator("#said")).to_contain_text(re.compile("^[1-9][0-9]* of [0-9]+ recorded trials$"))
        page.get_by_label("trials a second").select_option("60")
        expect(page.locator("#said")).to_have_text("The recording has ended.", timeout=60_000)
        expect(page.locator("#play")).to_have_text("Play")
        expect(page.get_by_label("over")).to_have_count(0)  # a recording has no seconds
        expect(page.locator("#result td").nth(1)).to_have_text("register_tiled")
        assert f"trial={len(FILE['trials'])}" in page.url
        work = 2 * FILE["problem"]["m"] * FILE["problem"]["n"] * FILE["problem"]["k"] / 1e6
        fastest = {kernel: min(time for name, _, time in TIMES if name == kernel) for kernel, *_ in TIMES}
        drawn = dict(series(page, deviceless, "#race .chart"))
        assert drawn["fastest"] == pytest.approx(sorted(work / time for time in fastest.values()))
        search = dict(series(page, deviceless, "#search .chart"))
        for kernel in set(fastest) - {"vendor"}:
            assert [value[1] for value in search[kernel]] == [
                t for name, one, t in TIMES if (name, one) == (kernel, "search")
            ]
        cells = dict(series(page, deviceless, "#landscape .chart"))["landscape"]
        assert sorted(value[2] for value in cells) == pytest.approx(sorted(landscape().values()))


def test_a_place_in_the_recording_is_a_link(chromium: Browser, deviceless: str) -> None:
    for one in watching(chromium, deviceless):
        one.allowed.add(503)
        page = one.page
        page.goto(f"{deviceless}/ui/recorded?trial=100")
        expect(page.locator("#said")).to_have_text(f"100 of {len(FILE['trials'])} recorded trials")
        expect(page.locator(".steps [aria-current]")).to_have_text("search")
        page.locator("#place").press("ArrowRight")
        expect(page.locator("#said")).to_contain_text("101 of")
        assert "trial=101" in page.url
        page.keyboard.press("Control+k")
        page.keyboard.type("recor")
        page.keyboard.press("Enter")
        expect(page.locator("#play")).to_have_text("Pause")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_recorded_tune_is_whole_at_every_width(chromium: Browser, deviceless: str, theme: str) -> None:
    for one in watching(chromium, deviceless, bypass_csp=True, color_scheme=theme, reduced_motion="reduce"):
        one.allowed.add(503)
        one.page.goto(f"{deviceless}/ui/recorded")
        expect(one.page.locator("#said")).to_have_text("The recording has ended.", timeout=60_000)
        one.page.locator("#landscape canvas").wait_for()
        one.page.evaluate(script_of_axe())
        for width in (390, 768, 1280, 1920):
            assert found_at(one.page, width, "#play, #place, #result tbody td") == []
