"""What a person does with the pages, in a real browser: each journey from the address to its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from app.cli.spawn import started
from tests.browser.conftest import Watched, watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
KEY = "operators-own-key"


def order(page: Page, m: int, seconds: int) -> None:
    """Fill in the form for [m, 32] x [32, 32], and send it."""
    for name, value in {"m": m, "n": 32, "k": 32, "seconds": seconds}.items():
        page.fill(f'#tune-form input[name="{name}"]', str(value))
    page.click('#tune-form button[type="submit"]')


def wait_for(page: Page, selector: str, text: str) -> None:
    page.locator(selector).filter(has_text=re.compile(text)).first.wait_for()


def test_a_first_visit_shows_devices_kernels_and_that_the_service_is_ready(watched: Watched) -> None:
    watched.page.goto(watched.url)
    wait_for(watched.page, "#ready", "^ready$")
    wait_for(watched.page, "#devices h3", "opencl:0")
    wait_for(watched.page, "#kernels", "register_tiled")
    assert watched.page.locator("#login").is_hidden()


def test_a_shape_is_tuned_to_the_end_and_its_figures_are_shown(watched: Watched) -> None:
    watched.page.goto(watched.url)
    watched.page.wait_for_selector("#tune-device option", state="attached")
    order(watched.page, 48, 3)
    wait_for(watched.page, "#said", "The job succeeded")
    wait_for(watched.page, "#bests", "48x32x32 float32")
    row = watched.page.locator("#bests tr").filter(has_text="48x32x32 float32")
    assert re.search(r"µs|ms", row.locator("td").nth(3).inner_text())
    assert float(row.locator("td").nth(4).inner_text()) > 0


def test_a_reload_goes_on_with_the_job_of_the_address_and_it_can_be_stopped(watched: Watched) -> None:
    page = watched.page
    page.goto(watched.url)
    page.wait_for_selector("#tune-device option", state="attached")
    order(page, 400, 60)
    page.wait_for_selector("#trials tr")
    job = page.locator("#job-link").inner_text()
    page.reload()
    page.wait_for_selector("#trials tr")
    assert page.locator("#job-link").inner_text() == job
    page.click("#cancel")
    wait_for(page, "#said", "was stopped")
    told = httpx.get(f"{watched.url}/jobs/{job}").json()
    assert told["state"] == "cancelled"


def test_a_job_that_is_not_here_is_said(watched: Watched) -> None:
    watched.allowed.add(404)
    watched.page.goto(f"{watched.url}/#job={'0' * 32}")
    wait_for(watched.page, "#said", "no job")


def test_a_miss_fills_the_form_whole(watched: Watched) -> None:
    asked = {"m": "77", "n": "88", "k": "99", "batch": "3", "dtype": "float64", "trans_b": "true"}
    assert httpx.get(f"{watched.url}/best-config", params=asked).status_code == 200
    page = watched.page
    for _ in range(20):  # what was asked for is counted some seconds later
        page.goto(watched.url)
        page.wait_for_load_state("networkidle")
        if page.locator("#misses button", has_text="77x88x99").count():
            break
        page.wait_for_timeout(500)
    page.locator("#misses button", has_text="77x88x99 x 3 float64 nt").click()
    fields = page.locator("#tune-form")
    assert [fields.locator(f'[name="{name}"]').input_value() for name in asked if name != "trans_b"] == [
        *("77", "88", "99", "3", "float64")
    ]
    assert fields.locator('[name="trans_b"]').is_checked()
    assert not fields.locator('[name="trans_a"]').is_checked()


def test_two_matrices_are_multiplied_and_a_mistake_is_told(watched: Watched) -> None:
    watched.page.goto(watched.url)
    watched.page.click('#try-form button[type="submit"]')
    wait_for(watched.page, "#product", "19 22\\s+43 50")
    watched.page.fill('#try-form [name="b"]', "5 x")
    watched.page.click('#try-form button[type="submit"]')
    wait_for(watched.page, "#made", "no number")


def test_the_reference_opens_without_the_internet(watched: Watched) -> None:
    watched.page.goto(f"{watched.url}/docs")
    wait_for(watched.page, ".opblock-summary-path", "/best-config")


def test_a_service_that_ends_is_told_and_seen_again(chromium: Browser, tmp_path: Path) -> None:
    with started(tmp_path / "data", devices="none") as first:
        port = first.url.rpartition(":")[2]
        page = watching(chromium, first.url)
        one = next(page)
        one.allowed.add(503)  # no device is ready here
        one.page.goto(first.url)
        wait_for(one.page, "#kernels", "naive")
        one.silent = True
    wait_for(one.page, "#ready", "does not answer")
    with started(tmp_path / "data", devices="none", port=port):
        one.page.locator("#ready").filter(has_not_text="does not answer").wait_for()
        wait_for(one.page, "#kernels", "naive")
        assert list(page) == []


@pytest.fixture
def locked(chromium: Browser, tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "admin").write_text(KEY)
    settings = {"auth": "keys", "admin_key_file": str(tmp_path / "admin")}
    with started(tmp_path / "data", devices="none", **settings) as running:
        yield from watching(chromium, running.url)


def test_where_keys_are_on_a_person_logs_in_and_out(locked: Watched) -> None:
    page = locked.page
    locked.allowed |= {401, 503}
    page.goto(locked.url)
    page.locator("#login").wait_for()
    assert page.locator("#main").is_hidden()
    page.fill('#login-form [name="key"]', "a-wrong-key")
    page.click("#login-form button")
    wait_for(page, "#denied", "\\w")
    page.fill('#login-form [name="key"]', KEY)
    page.click("#login-form button")
    wait_for(page, "#kernels", "naive")
    assert page.locator("#login").is_hidden()
    page.click("#logout")
    page.locator("#login").wait_for()
    assert page.locator("#main").is_hidden()
