"""What NVRTC and ptxas make of hopper: registers, products in single file, and messages."""

from __future__ import annotations

import io
import random
import re
import secrets
from dataclasses import replace
from statistics import median
from time import process_time

import pytest

from kernels.hopper import HOPPER
from kernels.hopper.plan import DOUBLE_BUFFERED, WARPGROUP, accumulators, threads, tile_operands
from kernels.hopper.registers import MOST_OF_TWO, lhs_registers
from kernels.hopper.space import SPACE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, TRANSPOSITIONS
from tests.support.kernels.hopper_configs import CLASSES, launch, shapes, tile

ptx_of = pytest.importorskip("tests.ptx_interpreter.program").ptx_of

CUBE = Problem(4096, 4096, 4096, dtype="bfloat16")


def compiled(one: Launch) -> str:
    """What NVRTC and ptxas say of a build for sm_90a."""
    from cupy.cuda import compiler  # noqa: PLC0415 - as the service does

    log = io.StringIO()
    options = ("-arch=sm_90a", "-std=c++17", "--ptxas-options=-v", *(f"-D{k}={v}" for k, v in one.build.macros))
    compiler._NVRTCProgram(one.build.text, "hopper/kernel.cu", method="cubin").compile(options, log)
    return log.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "precision"), CLASSES[1:])
def test_defaults_compile_without_spills_or_serialized_wgmma(dtype: str, precision: str) -> None:
    times = []
    for place, shape in enumerate(shapes(dtype, precision)[:3]):
        problem = replace(shape, trans_a=TRANSPOSITIONS[place][0], trans_b=TRANSPOSITIONS[place][1])
        one = HOPPER.launch(HOPPER.default(problem, H200), problem, H200)
        started = process_time()
        log = compiled(one)
        times.append(process_time() - started)
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, (problem.key, log)
        assert "C75" not in log, log
    print(f"{median(times):.2f} s in the median")


def expect_registers_and_room(one: Launch, config: Config) -> None:
    """Whether a block has the registers that its warps ask for, or they would wait forever; where its tiles begin."""
    text = ptx_of(one.build, "90")
    assert re.findall(r"\.shared \.align.*", text) == [".shared .align 1024 .b8 smem[];"]
    counts = {how: int(count) for how, count in re.findall(r"setmaxnreg\.(\w+)\S* (\d+);", text)}
    assert set(counts) == ({"dec", "inc"} if config["CONSUMERS"] > 1 else set())
    used = re.search(r"Used (\d+) registers", compiled(one))
    if counts and used:
        handed_on = WARPGROUP * (counts["dec"] + config["CONSUMERS"] * counts["inc"])
        assert handed_on <= int(used[1]) * threads(config) <= 65_536
        assert counts["dec"] <= int(used[1]) <= counts["inc"]


# Few sums, which would do with fewer registers.
@pytest.mark.rotating
@pytest.mark.parametrize(("consumers", "rows"), [(1, 64), (2, 128), (3, 192)])
def test_consumers_take_the_registers_that_the_block_has(consumers: int, rows: int) -> None:
    config = tile(CUBE, BM=rows, BN=16, CONSUMERS=consumers)
    expect_registers_and_room(launch(CUBE, config), config)


@pytest.mark.parametrize("place", range(4))
def test_a_text_with_a_parameter_missing_says_which(place: int) -> None:
    dtype, precision = CLASSES[place]
    problem = Problem(512, 512, 512, dtype=dtype, precision=precision)
    one = HOPPER.launch(HOPPER.default(problem, H200), problem, H200)
    # One macro of each class, and all of one: each compiles nothing but the message.
    for macro, _ in one.build.macros if place == 3 else one.build.macros[-4:-2]:
        less = replace(one.build, macros=tuple(pair for pair in one.build.macros if pair[0] != macro))
        with pytest.raises(Exception, match=f"{macro}.* must be defined"):
            compiled(replace(one, build=less))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_whatever_the_rules_leave_compiles_with_nothing_spilled(number: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    dtype, precision = CLASSES[number % 4]
    shape = draw.choice(shapes(dtype, precision))
    problem = replace(shape, trans_a=draw.random() < 0.5, trans_b=draw.random() < 0.5)
    chosen = draw.choice(SPACE.legal(problem, H200))
    one = HOPPER.launch(chosen, problem, H200)
    expect_registers_and_room(one, chosen)
    log = compiled(one)
    assert "0 bytes spill stores, 0 bytes spill loads" in log, (chosen, log)
    assert "C75" not in log, (chosen, log)


# TMA stores C, or threads do; A is in registers, or with SWAP_AB B, or neither; and with ragged rows B is realigned.
@pytest.mark.slow
@pytest.mark.parametrize("columns", [1000, 999])
@pytest.mark.parametrize("trans_a", [False, True])
def test_the_largest_tf32_tiles_spill_nothing(columns: int, *, trans_a: bool) -> None:
    problem = Problem(1000, columns, 1000, 2, precision="tf32", trans_a=trans_a)
    largest: dict[tuple[int, ...], Config] = {}
    for chosen in sorted(SPACE.legal(problem, H200), key=lambda config: accumulators(config, problem)):
        lhs, _ = tile_operands(chosen, problem)
        how = chosen["SWAP_AB"], chosen["REALIGN"], chosen["CONSUMERS"], chosen["MIN_BLOCKS"]
        if lhs_registers(chosen, problem) or not chosen["TMA_STORE"]:
            largest[(*how, lhs.tile)] = chosen
    assert {consumers * blocks for _, _, consumers, blocks, *_ in largest} == {1, 2, 3, 4}
    for chosen in largest.values():
        log = compiled(HOPPER.launch(chosen, problem, H200))
        assert "0 bytes spill stores, 0 bytes spill loads" in log, (chosen, log)


# More than 128 accumulators a thread, up to the most, either way round.
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "precision"), CLASSES[:3])
@pytest.mark.parametrize("swap", [0, 1])
def test_the_largest_tiles_of_two_consumers_spill_nothing(dtype: str, precision: str, swap: int) -> None:
    problem = Problem(4096, 4096, 4096, 1, dtype, precision, trans_b=True)
    found = [
        chosen
        for chosen in SPACE.legal(problem, H200)
        if chosen["SWAP_AB"] == swap and accumulators(chosen, problem) > DOUBLE_BUFFERED
    ]
    largest = {(chosen["BM"], chosen["BN"], chosen["CLUSTER"]): chosen for chosen in found}
    assert max(accumulators(chosen, problem) for chosen in found) == MOST_OF_TWO
    for chosen in largest.values():
        log = compiled(HOPPER.launch(chosen, problem, H200))
        assert "0 bytes spill stores, 0 bytes spill loads" in log, (chosen, log)
        assert "C75" not in log, (chosen, log)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_realigned_configs_of_drawn_shapes_spill_nothing(number: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - configs, not secrets
    dtype, precision = CLASSES[number % 3]
    m, n, k = (draw.randrange(3, 900, 2) for _ in range(3))
    problem = Problem(m, n, k, 1, dtype, precision, draw.random() < 0.5, draw.random() < 0.5)
    realigned = [config for config in SPACE.legal(problem, H200) if config["REALIGN"]]
    if not realigned:
        pytest.skip(f"{problem.key} is packed alone")
    chosen = draw.choice(realigned)
    log = compiled(HOPPER.launch(chosen, problem, H200))
    assert "0 bytes spill stores, 0 bytes spill loads" in log, (problem.key, chosen, log)
    assert "C75" not in log, (chosen, log)
