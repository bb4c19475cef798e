"""The space of register_tiled: how large it is, what refuses what, its defaults, and the banks of its shared tiles."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest

from kernels import CATALOGUE
from kernels.cost_model import analyse, predict
from kernels.device import Device
from kernels.problem import Problem
from kernels.register_tiled.plan import lines, register_limit, registers, shared_bytes, threads
from kernels.space import Config
from tests.support.kernels.devices import DTYPES, H200, PROCESSOR, TRANSPOSITIONS, config, transposed

ENTRY = CATALOGUE["register_tiled"]
CUBE = Problem(1024, 1024, 1024)
TURING = replace(H200, architecture="sm_75")


def tile(*values: int, teams: int = 1, repack: int = 0, split: int = 1, group: int = 1) -> Config:
    """BM, BN, TM, TN, WN, BK, STAGES and MIN_BLOCKS; what is not said is as if it were not there."""
    *shape, bk, stages, held = values
    return config("register_tiled", (*shape, teams, repack, bk, stages, held, split, group))


@cache
def legal(dtype: str, platform: str) -> list[Config]:
    return ENTRY.space.legal(replace(CUBE, dtype=dtype), H200 if platform == "cuda" else PROCESSOR)


def test_the_space_is_rich() -> None:
    found = ENTRY.space.legal(CUBE, H200)
    assert 1500 <= len(found) <= 8000
    assert 200 <= len(legal("float32", "opencl")) <= 1800


@pytest.mark.rotating
@pytest.mark.parametrize("device", [H200, TURING, PROCESSOR], ids=["sm_90", "sm_75", "opencl"])
def test_building_configs_up_finds_what_asking_each_one_finds(device: Device) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)  # noqa: S311 - configs, not secrets
    problem = transposed("float64", True, False, 300, 200, 300)
    values, found = ENTRY.space.parameters, ENTRY.space.legal(problem, device)
    # Hardly any config at random is legal: each is a legal one with some of its values drawn anew.
    changed = [rng.sample(list(values), rng.randint(1, 4)) for _ in range(10_000)]
    drawn = [
        Config.of({**dict(rng.choice(found).items()), **{name: rng.choice(values[name]) for name in names}})
        for names in changed
    ]
    asked = {each for each in drawn if ENTRY.space.refusal(each, problem, device) is None}
    assert len(asked) > 100
    assert asked <= set(found)
    assert all(ENTRY.space.refusal(each, problem, device) is None for each in found)
    assert found == sorted(found, key=lambda each: tuple(each.values()))


def test_a_rule_reads_no_more_than_it_says() -> None:
    whole = tile(64, 64, 4, 4, 16, 16, 3, 1)
    assert set(ENTRY.space.reads) == set(ENTRY.space.rules)
    for reason, names in ENTRY.space.reads.items():
        part = Config(tuple((name, value) for name, value in whole.items() if name in names))
        assert ENTRY.space.rules[reason](part, CUBE, H200)


@pytest.mark.parametrize(
    ("chosen", "device", "rule"),
    [
        (tile(256, 256, 4, 4, 16, 8, 3, 1), H200, "fewer threads a block than a warp has"),
        (tile(128, 128, 4, 4, 16, 16, 3, 1, teams=2), H200, "fewer threads a block than a warp has"),
        (tile(64, 32, 8, 8, 64, 8, 3, 1), H200, "a tile that is no multiple of its warps' tiles"),
        (tile(32, 64, 8, 8, 32, 8, 3, 1), H200, "a tile that is no multiple of its warps' tiles"),
        (tile(64, 64, 4, 4, 32, 16, 1, 1), PROCESSOR, "a WN other than 4 threads, where the device has no warps"),
        (tile(128, 128, 8, 8, 128, 16, 3, 1), H200, "a warp's tile more than twice as long as wide"),
        (tile(64, 64, 4, 4, 16, 16, 3, 1, teams=4), H200, "a slice of the k tile that is too short, or too long"),
        (tile(64, 64, 4, 4, 16, 64, 3, 1), H200, "a slice of the k tile that is too short, or too long"),
        (tile(32, 64, 4, 4, 16, 8, 3, 1), H200, "loads of 16 bytes that do not divide evenly"),
        (tile(64, 64, 4, 4, 16, 16, 3, 1), TURING, "more than two stages"),
        (tile(64, 64, 4, 4, 16, 16, 3, 1), PROCESSOR, "more than two stages"),
        (tile(64, 64, 4, 4, 16, 16, 2, 1), H200, "fewer than three stages"),
        (tile(256, 64, 16, 8, 64, 64, 4, 1, teams=2), H200, "more shared memory a block"),
        (tile(128, 128, 16, 16, 64, 8, 3, 1), H200, "more registers a thread"),
        (tile(256, 256, 8, 8, 64, 16, 3, 1), H200, "more registers a thread"),
        (tile(64, 64, 8, 8, 32, 8, 3, 2), H200, "MIN_BLOCKS that does not limit registers"),
        (tile(64, 64, 4, 4, 16, 16, 1, 2), PROCESSOR, "MIN_BLOCKS that does not limit registers"),
        (tile(128, 128, 8, 8, 32, 32, 4, 2), H200, "more blocks on an SM than its threads and shared memory allow"),
        (tile(128, 128, 8, 8, 32, 16, 3, 1, group=8), H200, "grouped tiles, where all run at once"),
        (tile(128, 64, 8, 8, 32, 16, 3, 1, split=6), H200, "more splits of k, where there are blocks enough"),
        (tile(64, 64, 8, 8, 32, 32, 3, 1, teams=4, split=2), H200, "sliced k, where there are threads enough"),
        (tile(128, 128, 8, 8, 32, 16, 3, 1, repack=1), H200, "packing that takes too long beside the product"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(chosen: Config, device: Device, rule: str) -> None:
    refusal = ENTRY.space.refusal(chosen, CUBE, device)
    assert refusal is not None
    assert refusal.startswith(rule)


@pytest.mark.parametrize(
    ("problem", "split", "rule"),
    [
        (Problem(64, 64, 131072), 132, None),
        (Problem(64, 64, 131072), 264, None),
        (Problem(64, 64, 131072), 22, "SMs left idle that more splits of k would use"),
        (Problem(64, 64, 132 * 32), 132, "splits of k shorter than two k tiles"),
        (Problem(64, 64, 132 * 32), 44, None),
        (Problem(64, 64, 132 * 32), 66, None),
        (Problem(64, 64, 21 * 32), 16, "splits of k no shorter than fewer of them"),
        (Problem(64, 64, 21 * 32), 11, None),
        (Problem(64, 64, 131072, batch=16), 66, "more splits of k, where there are blocks enough"),
    ],
)
def test_k_is_split_so_that_sms_have_work_and_slices_some_phases(
    problem: Problem, split: int, rule: str | None
) -> None:
    assert ENTRY.space.refusal(tile(64, 64, 8, 8, 32, 32, 3, 1, split=split), problem, H200) == rule


def test_sums_of_slices_stay_within_the_counters_and_64_mib() -> None:
    larger = replace(H200, limits=replace(H200.limits, sms=4096))
    chosen, rule = (
        tile(256, 128, 16, 8, 64, 16, 3, 1, split=264),
        "more partial sums of split k than fit in the workspace",
    )
    assert ENTRY.space.refusal(chosen, Problem(512, 256, 2**20), larger) == rule
    larger = replace(H200, limits=replace(H200.limits, sms=2**14))
    many = tile(32, 32, 4, 4, 16, 16, 3, 1, split=2)
    assert ENTRY.space.refusal(many, Problem(32, 32, 2**10, batch=8193), larger) == rule
    assert ENTRY.space.refusal(many, Problem(32, 32, 2**10, batch=8192), larger) is None


def test_operands_are_packed_where_it_pays() -> None:
    chosen = tile(128, 128, 8, 8, 32, 16, 3, 1, repack=1)
    refusal = partial(ENTRY.space.refusal, chosen)
    assert refusal(Problem(1023, 1023, 1023), H200) is None
    assert refusal(Problem(4096, 4096, 4096), H200) is None
    assert refusal(Problem(4096, 4096, 4096, trans_a=True), H200) == "packing of operands that need none"
    assert refusal(Problem(16, 8191, 8191), H200) == "packing that takes too long beside the product"
    assert refusal(Problem(2**15, 2**15 + 1, 2**13), H200) == "packed operands of more than 1 GiB"


def test_registers_are_counted_with_doubles_and_what_is_under_way() -> None:
    staged, copied = tile(128, 128, 8, 8, 64, 16, 2, 2), tile(128, 128, 8, 8, 64, 16, 3, 2)
    assert registers(copied, CUBE) == 8 * 8 + 8 + 8 + 44
    assert registers(staged, CUBE) == registers(copied, CUBE) + 256 * 16 // 256
    assert registers(copied, replace(CUBE, dtype="float64")) == 2 * (64 + 16) + 44 + 40
    assert register_limit(copied, H200) == 128
    assert register_limit(tile(128, 128, 8, 8, 64, 16, 3, 1), H200) == 255


def test_a_launch_past_48_kib_asks_for_what_it_needs_and_others_declare_it() -> None:
    deep = ENTRY.launch(tile(128, 128, 8, 8, 64, 32, 4, 1), CUBE, H200)
    assert deep.shared_bytes == deep.dynamic_smem_bytes == 4 * 32 * (128 + 4 + 128) * 4
    assert deep.dynamic_smem_bytes > 48 * 1024
    plain = CATALOGUE["tiled"].launch(config("tiled", (32, 32, 32)), CUBE, H200)
    assert plain.shared_bytes > plain.dynamic_smem_bytes == 0


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1024, 1024, 1024), (4096, 4096, 4096), (4096, 64, 1024), (64, 4096, 512), (1, 4096, 4096), (1, 1, 1)],
)
def test_defaults_leave_few_sms_idle_and_little_past_edges(m: int, n: int, k: int) -> None:
    problem = Problem(m, n, k)
    counted = analyse(ENTRY, ENTRY.default(problem, H200), problem, H200)
    smallest = 32 * 32 * -(-m // 32) * -(-n // 32)
    assert counted.flops_launched <= 2 * 1.6 * smallest * max(k, 16)
    assert counted.blocks >= min(0.45 * 132, smallest // (32 * 32))


def test_defaults_grow_with_the_shape_and_use_what_the_device_has() -> None:
    default = ENTRY.default
    big, small = default(Problem(4096, 4096, 4096), H200), default(Problem(256, 256, 256), H200)
    assert big["BM"] * big["BN"] == 256 * 128
    assert small["BM"] * small["BN"] == 16 * 32
    assert (big["STAGES"], default(CUBE, TURING)["STAGES"], default(CUBE, PROCESSOR)["STAGES"]) == (3, 2, 1)
    assert default(CUBE, PROCESSOR) == tile(128, 128, 8, 16, 64, 64, 1, 1)
    assert default(Problem(1000, 1000, 20), PROCESSOR)["BK"] == 32


def test_a_launch_of_thread_tiles_is_counted_as_by_hand() -> None:
    counted = analyse(ENTRY, tile(128, 64, 8, 8, 32, 16, 3, 1), Problem(1000, 1000, 100), H200, registers=168)
    assert (counted.tiles_m, counted.tiles_n, counted.blocks, counted.edge_tiles) == (8, 16, 128, 128 - 7 * 15)
    assert counted.bytes_read == 4 * 100 * (1000 * 16 + 1000 * 8)
    assert counted.flops_launched == 2 * 1024 * 1024 * 112
    assert (counted.threads, counted.shared_bytes) == (128, 3 * 16 * (132 + 64) * 4)
    assert counted.occupancy is not None
    assert (counted.occupancy.blocks_per_sm, counted.occupancy.limited_by) == (3, "registers")
    assert counted.waves == 128 / (132 * 3)


def test_prediction_favours_thread_tiles_and_busy_sms() -> None:
    cube = Problem(4096, 4096, 4096)
    one, four, sixteen = (
        predict(ENTRY, tile(128, 128, *rest), cube, H200)
        for rest in ((4, 4, 16, 16, 3, 1), (8, 8, 32, 16, 3, 1), (16, 8, 64, 16, 3, 1))
    )
    assert one > four > sixteen
    assert predict(ENTRY, tile(128, 128, 8, 8, 32, 16, 3, 1), Problem(128, 128, 4096), H200) > predict(
        ENTRY, tile(32, 32, 4, 4, 16, 16, 3, 1), Problem(128, 128, 4096), H200
    )
    # Nothing here is slower than one element to a thread is said to be, nor faster than the device.
    slowest = predict(CATALOGUE["tiled"], config("tiled", (32, 32, 32)), cube, H200)
    assert cube.flops / H200.limits.peak < sixteen < slowest


def ways(words: list[int], banks: int) -> int:
    """How many different words the busiest of the banks is asked for."""
    places = [word % banks for word in set(words)]
    return max(places.count(place) for place in places)


@pytest.mark.parametrize("dtype", DTYPES)
def test_quarter_warps_read_16_bytes_without_bank_conflicts(dtype: str) -> None:
    pack = 16 // replace(CUBE, dtype=dtype).itemsize
    for tm, tn, wn in {(each["TM"], each["TN"], each["WN"]) for each in legal(dtype, "cuda")}:
        across = wn // tn
        for start in (0, 8, 16, 24):
            quarter = range(start, start + 8)
            for run in range(tm // pack):
                assert ways([run * (32 // across) + lane // across for lane in quarter], 8) == 1
            for run in range(tn // pack):
                assert ways([run * across + lane % across for lane in quarter], 8) == 1


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_no_write_to_shared_memory_waits_for_a_bank(dtype: str, turned: tuple[bool, bool]) -> None:
    problem = transposed(dtype, *turned, 64, 64, 64)
    shapes = {(each["BM"], each["BN"], each["BK"], threads(each)) for each in legal(dtype, "cuda")}
    for bm, bn, bk, count in shapes:
        line_a, line_b = lines(Config.of({"BM": bm, "BN": bn, "PACK_MN": 0}), problem)
        for side, line, cross in ((bm, line_a, not problem.trans_a), (bn, line_b, problem.trans_b)):
            for w in (1, 16 // problem.itemsize):
                check_writes(side, bk, line, cross, count, w, problem.itemsize)


@cache
def check_writes(side: int, bk: int, line: int, cross: bool, count: int, w: int, itemsize: int) -> None:
    """Every element is written once, and threads served together, 128 bytes, never meet on a bank."""
    items, vectors = side * bk // w, w > 1 and not cross
    words = [place(item, side, bk, line, cross, w, itemsize) for item in range(items)]
    written = {word + e * (line if cross else 1) for word in words for e in range(w)}
    assert written == {q * line + r for q, r in product(range(bk), range(side))}
    assert items % count == 0
    together = 8 if vectors else 128 // itemsize
    for start in range(0, items, together):
        group = words[start : start + together]
        assert ways([word // w for word in group] if vectors else group, 8 if vectors else together) == 1
        assert not vectors or all(word % w == 0 for word in group), "a vector would not be aligned"


def place(item: int, side: int, bk: int, line: int, cross: bool, w: int, itemsize: int) -> int:
    """The first word that an item of a tile is written to, as SMEM_AT of common/smem_tile.h."""
    span = (32 // itemsize if cross else side) // w
    slow = side if cross else bk
    along, across = (item % span + item // (span * slow) * span) * w, item // span % slow
    return along * line + across if cross else across * line + along


def test_shared_bytes_are_all_stages_of_both_padded_tiles() -> None:
    each = tile(64, 32, 4, 4, 16, 16, 2, 1)
    plain, crossed = (transposed("float32", turned, turned, 64, 64, 64) for turned in (False, True))
    assert shared_bytes(each, plain) == 2 * 16 * (68 + 32) * 4
    assert shared_bytes(each, crossed) == 2 * 16 * (64 + 36) * 4
