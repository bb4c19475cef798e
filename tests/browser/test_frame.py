"""What every page has, the palette, and what every test of a page fails on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from app.cli.spawn import Started
from tests.browser.conftest import Watched, watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

# The directive by which a script of a kind is refused, or null where it is not within a second.
_REFUSED = """kind => new Promise(done => {
  window.ran = false;
  setTimeout(done, 1000, null);
  document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => done(effectiveDirective));
  const script = document.createElement("script");
  const button = document.createElement("button");
  if (kind === "inline") script.textContent = "window.ran = true";
  if (kind === "elsewhere") script.src = "data:text/javascript,window.ran = true";
  if (kind === "attribute") button.setAttribute("onclick", "window.ran = true");
  document.body.append(kind === "attribute" ? button : script);
  button.click();
})"""


def find(page: Page, typed: str) -> None:
    """Type it into the palette, and press Enter."""
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.type(typed)
    page.keyboard.press("Enter")


def test_the_palette_finds_shapes_jobs_kernels_and_pages(watched: Watched, tuned: Started) -> None:
    page = watched.page
    job = httpx.get(f"{tuned.url}/jobs?kind=tune&state=succeeded").json()["jobs"][0]["id"]
    page.goto(f"{watched.url}/ui/kernels")
    for typed, path, heading in (
        ("kernel tiled", "ui/kernels/tiled", "tiled"),
        (f"job {job}", f"ui/jobs/{job}", f"Job {job[:8]}"),
        (job, f"ui/jobs/{job}", f"Job {job[:8]}"),
        ("tune 24x32x40 float64", "ui/shapes/24x32x40/float64", "24 \N{MULTIPLICATION SIGN} 32"),
        ("64x48x32", "ui/shapes/64x48x32/float32", "64 \N{MULTIPLICATION SIGN} 48"),
        ("multi", "ui/multiply", "Multiply"),
    ):
        find(page, typed)
        page.wait_for_url(f"{watched.url}/{path}")
        expect(page.locator("h1")).to_contain_text(heading)
    page.keyboard.press("Control+k")
    page.keyboard.type("nothing of that name")
    expect(page.locator("#palette-found a")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "fetch('http://127.0.0.1:9/elsewhere').catch(() => {})",
            "a request to another host: http://127.0.0.1:9/elsewhere",
        ),
        ("fetch('/nowhere')", "404: "),
        ("console.error('a fault')", "console: a fault"),
        ("setTimeout(() => { throw new Error('a fault') })", "page error: a fault"),
    ],
)
def test_a_page_that_does_what_it_must_not_fails_its_test(
    chromium: Browser, service: Started, script: str, told: str
) -> None:
    session = watching(chromium, service.url, bypass_csp=True)
    one = next(session)
    one.page.goto(f"{service.url}/ui/multiply")
    one.page.locator("#try-form").wait_for()
    assert one.wrong == []
    one.page.evaluate(f"() => {{ {script}; }}")
    one.page.wait_for_timeout(300)
    with pytest.raises(AssertionError):
        next(session)
    assert any(told in each for each in one.wrong), one.wrong


@pytest.mark.parametrize("script", ["inline", "attribute", "elsewhere"])
def test_the_policy_lets_nothing_run_that_the_service_did_not_send(
    chromium: Browser, service: Started, script: str
) -> None:
    for one in watching(chromium, service.url):
        one.silent = True  # the browser tells of each refusal on the console
        one.page.goto(f"{service.url}/ui/multiply")
        one.page.locator("#try-form").wait_for()
        refused = one.page.evaluate(_REFUSED, script)
        assert refused == ("script-src-attr" if script == "attribute" else "script-src-elem")
        assert one.page.evaluate("window.ran") is False
