"""direct_double: short k, or small C, in float64 on tensor cores, from memory straight into registers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import Final

from kernels.arithmetic import DMMA
from kernels.batched import BATCHED
from kernels.device import Device
from kernels.direct_double.cost_model import least_seconds, seconds
from kernels.direct_double.plan import plan
from kernels.direct_double.space import MOST_TILES, SPACE
from kernels.double_hopper import least_seconds as tiled_seconds
from kernels.double_tensor import DOUBLE_TENSOR
from kernels.double_tensor.space import ARCHITECTURES
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.residuals import CANDIDATES, ranked
from kernels.skinny import SKINNY
from kernels.skinny.cost_model import seconds as skinny_seconds
from kernels.space import Config

# The k that it is for with any C, and bytes of a line along k with a small one.
DEEPEST: Final = 128
DEEPEST_BYTES: Final = 65536
# How many times its estimate theirs have to be: the least of thousands of estimates is too low. Of 12 drawn shapes the
# default takes 1.06 times its estimate in the mean, double_tensor's of 20 takes 0.98 times its own.
CLEARLY: Final = 1.05
_UNGROUPED: Final = replace(SPACE, parameters={**SPACE.parameters, "GROUP_M": (1,)})


@lru_cache(1024)
def _default(problem: Problem, device: Device) -> Config:
    """The config of the least corrected estimate; the space's first one if the device allows none."""
    return next(iter(ranked(DIRECT_DOUBLE, _candidates(problem, device), problem, device)), next(iter(SPACE)))


def _candidates(problem: Problem, device: Device) -> list[Config]:
    """The configs of the least estimates.

    Tiles are grouped only where the bound of those that are not lets them be among these: groups have as much to do or
    more.
    """
    bounds = [(least_seconds(each, problem, device), each) for each in _UNGROUPED.legal(problem, device)]
    found = list[tuple[float, Config]]()
    for bound, alone in sorted(bounds, key=itemgetter(0)):
        if len(found) == CANDIDATES and bound > found[-1][0]:
            break
        legal = (config for config in _grouped(alone) if SPACE.refusal(config, problem, device) is None)
        found += [(seconds(config, problem, device), config) for config in legal]
        found = sorted(found, key=itemgetter(0))[:CANDIDATES]
    return [config for _, config in found]


def _grouped(config: Config) -> list[Config]:
    return [Config.of(dict(config) | {"GROUP_M": size}) for size in SPACE.parameters["GROUP_M"]]


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether double_tensor and double_hopper are estimated clearly slower, or skinny where these are not for it.

    There are no estimates of batched, which has its batches of the smallest products.
    """
    if DOUBLE_TENSOR.covers(problem, device):
        return CLEARLY * untuned_seconds(problem, device) <= tiled_seconds(problem, device)
    if problem.batch > 1 and BATCHED.covers(problem, device):
        return False
    if not SKINNY.covers(problem, device):
        return True
    return untuned_seconds(problem, device) <= skinny_seconds(SKINNY.default(problem, device), problem, device)


def untuned_seconds(problem: Problem, device: Device) -> float:
    """Estimated seconds of the default."""
    return seconds(_default(problem, device), problem, device)


DIRECT_DOUBLE: Final = Kernel(
    name="direct_double",
    summary="Short k or small C in float64: operands straight from memory into registers of tensor cores.",
    file="direct_double/kernel.cu",
    space=SPACE,
    dtypes=("float64",),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    sizes=Sizes(k_bytes_most=DEEPEST_BYTES, deep_over=DEEPEST, deep_squares_most=MOST_TILES),
    preferred_untuned=_preferred_untuned,
    shapes=f"k of at most {DEEPEST}, and a small C with lines of at most {DEEPEST_BYTES} bytes along k",
    architectures=ARCHITECTURES,
    instructions=DMMA,
)
