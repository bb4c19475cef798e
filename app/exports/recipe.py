"""The recipe of a config: its launches with expressions in place of numbers, and the class in which they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from app.exports.interpreter import NAMES, Tree
from app.exports.traced import Need, Trace, tree_of
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import COUNTERS, Build, Launch, TensorMap
from kernels.problem import Problem
from kernels.space import Config

# Rules by which a search leaves configs out that are right and slow, or that ask beside for an architecture, which all
# launches of an export's binary have. All others are part of an export's class.
OF_SPEED: Final = frozenset(
    {
        "grouped tiles, where all run at once",
        "more splits of k, where there are blocks enough",
        "splits of k no shorter than fewer of them",
        "splits of k shorter than two k tiles",
        "splits of k that are empty, or shorter than four k tiles",
        "splits of k that are empty, or shorter than two k tiles",
        "SMs left idle that more splits of k would use",
        "sliced k, where there are threads enough",
        "K-major tiles, where copies have 4 bytes",
        "K-major tiles, where no threads share k",
        "packing that takes too long beside the product",
        "stream-K, where tiles fill the SMs evenly",
        "stream-K with tiles more than half past C's edge",
        "a side of 48, 96 or 192 that reaches further past C than the power of two below",
        "stream-K with a tile shared by too many blocks",
        "more blocks by split k than two waves",
        "a tile at least twice as long as C, where there are shorter ones",
        "TILES that leave SMs idle or load the kept operand too often",
        "a tile at least twice as large as C",
        "a tile more than half past C's edge",
        "small tiles, where larger ones leave no SM idle",
        "small tiles, where large ones fill the SMs",
        "a k tile at least twice as long as k",
        "sliced k, where one slice keeps the SM busy or accumulators do not divide",
        "split k, where tiles alone fill the SMs",
        "several blocks on an SM, where one suffices",
        "persistent blocks other than one for each SM",
        "persistent blocks other than one for each SM, or where none has a second tile",
        "C through stages that have another tile next or registers to spare for none, or beside free ones",
        "clusters beside other blocks of an SM, or larger than C",
        "clusters before sm_90, or of more blocks than two for each SM",
        "clusters before sm_90, or of more blocks than two waves",
        "clusters before sm_90, without slices, or of more blocks than two for each SM",
        "k shared out in a cluster, where tiles alone fill the SMs",
        "k shared out in clusters before sm_90, or where blocks fill the SMs",
        "k with too little for each block of a cluster",
        "more stages than are of use, or fewer than fit",
        "copies of less than the largest size that divides an operand's rows",
        "MIN_BLOCKS of no more blocks than fit without",
        "half of a tile's rows or more past the edge",
        "half of a tile's columns or more past the edge",
        "half of a tile's k or 32 or more past the end",
        "other matrices in aligned words than those whose rows start anywhere",
        "slices of k, where tiles fill the SMs several times",
        "slices of k, a quarter of which are empty",
        "slices of k, an eighth of which and more than one are empty",
        "passes that end 16 past k or more, and a quarter of it",
        "more passes than 64, where there are deeper ones",
        "more stages than passes",
        "grouped rows of tiles that a block or C has not",
        "a k tile of fewer steps than stages, of too few or too many elements, or far past k",
        "packing against transposed copies of 4 bytes, where there are none",
        "more stages than k tiles",
        "stages of too little of k, or of more than hides latency",
        "fewer threads than keep an SM busy, or more than synchronise well",
        "a tile or a k tile at least twice as large as the problem",
    }
)


@dataclass(frozen=True, slots=True)
class RecipeMap:
    """A tensor map whose sizes, strides and place are expressions."""

    tensor: TensorMap
    sizes: tuple[Tree, ...]
    strides: tuple[Tree, ...]
    offset: Tree


@dataclass(frozen=True, slots=True)
class RecipeLaunch:
    """A launch whose grid and further 64-bit arguments are expressions; `scalars` is None where it has no workspace."""

    build: Build
    grid: Tree
    block: tuple[int, int]
    shared_bytes: int
    scalars: tuple[Tree, ...]
    maps: tuple[RecipeMap, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The launches of a config, in order, on all problems that meet its needs, and the workspace that they share.

    Of the workspace the first `zeroed_bytes` are zero before and after each product. At `verdict_at` is a 32-bit word
    that is not zero after a product that was declined (kernels.fp32_emulation).
    """

    needs: tuple[Need, ...]
    launches: tuple[RecipeLaunch, ...]
    workspace_bytes: Tree
    zeroed_bytes: int
    verdict_at: int | None

    @property
    def builds(self) -> tuple[Build, ...]:
        """What is to be compiled, each once, in the order of the launches."""
        return tuple({each.build.entry: each.build for each in self.launches}.values())


def recipe_of(kernel: Kernel, config: Config, problem: Problem, device: Device) -> Recipe:
    """The recipe of a config that is legal for the problem on the device; raises ValueError where it is not."""
    launch = kernel.launch(config, problem, device)
    trace = Trace()
    sizes: dict[str, Any] = {name: trace.size(name, getattr(problem, name)) for name in NAMES}
    traced = replace(problem, **sizes)
    trace.because = f"{kernel.name} is for {kernel.shapes}"
    if not kernel.supports(traced):
        raise ValueError(trace.because)
    for reason, holds in kernel.space.rules.items():
        if reason not in OF_SPEED:
            trace.because = f"else there would be {reason}"
            holds(config, traced, device)
    trace.because = "as for the sizes that it was tuned for"
    planned = kernel.for_problem(launch, traced)
    launches = tuple(_launch(each) for each in _in_order(planned))
    workspace = tree_of(planned.workspace_bytes)
    zeroed = 4 * COUNTERS if workspace != 0 else 0
    return Recipe(tuple(trace.needs.values()), launches, workspace, zeroed, planned.verdict_at)


def _in_order(launch: Launch) -> Iterator[Launch]:
    """A launch and its steps."""
    yield from map(launch.as_step, launch.before)
    yield launch
    yield from map(launch.as_step, launch.after)


def _launch(launch: Launch) -> RecipeLaunch:
    maps = tuple(
        RecipeMap(each, tuple(map(tree_of, each.sizes)), tuple(map(tree_of, each.strides)), tree_of(each.offset))
        for each in launch.maps
    )
    scalars = tuple(map(tree_of, launch.scalars))
    return RecipeLaunch(launch.build, tree_of(launch.grid), launch.block, launch.dynamic_smem_bytes, scalars, maps)
