"""hopper: tiles that the TMA unit brings and groups of four warps multiply on tensor cores; sm_90 alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from operator import itemgetter
from typing import Final

from kernels import fp32_emulation, packing
from kernels.arithmetic import WGMMA
from kernels.device import Device
from kernels.hopper.cost_model import least_seconds, seconds
from kernels.hopper.plan import EIGHT, SPLIT_K_REDUCE, emulated, plan, tiles
from kernels.hopper.space import (
    PARTS,
    RULES,
    SPACE,
    SPLITS,
    STAGES,
    enough_stages,
    groups,
    has_c_in_stages,
    not_for_tma,
    stays,
    useful_splits,
)
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.residuals import CANDIDATES, ranked
from kernels.space import Config
from kernels.split_k import k_tiles
from kernels.tensor_core import TENSOR_CORE
from kernels.tensor_core.cost_model import seconds as unpacked_seconds

# What defaults are chosen from: the left side, the right one, consumers, blocks on an SM.
TILES: Final = (
    *((128, columns, 2, 1) for columns in range(256, 56, -EIGHT)),
    *((256, columns, 2, 1) for columns in range(128, 64, -EIGHT)),
    *((64, columns, 2, 1) for columns in range(256, 120, -EIGHT)),
    *((128, columns, 1, 1) for columns in range(128, 24, -EIGHT)),
    *((64, columns, 1, 1) for columns in range(256, 0, -EIGHT)),
    *((64, columns, 1, min_blocks) for columns in (64, 32, 16, 8) for min_blocks in (2, 4)),
)
# Seconds of packing that the estimate leaves out, by an element's bytes; and seconds of tensor_core's estimate below
# which it is the faster one, where it packs nothing.
PACKING_SECONDS: Final = {2: 0.6e-6, 4: 1e-6}
SHORT_SECONDS: Final = 4.3e-6
# How many of them a search begins with, each unlike the others in one of these.
SEEDS: Final = 8
UNLIKE: Final = ("BM", "BN", "SWAP_AB", "REALIGN", "CONSUMERS", "CLUSTER", "CLUSTER_K", "SPLIT_K")
# What each way has as its problem asks, and what it chooses first; and the rules that read no more than that.
_ASKED: Final = {"BK", "TMA_STORE", "PROMOTE_K", "SWAP_AB", "PACK_K", "REALIGN"}
_FIRST: Final = _ASKED | {"BM", "BN", "CONSUMERS", "MIN_BLOCKS", "CLUSTER"}
_EARLY: Final = tuple(holds for holds, names in RULES.values() if _FIRST.issuperset(names) and not {*names} <= _ASKED)
# Splits of k, and parts of it in a cluster.
_SHARES: Final = (*((splits, 1) for splits in SPLITS), *((1, parts) for parts in PARTS))


def _default(problem: Problem, device: Device) -> Config:
    """The config of the least corrected estimate; the space's first one if the device allows none."""
    found = _seeds(problem, device)
    return found[0] if found else SPACE.first_legal(problem, device)


