"""The syntax trees of the project's modules, for tests that read many of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def syntax_tree(path: Path) -> ast.Module:
    """A module's tree: parsed once in a process, so nobody may change it."""
    return ast.parse(path.read_text(encoding="utf-8"))
