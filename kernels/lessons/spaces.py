"""The spaces and the launches of all lessons: few parameters, with few values to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kernels.device import Device
from kernels.launch import COUNTERS, Build, Plan, Step, TensorMap, dtype_macros
from kernels.problem import Problem, larger, smaller
from kernels.rules import DECLARED_BYTES, LINE_BYTES, MAX_GRID, VECTOR_BYTES, WARP, shared_fits, threads_fit
from kernels.sources import source
from kernels.space import Config, Rule, Space
from kernels.split_k import PARTIALS_BYTES

FLOAT_BYTES: Final = 4
# Lessons index by 32 bits; what is left covers what a tile reaches past an edge.
REACH: Final = 2**31 - 2**16
# Threads of a block of the step that adds up the parts of split k.
ADDERS: Final = 256
# Rows of one wgmma, and the 64 columns of 16 bits that TMA swizzles as one line.
WGMMA_M: Final = 64
BARRIER_BYTES: Final = 16
ADD_UP: Final = "lessons/lesson10_add_up.cu"

Threads = Callable[[Config], int]
Shared = Callable[[Config], int]


def model_tile(config: Config) -> Config:
    """The tile as the cost model reads it: a square TILE is BM, BN and BK; others have these already."""
    if "TILE" not in config:
        return config
    return Config.of(dict.fromkeys(("BM", "BN", "BK"), config["TILE"]))


def model_block(config: Config) -> Config:
    """The block of threads that each have one element, with neighbours along a row."""
    return Config.of(dict.fromkeys(("BM", "BN"), config["TILE"]))


def model_column(config: Config) -> Config:
    """The same with neighbours down a column, who have no sector of memory in common."""
    return Config.of({"BM": config["TILE"] ** 2, "BN": 1})


def model_groups(config: Config) -> Config:
    """The tile of four warps that share 64 rows, as the cost model's CONSUMERS."""
    return Config.of({**config, "CONSUMERS": config["BM"] // WGMMA_M})


def sides(config: Config) -> tuple[int, int]:
    """Rows and columns of C that a block computes."""
    return config.get("BM", config.get("TILE", 1)), config.get("BN", config.get("TILE", 1))


def tiles(config: Config, problem: Problem) -> int:
    """Blocks of tiles that cover C."""
    high, wide = sides(config)
    return -(-problem.m // high) * -(-problem.n // wide)


def square(config: Config) -> tuple[int, int]:
    """A block of a thread for each element of a TILE x TILE tile."""
    return config["TILE"], config["TILE"]


def rows(config: Config) -> tuple[int, int]:
    """A block whose threads have TM rows each."""
    return config["BN"], config["BM"] // config["TM"]


def grid_of_threads(config: Config) -> tuple[int, int]:
    """A block whose threads have TM x TN elements each."""
    return config["BN"] // config["TN"], config["BM"] // config["TM"]


def line(config: Config) -> tuple[int, int]:
    """The same threads in one line."""
    across, down = grid_of_threads(config)
    return across * down, 1


def warps(config: Config) -> tuple[int, int]:
    """A warp for each WM x WN of the tile, in one line."""
    return config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * WARP, 1


def warpgroups(config: Config) -> tuple[int, int]:
    """Four warps for each 64 rows, and one for TMA."""
    return config["BM"] * 2 + WARP, 1


def no_shared(_: Config) -> int:
    """No shared memory."""
    return 0


def square_bytes(config: Config) -> int:
    """Two square tiles of floats, A's with padded lines."""
    tile = config["TILE"]
    return FLOAT_BYTES * tile * (2 * tile + config.get("PAD", 0))


def tile_bytes(pad: int, buffers: int = 1) -> Shared:
    """Both tiles of floats, A's turned and its lines longer by `pad`, `buffers` times."""
    return lambda config: FLOAT_BYTES * buffers * config["BK"] * (config["BM"] + pad + config["BN"])


def staged_bytes(config: Config) -> int:
    """STAGES of both tiles of floats, A's lines along k and longer by four."""
    return FLOAT_BYTES * config["STAGES"] * (config["BM"] * (config["BK"] + 4) + config["BK"] * config["BN"])


def half_bytes(config: Config) -> int:
    """Both tiles of 16 bits, their lines longer by eight elements, STAGES times."""
    own = config["BM"] * (config["BK"] + 8) + config["BK"] * (config["BN"] + 8)
    return 2 * config.get("STAGES", 1) * own


def wmma_bytes(config: Config) -> int:
    """Both tiles, and a tile of 16 x 16 sums for each warp."""
    return half_bytes(config) + warps(config)[0] // WARP * 256 * FLOAT_BYTES


def ring_bytes(config: Config) -> int:
    """STAGES of both tiles in lines of 128 bytes, and two barriers for each."""
    return config["STAGES"] * ((config["BM"] + config["BN"]) * LINE_BYTES + BARRIER_BYTES)


def plain(block: Callable[[Config], tuple[int, int]], shared: Shared) -> Callable[[Config, Problem], Plan]:
    """The plan of a block for each tile."""
    return lambda config, problem: Plan(tiles(config, problem), block(config), shared(config))


def split_depth(config: Config, problem: Problem) -> int:
    """The k of a split: whole tiles; the last may have less."""
    count = -(-problem.k // config["BK"])
    return -(-count // config["SPLIT_K"]) * config["BK"]


def split_plan(config: Config, problem: Problem) -> Plan:
    """The plan of a block for each split of each tile, and of a step that adds up their parts."""
    macros = (("SPLIT_K", str(config["SPLIT_K"])), *dtype_macros(problem))
    adding = Step(
        Build("lesson10_add_up", source(ADD_UP), "add_up", macros), -(-problem.m * problem.n // ADDERS), (ADDERS, 1)
    )
    return Plan(
        tiles(config, problem) * config["SPLIT_K"],
        line(config),
        tile_bytes(4, 2)(config),
        workspace_bytes=4 * COUNTERS + _parts_bytes(config, problem),
        scalars=(split_depth(config, problem), COUNTERS // 4),
        after=(adding,),
    )


def ring_plan(config: Config, problem: Problem) -> Plan:
    """The plan of blocks that take tile after tile, with the boxes that TMA copies."""
    count, wide = tiles(config, problem), problem.itemsize
    a = TensorMap(
        "a", problem.dtype, (problem.k, problem.m), (problem.k * wide,), (config["BK"], config["BM"]), LINE_BYTES
    )
    b = TensorMap("b", problem.dtype, (problem.n, problem.k), (problem.n * wide,), (WGMMA_M, config["BK"]), LINE_BYTES)
    blocks = smaller(count, config["BLOCKS"] or count)
    return Plan(blocks, warpgroups(config), ring_bytes(config), maps=(a, b))


def _parts_bytes(config: Config, problem: Problem) -> int:
    return config["SPLIT_K"] * problem.m * problem.n * FLOAT_BYTES


def _reached(_: Config, problem: Problem, __: Device) -> bool:
    m, n, k = problem.m, problem.n, problem.k
    return larger(m * k, k * n, m * n) <= REACH


def _whole_rows(_: Config, problem: Problem, __: Device) -> bool:
    wide = VECTOR_BYTES // problem.itemsize
    return problem.n % wide == 0 and problem.k % wide == 0


def _grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    return tiles(config, problem) * config.get("SPLIT_K", 1) <= MAX_GRID


def _even(block: Callable[[Config], tuple[int, int]], each: int) -> Rule:
    """Whether the threads of a block load both tiles by rounds of `each` elements a thread."""

    def holds(config: Config, _: Problem, __: Device) -> bool:
        across, down = block(config)
        return all(config[side] * config["BK"] % (each * across * down) == 0 for side in ("BM", "BN"))

    return holds


def _lanes(config: Config, _: Problem, __: Device) -> bool:
    across = config["WN"] // config["TN"]
    return (
        0 < across <= WARP
        and WARP % across == 0
        and config["BN"] % config["WN"] == 0
        and config["BM"] % (WARP // across * config["TM"]) == 0
    )


def _declared(shared: Shared) -> Rule:
    return lambda config, _, __: shared(config) <= DECLARED_BYTES


def _split(config: Config, problem: Problem, _: Device) -> bool:
    return (config["SPLIT_K"] - 1) * split_depth(config, problem) < problem.k


def _parts_fit(config: Config, problem: Problem, _: Device) -> bool:
    return _parts_bytes(config, problem) <= PARTIALS_BYTES


def _stay(config: Config, _: Problem, device: Device) -> bool:
    return config["BLOCKS"] in {0, device.limits.sms}


def _space(
    parameters: Mapping[str, tuple[int, ...]],
    block: Callable[[Config], tuple[int, int]],
    shared: Rule,
    **more: Rule,
) -> Space:
    """A space with the rules of all lessons and some of its own, named in `_NAMES`."""

    def threads(config: Config) -> int:
        across, down = block(config)
        return across * down

    return Space(
        parameters=parameters,
        rules={
            "more elements of a matrix than 32-bit indices reach": _reached,
            "more threads a block than the device allows": threads_fit(threads),
            "more shared memory a block than there is": shared,
            "more than 2^31 - 1 blocks": _grid_fits,
            **{_NAMES[name]: rule for name, rule in more.items()},
        },
    )


_NAMES: Final = {
    "rows": "rows that are no multiples of 16 bytes",
    "even": "tiles that the threads do not load evenly",
    "lanes": "tiles that warps do not divide evenly",
    "split": "splits of k that are empty",
    "parts": "more partial sums than fit in the workspace",
    "stay": "blocks that stay, other than one for each SM",
}


def _none(_: Config, __: Problem, ___: Device) -> bool:
    return True


def _dynamic(shared: Shared) -> Rule:
    return shared_fits(lambda config, _: shared(config))


TILES: Final = (8, 16, 32)
_THREAD: Final = {"BM": (64, 128), "BN": (64, 128), "BK": (8, 16), "TM": (4, 8), "TN": (4, 8)}
_WARP: Final = {"BM": (64, 128), "BN": (64, 128), "BK": (32, 64), "WM": (32, 64), "WN": (32, 64)}
SPACES: Final = {
    1: _space({"TILE": TILES}, square, _none),
    2: _space({"TILE": TILES}, square, _none),
    3: _space({"TILE": TILES}, square, _declared(square_bytes)),
    4: _space({"TILE": TILES, "PAD": (0, 1)}, square, _declared(square_bytes)),
    5: _space({"BM": (64, 128), "BN": (64,), "BK": (8, 16, 32), "TM": (4, 8, 16)}, rows, _declared(tile_bytes(4))),
    6: _space(_THREAD, grid_of_threads, _declared(tile_bytes(4))),
    7: _space(_THREAD, grid_of_threads, _declared(tile_bytes(4)), rows=_whole_rows),
    8: _space(_THREAD, grid_of_threads, _declared(tile_bytes(4, 2)), rows=_whole_rows, even=_even(grid_of_threads, 4)),
    9: _space(
        {**_THREAD, "WN": (32, 64)},
        line,
        _declared(tile_bytes(4, 2)),
        rows=_whole_rows,
        even=_even(line, 4),
        lanes=_lanes,
    ),
    10: _space(
        {**_THREAD, "BM": (64,), "BN": (64,), "WN": (32, 64), "SPLIT_K": (1, 4, 16, 64, 128, 256)},
        line,
        _declared(tile_bytes(4, 2)),
        rows=_whole_rows,
        even=_even(line, 4),
        lanes=_lanes,
        split=_split,
        parts=_parts_fit,
    ),
    11: _space(
        {
            "BM": (64, 128),
            "BN": (128, 256),
            "BK": (8, 16),
            "TM": (8, 16),
            "TN": (8,),
            "WN": (32, 64),
            "STAGES": (2, 3, 4),
        },
        line,
        _dynamic(staged_bytes),
        rows=_whole_rows,
        even=_even(line, 4),
        lanes=_lanes,
    ),
    12: _space(_WARP, warps, _declared(wmma_bytes), rows=_whole_rows, even=_even(warps, 8)),
    13: _space({**_WARP, "STAGES": (2, 3, 4)}, warps, _dynamic(half_bytes), rows=_whole_rows, even=_even(warps, 8)),
    14: _space(
        {
            "BM": (64, 128),
            "BN": (128, 256),
            "BK": (64,),
            "STAGES": (2, 3, 4, 5),
            "GROUP_M": (1, 8, 16),
            "BLOCKS": (0, 114, 132),
        },
        warpgroups,
        _dynamic(ring_bytes),
        rows=_whole_rows,
        stay=_stay,
    ),
}
