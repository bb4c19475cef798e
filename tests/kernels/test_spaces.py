"""Spaces, their rules by name, defaults, and what the sources say of them."""

from __future__ import annotations

import random
import re
import secrets
from collections import Counter
from dataclasses import replace
from importlib.resources import files

import pytest

from kernels import CATALOGUE, kernel
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.sources import source
from kernels.space import Config
from kernels.tiled.plan import strides
from tests.support.kernels.devices import DTYPES, EDGES, H200, PROCESSOR, TRANSPOSITIONS, config, homes, transposed

THREADS = "more threads a block than the device allows"
SHARED = "more shared memory a block than the device allows"
GRID = "more than 2^31 - 1 blocks"
GIVEN = {"TRANS_A", "TRANS_B"}
NAMES = tuple(CATALOGUE)


def test_the_catalogue_is_in_ladder_order_and_gives_kernels_by_name() -> None:
    ladder = ["naive", "tiled", "register_tiled", "pipelined", "skinny", "batched", "tall", "double_tensor"]
    ladder += ["double_hopper", "wmma", "tensor_core", "hopper", "direct_tensor", "direct_double", "rank_k", "gemv"]
    ladder += ["outer"]
    assert list(CATALOGUE) == ladder
    assert all(kernel(name) is CATALOGUE[name] and CATALOGUE[name].name == name for name in CATALOGUE)
    with pytest.raises(KeyError):
        kernel("quick")


def test_a_tile_has_4_8_16_32_or_64_every_way_rectangles_included() -> None:
    sizes = (4, 8, 16, 32, 64)
    assert CATALOGUE["tiled"].space.parameters == {"BM": sizes, "BN": sizes, "BK": sizes}
    legal = CATALOGUE["tiled"].space.legal(Problem(64, 64, 64), PROCESSOR)
    assert len(legal) == 125
    assert config("tiled", (64, 16, 4)) in CATALOGUE["tiled"].space.legal(Problem(64, 64, 64), H200)


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [("tiled", (64, 32, 8), THREADS), ("naive", (8, 256), THREADS), ("tiled", (64, 64, 4), THREADS)],
)
def test_a_config_that_breaks_a_rule_is_refused_by_its_name(name: str, values: tuple[int, ...], rule: str) -> None:
    entry, problem = CATALOGUE[name], Problem(64, 64, 64)
    assert entry.space.refusal(config(name, values), problem, H200) == rule
    with pytest.raises(ValueError, match=re.escape(rule)):
        entry.launch(config(name, values), problem, H200)


def test_shared_memory_is_held_to_the_devices_limit_with_padding_and_dtype() -> None:
    space, tile = CATALOGUE["tiled"].space, config("tiled", (32, 32, 32))
    plain, padded = Problem(64, 64, 64), Problem(64, 64, 64, trans_b=True)
    small = replace(H200, limits=replace(H200.limits, shared_bytes=8192))
    assert space.refusal(tile, plain, small) is None
    assert space.refusal(tile, padded, small) == SHARED
    assert space.refusal(tile, replace(plain, dtype="float64"), small) == SHARED


def of_class(name: str, problem: Problem, place: int = 0) -> Problem:
    """A problem in one of the classes that a kernel computes."""
    dtype, precision = CATALOGUE[name].classes[place]
    return replace(problem, dtype=dtype, precision=precision)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("device", [H200, PROCESSOR], ids=["cuda", "opencl"])
@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_legal_or_counted_for_the_rule_that_refuses_it(name: str, device: Device) -> None:
    space = CATALOGUE[name].space
    like = of_class(name, Problem(64, 64, 64))
    problem = next(iter(homes(name, like, device)), like)
    legal, refused = space.sifted(problem, device)
    assert legal == space.legal(problem, device)
    assert len(legal) + sum(refused.values()) == len(space)
    assert set(refused) == set(space.rules)
    if len(space) < 1000:
        asked = Counter(space.refusal(each, problem, device) for each in space)
        assert asked.pop(None, 0) == len(legal)
        assert asked == {reason: count for reason, count in refused.items() if count}


