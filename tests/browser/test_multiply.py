"""Multiply: a product in the page's address, so that a link reproduces it; files in and out."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started
from tests.browser.conftest import Watched, watching

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, expect
else:
    expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser


@pytest.fixture
def page(watched: Watched) -> Page:
    watched.page.goto(f"{watched.url}/ui/multiply")
    watched.page.locator("#drop-a").wait_for()
    return watched.page


def said(page: Page) -> dict[str, str]:
    """What the address says."""
    return {name: value for name, (value,) in parse_qs(page.evaluate("location.search.slice(1)")).items()}


def product(page: Page) -> np.ndarray:
    page.locator("#product").wait_for()
    rows = page.locator("#product tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    )
    return np.array(rows, dtype=float)


def operand(page: Page, name: str) -> np.ndarray:
    text = page.locator(f'textarea[name="{name}"]').input_value()
    return np.array([line.split() for line in text.splitlines()], dtype=float)


def test_a_link_makes_the_same_product_from_a_seed(chromium: Browser, watched: Watched, page: Page) -> None:
    for name, size in (("rows", "7"), ("columns", "5"), ("seed", "42")):
        page.get_by_role("spinbutton", name=f"{name} of A").fill(size)
    page.locator("#drop-a").get_by_role("button", name="Random").press("Enter")
    for name, size in (("rows", "6"), ("columns", "5")):
        page.get_by_role("spinbutton", name=f"{name} of B").fill(size)
    page.locator("#drop-b").get_by_role("button", name="Identity").press("Enter")
    page.get_by_role("combobox", name="type").select_option("float64")
    page.get_by_role("checkbox", name="B is transposed").check()
    page.get_by_role("button", name="Multiply").press("Enter")
    made = product(page)
    assert made.shape == (7, 6)
    assert np.allclose(made[:, :5], operand(page, "a"), atol=1e-4)
    assert said(page) == {"a": "random:7x5:42", "b": "identity:6x5", "dtype": "float64", "trans_b": "true"}
    for other in watching(chromium, watched.url):
        other.page.goto(page.url)
        assert (product(other.page) == made).all()
        assert (operand(other.page, "a") == operand(page, "a")).all()
        expect(other.page.locator("#made")).to_have_text(page.locator("#made").inner_text())
        expect(other.page.get_by_role("combobox", name="type")).to_have_value("float64")
        link = other.page.get_by_role("link", name="What is known of this shape").get_attribute("href") or ""
        assert urlsplit(link).path.endswith("/ui/shapes/7x6x5/float64")


def test_the_python_that_it_shows_makes_the_same_product(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    page.goto(f"{watched.url}/ui/multiply?a=random:3x4:5&b=random:5x4:6&trans_b=true&dtype=float64")
    made = product(page)
    (tmp_path / "shown.py").write_text(page.locator("pre").nth(1).inner_text())
    ran = subprocess.run([sys.executable, tmp_path / "shown.py"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    printed = np.array(
        [line.split() for line in ran.stdout.replace("[", "").replace("]", "").splitlines()], dtype=float
    )
    assert np.allclose(printed, made, rtol=1e-4)


def test_typed_rows_are_in_the_address_and_survive_a_reload(page: Page) -> None:
    page.fill('textarea[name="a"]', "1.5 -2\n3 NaN")
    assert said(page) == {"a": "1.5,-2;3,NaN", "b": "5,6;7,8"}
    page.reload()
    expect(page.locator('textarea[name="a"]')).to_have_value("1.5 -2\n3 NaN")
    assert np.isnan(product(page)[1]).all()
    page.fill('textarea[name="a"]', " ".join(map(str, range(1000))))
    assert "a" not in said(page)


def test_resident_matrices_are_chosen_by_name_and_linked(service: Started, watched: Watched) -> None:
    stored = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = io.BytesIO()
    np.save(file, stored)
    put = httpx.put(
        f"{service.url}/matrices/weights", content=file.getvalue(), headers={"Content-Type": "application/x-npy"}
    )
    assert put.is_success, put.text
    try:
        page = watched.page
        page.goto(f"{watched.url}/ui/multiply?b=1,0,0;0,1,0;0,0,1")
        page.locator("#drop-a").get_by_role("combobox", name="resident").select_option("weights")
        page.get_by_role("checkbox", name="A is transposed").check()
        assert said(page) == {"a": "resident:weights", "b": "1,0,0;0,1,0;0,0,1", "trans_a": "true"}
        page.reload()
        assert (product(page) == stored.T).all()
        page.goto(f"{watched.url}/ui/multiply?a=resident:weights&b=resident:weights&trans_b=true")
        assert (product(page) == stored @ stored.T).all()
        expect(page.locator('textarea[name="a"]')).to_be_disabled()
    finally:
        httpx.delete(f"{service.url}/matrices/weights")


def test_a_dropped_npz_is_multiplied_and_c_is_saved_as_npy(page: Page) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, b=np.eye(3), a=np.arange(6, dtype=np.float32).reshape(2, 3))
    page.evaluate(
        """bytes => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "both.npz"));
          for (const place of ["#drop-a", "#drop-b"])
            document.querySelector(place).dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        list(file.getvalue()),
    )
    expect(page.locator("#made")).to_have_text("both.npz read.")
    expect(page.locator('textarea[name="b"]')).to_have_value("1 0 0\n0 1 0\n0 0 1")
    page.get_by_role("button", name="Multiply").press("Enter")
    page.locator("#product").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save .npy").press("Enter")
    saved = np.load(download.value.path())
    assert saved.dtype == np.float32
    assert (saved == np.arange(6).reshape(2, 3)).all()
