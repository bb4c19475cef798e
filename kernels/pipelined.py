"""pipelined: register_tiled's product with operands read and copied ahead, on CUDA from sm_80; strict float32."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import COUNTERS, Build, Kernel, Plan, Step, source
from kernels.model import lightest
from kernels.naive import blocks
from kernels.problem import Problem
from kernels.register_plan import (
    LINE_BYTES,
    REPACKED,
    SUMS_BYTES,
    VECTOR_BYTES,
    copied_bytes,
    copied_lines,
    phases,
    repack,
    shared_bytes,
    threads,
)
from kernels.register_space import HOPPER
from kernels.register_tiled import SPACE as TILED
from kernels.register_tiled import SPLITS, WARP, granted
from kernels.space import Config, Rule, Space
from kernels.stream_k import LAUNCH, SMS, Shares, parts_lines, seconds, shares, sums_lines
from kernels.stream_k import RULES as STREAMING

JOINED: Final = "join.cu"
JOIN_THREADS: Final = 256
MOST_TEAMS: Final = 8
# Registers beside sums and two steps' operands: addresses, counters, and which copies are inside C.
REST: Final = 28
# So many sums leave registers for the rest on sm_90 only: before and after, NVRTC spills a few. It also does so there
# where sums are half of what registers there are; before sm_90, if one team has them all to write.
LARGE: Final = 128
# One bit of a word for each copy that a thread makes in a phase.
BITS: Final = 32
# Copies of a side of whose addresses, where B's are crosswise, NVRTC keeps no more than there are registers: twice as
# many in short phases of a large block that has an SM for itself, half as many where two share it.
FEW: Final = 8
SHALLOW: Final = 16
BUSY_THREADS: Final = 256
# Of C: fewer are too few tiles, where k is no longer than what is not sliced.
SMALL_C: Final = 2**16
NOT_SLICED: Final = 512


# What copies of one element instead of four add to the time of the loop over k, as the instructions in it say.
SINGLE_COST: Final = 0.05


def copies(config: Config, problem: Problem) -> tuple[int, int]:
    """Copies of A, and of B, that a thread makes in a phase, where each is of as much as its order allows."""
    along = not config["REPACK"]
    crosswise = (along and not problem.trans_a, along and problem.trans_b)
    width_a, width_b = (1 if cross else config["VECTOR"] for cross in crosswise)
    count = threads(config)
    return config["BM"] * config["BK"] // count // width_a, config["BN"] * config["BK"] // count // width_b


def registers(config: Config) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    tm, tn = config["TM"], config["TN"]
    return tm * tn + 2 * (tm + tn) + REST


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config, with copies before and the joining of slices after where it has these."""
    streamed = shares(config, problem) if config["STREAM_K"] else None
    whole = phases(config, problem)
    slices = min(config["SPLIT_K"], whole) if _fit(config, problem) and not streamed else 1
    phased, longer = divmod(whole, slices)
    lines_a, lines_b = copied_lines(problem) if config["REPACK"] else (0, 0)
    depth, at_c = problem.batch * problem.k, 4 * COUNTERS // LINE_BYTES
    at_a = at_c + _left_lines(config, problem, slices, streamed)
    at_b = at_a + depth * lines_a
    end = at_b + depth * lines_b
    own = streamed.numbers if streamed else (0, 0, longer, 0)
    return Plan(
        grid=streamed.blocks if streamed else blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=end * LINE_BYTES if end > at_c else 0,
        numbers=(slices, at_c, phased, config["GROUP"], at_a, lines_a, at_b, lines_b, *own),
        before=(repack(problem),) if lines_a + lines_b else (),
        after=(_join(problem, slices),) if slices > 1 else (),
    )


def _left_lines(config: Config, problem: Problem, slices: int, streamed: Shares | None) -> int:
    if streamed:
        return parts_lines(config, problem, streamed)
    return sums_lines(problem, slices) if slices > 1 else 0


