"""The lessons: fourteen kernels from naive to wgmma, one idea each, that are measured and never serve."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final

from kernels.arithmetic import MMA, WGMMA, WMMA
from kernels.device import Device
from kernels.kernel import LESSON, Kernel, Sizes
from kernels.launch import Plan
from kernels.lessons import spaces
from kernels.lessons.spaces import SPACES, plain, tile_bytes
from kernels.problem import Problem
from kernels.space import Config, Space

Planned = Callable[[Config, Problem], Plan]
_COMMENT: Final = re.compile(r"\A(?://.*\n)+")
# What lessons for tensor cores have in common.
_HALVES: Final = {"dtypes": ("float16",), "platforms": ("cuda",)}


@dataclass(frozen=True, slots=True)
class Lesson:
    """A rung of the ladder: its kernel, its title, the config to begin with, and a value to change then."""

    number: int
    title: str
    kernel: Kernel
    first: Mapping[str, int] = field(default_factory=dict)
    next: Mapping[str, int] = field(default_factory=dict)

    @property
    def own_source(self) -> str:
        """The source of the lesson without its headers."""
        return files("kernels").joinpath(self.kernel.file).read_text(encoding="utf-8")

    @property
    def body(self) -> str:
        """The source without the comment that it begins with."""
        return _COMMENT.sub("", self.own_source, count=1)

    @property
    def idea(self) -> str:
        """The comment that the source begins with: what it does otherwise than the rung below, and why."""
        head = _COMMENT.match(self.own_source)
        lines = head.group().splitlines() if head else ()
        return " ".join(line.removeprefix("//").strip() for line in lines)


def _default(space: Space, first: Mapping[str, int]) -> Callable[[Problem, Device], Config]:
    """The config to begin with where it is legal, else the first that is, else it nevertheless."""

    def chosen(problem: Problem, device: Device) -> Config:
        own = space.config(first)
        if space.refusal(own, problem, device) is None:
            return own
        return next(iter(space.legal(problem, device)), own)

    return chosen


def _lesson(
    number: int,
    name: str,
    title: str,
    plan: Planned,
    first: Mapping[str, int],
    following: Mapping[str, int],
    **more: object,
) -> Lesson:
    """A lesson whose file, kernel and space go by its number."""
    label, space = f"lesson{number:02}_{name}", SPACES[number]
    fields: dict[str, object] = {"dtypes": ("float32",), "platforms": ("cuda", "opencl"), **more}
    own = Kernel(
        name=label,
        summary=f"Lesson {number}: {title}.",
        file=f"lessons/{label}.cu",
        space=space,
        precisions=("strict",),
        plan=plan,
        default=_default(space, first),
        sizes=Sizes(batch_most=1, transposed=False),
        shapes="one pair of matrices, neither transposed",
        role=LESSON,
        **fields,  # type: ignore[arg-type]
    )
    return Lesson(number, title, own, first, following)


_THREAD: Final = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8}
_WARP: Final = {"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 32}
LESSONS: Final[tuple[Lesson, ...]] = (
    _lesson(
        1,
        "naive",
        "one thread for each element",
        plain(spaces.square, spaces.no_shared),
        {"TILE": 16},
        {"TILE": 32},
        modelled=spaces.model_column,
    ),
    _lesson(
        2,
        "coalesced",
        "neighbours read neighbours",
        plain(spaces.square, spaces.no_shared),
        {"TILE": 16},
        {"TILE": 32},
        modelled=spaces.model_block,
    ),
    _lesson(
        3,
        "tiled",
        "tiles in shared memory",
        plain(spaces.square, spaces.square_bytes),
        {"TILE": 32},
        {"TILE": 16},
        modelled=spaces.model_tile,
    ),
    _lesson(
        4,
        "conflict_free",
        "no two threads on one bank",
        plain(spaces.square, spaces.square_bytes),
        {"TILE": 32, "PAD": 1},
        {"PAD": 0},
        modelled=spaces.model_tile,
    ),
    _lesson(
        5,
        "thread_rows",
        "several rows for each thread",
        plain(spaces.rows, tile_bytes(4)),
        {"BM": 64, "BN": 64, "BK": 8, "TM": 8},
        {"TM": 4},
    ),
    _lesson(
        6, "thread_tile", "a tile for each thread", plain(spaces.grid_of_threads, tile_bytes(4)), _THREAD, {"TN": 4}
    ),
    _lesson(
        7, "vectorised", "four elements at once", plain(spaces.grid_of_threads, tile_bytes(4)), _THREAD, {"BK": 16}
    ),
    _lesson(
        8,
        "double_buffer",
        "loads behind arithmetic",
        plain(spaces.grid_of_threads, tile_bytes(4, 2)),
        _THREAD,
        {"BK": 16},
    ),
    _lesson(
        9, "warp_tile", "a tile for each warp", plain(spaces.line, tile_bytes(4, 2)), {**_THREAD, "WN": 64}, {"WN": 32}
    ),
    _lesson(
        10,
        "split_k",
        "several blocks for each tile",
        spaces.split_plan,
        {"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4, "WN": 32, "SPLIT_K": 16},
        {"SPLIT_K": 4},
        auxiliary_sources=(spaces.ADD_UP,),
    ),
    _lesson(
        11,
        "cp_async",
        "copies that need no register",
        plain(spaces.line, spaces.staged_bytes),
        {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "WN": 64, "STAGES": 3},
        {"STAGES": 2},
        platforms=("cuda",),
        min_capability=80,
        dynamic_smem=True,
    ),
    _lesson(
        12,
        "wmma",
        "tensor cores",
        plain(spaces.warps, spaces.wmma_bytes),
        _WARP,
        {"WM": 32},
        **_HALVES,
        min_capability=70,
        instructions=WMMA,
    ),
    _lesson(
        13,
        "mma_sync",
        "tensor cores from registers",
        plain(spaces.warps, spaces.half_bytes),
        {**_WARP, "STAGES": 3},
        {"STAGES": 2},
        **_HALVES,
        min_capability=80,
        instructions=MMA,
        dynamic_smem=True,
    ),
    _lesson(
        14,
        "wgmma_tma",
        "tensor cores from shared memory",
        spaces.ring_plan,
        {"BM": 128, "BN": 256, "BK": 64, "STAGES": 4, "GROUP_M": 8, "BLOCKS": 0},
        {"BN": 128},
        **_HALVES,
        architectures=("sm_90",),
        modelled=spaces.model_groups,
        instructions=WGMMA,
        dynamic_smem=True,
    ),
)