@pytest.mark.parametrize("name", [name for name in NAMES if CATALOGUE[name].space.order])
def test_in_whatever_order_parameters_are_chosen_a_list_is_in_the_spaces_order(name: str) -> None:
    space = CATALOGUE[name].space
    assert sorted(space.order) == sorted(space.parameters)
    for problem in (Problem(300, 40, 200, trans_b=True), Problem(1000, 1000, 1000)):
        assert space.legal(problem, H200) == replace(space, order=()).legal(problem, H200)


def test_a_kernel_says_why_it_is_not_one_for_a_problem() -> None:
    skinny, double, pipelined = (CATALOGUE[name] for name in ("skinny", "double_tensor", "pipelined"))
    square = Problem(64, 64, 64)
    assert skinny.refusal(square, H200) == "it is for a C with a side of at most 32, not for 64 x 64 x 64"
    assert skinny.refusal(Problem(64, 3, 64), PROCESSOR) is None
    assert double.refusal(square, H200) == "it computes float64 (strict), not float32 (strict)"
    older = replace(H200, architecture="sm_75")
    assert double.refusal(replace(square, dtype="float64"), older) == "it is for sm_80, sm_90, not sm_75"
    assert pipelined.refusal(square, PROCESSOR) == "it is for cuda, not opencl"
    assert "bfloat16" in str(CATALOGUE["register_tiled"].refusal(replace(square, dtype="bfloat16"), H200))
    assert all((kernel.shapes == "any shape") == kernel.supports(Problem(200, 200, 200)) for kernel in floats())


def floats() -> list[Kernel]:
    return [kernel for kernel in CATALOGUE.values() if ("float32", "strict") in kernel.classes]


def test_launches_of_one_config_on_problems_of_a_class_share_its_build() -> None:
    tiled, device = CATALOGUE["tiled"], PROCESSOR
    config, again = (tiled.default(Problem(64, 64, 64), device) for _ in range(2))
    one, other = tiled.launch(config, Problem(64, 64, 64), device), tiled.launch(again, Problem(70, 9, 5), device)
    assert one.build is other.build
    assert one.config is other.config
    turned = tiled.launch(config, Problem(64, 64, 64, trans_a=True), device)
    assert turned.build == replace(one.build, macros=turned.build.macros) != one.build


@pytest.mark.parametrize(
    "name", sorted(set(NAMES) - {"double_hopper", "hopper", "direct_tensor", "direct_double", "outer"})
)  # these count pieces of work, or have no plan for such rows
def test_the_grid_does_not_end_at_65535_but_at_2_to_the_31(name: str) -> None:
    entry, whole = CATALOGUE[name], {"BATCH_PER_BLOCK": 1, "TILES": 1, "SPLIT_K": 1}
    chosen = entry.space.config({name: whole.get(name, value) for name, value in config(name, EDGES[name][0]).items()})
    holds, width, height = entry.space.rules[GRID], chosen["BN"], chosen["BM"]
    fits = of_class(name, Problem(height * 65536, width * 32767, 1))
    assert holds(chosen, fits, PROCESSOR)
    assert entry.plan(chosen, fits).grid == 65536 * 32767
    assert not holds(chosen, replace(fits, batch=2), PROCESSOR)


@pytest.mark.parametrize("name", ["naive", "tiled"])
def test_the_last_grid_is_launched_and_the_next_refused(name: str) -> None:
    space, smallest = CATALOGUE[name].space, next(iter(CATALOGUE[name].space))
    assert list(smallest.values()) == [values[0] for values in space.parameters.values()]
    fits = Problem(smallest["BM"] * 65536, smallest["BN"] * 32767, 1)
    assert space.refusal(smallest, fits, PROCESSOR) is None
    assert CATALOGUE[name].launch(smallest, fits, PROCESSOR).grid == 65536 * 32767
    assert space.refusal(smallest, replace(fits, batch=2), PROCESSOR) == GRID


