"""A kernel's digest is of what a compiler reads: a comment keeps it, a token changes it."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module

import pytest

from kernels import CATALOGUE
from kernels.launch import Build
from kernels.problem import Problem
from kernels.sources import code, source
from tests.support.kernels.devices import H200, homes

NAMES = sorted(CATALOGUE)
SAME = [
    ("int a; // one\nint b;\n", "int a;\n\n\n  int b; /* two\n lines */\n"),
    ('#error "a // b"  // c', '#error "a // b"'),
    ("char q = '\"'; // \"\nint a;", "char q = '\"';\nint a;"),
    ("int/**/a;", "int a;"),
    ("int a; // goes \\\n on\nint b;", "int a;\nint b;"),
    ("#define A  \\\n\t1\n", "#define A \\\n1"),
]
OTHER = [
    ('#error "a // b"', '#error "a // c"'),
    ('#error "a  b"', '#error "a b"'),
    ("#define F(x) x", "#define F (x) x"),
    ("a + +b", "a ++b"),
    ("int a;", "inta;"),
    ("#define A 1\nB", "#define A 1 B"),
    ('char *a = "\\"/*";\nint b; /**/', 'char *a = "\\"/*";\nint c; /**/'),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_comments_and_blanks_are_no_code(one: str, other: str) -> None:
    assert code(one) == code(other) == code(code(one))
    assert Build("x", one, "matmul", ()).digest == Build("x", other, "matmul", ()).digest


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_a_token_is_code_and_so_is_what_parts_two(one: str, other: str) -> None:
    assert code(one) != code(other)
    assert Build("x", one, "matmul", ()).digest != Build("x", other, "matmul", ()).digest


@pytest.mark.parametrize("name", NAMES)
def test_digest_changes_with_tokens_and_not_with_comments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CATALOGUE[name]
    before, files = entry.digest, (entry.file, *entry.auxiliary_sources)
    for file in files:
        text = source(file)
        comment = re.search(r"^// \w+", text, re.MULTILINE)
        assert comment is not None
        with monkeypatch.context() as patched:
            _replace(patched, file, text.replace(comment[0], "\n// Another", 1))
            assert entry.digest == before
        with monkeypatch.context() as patched:
            _replace(patched, file, text.replace("}", ";}"))
            assert entry.digest != before


# NVRTC takes a second for the long ones.
SOON = ("naive", "tiled", "skinny", "wmma")


@pytest.mark.rotating
@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_code_alone_compiles_to_what_the_whole_text_does(name: str) -> None:
    ptx_of = pytest.importorskip("tests.ptx_interpreter.program").ptx_of
    entry = CATALOGUE[name]
    problem = next(
        each
        for dtype, precision in entry.classes
        for each in homes(name, Problem(1, 1, 1, dtype=dtype, precision=precision), H200)
    )
    build = entry.launch(entry.default(problem, H200), problem, H200).build
    bare = replace(build, text=code(build.text))
    assert bare.digest == build.digest
    assert ptx_of(bare, "90") == ptx_of(build, "90")


def _replace(monkeypatch: pytest.MonkeyPatch, file: str, text: str) -> None:
    """Give one file another text; all others keep theirs."""
    monkeypatch.setattr(import_module("kernels.kernel"), "source", lambda name: text if name == file else source(name))