def _join(problem: Problem, slices: int) -> Step:
    """The launch that adds up slices: a block for each piece of C, threads in teams that share out the slices."""
    teams = min(MOST_TEAMS, 1 << (slices.bit_length() - 1))
    piece = JOIN_THREADS // teams * VECTOR_BYTES // problem.itemsize
    macros = (("DTYPE_" + problem.dtype.upper(), "1"), ("TEAMS", str(teams)))
    build = Build("join", source(JOINED), "join", macros)
    return Step(build, problem.batch * -(-problem.m * problem.n // piece), (JOIN_THREADS, 1))


def _fit(config: Config, problem: Problem) -> bool:
    return config["SPLIT_K"] == 1 or sums_lines(problem, config["SPLIT_K"]) * LINE_BYTES <= SUMS_BYTES


def _sums_fit(config: Config, problem: Problem, _: Device) -> bool:
    return _fit(config, problem)


def _registers_fit(config: Config, _: Problem, device: Device) -> bool:
    return registers(config) <= granted(config, device)


def _registers_left(config: Config, _: Problem, device: Device) -> bool:
    sums, number = config["TM"] * config["TN"], device.capability
    if number == HOPPER:
        return True
    stored = 2 * sums < granted(config, device) or (number < HOPPER and config["SLICES"] > 1)
    return stored and sums * config["HELD"] < LARGE


def _or_streamed(reason: str) -> Rule:
    """register_tiled's rule, but where phases are shared out: then HELD says how many blocks there are on an SM."""
    return lambda config, problem, device: config["STREAM_K"] > 0 or TILED.rules[reason](config, problem, device)


def _copies_counted(config: Config, problem: Problem, _: Device) -> bool:
    return max(copies(config, problem)) <= BITS


def _addresses_fit(config: Config, problem: Problem, device: Device) -> bool:
    of_a, of_b = copies(config, problem)
    # NVRTC keeps more addresses in registers for what came after Hopper.
    large = 2 * config["TM"] * config["TN"] >= granted(config, device) or device.capability > HOPPER
    if config["REPACK"] or not problem.trans_b:
        return not large or of_a + of_b < BITS
    return max(of_a, of_b) <= _most_copies(config) and (not large or of_a <= FEW)


def _most_copies(config: Config) -> int:
    if threads(config) < BUSY_THREADS or config["SLICES"] > 1:
        return FEW
    if config["HELD"] > 1:
        return FEW // 2
    return 2 * FEW if config["BK"] <= SHALLOW else FEW


def _warp_is_compact(config: Config, _: Problem, __: Device) -> bool:
    wn, area = config["WN"], WARP * config["TM"] * config["TN"]
    return area <= 4 * wn * wn <= 16 * area


def _copies_whole(config: Config, problem: Problem, _: Device) -> bool:
    return config["VECTOR"] == 1 or config["REPACK"] == 1 or not _is_ragged(problem)


def _copies_wide(config: Config, problem: Problem, _: Device) -> bool:
    return config["VECTOR"] > 1 or (config["REPACK"] == 0 and _is_ragged(problem))


def _is_ragged(problem: Problem) -> bool:
    """Whether rows that lie along C are not whole 16 bytes."""
    wide = VECTOR_BYTES // problem.itemsize
    return bool((problem.trans_a and problem.m % wide) or (not problem.trans_b and problem.n % wide))


def _parameters() -> dict[str, tuple[int, ...]]:
    """register_tiled's and its own; what is refused soonest comes first, so that little is built up."""
    order = ("BM", "BN", "STREAM_K", "HELD", "GROUP", "TM", "TN", "WN", "SLICES", "REPACK", "VECTOR", "BK", "STAGES")
    return {name: _VALUES.get(name) or TILED.parameters[name] for name in (*order, "SPLIT_K")}


_VALUES: Final = {
    "BM": (32, 64, 128, 256),
    "SLICES": (1, 2, 4),
    "STREAM_K": (0, *SMS),
    "VECTOR": (1, 4),
    "STAGES": (3, 4),
}
_UNLESS_STREAMED: Final = ("a bound on registers that binds nothing", "SMs left idle that more slices of k would use")
_TILE: Final = ("BM", "BN", "TM", "TN", "SLICES")
_OWN: Final[dict[str, tuple[Rule, tuple[str, ...]]]] = {
    "a warp's part of the tile more than four times as long as wide": (_warp_is_compact, ("TM", "TN", "WN")),
    "more registers a thread than there are": (_registers_fit, (*_TILE, "HELD")),
    "more sums a thread than leave registers for the rest": (_registers_left, (*_TILE, "HELD")),
    "more copies a thread in a phase than a word has bits": (_copies_counted, (*_TILE, "REPACK", "VECTOR", "BK")),
    "copies whose addresses take the registers of other things": (
        _addresses_fit,
        (*_TILE, "REPACK", "VECTOR", "BK", "HELD"),
    ),
    **{reason: (_or_streamed(reason), (*TILED.reads[reason], "STREAM_K")) for reason in _UNLESS_STREAMED},
    "copies of 16 bytes, where rows are not whole ones": (_copies_whole, ("REPACK", "VECTOR")),
    "copies of one element, where rows are whole 16 bytes": (_copies_wide, ("REPACK", "VECTOR")),
    "more sums of slices than scratch has room for": (_sums_fit, ("SPLIT_K",)),
    **STREAMING,
}
# What is register_tiled's business alone: stages that are not copied, and how its slices meet.
_OTHERS: Final = {
    "more sums a thread than a processor's registers hold",
    "another warp than 4 threads across, where the device has none",
    "a warp's part of the tile more than twice as long as wide",
    "fewer than three stages, where copies can be under way",
    "copies against crosswise ones of 4 bytes, where there are none",
}
_SHARED: Final = {reason: rule for reason, rule in TILED.rules.items() if reason not in _OTHERS}
SPACE: Final = Space(
    parameters=_parameters(),
    rules=_SHARED | {reason: rule for reason, (rule, _) in _OWN.items()},
    reads={reason: TILED.reads[reason] for reason in _SHARED} | {reason: names for reason, (_, names) in _OWN.items()},
)

# What defaults are chosen from, largest first: BM, BN, TM, TN, WN, BK, STAGES, HELD.
_TILES: Final = (
    (128, 256, 8, 16, 128, 16, 4, 1),
    (256, 128, 16, 8, 64, 16, 4, 1),
    (128, 128, 8, 8, 64, 16, 4, 1),
    (64, 128, 8, 8, 64, 16, 4, 1),
    (128, 64, 8, 8, 32, 16, 4, 1),
    (64, 64, 8, 8, 64, 16, 4, 1),
    (32, 128, 8, 8, 64, 16, 4, 1),
    (32, 64, 8, 4, 64, 16, 4, 1),
    (64, 32, 8, 4, 16, 16, 4, 1),
    (32, 32, 4, 4, 16, 16, 4, 1),
)
_NAMES: Final = ("BM", "BN", "TM", "TN", "WN", "BK", "STAGES", "HELD")


def _default(problem: Problem, device: Device) -> Config:
    shapes = [dict(zip(_NAMES, tile, strict=True)) for tile in _TILES]
    ways = [each for shape in shapes for each in _ways(shape, problem, device)]
    chosen = lightest(SPACE, sorted(ways, key=lambda each: each["SPLIT_K"] > 1), problem, device)
    shared = [SPACE.config(each | {"STREAM_K": device.limits.sms}) for each in ways if device.limits.sms in SMS]
    legal = [each for each in shared if SPACE.refusal(each, problem, device) is None]
    return min((chosen, *legal), key=lambda each: seconds(each, problem, device))


def _is_cheap(problem: Problem, device: Device) -> bool:
    """Whether copying operands takes no more than copies of single elements in the loop over k would."""
    copying = LAUNCH + 2 * copied_bytes(problem) / device.limits.bandwidth
    return copying <= SINGLE_COST * problem.flops / device.limits.peak


def _tiles(shape: dict[str, int], problem: Problem) -> int:
    return -(-problem.m // shape["BM"]) * -(-problem.n // shape["BN"]) * problem.batch


def _ways(shape: dict[str, int], problem: Problem, device: Device) -> list[dict[str, int]]:
    """A tile with what its shape asks for: teams, slices, copies where rows are ragged, and an order of tiles."""
    tiles, ragged = _tiles(shape, problem), _is_ragged(problem)
    own = shape["BM"] // shape["TM"] * shape["BN"] // shape["TN"]
    most = 2 if ragged else 4  # four were slower on an H200 where copies are of one element
    teams = (team for team in (4, 2, 1) if team <= most and team * own <= BUSY_THREADS)
    splits = [split for split in SPLITS if split * tiles <= 2 * device.limits.sms or split == 1]
    group = 8 if tiles > 2 * device.limits.sms else 1
    ways = [(1, 4), (0, 1)] if ragged and _is_cheap(problem, device) else [(0, 1), (1, 4)] if ragged else [(0, 4)]
    return [
        shape
        | {
            "STREAM_K": 0,
            "BK": max(16, 8 * team),
            "SLICES": team,
            "SPLIT_K": split,
            "REPACK": copied,
            "VECTOR": width,
            "GROUP": group,
        }
        for team in teams
        for split in splits
        for copied, width in ways
    ]


def _leads(problem: Problem, _: Device) -> bool:
    """Whether its tiles fill a GPU, or slices of k do: at 256 cubed register_tiled's take 0.7 of the time."""
    return problem.m * problem.n * problem.batch > SMALL_C or problem.k > NOT_SLICED


PIPELINED: Final = Kernel(
    name="pipelined",
    summary="Tiles as register_tiled's, with the next operands read and copied between the products.",
    file="pipelined.cu",
    space=SPACE,
    dtypes=("float32",),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    pooled=True,
    arguments=("GROUP", "SPLIT_K"),
    leads=_leads,
    also=(REPACKED, JOINED),
    architectures=("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),
)
