"""The page Learn: every figure that the articles work out by hand, and the ladder of lessons on this device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from app.cli.commands.learn import why
from kernels.lessons.traffic import accesses
from kernels.problem import Problem
from kernels.space import Config
from tests.browser.conftest import Watched
from tilewise import Client

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

# The sums of block (0,0) of the article's 8 x 8 product after each step, the second's as they are; the article prints
# 1400, 1760, 2120, 2480 / 1760, 2220, 2680, 3140 / 2120, 2680, 3240, 3800 / 2480, 3140, 3800, 4460 for it.
FIRST = [[30, 70, 110, 150], [70, 174, 278, 382], [110, 278, 446, 614], [150, 382, 614, 846]]
SECOND = [[1404, 1740, 2076, 2412], [1740, 2204, 2668, 3132], [2076, 2668, 3260, 3852], [2412, 3132, 3852, 4572]]


def shown(page: Page, selector: str, text: str) -> None:
    page.locator(selector).filter(has_text=re.compile(text)).first.wait_for()


def reads(page: Page, values: list[str]) -> None:
    """The four counters have come to rest at these values."""
    for place, value in enumerate(values):
        shown(page, f"#reads .figure:nth-child({place + 1}) b", f"^{value}$")


def tile_of_c(page: Page) -> list[list[int]]:
    texts = page.locator('[data-matrix="C"] > g').all_text_contents()
    return [[int(texts[8 * row + column]) for column in range(4)] for row in range(4)]


def test_the_trace_has_the_articles_numbers_and_tells_its_slip(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/learn")
    shown(page, "#trace-said", r"Step 1: .* 0 \+ 1·1 \+ 2·2 \+ 3·3 \+ 4·4 = 30\.")
    assert tile_of_c(page) == FIRST
    assert page.locator('[data-matrix="Bs"] > g').all_text_contents()[:4] == ["1", "5", "9", "13"]
    reads(page, ["128", "32", "1,024", "256"])
    page.click("#step")
    shown(page, "#trace-said", r"30 \+ 17·17 \+ 18·18 \+ 19·19 \+ 20·20 = 1404\.")
    shown(page, "#slip", "prints 1400 here: it adds 1370 where the products are 1374")
    assert tile_of_c(page) == SECOND
    reads(page, ["256", "64", "1,024", "256"])
    page.locator('[aria-label^="The matrices"]').press("ArrowRight")
    shown(page, "#slip", "prints 1760 here: it adds 1690 where the products are 1670")
    page.locator('[data-matrix="C"] > g').nth(8 * 7 + 7).click()
    shown(page, "#trace-said", r"C\[7\]\[7\]")
    page.wait_for_function("() => !document.querySelector('#slip').textContent")
    # Of 2 x 2 each element is read once in place of twice; of 4 x 4 the naive way reads 4 * 4 * 4 * 2 elements.
    for size, tile, all_blocks in (("2", "2", ["16", "8"]), ("3", "4", ["54", "18"]), ("4", "2", ["128", "64"])):
        page.locator("#trace select").nth(0).select_option(size)
        page.locator("#trace select").nth(1).select_option(tile)
        for place, value in enumerate(all_blocks):
            shown(page, f"#reads .figure:nth-child({place + 3}) b", f"^{value}$")
    page.locator("#trace select").nth(2).select_option("counted")
    shown(page, "#trace-said", r"0 \+ 1·1 \+ 2·5 = 11\.")


# m, k, n and tile of the articles' exercises, and what they find for naive and tiled, or for tiled alone.
EXERCISES = {
    "55 48 43 16": {"read from memory": "64,704 B", "written": "9,460 B", "of them at edges": "6"},
    "142 110 146 32": {"operations of C's threads": "4,561,040", "of all launched threads": "6,553,600"},
    "1000 800 1200 16": {"blocks": "4,725 = 75 × 63", "in the last tile": "8, 16, 16"},  # noqa: RUF001 - the page's sign
    "1030 1030 1030 16": {"in the last tile": "6, 6, 6"},
    "1024 1024 1024 16": {
        "blocks": "4,096 = 64 × 64",  # noqa: RUF001 - the page's sign
        "threads a block": "256",
        "operations a byte read": "4.00",
        "operations of a step": "8,192",
        "elements that it loads": "512",
        "operations an element": "16",
        "operations of C's threads": "2,147,483,648",
    },
    "1024 1024 1024 32": {"shared memory": "8,192 B"},
    "1024 1024 1024 64": {"shared memory": "32,768 B"},
    "1024 1024 1024 128": {"shared memory": "131,072 B"},
}


def test_the_calculator_finds_what_the_articles_find(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/learn")
    for sizes, wanted in EXERCISES.items():
        for name, value in zip(("m", "k", "n", "tile"), sizes.split(), strict=True):
            page.fill(f'#calculator [name="{name}"]', value)
        with page.expect_response(lambda answer: "kernel=tiled" in answer.url):
            page.click('#calculator button[type="submit"]')
        for name, value in wanted.items():
            row = page.locator("#calculated tr").filter(has_text=re.compile(f"^{name}"))
            row.locator("td").nth(2).filter(has_text=re.compile(f"^{re.escape(value)}($|,)")).wait_for()
    naive = page.locator("#calculated tr").filter(has_text="operations a byte read").locator("td").nth(1)
    assert naive.inner_text() == "0.250"
    page.get_by_role("button", name="1000 × 800 × 1200").click()  # noqa: RUF001 - the page's sign
    for name, value in {"bx": "74", "by": "62", "tx": "8", "ty": "12"}.items():
        page.fill(f'#thread [name="{name}"]', value)
    shown(page, "#thread-place", r"= 1004, .* = 1192\. It has no element of C: row 1004 ≥ 1000")


def test_the_challenge_counts_turns_as_the_lessons_do_and_is_solved(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/learn")
    counted = page.evaluate(
        """async (module) => {
          const { turns } = await import(module);
          return [8, 16, 32].map(tile => Array.from({ length: 9 }, (_, pad) => turns(tile, pad)));
        }""",
        f"{watched.url}/static/learn/banks.js",
    )
    problem = Problem(512, 512, 512)
    known = [
        [
            next(
                one.taken for one in accesses(4, Config.of({"TILE": tile, "PAD": pad}), problem) if "to As" in one.what
            )
            for pad in range(9)
        ]
        for tile in (8, 16, 32)
    ]
    assert counted == known
    for tile, pad, said in (
        ("32", "0", "Not yet: the store takes 32 turns"),
        ("32", "1", "^Solved"),
        ("16", "1", "Not yet: the store takes 2 turns"),
        ("16", "2", "^Solved"),
        ("8", "4", "^Solved"),
        ("8", "12", "less padding would do"),
    ):
        page.select_option("#banks select", tile)
        page.fill("#banks-form [name=pad]", pad)
        page.click("#banks-form button")
        shown(page, "#verdict", said)


def test_a_rung_is_read_changed_and_run(watched: Watched) -> None:
    page = watched.page
    with Client(watched.url) as client:
        ladder = client.lessons("64x64x64")
    page.goto(f"{watched.url}/ui/learn/3?m=64&n=64&k=64")
    shown(page, "#idea", re.escape(ladder.lessons[2].idea))
    shown(page, "#rung .good", r"^\+ .*__shared__ float As")
    shown(page, "#advice", re.escape(ladder.advice))
    assert page.locator("#rungs tbody tr").count() == 14
    page.locator("#try select").select_option("8")
    with page.expect_request(lambda request: request.method == "POST") as sent:
        page.click("#try button")
    order = sent.value.post_data_json
    assert order is not None
    assert (order["kernels"], order["strategy"]) == (["lesson03_tiled"], "exhaustive")
    shown(page, "#measuring", "^Measured by job")
    measured = page.locator("#tried tr").filter(has_text="measured").locator("td")
    page.wait_for_function(
        "() => /s$/.test(document.querySelector('#tried tr:nth-child(2) td:nth-child(2)').textContent)"
    )
    with Client(watched.url) as client:
        told = client.lessons("64x64x64", change={"TILE": 8}).lessons[2]
    assert told.run is not None
    for place, run in enumerate((told.run, told.changed)):
        if run is not None and run.measured_ms is not None:
            assert float(measured.nth(place + 1).inner_text().split()[0]) > 0
    page.click("text=14 tensor cores from shared memory")
    shown(page, "#rung", "It does not run here")
    assert page.url.endswith("/ui/learn/14?m=64&n=64&k=64")
    page.reload()
    shown(page, "#rung h2", "^14")


def test_the_page_says_why_a_rung_gains_as_the_command_does(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/learn")
    said = page.evaluate(
        """async (root) => {
          const { why } = await import(`${root}/static/learn/rungs.js`);
          const { lessons } = await (await fetch(`${root}/lessons`)).json();
          return lessons.filter(one => one.run).map((one, place, all) => why(one.run, all[place - 1]?.run));
        }""",
        watched.url,
    )
    with Client(watched.url) as client:
        runs = [step.run for step in client.lessons("512x512x512").lessons if step.run is not None]
    assert said == [why(run, runs[place - 1] if place else None) for place, run in enumerate(runs)]
    assert len({*said}) > 4
