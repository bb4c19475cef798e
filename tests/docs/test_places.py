"""Classes that the pages of explanation name beside a module are in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "explanation").glob("*.md"))
NAMED = re.compile(r"`([A-Za-z_]+)`\s*\(`([a-z_/0-9]+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_class_is_in_the_module_that_is_named_beside_it(page: Path) -> None:
    for name, path in NAMED.findall(page.read_text(encoding="utf-8")):
        found = next((one for one in (ROOT / path, ROOT / "app" / path) if one.exists()), None)
        assert found is not None, f"{page.name}: there is no {path}"
        source = found.read_text(encoding="utf-8")
        assert re.search(rf"^(class|def|async def) {name}\b", source, re.MULTILINE), (
            f"{page.name}: {path} has no {name}"
        )


def test_the_page_of_architecture_names_some() -> None:
    page = ROOT / "docs" / "explanation" / "architecture.md"
    assert len(NAMED.findall(page.read_text(encoding="utf-8"))) > 10
