"""The interpreter's barriers in shared memory, bulk copies and clusters: what they do, and faults that they tell."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("cupy")
from kernels.launch import TensorMap
from tests.ptx_interpreter.bulk_copies import Bound
from tests.ptx_interpreter.cases import launched
from tests.ptx_interpreter.program import Array

START = 'asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(BAR), "r"(COUNT) : "memory");'
VISIBLE = 'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
EXPECT = 'asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(BAR), "r"(BYTES) : "memory");'
ARRIVE = 'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(BAR) : "memory");'
AWAIT = """asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
             "@p bra DONE; bra AGAIN; DONE: }" :: "r"(BAR), "r"(PARITY) : "memory");"""
LOAD = """asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
             " [%0], [%1, {%2, %3}], [%4];"
             :: "r"(TO), "l"(&map0), "r"(X), "r"(Y), "r"(BAR) : "memory");"""
STORE = """asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
             :: "l"(&map1), "r"(X), "r"(Y), "r"(FROM) : "memory");"""
SENT = 'asm volatile("cp.async.bulk.commit_group;" ::: "memory");'
READ = 'asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
CLUSTER = 'asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");'


def filled(text: str, **values: object) -> str:
    for name, value in values.items():
        text = text.replace(name, f"({value})")
    return text


def mapped(array: int, **given: object) -> Callable[[list[int]], Bound]:
    return lambda starts: Bound(TensorMap("a", **given), starts[array])  # type: ignore[arg-type]


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_box_comes_swizzled_and_zero_padded_and_goes_back(span: int) -> None:
    size, wide = 4, (span or 64) // 4
    whole = np.arange(1, 20 * 37, dtype=np.uint32)[: 20 * 36].reshape(20, 36)
    box = {"element": "float32", "sizes": (35, 18), "strides": (36 * size,), "box": (wide, 16), "swizzle": span}
    bar = {"BAR": "ADDRESS(pool)", "COUNT": 1, "BYTES": wide * 16 * size, "PARITY": 0}
    here = {"X": 35 - wide + 5, "Y": -2, "TO": "ADDRESS(pool + 1024)", "FROM": "ADDRESS(pool + 1024)"}
    begin = f"if (me == 0) {{ {START} {VISIBLE} {EXPECT} {LOAD} }} __syncthreads(); {AWAIT}"
    end = f"if (me == 0) {{ {STORE} {SENT} {READ} }}"
    body = filled(begin, **bar, **here) + f"""
        for (int i = me; i < {wide * 16}; i += 64) b[i] = ((unsigned *)(pool + 1024))[i];
        __syncthreads();
    """ + filled(end, **here)  # fmt: skip
    (_, found, back), _ = launched(
        body,
        [whole, np.zeros((16, wide), np.uint32), np.zeros_like(whole)],
        threads=64,
        pool=1024 + wide * 64,
        maps=[mapped(0, **box), mapped(2, **box)],
    )
    expected = np.zeros((16, wide), np.uint32)
    expected[2:16, : wide - 5] = whole[:14, 35 - wide + 5 : 35]
    for row in range(16):
        for piece in range(wide // 4):
            turn = {128: row % 8, 64: row // 2 % 4, 32: row // 4 % 2, 0: 0}[span]
            at = (piece ^ turn) * 4
            assert np.array_equal(found[row, at : at + 4], expected[row, piece * 4 : piece * 4 + 4])
    stored = np.zeros_like(whole)
    stored[:14, 35 - wide + 5 : 35] = expected[2:16, : wide - 5]
    assert np.array_equal(back, stored)


# One warp brings 32 rows of 32 numbers at a time, into a ring of two; two warps each add up what all are.
RING = """
    unsigned char *const ring = pool + 1024;
    const unsigned full = ADDRESS(pool), empty = full + 16;
    if (me == 0) for (int i = 0; i < 2; i++) { SET_FULL SET_EMPTY }
    VISIBLE
    __syncthreads();
    if (me < 32) {
        if (me == 0) for (int p = 0; p < 6; p++) {
            if (p >= 2) { AWAIT_EMPTY }
            EXPECT_FULL
            BRING
        }
    } else {
        unsigned total = 0;
        for (int p = 0; p < 6; p++) {
            AWAIT_FULL
            for (int i = 0; i < 32; i++) total += ((unsigned *)(ring + p % 2 * 4096))[i * 32 + me % 32];
            FENCED
            RELEASE
        }
        b[me - 32] = total;
    }
