"""What a person does with the pages, in a real browser: each journey from the address to its end."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started, started
from tests.browser.conftest import Watched, watching
from tests.browser.test_looks import found_at
from tests.support.started_services import settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser
KEY = "operators-own-key"


def fill_order(page: Page, m: int, seconds: int, n: int = 32) -> None:
    """Fill in the form for [m, n] = [m, n] x [n, n], and send it."""
    for name, value in {"m": m, "n": n, "k": n, "seconds": seconds}.items():
        page.fill(f'#tune-form input[name="{name}"]', str(value))
    page.click('#tune-form button[type="submit"]')


def order(page: Page, m: int, seconds: int) -> None:
    """Fill in the form, send it, and be on the job's page."""
    fill_order(page, m, seconds)
    page.wait_for_url("**/ui/jobs/*")


def tune_to_the_end(page: Page, form: str, m: int) -> None:
    """Order a job and see it succeed, with more seconds where a busy machine needs them, as the pages say then."""
    for seconds in (3, 15, 60, 240):
        page.goto(form)
        page.locator("#tune-form").wait_for()
        fill_order(page, m, seconds)
        wait_for(page, "#refused, #said", "to take .* give it|The job (succeeded|failed: the budget)")
        if page.locator("#said").filter(has_text="The job succeeded").count():
            return
    raise AssertionError("no budget was enough")


def wait_for(page: Page, selector: str, text: str) -> None:
    page.locator(selector).filter(has_text=re.compile(text)).first.wait_for()


def test_a_first_visit_asks_which_product_and_tunes_it_to_the_end(watched: Watched) -> None:
    page = watched.page
    page.goto(watched.url)
    wait_for(page, "#ready", "^ready$")
    wait_for(page, "#first h2", "Which product")
    watched.allowed.add(422)
    fill_order(page, 16384, 1, n=16384)
    wait_for(page, "#refused", "forecast to take .* give it \\d+ seconds at least")
    tune_to_the_end(page, watched.url, 48)
    row = page.locator("#result tbody tr").filter(has_text="48x32x32 float32")
    assert re.search(r"µs|ms", row.locator("td").nth(3).inner_text())
    assert page.locator("#race canvas").count() == 1
    row.locator("a").click()
    wait_for(page, "h1", "48 × 32 × 32")  # noqa: RUF001 - the sign of products
    wait_for(page, ".figure", "error against float64")