@pytest.mark.parametrize("name", NAMES)
def test_sources_explain_each_parameter_of_the_space(name: str) -> None:
    text = source(CATALOGUE[name].file)
    required = re.findall(r"^#(?:el)?if !defined\((\w+)\)\n#error \"\1 must be defined\"$", text, re.MULTILINE)
    assert set(required) - GIVEN == set(CATALOGUE[name].space.parameters) - set(CATALOGUE[name].arguments)
    assert set(required) >= GIVEN
    head = text[: text.index("#if")]
    for macro in required:
        assert re.search(rf"^// {macro} +\S", head, re.MULTILINE), f"{macro} is not explained"


@pytest.mark.parametrize("name", NAMES)
def test_a_launch_gives_every_macro_and_a_text_that_includes_nothing(name: str) -> None:
    entry = CATALOGUE[name]
    like = of_class(name, Problem(5, 6, 7, trans_b=True), -1)
    problem = like if entry.covers(like, H200) else homes(name, like, H200)[0]
    launch = entry.launch(entry.default(problem, H200), problem, H200)
    macros = dict(launch.build.macros)
    kind = {"DTYPE_" + like.dtype.upper()}
    kind |= {"PRECISION_" + like.precision.upper()} - {"PRECISION_STRICT"}
    assert set(macros) == kind | {*entry.space.parameters, *GIVEN} - set(entry.arguments)
    assert (macros["TRANS_A"], macros["TRANS_B"]) == ("0", "1")
    assert "#include" not in launch.build.text
    assert launch.block == block(name, launch.config)


