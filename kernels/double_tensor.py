"""double_tensor: float64 products on tensor cores, by tiles in shared memory that are copied while others multiply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from kernels.device import Device
from kernels.instructions import dmma
from kernels.kernel import COUNTERS, Kernel, Plan
from kernels.naive import blocks
from kernels.problem import Problem
from kernels.register_plan import SUMS_BYTES, fan, phases, share, split_fits, sums_bytes
from kernels.sliced import WAVES, are_whole, grid_fits, order_matters, slices_needed, slices_whole
from kernels.space import Config, Rule, Space

WARP: Final = 32
# Tensor cores that multiply float64 at twice the rate of FMAs. Other architectures with mma.sync for it, sm_86, sm_89
# and sm_120 among them, have a fraction of that (CUDA C++ Programming Guide, "Throughput of Native Arithmetic
# Instructions").
ARCHITECTURES: Final = ("sm_80", "sm_90")
# The one instruction before sm_90, which has deeper ones too (PTX ISA, "mma").
SHALLOW: Final = 4
# Registers beside sums and operands, as NVRTC 12.9 allots them: addresses, sizes, counters.
ADDRESSES: Final = 76
# Copies of 16 bytes that a thread sends in a phase before their addresses take more, half as many where a warp's part
# is wider than it is high, and how many registers more.
FEW_COPIES: Final = 16
A_COPY: Final = 8
SPLITS: Final = (1, 2, 3, 4, 6, 8, 11, 16, 22, 33, 44, 66, 132, 264)
# Threads of an SM that keep its four parts' tensor cores busy while some wait.
BUSY_THREADS: Final = 128
FEW_WARPS: Final = 4
# Of k in shared memory: less leaves too little on its way, more is not waited for.
LEAST_DEEP, MOST_DEEP = 48, 128
# C's short side that is skinny's, and the cube that is batched's: there memory is the bound, not products.
SHORT: Final = 16
SMALL: Final = 32
# Of k: a block is done with so much about when slices of it would have been added up.
NOT_SLICED: Final = 512
# What an SM does in a clock: float64 FMAs on tensor cores, and bytes that it gets from the L2 cache, of which some are
# in the way of products. In clocks: what a tile takes before its first product and after its last one, and slices for
# each other. Warps that never all wait. CACHE_BYTES, IN_THE_WAY and TILE_CLOCKS are fitted to 900 timed configs.
FMAS: Final = 128
CACHE_BYTES: Final = 48
IN_THE_WAY: Final = 0.1
TILE_CLOCKS: Final = 1500
JOIN_CLOCKS: Final = 6000
BUSY_WARPS: Final = 8


def threads(config: Config) -> int:
    """Threads of a block: a warp for each WM x WN of its tile."""
    return config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * WARP


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of both shared tiles."""
    return config["STAGES"] * (config["BM"] + config["BN"]) * config["BK"] * problem.itemsize


