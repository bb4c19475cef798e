"""What the model says of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewise.shapes import Problem


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks share a multiprocessor, which fraction of its threads they are, and what sets that limit."""

    blocks_per_sm: int
    fraction: float
    limited_by: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one launch of a tile does: bytes of global memory, operations, tiles, blocks, threads and occupancy."""

    device: str
    problem: Problem
    kernel: str
    config: Mapping[str, int]
    bytes_read: int = 0
    bytes_written: int = 0
    flops_owned: int = 0
    flops_launched: int = 0
    intensity: float = 0.0
    tiles_m: int = 0
    tiles_n: int = 0
    blocks: int = 0
    edge_tiles: int = 0
    shared_bytes: int = 0
    threads: int = 0
    occupancy: Occupancy | None = None
    waves: float | None = None
    refusal: str | None = None
    predicted_ms: float | None = None