@lru_cache(1024)
def _seeds(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Of the configs of the least estimates the first ones when corrected."""
    return ranked(HOPPER, _fastest(problem, device, CANDIDATES), problem, device)[:SEEDS]


def _fastest(problem: Problem, device: Device, count: int) -> tuple[Config, ...]:
    """The configs of the least estimates, no two of one tile; those whose lower bound is above these are skipped."""
    bounds = [(least_seconds(config, problem, device), config) for config in _ways(problem, device)]
    fastest: dict[tuple[int, ...], tuple[float, Config]] = {}
    for bound, begun in sorted(bounds, key=itemgetter(0)):
        if len(fastest) >= count and bound >= sorted(fastest.values(), key=itemgetter(0))[count - 1][0]:
            break
        config = _finished(begun, problem, device)
        if config is not None and SPACE.refusal(config, problem, device) is None:
            tile = tuple(config[name] for name in UNLIKE)
            estimates = ((seconds(one, problem, device), one) for one in _grouped(config, problem))
            best = min(estimates, key=itemgetter(0))
            fastest[tile] = min(best, fastest.get(tile, best), key=itemgetter(0))
    return tuple(config for _, config in sorted(fastest.values(), key=itemgetter(0))[:count])


def _grouped(config: Config, problem: Problem) -> list[Config]:
    """The config with each GROUP_M."""
    return [Config.of(dict(config) | {"GROUP_M": size}) for size in groups(config, problem)]


def _ways(problem: Problem, device: Device) -> Iterator[Config]:
    """Configs of the tiles, with and without SWAP_AB, splits and clusters, with the most stages that any has."""
    for swap in (0, 1):
        which = not_for_tma(Config.of({"SWAP_AB": swap}), problem)
        ways = ((2, which, 0), (1, which, 0), *([(1, 0, which)] if which else []))
        for lhs, rhs, consumers, min_blocks in TILES:
            for cluster, packed, realigned in ways:
                begun = _begun(problem, swap, (lhs, rhs, consumers, min_blocks, cluster), (packed, realigned))
                if all(holds(begun, problem, device) for holds in _EARLY):
                    yield from _split(dict(begun), problem, device)


@cache
def _promotion(k: int) -> int:
    return max(
        (size for size in fp32_emulation.PROMOTIONS if fp32_emulation.SHARE * size <= k),
        default=fp32_emulation.PROMOTIONS[0],
    )


def _begun(problem: Problem, swap: int, shape: tuple[int, int, int, int, int], copied: tuple[int, int]) -> Config:
    lhs, rhs, consumers, min_blocks, cluster = shape
    packed, realigned = copied
    own = {
        "BK": 32 if problem.precision == "tf32" else 64,
        "TMA_STORE": int(not packing.is_c_ragged(problem)),
        "PROMOTE_K": _promotion(problem.k) if emulated(problem) else 0,
        "SWAP_AB": swap,
        "PACK_K": packed,
        "REALIGN": realigned,
        "BM": rhs if swap else lhs,
        "BN": lhs if swap else rhs,
        "CONSUMERS": consumers,
        "MIN_BLOCKS": min_blocks,
        "CLUSTER": cluster,
    }
    return Config.of(own)


def _split(begun: dict[str, int], problem: Problem, device: Device) -> Iterator[Config]:
    """The tile with k whole, in splits and in parts of a cluster, as many as the SMs have room for."""
    most = k_tiles(Config.of(begun), problem)
    count, sms = tiles(Config.of(begun), problem) * begun["CLUSTER"], device.limits.sms
    useful = useful_splits(count, sms)
    for splits, parts in _SHARES:
        has_room = splits in useful if parts == 1 else count * parts <= 2 * sms
        if splits * parts == 1 or (has_room and splits * parts <= most):
            shares = {"CLUSTER_K": parts, "SPLIT_K": splits}
            yield Config.of(begun | shares | {"C_IN_STAGES": 0, "STAGES": STAGES[-1]})


def _finished(begun: Config, problem: Problem, device: Device) -> Config | None:
    """A way with as many stages as are of use and as many blocks as have work; None if no stages fit."""
    stay = stays(begun, problem, device)
    begun = Config.of(dict(begun) | {"C_IN_STAGES": int(has_c_in_stages(begun, problem, device))})
    enough = enough_stages(begun, problem, device)
    if not enough:
        return None
    return Config.of(dict(begun) | {"STAGES": enough[-1], "GROUP_M": 1, "BLOCKS": stay[-1] if stay else 0})


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether tensor_core is not the faster one, which can do without packing."""
    other = TENSOR_CORE.default(problem, device)
    if emulated(problem) or other["PACK_K"] or not packing.ragged(problem):
        return True
    return max(untuned_seconds(problem, device), SHORT_SECONDS) < unpacked_seconds(other, problem, device)


def untuned_seconds(problem: Problem, device: Device) -> float:
    """Estimated seconds of the default, its packing step's start among them."""
    own = _default(problem, device)
    return seconds(own, problem, device) + PACKING_SECONDS[problem.itemsize] * bool(own["PACK_K"])


HOPPER: Final = Kernel(
    name="hopper",
    summary="Tiles that the TMA unit brings into a ring and groups of four warps multiply on tensor cores by wgmma.",
    file="hopper/kernel.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16", "float32"),
    precisions=("strict", "tf32", "emulated"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    seeds=_seeds,
    dynamic_smem=True,
    arguments=("GROUP_M", "SPLIT_K", "BLOCKS"),
    auxiliary_sources=(packing.PACK_K_MAJOR, SPLIT_K_REDUCE, *fp32_emulation.FILES),
    sizes=Sizes(emulated_k=fp32_emulation.LEAST_K),
    preferred_untuned=_preferred_untuned,
    architectures=("sm_90",),
    shapes=f"any shape, and k of {fp32_emulation.LEAST_K} and more where float32 is emulated",
    excluded_classes=(("float32", "strict"),),
    instructions=WGMMA,
)
