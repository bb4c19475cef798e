"""A kernel's source folded by the pointer, by the keyboard and by its address; a link to a line opens what hides it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from tests.browser.conftest import watching
from tests.browser.test_looks import found_at, script_of_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
_SHOWN: Final = "#source .row:not([hidden])"


def shown(page: Page) -> list[int]:
    """The numbers of the lines in sight."""
    found: list[int] = page.locator(_SHOWN).evaluate_all("rows => rows.map(row => Number(row.dataset.line))")
    return found


def body(lines: list[str]) -> tuple[int, int]:
    """The numbers of the lines that open and close the first body at the left margin."""
    start = next(number for number, line in enumerate(lines, 1) if line.startswith("{"))
    return start, next(number for number, line in enumerate(lines, 1) if number > start and line.startswith("}"))


def test_a_body_folds_by_the_keyboard_and_its_address_keeps_it(chromium: Browser, replayed: str) -> None:
    lines = httpx.get(f"{replayed}/kernels/tiled/source").text.split("\n")
    start, end = body(lines)
    every, within = list(range(1, len(lines) + 1)), range(start + 1, end)
    for one in watching(chromium, replayed, bypass_csp=True):
        page = one.page
        page.goto(f"{replayed}/ui/kernels/tiled")
        page.locator("#source code").wait_for()
        assert shown(page) == every
        button = page.locator(f'#source .row[data-line="{start}"] .fold button')
        expect(button).to_have_attribute("aria-expanded", "true")
        button.press("Enter")
        assert shown(page) == [number for number in every if number not in within]
        expect(button).to_have_attribute("aria-expanded", "false")
        expect(button).to_be_focused()
        assert re.search(rf"[?&]fold={start}(&|$)", page.url)
        page.reload()
        page.locator("#source code").wait_for()
        assert shown(page) == [number for number in every if number not in within]
        page.goto(f"{page.url}#L{start + 2}")
        expect(page.locator(f"#L{start + 2}")).to_be_in_viewport()
        assert shown(page) == every
        assert "fold=" not in page.url


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_folds_at_once_and_conditionals_and_comments_too(chromium: Browser, replayed: str, theme: str) -> None:
    lines = httpx.get(f"{replayed}/kernels/register_tiled/source").text.split("\n")
    for one in watching(chromium, replayed, bypass_csp=True, color_scheme=theme, reduced_motion="reduce"):
        page = one.page
        page.goto(f"{replayed}/ui/kernels/register_tiled")
        page.get_by_role("button", name="Fold all", exact=True).press("Enter")
        left = [lines[number - 1] for number in shown(page)]
        assert len(left) < len(lines) / 2
        assert not [line for line in left if line.startswith(" ") and line.endswith(";")]
        assert all(before[:2] != "//" or after[:2] != "//" for before, after in pairwise(left))
        assert not [line for line in left if re.match(r"#\s*(else|elif)", line)]
        page.evaluate(script_of_axe())
        for width in (390, 1280):
            assert found_at(page, width, "#source h2, #source .picks") == []
        page.get_by_role("button", name="Unfold all").press("Enter")
        assert shown(page) == list(range(1, len(lines) + 1))
