"""Charts by what they were told to draw, beside the data; and the pages below a proxy's prefix."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from app.cli.spawn import Started
from tests.browser.conftest import Watched, watching
from tilewise import Client

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser
PREFIX = "/behind/a/proxy"
_OPTION = """async ([module, selector]) => {
  const { getInstanceByDom } = await import(module);
  for (;;) {
    const chart = getInstanceByDom(document.querySelector(selector));
    const drawn = chart?.getOption()?.series ?? [];
    if (drawn.length) return drawn.map(one => [one.name ?? "", one.data.map(each => each.value ?? each)]);
    await new Promise(drawn => requestAnimationFrame(drawn));
  }
}"""


def series(page: Page, url: str, selector: str) -> list[tuple[str, list[Any]]]:
    """The names and data of what a chart draws."""
    found: list[tuple[str, list[Any]]] = page.evaluate(_OPTION, [f"{url}/static/vendor/echarts.js", selector])
    return found


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def test_the_charts_of_a_shape_draw_the_services_data(watched: Watched, tuned: Started) -> None:
    page = watched.page
    page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
    page.locator("#take li").first.wait_for()
    with Client(tuned.url) as client:
        best = next(one for one in client.bests() if one.problem.m == 64)
    (drawn,) = (one for one in best.plot().option["series"] if one["type"] == "bar")
    plotted = [each["value"] if isinstance(each, dict) else each for each in drawn["data"]]
    assert list(map(rounded, series(page, tuned.url, "#ladder .chart")[0][1])) == list(map(rounded, plotted))
    roof = dict(series(page, tuned.url, "#roofline .chart"))
    assert best.gflops is not None
    assert rounded(best.gflops) in [rounded(value[1]) for value in roof["tuned"]]
    asked = {"shape": "64x48x32", "round": "search", "limit": "1000"}
    trials = httpx.get(f"{tuned.url}/trials", params=asked).json()["trials"]
    tried = [one for one in trials if one["kernel"] != "vendor"]
    search = dict(series(page, tuned.url, "#search .chart"))
    for kernel in {one["kernel"] for one in tried}:
        times = [one["timing"]["median_ms"] for one in tried if one["kernel"] == kernel and one["timing"]]
        assert [value[1] for value in search[kernel]] == times
    fastest = min(one["timing"]["median_ms"] for one in tried if one["timing"])
    assert search["best so far"][-1][1] == fastest


def test_the_roofline_draws_the_devices_roof_and_each_best_below_it(chromium: Browser, replayed: str) -> None:
    (device,) = httpx.get(f"{replayed}/devices").json()["devices"]
    bests = [one for one in httpx.get(f"{replayed}/bests").json()["bests"] if one["problem"]["dtype"] == "float32"]
    assert len(bests) == 2
    peak, bandwidth = device["limits"]["peak"] / 1e9, device["limits"]["bandwidth"] / 1e9
    work = {}
    for one in bests:
        m, n, k = (one["problem"][name] for name in "mnk")
        work[one["gflops"]] = m * n * k / (2 * (m * k + k * n + m * n))
    naive = {one["gflops"]: one["baselines"]["naive"]["gflops"] for one in bests}
    for watched in watching(chromium, replayed):
        watched.page.goto(replayed)
        watched.page.locator("#gains td").first.wait_for()
        drawn = dict(series(watched.page, replayed, "#roofline-opencl-0 .chart"))
        assert drawn["tuned"] == [pytest.approx([work[rate], rate]) for rate in work]
        assert drawn["naive"] == [pytest.approx([work[rate], naive[rate]]) for rate in work]
        assert drawn["gain"] == [pytest.approx([work[rate], naive[rate], rate]) for rate in work]
        (left, low), (ridge, top), (right, last) = drawn["roof"]
        assert (ridge, top, last) == pytest.approx((peak / bandwidth, peak, peak))
        assert low == pytest.approx(left * bandwidth)
        assert left < min(*work.values(), ridge)
        assert right > max(*work.values(), ridge)


class _Stripping(BaseHTTPRequestHandler):
    """Gives what is asked below the prefix to the service, without the prefix, and knows nothing else."""

    service = ""

    def do_GET(self) -> None:
        if not self.path.startswith(f"{PREFIX}/"):
            self.send_error(404)
            return
        answer = httpx.get(self.service + self.path.removeprefix(PREFIX), timeout=60)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers["content-type"])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def proxied(chromium: Browser, tuned: Started) -> Iterator[Watched]:
    handler = type("Handler", (_Stripping,), {"service": tuned.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield from watching(chromium, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_the_pages_work_below_a_proxys_prefix(proxied: Watched) -> None:
    page = proxied.page
    page.goto(f"{proxied.url}{PREFIX}/")
    page.locator("#gains td").first.wait_for()
    page.locator("#ready.good").wait_for()
    page.click("#gains td a")
    page.locator("#take li").first.wait_for()
    assert page.url.startswith(f"{proxied.url}{PREFIX}/ui/shapes/64x48x32/float32")
    page.click('nav [data-page="kernels"]')
    page.click("#kernels td a")
    page.locator("#source code").wait_for()
    page.click('nav [data-page="learn"]')
    page.locator("#rungs td").first.wait_for()
    page.click("#banks a")
    page.locator("#rung h2").filter(has_text="4. ").wait_for()
    page.click(".brand")
    page.locator("#gains td").first.wait_for()


def test_a_best_of_too_few_samples_for_an_interval_is_shown(tuned: Started, chromium: Browser) -> None:
    def without(route: Route) -> None:
        answer = route.fetch()
        told = answer.json()
        for best in told["bests"]:
            best["timing"]["ci95_ms"] = None
        route.fulfill(response=answer, json=told)

    for one in watching(chromium, tuned.url):
        one.page.route("**/bests?*", without)
        one.page.goto(f"{tuned.url}/ui/shapes/64x48x32/float32")
        one.page.locator("#take li").first.wait_for()
        assert "samples" in one.page.locator("#main").inner_text()
