"""What a page follows: one stream of all jobs, however much of it follows that, and none while nobody sees it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

from app.cli.spawn import Started, started
from tests.browser.conftest import Watched, watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

# A browser without a screen hides no tab: the page is told that it is hidden, and what it opens is kept.
_KEPT = """(() => {
  const opened = [];
  window.EventSource = class extends EventSource {
    constructor(...given) {
      super(...given);
      opened.push(this);
    }
  };
  let hidden = false;
  Object.defineProperty(document, "hidden", { get: () => hidden });
  window.hide_ = value => {
    hidden = value;
    document.dispatchEvent(new Event("visibilitychange"));
  };
  const isOpen = one => one.readyState !== EventSource.CLOSED;
  window.open_ = () => opened.filter(isOpen).map(one => new URL(one.url).pathname);
})()"""


def order(url: str, m: int, seconds: int, *, wait: bool) -> str:
    """The id of a job, which has ended where it is waited for."""
    body = {"shapes": [f"{m}x40x24"], "kernels": ["naive", "tiled"], "budget": {"seconds": seconds}}
    headers = {"Prefer": "wait=60"} if wait else {}
    answer = httpx.post(f"{url}/tune", json=body, headers=headers, timeout=90).raise_for_status()
    return str(answer.json()["id"])


def hide(page: Page, *, hidden: bool) -> None:
    page.evaluate("hidden => hide_(hidden)", hidden)


def streams(page: Page) -> list[str]:
    """The paths of those that are open."""
    return sorted(page.evaluate("open_()"))


@pytest.mark.parametrize("path", ["", "ui/jobs", "ui/kernels"])
def test_a_page_that_is_seen_has_one_stream_and_asks_nobody_whether_the_service_is_ready(
    watched: Watched, tuned: Started, path: str
) -> None:
    page, asked = watched.page, list[str]()
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.add_init_script(_KEPT)
    page.goto(f"{tuned.url}/{path}")
    page.locator("#ready.good").wait_for()
    page.wait_for_timeout(4000)  # longer than after which the page would ask
    assert streams(page) == ["/events"]
    assert "/health/ready" not in asked
    hide(page, hidden=True)
    assert streams(page) == []
    hide(page, hidden=False)
    assert streams(page) == ["/events"]
    assert asked.count("/events") == 2


def test_what_happened_while_a_page_was_hidden_is_there_once_it_is_seen(watched: Watched, tuned: Started) -> None:
    page = watched.page
    page.add_init_script(_KEPT)
    page.goto(f"{tuned.url}/ui/jobs")
    page.locator("#jobs td").first.wait_for()
    hide(page, hidden=True)
    job = order(tuned.url, 72, 5, wait=True)
    mine = page.locator("#jobs tr").filter(has_text=job[:8])
    assert mine.count() == 0
    hide(page, hidden=False)
    expect(mine).to_contain_text("succeeded")


def test_a_job_that_was_hidden_while_it_ran_has_each_trial_once(watched: Watched, tuned: Started) -> None:
    page = watched.page
    page.add_init_script(_KEPT)
    job = order(tuned.url, 104, 8, wait=False)
    page.goto(f"{tuned.url}/ui/jobs/{job}")
    page.locator("#trials [role=row]").first.wait_for()
    assert streams(page) == ["/events", f"/jobs/{job}/events"]
    hide(page, hidden=True)
    assert streams(page) == []
    page.wait_for_timeout(1000)
    hide(page, hidden=False)
    expect(page.locator("#said")).to_contain_text("The job", timeout=60_000)
    count = len(httpx.get(f"{tuned.url}/trials", params={"job_id": job, "limit": 1000}).json()["trials"])
    expect(page.locator("#trials [role=status]")).to_have_text(f"{count} of {count} trials")
    assert streams(page) == ["/events"]


def test_a_service_that_hangs_is_told_and_seen_again(chromium: Browser, tmp_path: Path) -> None:
    with started(tmp_path / "data", devices="none") as service:
        for one in watching(chromium, service.url):
            one.allowed.add(503)  # no device is ready here
            badge = one.page.locator("#ready")
            one.page.goto(f"{service.url}/ui/kernels")
            expect(badge).to_contain_text("no device")
            service.process.send_signal(signal.SIGSTOP)
            try:
                expect(badge).to_contain_text("does not answer", timeout=40_000)  # after twelve seconds of silence
            finally:
                service.process.send_signal(signal.SIGCONT)
            expect(badge).to_contain_text("no device", timeout=30_000)