def test_a_reload_goes_on_with_the_job_and_it_can_be_stopped(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/jobs")
    order(page, 400, 60)
    page.locator("#trials [role=row]").first.wait_for()
    job = page.url.rpartition("/")[2]
    page.reload()
    page.locator("#trials [role=row]").first.wait_for()
    page.click("#stop")
    wait_for(page, "#said", "was stopped")
    assert httpx.get(f"{watched.url}/jobs/{job}").json()["state"] == "cancelled"
    page.click('nav [data-page="jobs"]')
    wait_for(page, "#jobs td", job[:8])


def test_a_tune_from_elsewhere_is_followed_on_the_overview(watched: Watched, tuned: Started) -> None:
    page, asked = watched.page, list[str]()
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.goto(tuned.url)
    page.locator("#running td").first.wait_for()
    shapes = page.locator(".figure").filter(has_text="shapes tuned")
    before = shapes.inner_text()
    order = {"shapes": ["56x40x24"], "budget": {"seconds": 6}, "kernels": ["naive", "tiled"]}
    job = httpx.post(f"{tuned.url}/tune", json=order).raise_for_status().json()["id"]
    mine = page.locator("#running tr").filter(has_text=job[:8])
    mine.locator("progress").wait_for()
    expect(mine).to_contain_text("succeeded", timeout=30_000)
    expect(shapes).not_to_have_text(before)
    # It is told: what is asked for is the list on each of two showings, and the job where its state changes.
    assert asked.count("/events") == 1
    assert sum(path.startswith("/jobs") for path in asked) <= 8


def test_the_shape_of_a_job_that_is_looked_at_survives_a_reload(watched: Watched, tuned: Started) -> None:
    body = {"shapes": ["24x16x16", "40x16x16"], "budget": {"trials": 2}, "kernels": ["naive"]}
    job = httpx.post(f"{tuned.url}/tune", json=body, headers={"Prefer": "wait=60"}, timeout=90).json()
    assert job["state"] == "succeeded"
    page = watched.page
    page.goto(f"{tuned.url}/ui/jobs/{job['id']}")
    shapes = page.locator("#race .picks button")
    expect(shapes).to_have_count(2)
    expect(shapes.last).to_have_attribute("aria-pressed", "true")
    shapes.first.press("Enter")
    expect(shapes.first).to_be_focused()
    expect(shapes.first).to_have_attribute("aria-pressed", "true")
    page.reload()
    expect(shapes).to_have_count(2)
    expect(shapes.first).to_have_attribute("aria-pressed", "true")
    assert "problem=24x16x16+float32" in page.url


def test_what_is_not_there_is_said(watched: Watched) -> None:
    watched.allowed.add(404)
    watched.page.goto(f"{watched.url}/ui/jobs/{'0' * 32}")
    wait_for(watched.page, "#trouble", "no job")
    watched.page.goto(f"{watched.url}/ui/kernels/foo")
    wait_for(watched.page, "#trouble", "no kernel foo")
    watched.page.goto(f"{watched.url}/ui/nowhere")
    wait_for(watched.page, "#trouble", "no page nowhere")


def test_a_miss_leads_to_the_page_that_tunes_it_whole(watched: Watched) -> None:
    asked = {"m": "77", "n": "88", "k": "99", "batch": "3", "dtype": "float64", "trans_b": "true"}
    assert httpx.get(f"{watched.url}/best-config", params=asked).status_code == 200
    page = watched.page
    link = page.locator("#misses a", has_text="77x88x99x3 float64 nt")
    for _ in range(40):  # what was asked for is counted some seconds later
        page.goto(f"{watched.url}/ui/shapes")
        page.locator("#bests td").first.wait_for()
        if link.count():
            break
        page.wait_for_timeout(250)
    link.click()
    wait_for(page, "h1", "77 × 88 × 99 × 3")  # noqa: RUF001 - the sign of products
    page.locator("#trials, h2").filter(has_text="Nothing tried yet").wait_for()
    page.fill("#seconds", "60")
    with page.expect_request(lambda request: request.method == "POST") as sent:
        page.click('#tune-form button[type="submit"]')
    body = sent.value.post_data_json
    assert body is not None
    assert body["shapes"] == [{"m": 77, "n": 88, "k": 99, "batch": 3}]
    assert (body["dtype"], body["trans_a"], body["trans_b"], body["precision"]) == ("float64", False, True, "strict")
    page.wait_for_url("**/ui/jobs/*")
    page.click("#stop")
    wait_for(page, "#said", "was stopped")


def test_a_miss_is_dismissed_by_the_keyboard(watched: Watched) -> None:
    for m in ("87", "88"):
        assert httpx.get(f"{watched.url}/best-config", params={"m": m, "n": "33", "k": "99"}).status_code == 200
    page = watched.page
    for _ in range(40):  # what was asked for is counted some seconds later
        page.goto(f"{watched.url}/ui/shapes")
        page.locator("#bests td").first.wait_for()
        if page.locator("#misses a", has_text=re.compile("8[78]x33x99")).count() == 2:
            break
        page.wait_for_timeout(250)
    gone = page.locator("#misses li", has_text="88x33x99 float32")
    gone.get_by_role("button").press("Enter")
    wait_for(page, "#missed [role=status]", "88x33x99 float32 is dismissed")
    expect(gone).to_have_count(0)
    expect(page.locator("#misses button:focus")).to_have_count(1)
    told = httpx.get(f"{watched.url}/misses?limit=1000").json()["misses"]
    assert {each["problem"]["m"] for each in told if each["problem"]["n"] == 33} == {87}


def test_trials_are_filtered_sorted_and_opened(watched: Watched, tuned: Started) -> None:
    page = watched.page
    page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
    page.locator("#trials [role=row]:visible").first.wait_for()
    page.fill("#trials input[type=search]", "kernel:tiled round:search")
    shown = page.locator("#trials [role=row]:visible")
    told = httpx.get(f"{tuned.url}/trials?shape=64x48x32&kernel=tiled&round=search&limit=1000").json()["trials"]
    wait_for(page, "#trials [role=status]", f"^{len(told)} of ")
    assert {row.locator("button").inner_text() for row in shown.all()} == {"tiled"}
    first = min(told, key=lambda trial: trial["timing"]["median_ms"] if trial["timing"] else 1e9)
    assert " ".join(f"{name}={value}" for name, value in first["config"].items()) in shown.first.inner_text()
    shown.first.locator("button").press("Enter")
    wait_for(page, "dialog[open] h2", f"Trial {first['id']}$")
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")


def test_the_keyboard_finds_a_page_and_the_theme_is_kept(watched: Watched, tuned: Started) -> None:
    page = watched.page
    page.goto(f"{tuned.url}/ui/jobs")
    page.locator("#jobs td").first.wait_for()
    page.select_option("#theme", "dark")
    page.keyboard.press("Control+k")
    page.keyboard.type("64x48x32")
    page.keyboard.press("Enter")
    wait_for(page, "h1", "64 × 48 × 32")  # noqa: RUF001 - the sign of products
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(13, 20, 22)"


def test_a_config_is_copied_and_taken_away(chromium: Browser, tuned: Started) -> None:
    for one in watching(chromium, tuned.url, permissions=["clipboard-read", "clipboard-write"]):
        page = one.page
        page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
        page.get_by_role("button", name="Copy curl").first.click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert httpx.get(copied.split("'")[1]).json()["matched_problem"]["m"] == 64
        with page.expect_download() as taken:
            page.click("#take a:text-is('json')")
        assert taken.value.path().read_bytes().startswith(b"PK")


def test_a_profile_is_made_and_each_figure_names_its_source(watched: Watched, tuned: Started) -> None:
    page = watched.page
    page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
    wait_for(page, "#profile", "Not profiled yet")
    page.click("#profile-now")
    page.locator("#findings li").first.wait_for()
    (told,) = httpx.get(f"{tuned.url}/profiles?shape=64x48x32").json()["profiles"]
    assert page.locator("#findings li").all_inner_texts() == told["findings"]
    assert told["findings"]
    for column, kernel in enumerate(told["kernels"]):
        for figure in kernel["figures"]:
            row = page.locator("#profile tbody tr").filter(has_text=re.compile(f"^{figure['name'].replace('_', ' ')}"))
            cell = row.locator("td").nth(column + 1)
            assert cell.locator("small").inner_text() == figure["source"], figure
            if figure["article"] is not None:
                assert "A40" in cell.inner_text()
            if figure["predicted"] is not None and figure["source"] != "model":
                assert "model" in cell.inner_text()
    reasons = {figure["reason"] for kernel in told["kernels"] for figure in kernel["figures"]} - {None}
    for reason in reasons:
        wait_for(page, "#sources li", re.escape(reason))
    assert found_at(page, 390, "#profile tbody td", axe=False) == []
    assert found_at(page, 1280, "#profile tbody td", axe=False) == []


def test_two_matrices_are_multiplied_and_a_mistake_is_told(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/multiply")
    page.click('#try-form button[type="submit"]')
    wait_for(page, "#product", "19\\s*22\\s*43\\s*50")
    wait_for(page, "#timing", "kernel")
    page.fill('#try-form [name="b"]', "5 x")
    page.click('#try-form button[type="submit"]')
    wait_for(page, "#made", "something in B is no number")
    page.fill('#try-form [name="a"]', "")
    page.click('#try-form button[type="submit"]')
    wait_for(page, "#made", "A is empty")


@pytest.mark.parametrize("form", ["C", "F"])
def test_a_dropped_npy_is_multiplied(watched: Watched, form: str) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = io.BytesIO()
    np.save(file, np.array(a, order=form))  # type: ignore[call-overload]
    page = watched.page
    page.goto(f"{watched.url}/ui/multiply")
    page.locator("#drop-a").wait_for()
    page.evaluate(
        """bytes => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "a.npy"));
          document.querySelector("#drop-a").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        list(file.getvalue()),
    )
    wait_for(page, "#made", "a.npy read")
    page.fill('#try-form [name="b"]', "1 0\n0 1\n1 1")
    page.click('#try-form button[type="submit"]')
    wait_for(page, "#product", "2\\s*3\\s*8\\s*9")


def test_the_reference_opens_without_the_internet(watched: Watched) -> None:
    watched.page.goto(f"{watched.url}/docs")
    wait_for(watched.page, ".opblock-summary-path", "/best-config")


def test_a_source_is_linked_by_its_lines_and_held_against_another(watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/kernels/tiled#L42")
    page.locator("#L42.here").wait_for()
    text = httpx.get(f"{watched.url}/kernels/tiled/source").text
    assert page.locator("#source code").inner_text().count("\n") >= text.count("\n")
    page.click("#changed summary")
    page.locator("#changed .good").first.wait_for()


def test_a_service_that_ends_is_told_and_seen_again(chromium: Browser, tmp_path: Path) -> None:
    with started(tmp_path / "data", devices="none") as first:
        port = first.url.rpartition(":")[2]
        page = watching(chromium, first.url)
        one = next(page)
        one.allowed.add(503)  # no device is ready here
        one.page.goto(f"{first.url}/ui/kernels")
        wait_for(one.page, "#kernels", "naive")
        one.silent = True
    wait_for(one.page, "#ready", "does not answer")
    with started(tmp_path / "data", devices="none", port=port):
        one.page.locator("#ready").filter(has_not_text="does not answer").wait_for()
        wait_for(one.page, "#kernels", "naive")
        assert list(page) == []


def test_a_service_that_is_killed_in_a_tune_goes_on_with_it_on_the_same_page(chromium: Browser, tmp_path: Path) -> None:
    order = {"shapes": ["400x400x400"], "budget": {"seconds": 120, "trials": 512}, "kernels": ["tiled"]}
    with settled(tmp_path / "data") as first:
        port = first.url.rpartition(":")[2]
        job = httpx.post(f"{first.url}/tune", json=order).json()["id"]
        for one in watching(chromium, first.url):
            one.allowed.add(503)  # until the second one has verified its kernels
            page = one.page
            page.goto(f"{first.url}/ui/jobs/{job}")
            page.locator("#trials [role=row]:visible").nth(3).wait_for()
            one.silent = True
            first.process.kill()
            first.process.wait()
            wait_for(page, "#ready", "does not answer")
            shown = int(page.locator("#trials [role=status]").inner_text().split()[0])
            with settled(tmp_path / "data", port=port) as second:
                page.locator("#ready.good").wait_for()
                told = httpx.get(f"{second.url}/trials", params={"job_id": job, "limit": 1000}).json()["trials"]
                assert len(told) >= shown, "what the page had shown was not stored"
                page.wait_for_function(
                    "least => parseInt(document.querySelector('#trials [role=status]').textContent) > least",
                    arg=len(told),
                )
                page.click("#stop")
                wait_for(page, "#said", "was stopped")


@pytest.fixture
def locked(chromium: Browser, tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "admin").write_text(KEY)
    settings = {"auth": "keys", "admin_key_file": str(tmp_path / "admin")}
    with started(tmp_path / "data", devices="none", **settings) as running:
        yield from watching(chromium, running.url)


def test_where_keys_are_on_a_person_logs_in_and_out(locked: Watched) -> None:
    page = locked.page
    locked.allowed |= {401, 503}
    page.goto(f"{locked.url}/ui/kernels")
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


def test_a_parameter_is_told_in_the_words_of_its_kernel_s_source(tuned: Started, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/kernels/tiled")
    rows = page.locator("#parameters tbody tr")
    expect(rows.filter(has_text="BK").locator("td").nth(1)).to_have_text("depth of a k tile in shared memory")
    page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
    chips = page.locator(".chips[aria-label=Config] a")
    chips.first.wait_for()
    assert all(": " in (each.get_attribute("title") or "") for each in chips.all())
    chips.first.press("Enter")
    page.locator("#parameters").wait_for()
