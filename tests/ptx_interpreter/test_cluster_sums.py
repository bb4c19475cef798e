"""st.async between a cluster's blocks: what the interpreter makes of it, and faults that it tells."""

from __future__ import annotations

import random
import secrets

import numpy as np
import pytest

pytest.importorskip("cupy")
from tests.ptx_interpreter.cases import launched
from tests.ptx_interpreter.program import Array
from tests.ptx_interpreter.test_hopper import AWAIT, EXPECT, START, VISIBLE, filled, run_often

ARRIVE = 'asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");'
WAIT = 'asm volatile("barrier.cluster.wait.acquire;" ::: "memory");'
SEND = """asm volatile("{ .reg .b32 to, full;"
             "mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 full, %1, %2;"
             "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [to], {%3, %4}, [full]; }"
             :: "r"(ADDRESS(pool + 1024 + me * 8)), "r"(full), "r"(rank ^ 1), "r"(a[rank * 64 + me * 2]),
                "r"(a[rank * 64 + me * 2 + 1]) : "memory");"""
# Two blocks, each of which sends the other 64 words.
BODY = """
    const unsigned full = ADDRESS(pool), rank = blockIdx.x;
    if (me == 0) { SET INIT_FENCE EXPECT }
    ARRIVE
    MEET
    SEND
    AWAIT
    b[rank * 64 + me * 2] = ((unsigned *)(pool + 1024))[me * 2];
    b[rank * 64 + me * 2 + 1] = ((unsigned *)(pool + 1024))[me * 2 + 1];
"""


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("", ""),
        ("INIT_FENCE", "no barrier"),
        ("MEET", "not set up|no barrier"),
        ("AWAIT", "no barrier|on their way|has ended"),
        ("EXPECT", "nobody can go on"),
    ],
)
def test_blocks_send_each_other_words_that_an_mbarrier_counts(left_out: str, told: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    parts = {
        "SET": filled(START, BAR="full", COUNT=1),
        "INIT_FENCE": VISIBLE,
        "EXPECT": filled(EXPECT, BAR="full", BYTES=256),
        "ARRIVE": ARRIVE,
        "MEET": WAIT,
        "SEND": SEND,
        "AWAIT": filled(AWAIT, BAR="full", PARITY=0),
    }
    if left_out:
        parts[left_out] = ""
    body = BODY
    for name, text in parts.items():
        body = body.replace(name, text)
    given = [np.arange(128, dtype=np.uint32), np.zeros((2, 64), np.uint32)]

    def run(draw: random.Random | None) -> Array:
        (_, found), _ = launched(body, given, grid=2, pool=2048, head="__cluster_dims__(2, 1, 1)", draw=draw)
        return found

    if told:
        with pytest.raises(AssertionError, match=told):
            run_often(run, seed)
    else:
        assert np.array_equal(run(None), given[0].reshape(2, 64)[::-1])
        assert np.array_equal(run(random.Random(seed)), given[0].reshape(2, 64)[::-1])  # noqa: S311 - an order


def test_threads_at_their_blocks_barrier_wait_there_though_all_of_the_cluster_have_arrived() -> None:
    # Half of each block sleeps before it arrives, while the others come to the block's barrier.
    body = f"""
        unsigned *const words = (unsigned *)pool;
        #pragma unroll 1
        for (int i = 0; me < 32 && i < 4; i++) asm volatile("nanosleep.u32 20;" ::: "memory");
        {ARRIVE}
        words[me] = a[me];
        asm volatile("bar.sync 0;" ::: "memory");
        {WAIT}
        b[blockIdx.x * 64 + me] = words[me ^ 32];
    """
    given = [np.arange(64, dtype=np.uint32), np.zeros((2, 64), np.uint32)]
    (_, found), _ = launched(body, given, threads=64, grid=2, pool=256, head="__cluster_dims__(2, 1, 1)")
    assert np.array_equal(found, [given[0] ^ 32] * 2)
