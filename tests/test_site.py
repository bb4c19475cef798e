"""The site of docs/ is built without a warning, and nothing that a browser loads for it lies elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What a browser fetches by itself; a link that a reader may follow is none of it.
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//""")
FETCHED = re.compile(r"""(?:url\(|@import\s+)["']?(?:https?:)?//""")


@pytest.mark.rotating
def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings_handlers"):
        pytest.importorskip(
            module, reason="mkdocs is not installed: pip install -e '.[docs]' has it, and CI builds the site"
        )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # of a program that is not used here
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    made = tmp_path / "site"
    pages = {path: path.read_text(encoding="utf-8") for path in made.rglob("*.html")}
    assert len(pages) > 80
    assert [str(path) for path, text in pages.items() if LOADED.search(text)] == []
    styles = {path: path.read_text(encoding="utf-8") for path in made.rglob("*.css")}
    assert [str(path) for path, text in styles.items() if FETCHED.search(text)] == []
    assert 'id="tilewise.Client.matmul"' in pages[made / "reference" / "python.html"]
