"""The interpreter's warp-level matrices, against the PTX ISA's statements of who holds which element."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("cupy")
from tests.ptx_interpreter.cases import launched
from tests.ptx_interpreter.program import Array
from tests.ptx_interpreter.warp_matrices import cut_sums
from tests.support.kernels.tensor_core_sums import AMPERE, HOPPER, VOLTA, added

HALF = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
LANES = [(lane, lane // 4, lane % 4) for lane in range(32)]


def integers(shape: tuple[int, ...], seed: int = 3) -> Array:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def words(pairs: Array, dtype: np.dtype[Any]) -> Array:
    """Registers of two halves each: [registers, 32] of [registers, 32, 2]."""
    return np.ascontiguousarray(pairs.astype(dtype)).view(np.uint32)[..., 0]


def call(instruction: str, outs: int, ins: tuple[int, ...]) -> str:
    """A body that reads registers from a (in order, [registers, 32]), and puts results in b."""
    total = sum(ins)
    numbers, at = [], outs
    for count in ins:
        numbers.append("{" + ", ".join(f"%{at + i}" for i in range(count)) + "}")
        at += count
    results = "{" + ", ".join(f"%{i}" for i in range(outs)) + "}"
    given = "\n".join(f"unsigned x{i} = a[{i} * 32 + me];" for i in range(total))
    inputs = ", ".join(f'"r"(x{i})' for i in range(total))
    outputs = ", ".join(f'"=r"(y[{i}])' for i in range(outs))
    asm = f'asm volatile("{instruction} {results}, {", ".join(numbers)};" : {outputs} : {inputs});'
    return f"{given}\nunsigned y[{outs}];\n{asm}\n" + "\n".join(f"b[{i} * 32 + me] = y[{i}];" for i in range(outs))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("k", [8, 16])
def test_mma_of_halves_takes_and_gives_fragments_as_specified(kind: str, k: int) -> None:
    a, b, c = integers((16, k)), integers((k, 8), 4), integers((16, 8), 5)
    fragment_a, fragment_b = np.zeros((k // 4, 32, 2)), np.zeros((k // 8, 32, 2))
    fragment_c = np.zeros((4, 32), np.float32)
    for lane, group, member in LANES:
        for i in range(k // 2):
            row = group if i % 4 < 2 else group + 8
            fragment_a[i // 2, lane, i % 2] = a[row, member * 2 + (i & 1) + (8 if i >= 4 else 0)]
        for i in range(k // 4):
            fragment_b[i // 2, lane, i % 2] = b[member * 2 + (i & 1) + (8 if i >= 2 else 0), group]
        for i in range(4):
            fragment_c[i, lane] = c[group if i < 2 else group + 8, member * 2 + (i & 1)]
    given = [words(fragment_a, HALF[kind]), words(fragment_b, HALF[kind]), fragment_c.view(np.uint32)]
    ins = (k // 4, k // 8, 4)
    body = call(f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32", 4, ins)
    (_, found), _ = launched(body, [np.concatenate(given), np.zeros((4, 32), np.float32)], "80")
    expected = a @ b + c
    for lane, group, member in LANES:
        for i in range(4):
            assert found[i, lane] == expected[group if i < 2 else group + 8, member * 2 + (i & 1)]


def test_sums_are_cut_off_where_a_generation_of_tensor_cores_is_asked_for() -> None:
    a, b, c = np.full((16, 8), 1.5), np.full((8, 8), 1.25), np.full((16, 8), 2.0**24)
    given = [words(np.full((2, 32, 2), 1.5), HALF["f16"]), words(np.full((1, 32, 2), 1.25), HALF["f16"])]
    given.append(np.full((4, 32), 2.0**24, np.float32).view(np.uint32))
    body = call("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 4, (2, 1, 4))
    arrays = [np.concatenate(given), np.zeros((4, 32), np.float32)]
    for core in (VOLTA, AMPERE, HOPPER):
        (_, found), _ = launched(body, arrays, "80", sums=cut_sums(core))
        assert (found == added(core, c, a, b)[0, 0]).all()
    (_, found), _ = launched(body, arrays, "80")
    assert (found == np.float32(2.0**24 + 15)).all()
    assert (added(VOLTA, c, a, b) < found[0, 0]).all()


@pytest.mark.parametrize("k", [4, 8])
def test_mma_of_tf32_leaves_out_what_tensor_cores_do(k: int) -> None:
    a, b, c = integers((16, k)), integers((k, 8), 4), integers((16, 8), 5)
    fragment_a, fragment_b = np.zeros((k // 2, 32), np.float32), np.zeros((k // 4, 32), np.float32)
    fragment_c = np.zeros((4, 32), np.float32)
    for lane, group, member in LANES:
        for i in range(k // 2):
            fragment_a[i, lane] = a[group + 8 * (i % 2), member + 4 * (i // 2)]
        for i in range(k // 4):
            fragment_b[i, lane] = b[member + 4 * i, group]
        for i in range(4):
            fragment_c[i, lane] = c[group if i < 2 else group + 8, member * 2 + (i & 1)]
    low = np.uint32(0x1ABC)  # below what a tf32 has
    given = [fragment_a.view(np.uint32) | low, fragment_b.view(np.uint32) | low, fragment_c.view(np.uint32)]
    ins = (k // 2, k // 4, 4)
    body = call(f"mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32", 4, ins)
    (_, found), _ = launched(body, [np.concatenate(given), np.zeros((4, 32), np.float32)], "80")
    expected = a @ b + c
    for lane, group, member in LANES:
        for i in range(4):
            assert found[i, lane] == expected[group if i < 2 else group + 8, member * 2 + (i & 1)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_and_stmatrix_deal_rows_out(count: int, turned: bool) -> None:
    stored = np.arange(32 * 8, dtype=np.uint16).reshape(32, 8)
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"=r"(y[{i}])' for i in range(count))
    inputs = ", ".join(f'"r"(y[{i}])' for i in range(count))
    kept = ", ".join(f"%{i + 1}" for i in range(count))
    trans = ".trans" if turned else ""
    body = f"""
        for (int i = 0; i < 4; i++) ((unsigned *)pool)[me * 4 + i] = a[me * 4 + i];
        __syncwarp();
        unsigned y[{count}];
        asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%{count}];"
                     : {outputs} : "r"(ADDRESS(pool + me * 16)) : "memory");
        for (int i = 0; i < {count}; i++) b[i * 32 + me] = y[i];
        asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {{{kept}}};"
                     :: "r"(ADDRESS(pool + 512 + me * 16)), {inputs} : "memory");
        __syncwarp();
        if (me < {8 * count}) for (int i = 0; i < 4; i++) c[me * 4 + i] = ((unsigned *)pool)[128 + me * 4 + i];
    """
    held, back = np.zeros((count, 32, 2), np.uint16), np.zeros((8 * count, 8), np.uint16)
    (_, found, again), _ = launched(body, [stored, held, back], pool=1024)
    for matrix in range(count):
        rows = stored[matrix * 8 : matrix * 8 + 8]
        rows = rows.T if turned else rows
        for lane in range(32):
            assert list(found[matrix, lane]) == list(rows[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2])
    assert np.array_equal(again, stored[: 8 * count])


def test_rows_of_ldmatrix_that_meet_on_a_bank_are_counted() -> None:
    body = """
        unsigned y;
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                     : "=r"(y) : "r"(ADDRESS(pool + me % 8 * PITCH)));
        b[me] = y;
    """
    for pitch, conflicts in ((16, 0), (128, 1), (144, 0), (64, 1)):
        given = [np.zeros(32, np.uint32), np.zeros(32, np.uint32)]
        _, machine = launched(body.replace("PITCH", str(pitch)), given, pool=2048)
        assert machine.conflicts == conflicts, pitch


@pytest.mark.parametrize(
    ("reading", "stride", "conflicts"),
    [
        pytest.param("me % 2", 1, 0, id="half-of-each-warp-in-all-banks"),
        pytest.param("me % 2", 2, 2, id="half-of-each-warp-in-the-same-banks"),
        pytest.param("me < 40", 1, 0, id="a-warp-and-some-of-the-next"),
        pytest.param("me == 3 || me == 35", 32, 0, id="one-thread-of-each-warp-in-one-bank"),
        pytest.param("me == 3 || me == 4", 32, 1, id="two-threads-of-a-warp-in-one-bank"),
    ],
)
def test_threads_that_do_not_read_meet_nobody(reading: str, stride: int, conflicts: int) -> None:
    body = f"b[me] = 0; if ({reading}) b[me] = ((volatile unsigned *)pool)[me * {stride}];"
    given = [np.zeros(64, np.uint32), np.zeros(64, np.uint32)]
    _, machine = launched(body, given, threads=64, pool=64 * 4 * 32)
    assert machine.conflicts == conflicts


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("order_a", "order_b"), [("row", "row"), ("col", "row"), ("row", "col")])
def test_wmma_multiplies_tiles_whatever_the_order(kind: str, order_a: str, order_b: str) -> None:
    a, b, c = integers((16, 16)), integers((16, 16), 4), integers((16, 16), 5)
    count = 8 if kind == "f16" else 4
    types = "f32.f32" if kind == "f16" else "f32.bf16.bf16.f32"
    names = {side: "{" + ", ".join(f"{side}{i}" for i in range(count)) + "}" for side in "ab"}
    sums = "{" + ", ".join(f"c{i}" for i in range(8)) + "}"
    body = f"""
        for (int i = 0; i < 4; i++) ((unsigned *)pool)[me * 4 + i] = a[me * 4 + i];
        __syncwarp();
        asm volatile("{{ .reg .b32 a<{count}>, b<{count}>; .reg .f32 c<8>;\\n"
            "wmma.load.a.sync.aligned.{order_a}.m16n16k16.shared.{kind} {names["a"]}, [%0], %3;\\n"
            "wmma.load.b.sync.aligned.{order_b}.m16n16k16.global.{kind} {names["b"]}, [%1], %3;\\n"
            "wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {sums}, [%2], %3;\\n"
            "wmma.mma.sync.aligned.{order_a}.{order_b}.m16n16k16.{types} {sums}, {names["a"]}, {names["b"]}, {sums};\\n"
            "add.f32 c3, c3, 0f00000000;\\n"
            "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%2], {sums}, %3; }}"
            :: "r"(ADDRESS(pool)), "l"(b), "l"(c), "r"(16) : "memory");
    """
    stored = [each if order == "row" else each.T for each, order in ((a, order_a), (b, order_b))]
    (_, _, found), _ = launched(body, [*(each.astype(HALF[kind]) for each in stored), c], "80", pool=512)
    assert np.array_equal(found, a @ b + c)


def test_conversions_round_as_said() -> None:
    x = np.random.default_rng(7).standard_normal(32).astype(np.float32) * 1000
    x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 65519.9, 1e-7, 1 + 2**-11]
    body = """
        float v = __uint_as_float(a[me]);
        unsigned y;
        unsigned short h;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(v), "f"(v * 2)); b[me] = y;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(v), "f"(v * 2)); b[32 + me] = y;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(v)); b[64 + me] = y;
        asm("cvt.rz.f16.f32 %0, %1;" : "=h"(h) : "f"(v)); b[96 + me] = h;
        asm("cvt.rz.bf16.f32 %0, %1;" : "=h"(h) : "f"(v)); b[128 + me] = h;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((unsigned short)b[me])); b[160 + me] = __float_as_uint(v);
    """
    (_, y), _ = launched(body.replace("\n        asm", "\n        asm volatile"), [x, np.zeros((6, 32), np.uint32)])
    halves = np.stack([x, 2 * x], 1)[:, ::-1]
    with np.errstate(over="ignore"):
        nearest = halves.astype(np.float16)
    assert np.array_equal(y[0].view(np.float16).reshape(32, 2), nearest, equal_nan=True)
    same = y[1].view(HALF["bf16"]).reshape(32, 2).astype(np.float32)
    assert np.array_equal(same, halves.astype(HALF["bf16"]).astype(np.float32), equal_nan=True)
    tf32 = y[2].view(np.float32)[5:].astype(np.float64)
    exponents = np.frexp(x[5:])[1] - 1
    near = np.ldexp(np.trunc(np.abs(np.ldexp(x[5:].astype(np.float64), 10 - exponents)) + 0.5), exponents - 10)
    assert np.array_equal(tf32, np.copysign(near, x[5:]))
    rz = y[3].astype(np.uint16).view(np.float16).astype(np.float64)
    wide = x.astype(np.float64)
    fits = np.isfinite(x)
    rz, wide = np.where(fits, rz, 0), np.where(fits, wide, 0)
    assert (np.abs(rz[fits]) <= np.abs(wide[fits])).all()
    assert (np.abs(rz - wide)[fits] <= np.abs(wide[fits]) * 2.0**-10 + 2.0**-24).all()
    assert np.array_equal(y[4][fits], x.view(np.uint32)[fits] >> 16)
    assert np.array_equal(y[5].view(np.float32), nearest[:, 0].astype(np.float32), equal_nan=True)