def registers(config: Config) -> int:
    """Registers that a thread needs at least if nothing is to be spilled: two for each double."""
    wm, wn = config["WM"], config["WN"]
    operands = (1 + config["AHEAD"]) * config["MMA_K"] * (wm + wn)
    copies = (config["BM"] + config["BN"]) * config["BK"] // 2 // threads(config)
    more = max(0, copies - (FEW_COPIES if wm >= wn else FEW_COPIES // 2))
    return 2 * (wm * wn + operands) // WARP + ADDRESSES + A_COPY * more


def granted(config: Config, device: Device) -> int:
    """Registers that the compiler may give a thread so that an SM holds HELD blocks; 0 where the device has none."""
    limits = device.limits
    return min(limits.registers_per_sm // (threads(config) * config["HELD"]) // 8 * 8, limits.registers_per_thread)


def _plan(config: Config, problem: Problem) -> Plan:
    split = config["SPLIT_K"] > 1 and split_fits(config, problem)
    phased = share(config, problem) if split else phases(config, problem)
    slices = -(-phases(config, problem) // phased)
    down = -(-problem.m // config["BM"])
    return Plan(
        grid=blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=4 * COUNTERS + sums_bytes(config, problem, slices) if slices > 1 else 0,
        numbers=(min(config["GROUP"], down), slices, fan(slices), phased * config["BK"]),
    )


def _has_instruction(_: Config, __: Problem, device: Device) -> bool:
    return device.platform == "cuda" and device.architecture in ARCHITECTURES


def _deep_enough(config: Config, _: Problem, device: Device) -> bool:
    return config["MMA_K"] <= SHALLOW or device.architecture != "sm_80"


def _warps_divide(config: Config, _: Problem, __: Device) -> bool:
    return config["BM"] % config["WM"] == 0 and config["BN"] % config["WN"] == 0


def _warps_share(config: Config, _: Problem, __: Device) -> bool:
    small = min(config["WM"], config["WN"]) < WARP
    return not small or config["BM"] // config["WM"] * (config["BN"] // config["WN"]) <= FEW_WARPS


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    return threads(config) * config["HELD"] >= BUSY_THREADS and threads(config) <= device.limits.threads


def _copies_divide(config: Config, _: Problem, __: Device) -> bool:
    turn = 2 * threads(config)
    return config["BM"] * config["BK"] % turn == 0 and config["BN"] * config["BK"] % turn == 0


def _steps_alternate(config: Config, _: Problem, __: Device) -> bool:
    return not config["AHEAD"] or config["BK"] % (2 * config["MMA_K"]) == 0


def _registers_fit(config: Config, _: Problem, device: Device) -> bool:
    return registers(config) <= granted(config, device)


def _bound_binds(config: Config, _: Problem, device: Device) -> bool:
    return config["HELD"] == 1 or granted(config, device) < device.limits.registers_per_thread


def _stages_pay(config: Config, _: Problem, __: Device) -> bool:
    return LEAST_DEEP <= config["STAGES"] * config["BK"] <= MOST_DEEP


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes


def _held_fit(config: Config, problem: Problem, device: Device) -> bool:
    limits, held = device.limits, config["HELD"]
    shared = held * (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    return held == 1 or (shared <= limits.shared_bytes_per_sm and held * threads(config) <= limits.threads_per_sm)


def _slices_fit(config: Config, problem: Problem, _: Device) -> bool:
    return split_fits(config, problem)


def _sms_used(config: Config, problem: Problem, device: Device) -> bool:
    tiles, sms = blocks(config, problem), device.limits.sms
    if 2 * tiles * config["SPLIT_K"] > sms or (config["SPLIT_K"] == 1 and problem.k <= NOT_SLICED):
        return True
    tile_bytes = config["BM"] * config["BN"] * problem.itemsize
    return config["SPLIT_K"] == _most_slices(phases(config, problem), tiles, tile_bytes, WAVES * config["HELD"] * sms)


@cache
def _most_slices(steps: int, tiles: int, tile_bytes: int, most: int) -> int:
    """The most slices that the other rules allow."""

    def allowed(split: int) -> bool:
        fits = tiles * split * tile_bytes <= SUMS_BYTES and tiles * (-(-split // fan(split)) + 1) <= COUNTERS
        return are_whole(steps, split) and tiles * split <= most and fits

    return max((split for split in SPLITS[1:] if allowed(split)), default=1)


_WARPS: Final = ("BM", "BN", "WM", "WN")
# Each rule with the parameters that it reads.
_RULES: Final[Mapping[str, tuple[Rule, tuple[str, ...]]]] = {
    "no tensor cores that multiply float64 at full rate": (_has_instruction, ()),
    "a tile that its warps' parts do not divide": (_warps_divide, _WARPS),
    "small parts for more than four warps, which read more than they multiply": (_warps_share, _WARPS),
    "copies of 16 bytes that do not divide evenly among the threads": (_copies_divide, (*_WARPS, "BK")),
    "an instruction deeper than 4 along k before sm_90": (_deep_enough, ("MMA_K",)),
    "operands read ahead in turns that a phase does not divide into": (_steps_alternate, ("BK", "MMA_K", "AHEAD")),
    "fewer threads than keep an SM busy, or more than the device allows": (_threads_fit, (*_WARPS, "HELD")),
    "more registers a thread than there are": (_registers_fit, (*_WARPS, "BK", "MMA_K", "AHEAD", "HELD")),
    "a bound on registers that binds nothing": (_bound_binds, (*_WARPS, "HELD")),
    "less of k in shared memory than 48, or more than 128": (_stages_pay, ("BK", "STAGES")),
    "more shared memory a block than the device allows": (_shared_fits, ("BM", "BN", "BK", "STAGES")),
    "more blocks to hold at once than an SM has room for": (_held_fit, (*_WARPS, "BK", "STAGES", "HELD")),
    "an order of tiles, where all run at once": (order_matters, ("BM", "BN", "GROUP")),
    "more than 2^31 - 1 blocks": (grid_fits, ("BM", "BN", "SPLIT_K")),
    "more slices of k, where there are blocks enough": (slices_needed, ("BM", "BN", "HELD", "SPLIT_K")),
    "slices of k of which some are empty, or that are shorter than four phases": (slices_whole, ("BK", "SPLIT_K")),
    "more sums of slices than scratch has room for": (_slices_fit, ("BM", "BN", "BK", "SPLIT_K")),
    "SMs left idle that more slices of k would use": (_sms_used, ("BM", "BN", "BK", "HELD", "SPLIT_K")),
}
SPACE: Final = Space(
    parameters={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "BK": (16, 32),
        "MMA_K": (4, 8, 16),
        "AHEAD": (0, 1),
        "STAGES": (2, 3, 4, 5),
        "HELD": (1, 2, 3, 4),
        "GROUP": (1, 8, 16),
        "SPLIT_K": SPLITS,
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)

# What defaults are chosen from, largest first: BM, BN, WM, WN, BK, MMA_K, AHEAD, STAGES, HELD. An instruction that is 8
# deep keeps tensor cores busier than two of 4, and leaves registers to read operands ahead, which one of 16 does not.
_TILES: Final = (
    (64, 128, 32, 32, 16, 8, 1, 5, 1),
    (64, 64, 32, 32, 16, 8, 1, 4, 1),
    (32, 64, 16, 32, 16, 8, 1, 5, 1),
    (32, 32, 16, 16, 32, 8, 1, 4, 1),
)
_SHALLOW_TILES: Final = (
    (128, 128, 64, 32, 16, 4, 1, 4, 1),
    (64, 128, 32, 32, 16, 4, 1, 4, 1),
    (64, 64, 32, 32, 16, 4, 1, 4, 1),
    (32, 64, 16, 32, 16, 4, 1, 4, 1),
    (32, 32, 16, 16, 16, 4, 1, 4, 1),
)
_TILE_NAMES: Final = ("BM", "BN", "WM", "WN", "BK", "MMA_K", "AHEAD", "STAGES", "HELD")


def _default(problem: Problem, device: Device) -> Config:
    """The legal choice whose busiest SM is done first; where the device allows no config, the space's first one."""
    tiles = _SHALLOW_TILES if device.architecture == "sm_80" else _TILES
    shapes = [shape for tile in tiles for shape in _ways(dict(zip(_TILE_NAMES, tile, strict=True)), problem)]
    choices = [
        SPACE.config(shape | {"GROUP": 8 if _tiles(shape, problem) > 2 * device.limits.sms else 1, "SPLIT_K": split})
        for shape in shapes
        for split in SPLITS
    ]
    legal = [choice for choice in choices if SPACE.refusal(choice, problem, device) is None]
    if legal:
        return min(legal, key=lambda choice: _clocks(choice, problem, device))
    return next(iter(SPACE.legal(problem, device)), next(iter(SPACE)))


def _ways(shape: dict[str, int], problem: Problem) -> list[dict[str, int]]:
    """A tile's shape both ways; first with the longer side where memory has C's rows or columns along the operand."""
    if shape["BM"] == shape["BN"]:
        return [shape]
    turned = shape | {"BM": shape["BN"], "BN": shape["BM"], "WM": shape["WN"], "WN": shape["WM"]}
    return [turned, shape] if problem.trans_a and problem.trans_b else [shape, turned]


def _tiles(shape: Mapping[str, int], problem: Problem) -> int:
    return problem.batch * -(-problem.m // shape["BM"]) * -(-problem.n // shape["BN"])


def _clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the SM that has most to do: its products, or what these bring from the cache if that takes longer.

    Blocks that it holds at once begin and end while others multiply; few warps leave it idle while they wait.
    """
    limits, size, slices = device.limits, config["BM"] * config["BN"], config["SPLIT_K"]
    own = -(-_tiles(config, problem) * slices // max(limits.sms, 1))
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    held = min(own, max(1, room))
    idle = max(1, BUSY_WARPS * WARP / (threads(config) * held))
    brought = (config["BM"] + config["BN"]) * problem.itemsize / CACHE_BYTES
    step = max(size / FMAS, brought) + IN_THE_WAY * brought
    joining = JOIN_CLOCKS + 2 * fan(slices) * size * problem.itemsize / CACHE_BYTES if slices > 1 else 0
    depth = share(config, problem) * config["BK"]
    return own * depth * step * idle + -(-own // held) / held * TILE_CLOCKS + joining


def _suits(problem: Problem) -> bool:
    return min(problem.m, problem.n) > SHORT and max(problem.m, problem.n, problem.k) > SMALL


DOUBLE_TENSOR: Final = Kernel(
    name="double_tensor",
    summary="Tiles in shared memory that each warp multiplies in float64 on tensor cores.",
    file="double_tensor.cu",
    space=SPACE,
    dtypes=("float64",),
    precisions=("strict",),
    platforms=("cuda",),
    plan=_plan,
    default=_default,
    pooled=True,
    arguments=("GROUP", "SPLIT_K"),
    suits=_suits,
    shapes=f"a C of more than {SHORT} both ways, where m, n or k is over {SMALL}",
    architectures=ARCHITECTURES,
    instructions=dmma,
)
