"""Kernel Tuner's cache files as recordings: whole spaces that others have measured."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from app.tuning.outcome import Rejected
from app.tuning.replay import Recording, load
from kernels.device import Device, Limits
from kernels.problem import Problem
from kernels.space import Config

# A CUDA GPU of no model in particular: the caches name their device, and nothing else of it.
_LIMITS = Limits(1024, 49152, 32, 80, 9e11, 3e13, 5e11, 65536, 255, 102400, 1024, 1536, 16)
_STAGES = {"CompilationFailedConfig": "compile", "RuntimeFailedConfig": "launch", "InvalidConfig": "space"}


def recordings(path: Path) -> list[Recording]:
    """The recordings of a file, Kernel Tuner's (.json, .json.gz) or our own; raises OSError and ValueError."""
    if ".json" not in path.suffixes:
        return load(path)
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [_recording(_parsed(raw.decode()))]


def _parsed(text: str) -> dict[str, Any]:
    """The cache, whose last comma and braces may be wrong: it is appended to while a tuner runs."""
    trimmed = text.rstrip().rstrip(",")
    for ending in ("", "}", "}}"):
        try:
            value: dict[str, Any] = json.loads(trimmed + ending)
        except ValueError:
            continue
        return value
    raise ValueError("no cache of Kernel Tuner's")


def _recording(cache: dict[str, Any]) -> Recording:
    name, kernel = str(cache["device_name"]), str(cache["kernel_name"])
    device = Device("cuda:0", "cuda", name, "", "", "", "", "", 2**34, _LIMITS)
    names = list(cache["tune_params_keys"])
    found: dict[Config, tuple[float, ...] | Rejected] = {}
    for entry in cache["cache"].values():
        config = Config(tuple((name, int(entry[name])) for name in names))
        found[config] = _outcome(kernel, config, entry)
    return Recording(device, kernel, "", _problem(cache["problem_size"]), "events", found)


def _outcome(kernel: str, config: Config, entry: dict[str, Any]) -> tuple[float, ...] | Rejected:
    if isinstance(entry["time"], str):
        return Rejected(kernel, config, _STAGES.get(entry["time"], "launch"), entry["time"])
    return tuple(1e-3 * milliseconds for milliseconds in entry.get("times") or [entry["time"]])


def _problem(size: Any) -> Problem:
    """M and n of a problem's size; k is not in it, and square is the custom."""
    sizes = [int(part) for part in size] if isinstance(size, list) else [1]
    m, n = (sizes * 2)[:2]
    return Problem(m, n, sizes[2] if len(sizes) > 2 else m)
