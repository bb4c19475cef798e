"""Real kernels with a fault: naive's default launch with another body, and tiled's text with one bad config."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from app.devices.fleet import Unit
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.sources import source
from kernels.space import Config

RIGHT: Final = "c[row * n + col] = sum;"
# What takes a process down does so where k > 1 only: a device warms up on a single element.
ENDLESS: Final = "if (k > 1) for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum;"
WILD: Final = "if (k > 1) c[(((INDEX)1) << 44) + col] = sum;"
_HEAD: Final = """
KERNEL(BN, BM) matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
                      const INDEX m, const INDEX n, const INDEX k)
{
    const INDEX across = (n + BN - 1) / BN;
    const INDEX row = BLOCK / across * BM + THREAD_Y, col = BLOCK % across * BN + THREAD_X;
    if (row >= m || col >= n) return;
    REAL sum = 0;
    for (INDEX i = 0; i < k; i++) sum = FMA(a[row * k + i], b[i * n + col], sum);
"""
_STORE: Final = "WRITE(c0, THREAD_Y * n + THREAD_X, sum);"


def naive(unit: Unit, problem: Problem, body: str = RIGHT) -> Launch:
    """Naive's default launch with another text: `body` follows the sum that a thread has made of its element."""
    one = CATALOGUE["naive"]
    launch = one.launch(one.default(problem, unit.device), problem, unit.device)
    return replace(launch, build=replace(launch.build, text=source("common/portable.h") + _HEAD + body + "}"))


def tiled(bm: int, bn: int, bk: int) -> Config:
    return CATALOGUE["tiled"].space.config({"BM": bm, "BN": bn, "BK": bk})


def break_tiled(monkeypatch: pytest.MonkeyPatch, bad: Mapping[Config, str]) -> None:
    """From now tiled's text does something else than store the sum where it is compiled with one of these configs."""
    cases = "".join(f"#if {_is(config)}\n{body}\n#else\n" for config, body in bad.items())
    text = source("tiled/kernel.cu")
    assert text.count(_STORE) == 1
    broken = text.replace(_STORE, "{\n" + cases + _STORE + "\n" + "#endif\n" * len(bad) + "}")
    monkeypatch.setattr(
        import_module("kernels.kernel"),
        "source",
        lambda name: broken if name == CATALOGUE["tiled"].file else source(name),
    )


def _is(config: Config) -> str:
    return " && ".join(f"{name} == {value}" for name, value in config.items())


# What a whole kernel does in place of its product, in every config, on more than a single element.
ENDLESS_KERNEL: Final = "if (k > 1) for (volatile GLOBAL STORED *p = c; ; ) p[0] = 0;"
WILD_KERNEL: Final = "if (k > 1) c[((INDEX)1) << 44] = 0;"
WRONG_KERNEL: Final = "if (k > 1) return;"  # C keeps what was there, whatever copies of A and B a config reads
_ENTRY: Final = re.compile(r"KERNEL\w*\([^)]*\)\s*matmul\([^)]*\)\s*\{")


def break_kernels(monkeypatch: pytest.MonkeyPatch, bad: Mapping[str, str]) -> None:
    """From now kernels, by name, begin with these statements; one that is an `#include` stands before the text."""

    def broken(name: str) -> str:
        text, fault = source(name), bad.get(name.removesuffix("/kernel.cu"))
        if fault is None:
            return text
        if fault.startswith("#"):
            return f"{fault}\n{text}"
        assert len(_ENTRY.findall(text)) == 1
        return _ENTRY.sub(lambda found: f"{found[0]}\n{fault}\n", text)

    monkeypatch.setattr(import_module("kernels.kernel"), "source", broken)


def endless_compilation() -> str:
    """Something that no compiler comes to the end of: a pipe that nobody writes to, where a child may read."""
    pipe = Path(tempfile.mkdtemp(dir=os.environ["TILEWISE_CACHE_DIR"])) / "endless.h"
    os.mkfifo(pipe)
    return f'#include "{pipe}"'