"""
PARTS = {
    "SET_FULL": filled(START, BAR="full + 8 * i", COUNT=1),
    "SET_EMPTY": filled(START, BAR="empty + 8 * i", COUNT=64),
    "VISIBLE": f"if (me == 0) {{ {VISIBLE} }}",
    "AWAIT_EMPTY": filled(AWAIT, BAR="empty + 8 * (p % 2)", PARITY="p / 2 - 1 & 1"),
    "EXPECT_FULL": filled(EXPECT, BAR="full + 8 * (p % 2)", BYTES=4096),
    "BRING": filled(LOAD, BAR="full + 8 * (p % 2)", TO="ADDRESS(ring + p % 2 * 4096)", X=0, Y="p * 32"),
    "AWAIT_FULL": filled(AWAIT, BAR="full + 8 * (p % 2)", PARITY="p / 2 & 1"),
    "FENCED": FENCE,
    "RELEASE": filled(ARRIVE, BAR="empty + 8 * (p % 2)"),
}
SQUARE = {"element": "float32", "sizes": (32, 192), "strides": (128,), "box": (32, 32), "swizzle": 0}


def ring(seed: int | None = None, **changed: str) -> Array:
    body = RING
    for name, text in (PARTS | changed).items():
        body = body.replace(name, text)
    rows = np.arange(192 * 32, dtype=np.uint32).reshape(192, 32)
    draw = None if seed is None else random.Random(seed)  # noqa: S311 - an order, not a secret
    arrays = [rows, np.zeros(64, np.uint32)]
    (_, found), _ = launched(body, arrays, threads=96, pool=1024 + 8192, maps=[mapped(0, **SQUARE)], draw=draw)
    assert np.array_equal(found, np.tile(rows.sum(0, dtype=np.uint32), 2))
    return found


@pytest.mark.rotating
def test_warps_with_tasks_of_their_own_pass_boxes_on_in_any_order() -> None:
    ring()
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    for number in range(8):
        ring(seed + number)


FAULTS = {
    "a read of what another thread wrote, and no barrier": {"AWAIT_FULL": ""},
    "(write to what another thread read|read of what another thread wrote), and no barrier": {
        "AWAIT_EMPTY": filled(AWAIT, BAR="full + 8 * (p % 2)", PARITY="p / 2 - 1 & 1")
    },
    "nobody can go on": {"RELEASE": "if (me % 32) {" + PARTS["RELEASE"] + "}"},
    "waits past .*mbarrier.try_wait": {"EXPECT_FULL": PARTS["EXPECT_FULL"].replace("4096", "4112")},
    "a read of what another thread wrote": {"AWAIT_FULL": PARTS["AWAIT_FULL"].replace("p / 2 & 1", "p / 2 + 1 & 1")},
    "no fence.proxy.async": {"VISIBLE": ""},
    "asynchronous write to what threads load, and no fence.proxy.async": {"FENCED": ""},
    "more arrivals at a barrier than its": {"AWAIT_EMPTY": ""},
    "more arrivals at a barrier": {"SET_EMPTY": PARTS["SET_EMPTY"].replace("64", "63")},
    "asked again|no barrier": {"AWAIT_FULL": PARTS["AWAIT_FULL"].replace("bra AGAIN", "bra DONE")},
    "not set up": {"SET_EMPTY": ""},
    "past the end of shared memory": {"BRING": PARTS["BRING"].replace("p % 2 * 4096", "p * 4096")},
}


@pytest.mark.rotating
@pytest.mark.parametrize("fault", FAULTS)
def test_a_ring_with_a_fault_is_told(fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        ring(None, **FAULTS[fault])


@pytest.mark.parametrize(
    "fault", ["", "no fence.proxy.async", "does not begin at 16", "still reads its", "still reads"]
)
def test_what_goes_out_is_fenced_and_read_before_it_changes(fault: str) -> None:
    box = {"element": "float32", "sizes": (32, 8), "strides": (128,), "box": (32, 8), "swizzle": 0}
    read = "" if fault.startswith("still reads") else READ
    fence = "" if fault.startswith("no fence") else FENCE
    store = filled(STORE, X=2 if fault.startswith("does not begin") else 0, Y=0, FROM="ADDRESS(pool)")
    body = f"""
        for (int i = 0; i < 8; i++) ((unsigned *)pool)[i * 32 + me] = a[i * 32 + me];
        {fence}
        __syncwarp();
        if (me == 0) {{ {store} {SENT} {read} }}
        __syncwarp();
        {"" if fault.endswith("its") else "((unsigned *)pool)[me] = 7;"}
    """
    given = [np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)]
    if fault:
        with pytest.raises(AssertionError, match=fault):
            launched(body, given, pool=1024, maps=[mapped(0, **box), mapped(1, **box)])
    else:
        (_, found), _ = launched(body, given, pool=1024, maps=[mapped(0, **box), mapped(1, **box)])
        assert np.array_equal(found, given[0])


TWINS = """
    const unsigned full = ADDRESS(pool), rank = blockIdx.x;
    if (me == 0) { SET INIT_FENCE }
    MEET
    if (me == 0) {
        EXPECT
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(ADDRESS(pool + 1024 + rank * 1024)), "l"(&map0), "r"(0), "r"(rank * 8), "r"(full),
                        "h"((short)3) : "memory");
    }
    AWAIT
    for (int i = 0; i < 16; i++) b[rank * 512 + i * 32 + me] = ((unsigned *)(pool + 1024))[i * 32 + me];
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
                 :: "r"(full + 8), "r"(rank ^ 1) : "memory");
    LAST
