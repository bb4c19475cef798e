"""Pages of a recorded device as they were once drawn and looked at: `TEST_PICTURES=write` draws them anew.

Of a picture's pixels three in a thousand may differ by more than an eighth of a channel's range: fewer than a line of
text that moved makes, more than two versions of a browser make of the same edges. What the machine does at the moment
is covered. Where other fonts are installed than
those of the pictures, there is nothing to compare.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.conftest import Watched, watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
PICTURES: Final = Path(__file__).parent / "pictures"
FONTS: Final = PICTURES / "fonts.json"
SHAPE: Final = "ui/shapes/256x256x256/float32"
# Each page, what shows that it is whole, and how many charts it draws.
PAGES: Final = {
    "overview": ("", "#running td", 1),
    "shape": (SHAPE, "main:has(#take li) #matters p:text('forest')", 6),
    "shapes": ("ui/shapes", "#bests td", 0),
    "jobs": ("ui/jobs", "#jobs td", 0),
    "job": (f"ui/jobs/{1:032x}", "#trials [role=row]", 3),
    "kernels": ("ui/kernels", "#coverage svg", 0),
    "kernel": ("ui/kernels/tiled", "#source code", 0),
    "devices": ("ui/devices", ".gauges dd:nth-of-type(9)", 1),
    "learn": ("ui/learn", "#calculated td", 0),
    "multiply": ("ui/multiply", "#try-form", 0),
    "workloads": ("ui/workloads", "main h1", 0),
}
LIVE: Final = ".gauges"  # what the machine does at the moment
LOOKS: Final = tuple(product((390, 768, 1280, 1920), ("light", "dark")))
WRITES: Final = os.environ.get("TEST_PICTURES") == "write"
_CHANNEL, _SHARE = 32, 0.003
_WIDTHS = """() => {
  const drawing = document.createElement("canvas").getContext("2d");
  return ["15px Inter, system-ui, sans-serif", "13px ui-monospace, monospace"].map(font => {
    drawing.font = font;
    return drawing.measureText("Every tile of C: 128 x 64, 1.07 ms, 31.3 GFLOP/s").width;
  });
}"""
_DRAWN = """async ([module, count]) => {
  const { getInstanceByDom } = await import(module);
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const drawn = () => [...document.querySelectorAll(".chart")].map(getInstanceByDom)
    .filter(chart => chart?.getOption()?.series?.length);
  while (drawn().length < count) await frame();
  await frame();
  await frame();
}"""
# The share of pixels that differ by more than `most` in a channel; 1 where the sizes do.
_DIFFERENT = """async ([one, other, most]) => {
  const pixels = async text => {
    const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(text), each => each.charCodeAt(0))]));
    const drawing = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    drawing.drawImage(bitmap, 0, 0);
    return drawing.getImageData(0, 0, bitmap.width, bitmap.height);
  };
  const [a, b] = [await pixels(one), await pixels(other)];
  if (a.width !== b.width || a.height !== b.height) return 1;
  let found = 0;
  for (let at = 0; at < a.data.length; at += 4) {
    found += [0, 1, 2].some(channel => Math.abs(a.data[at + channel] - b.data[at + channel]) > most);
  }
  return 4 * found / a.data.length;
}"""


def shown(one: Watched, path: str, whole: str, charts: int) -> Page:
    """The page, once all of it is drawn and the service is known to be there."""
    page = one.page
    page.goto(f"{one.url}/{path}")
    page.locator(whole).first.wait_for()
    page.locator("#ready.good").wait_for()
    page.evaluate(_DRAWN, [f"{one.url}/static/vendor/echarts.js", charts])
    return page


def looked_at(chromium: Browser, url: str, width: int, theme: str) -> Iterator[Watched]:
    options: dict[str, object] = {
        "color_scheme": theme,
        "reduced_motion": "reduce",
        "locale": "en-GB",
        "timezone_id": "UTC",
    }
    return watching(chromium, url, viewport={"width": width, "height": 844}, **options)


def different(page: Page, drawn: bytes, kept: bytes) -> float:
    """The share of pixels that differ."""
    share: float = page.evaluate(_DIFFERENT, [b64encode(drawn).decode(), b64encode(kept).decode(), _CHANNEL])
    return share


def expect_fonts(page: Page) -> None:
    """Skip where text is not as wide as in the pictures: it is of another font."""
    widths = page.evaluate(_WIDTHS)
    if WRITES:
        FONTS.write_text(f"{json.dumps(widths)}\n", encoding="utf-8")
    if widths != pytest.approx(json.loads(FONTS.read_text(encoding="utf-8")), abs=0.5):
        pytest.skip(f"the pictures were drawn with other fonts: their text is not {widths} wide")


@pytest.mark.parametrize(("width", "theme"), LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_it_did(chromium: Browser, replayed: str, name: str, width: int, theme: str) -> None:
    kept = PICTURES / f"{name}-{width}-{theme}.png"
    for one in looked_at(chromium, replayed, width, theme):
        page = shown(one, *PAGES[name])
        expect_fonts(page)
        drawn = page.screenshot(mask=[page.locator(LIVE)], mask_color="#808080")
        if WRITES:
            kept.write_bytes(drawn)
        share = different(page, drawn, kept.read_bytes())
        assert share <= _SHARE, f"{share:.1%} of the pixels of {kept.name} differ"


def test_a_line_of_text_that_moved_would_be_seen(chromium: Browser, replayed: str) -> None:
    for one in looked_at(chromium, replayed, *LOOKS[0]):
        page = shown(one, *PAGES["overview"])
        before = page.screenshot()
        assert different(page, page.screenshot(), before) == 0
        page.evaluate(
            "document.querySelector('h1 small').append(' and one line more of it, of words that were not there')"
        )
        assert different(page, page.screenshot(), before) > _SHARE
