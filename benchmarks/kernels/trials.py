"""What configs took, of many problems: the trials of drawn shapes, and those that the tests keep."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.space import Config

KEPT: Final = Path("tests/data/trials-h200.json.gz")
MICROSECONDS: Final = 1e3  # in a millisecond
Times: TypeAlias = Mapping[Problem, Mapping[Config, float]]
Line: TypeAlias = tuple[str, Problem, Config, float]


def read_trials(paths: Iterable[Path]) -> dict[str, Times]:
    """Microseconds by kernel, problem and config, the least where one was timed again.

    A path is a `--trials` file of benchmarks.kernels.drawn, or such as KEPT, which tells each kernel's parameters once.
    """
    found: dict[str, dict[Problem, dict[Config, float]]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        for kernel, problem, config, took in _kept(path) if path.suffix == ".gz" else _drawn(path):
            known = found[kernel][problem]
            known[config] = min(took, known.get(config, took))
    return {kernel: dict(times) for kernel, times in found.items()}


def _kept(path: Path) -> Iterator[Line]:
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    for one in content["kernels"]:
        for key, lines in one["problems"]:
            problem = Problem.of_key(key)
            for *values, took in lines:
                yield one["kernel"], problem, Config.of(dict(zip(one["parameters"], values, strict=True))), took


def _drawn(path: Path) -> Iterator[Line]:
    for line in path.read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        problem = Problem.of_key(content["problem"])
        for kernel, config, milliseconds in content["measured"]:
            if kernel in CATALOGUE:  # not the vendor's
                yield kernel, problem, Config.of(config), MICROSECONDS * milliseconds