"""


@pytest.mark.parametrize("fault", ["", "no barrier|not set up", "no fence.proxy.async", "of a block that has ended"])
def test_blocks_of_a_cluster_bring_for_each_other(fault: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    parts = {
        "SET": filled(START, BAR="full", COUNT=1) + filled(START, BAR="full + 8", COUNT=32),
        "INIT_FENCE": "" if fault.startswith("no fence") else VISIBLE,
        "MEET": "__syncwarp();" if fault.startswith("no barrier") else CLUSTER,
        "EXPECT": filled(EXPECT, BAR="full", BYTES=2048),
        "AWAIT": filled(AWAIT, BAR="full", PARITY=0),
        "LAST": "" if fault.startswith("of a block") else filled(AWAIT, BAR="full + 8", PARITY=0) + CLUSTER,
    }
    body = TWINS
    for name, text in parts.items():
        body = body.replace(name, text)
    box = {"element": "float32", "sizes": (32, 16), "strides": (128,), "box": (32, 8), "swizzle": 0}
    given = [np.arange(512, dtype=np.uint32), np.zeros((2, 512), np.uint32)]

    def run(draw: random.Random | None) -> Array:
        (_, found), _ = launched(
            body, given, grid=2, pool=4096, head="__cluster_dims__(2, 1, 1)", maps=[mapped(0, **box)], draw=draw
        )
        return found

    if fault:
        with pytest.raises(AssertionError, match=fault):
            run_often(run, seed)
    else:
        assert np.array_equal(run(None), np.tile(given[0], (2, 1)))
        assert np.array_equal(run(random.Random(seed)), np.tile(given[0], (2, 1)))  # noqa: S311


def run_often(run: Callable[[random.Random], Array], seed: int) -> None:
    for number in range(40):
        run(random.Random(seed + number))  # noqa: S311 - an order, not a secret


def test_a_place_that_some_threads_of_a_warp_never_come_to_is_told() -> None:
    body = "if (me < 31) __syncwarp(); b[me] = a[me];"
    with pytest.raises(AssertionError, match="apart"):
        launched(body, [np.zeros(32, np.uint32), np.zeros(32, np.uint32)])


def test_named_barriers_count_those_who_arrive_and_those_who_wait() -> None:
    body = """
        unsigned *const words = (unsigned *)pool;
        if (me < 32) { words[me] = a[me]; asm volatile("bar.arrive 3, 64;" ::: "memory"); }
        else if (me < 64) { asm volatile("bar.sync 3, 64;" ::: "memory"); b[me - 32] = words[me - 32]; }
        else { asm volatile("bar.sync 4, 32;" ::: "memory"); }
    """
    given = [np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)]
    (_, found), _ = launched(body, given, threads=96, pool=1024)
    assert np.array_equal(found, given[0])
    with pytest.raises(AssertionError, match="no barrier"):
        launched(body.replace('3, 64;" ::: "memory"); b', '5, 32;" ::: "memory"); b'), given, threads=96, pool=1024)