def block(name: str, chosen: Config) -> tuple[int, int]:
    """Threads of a block: one for each element, one for each TM x TN, a warp for each WM x WN, or so many."""
    if name in {"outer", "gemv"}:
        long = chosen.get("BN" if chosen.get("LONG_N") else "BM", 0)
        return chosen.get("THREADS") or long // chosen["EACH_LONG"] * chosen["SLICE_K"], 1
    bm, bn, teams = chosen["BM"], chosen["BN"], chosen.get("SLICE_K", 1) * chosen.get("BATCH_PER_BLOCK", 1)
    if "TM" in chosen:
        return teams * (bm // chosen["TM"]) * (bn // chosen["TN"]), 1
    if "WM" in chosen:
        producer = 128 if name == "double_hopper" else 0
        return 32 * teams * (bm // chosen["WM"]) * (bn // chosen["WN"]) + producer, 1
    if "CONSUMERS" in chosen:
        producer = 384 if chosen["REALIGN"] else 128 if chosen["CONSUMERS"] > 1 else 32
        return 128 * chosen["CONSUMERS"] + producer, 1
    if "WARPS" in chosen:
        return 32 * chosen["WARPS"], 1
    return (32 * (bm // 16) * (bn // 16), 1) if name == "wmma" else (bn, bm)


@pytest.mark.parametrize("name", NAMES)
def test_a_fifth_of_a_kernels_characters_are_comments(name: str) -> None:
    text = files("kernels").joinpath(CATALOGUE[name].file).read_text(encoding="utf-8")
    comments = "".join(re.findall(r"//[^\n]*", text))
    assert len("".join(comments.split())) >= len("".join(text.split())) / 5


def test_no_legal_tile_needs_more_than_48_kib() -> None:
    needed = [
        CATALOGUE["tiled"].launch(each, problem, H200).shared_bytes
        for dtype in DTYPES
        for trans_a, trans_b in TRANSPOSITIONS
        for problem in [transposed(dtype, trans_a, trans_b, 64, 64, 64)]
        for each in CATALOGUE["tiled"].space.legal(problem, H200)
    ]
    assert max(needed) <= 48 * 1024


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_default_is_legal_for_any_shape_and_any_limits_that_allow_one(name: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)  # noqa: S311 - shapes, not secrets
    entry, sizes, met = CATALOGUE[name], (1, 2, 3, 7, 16, 33, 100, 1000, 4097, 131072), 0
    while met < (50 if name in {"naive", "tiled", "register_tiled"} else 15):
        m, n, k = [rng.choice(sizes) for _ in range(3)]
        batch, kind = rng.choice((1, 3, 512)), rng.choice(entry.classes)
        problem = Problem(m, n, k, batch, *kind, trans_b=rng.random() < 0.5)
        device = limited(rng.choice((H200, PROCESSOR)), rng)
        if not entry.covers(problem, device):
            continue
        met += 1
        chosen = entry.default(problem, device)
        assert list(chosen) == list(entry.space.parameters)
        if entry.space.refusal(chosen, problem, device) is not None:
            assert not entry.space.legal(problem, device), (problem, device.limits, chosen)


def limited(device: Device, rng: random.Random) -> Device:
    limits = replace(
        device.limits,
        threads=rng.choice((8, 16, 64, 100, 256, 1024, 4096)),
        shared_bytes=rng.choice((256, 512, 1000, 16384, 49152, 2**20)),
        sms=rng.choice((1, 2, 108, 132)),
    )
    return replace(device, limits=limits)


def test_a_default_grows_with_the_shape() -> None:
    default = CATALOGUE["tiled"].default
    assert default(Problem(2048, 2048, 2048), H200) == config("tiled", (32, 32, 64))
    assert default(Problem(1, 4096, 4096), H200)["BM"] == 4
    small = default(Problem(64, 64, 64), H200)
    assert small["BM"] * small["BN"] <= 64
    assert default(Problem(1024, 1024, 8), H200)["BK"] == 8
    assert default(Problem(512, 512, 512), PROCESSOR) == config("tiled", (16, 16, 16))
    assert default(Problem(1, 512, 512), PROCESSOR) == config("tiled", (4, 32, 16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_threads_of_a_warp_never_wait_for_a_bank_when_they_read_the_tiles(
    dtype: str, turned: tuple[bool, bool]
) -> None:
    problem = transposed(dtype, *turned, 64, 64, 64)
    vector = 16 // problem.itemsize
    for each in CATALOGUE["tiled"].space:
        stride_a, stride_b = strides(each, problem)
        for warp in warps(each, problem):
            rows = {t // each["BN"] for t in warp}
            a_words = [y * stride_a + q for y in rows for q in range(min(vector, each["BK"]))]
            assert ways(a_words, problem) == 1, (each, stride_a)
            assert ways([t % each["BN"] for t in warp], problem) == 1, (each, stride_b)
        assert stride_a % vector == 0, "a vector of A's row would not be aligned"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_writes_to_b_never_conflict_and_writes_to_a_at_most_as_said(dtype: str, turned: tuple[bool, bool]) -> None:
    problem = transposed(dtype, *turned, 64, 64, 64)
    for each in CATALOGUE["tiled"].space:
        stride_a, stride_b = strides(each, problem)
        bm, bn, bk = each["BM"], each["BN"], each["BK"]
        for warp in warps(each, problem):
            b_places = [(t % bk, t // bk) if problem.trans_b else (t // bn, t % bn) for t in warp]
            assert ways([q * stride_b + x for q, x in b_places if q < bk and x < bn], problem) <= 1
            a_places = [(t % bm, t // bm) if problem.trans_a else (t // bk, t % bk) for t in warp]
            written = [y * stride_a + q for y, q in a_places if y < bm and q < bk]
            assert ways(written, problem) <= (4 if problem.trans_a else 2)


def warps(each: Config, problem: Problem) -> list[range]:
    """Threads whose words shared memory serves together: a warp, or half of one where words are of 8 bytes."""
    together = 128 // problem.itemsize
    threads = each["BM"] * each["BN"]
    return [range(start, min(start + together, threads)) for start in range(0, min(threads, 4 * together), together)]


def ways(words: list[int], problem: Problem) -> int:
    """How many different words the busiest bank is asked for."""
    lanes = 128 // problem.itemsize
    banks = [word % lanes for word in set(words)]
    return max((banks.count(bank) for bank in banks), default=0)
