"""The interpreter's wgmma, against the PTX ISA's statements of layouts in shared memory and registers; faults."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("cupy")
from tests.ptx_interpreter.cases import launched
from tests.ptx_interpreter.program import Array

KINDS = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32)}
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
TAKE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
WAIT = 'asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");'
SPANS = {0: 0, 32: 3, 64: 2, 128: 1}


def image(matrix: Array, span: int, crosswise: bool) -> tuple[Array, int, int]:
    """A matrix [side, k] as shared memory holds it, and LBO and SBO in bytes; boxes of one span, k or side within.

    Rows of a box have 16-byte pieces that change places: with the row within 8 (128 bytes), with every second row
    within 4 (64), with every fourth within 2 (32). Without a swizzle 8 rows of 16 bytes follow each other.
    """
    lines = matrix.T if crosswise else matrix  # what runs on in memory is last
    size = matrix.itemsize
    if not span:
        across, along = lines.shape[0] // 8, lines.shape[1] * size // 16
        cores = lines.reshape(across, 8, along, 16 // size).transpose(0, 2, 1, 3)
        # From core to core along the last dimension, and along the first one.
        inner, outer = 128, 128 * along
        return np.ascontiguousarray(cores).reshape(-1), *((outer, inner) if crosswise else (inner, outer))
    wide = span // size
    boxes = lines.reshape(lines.shape[0], -1, wide).swapaxes(0, 1)
    pieces = boxes.reshape(*boxes.shape[:2], span // 16, 16 // size)
    out = np.zeros_like(pieces)
    for row in range(pieces.shape[1]):
        for piece in range(span // 16):
            turn = {128: row % 8, 64: row // 2 % 4, 32: row // 4 % 2}[span]
            out[:, row, piece ^ turn] = pieces[:, row, piece]
    return out.reshape(-1), lines.shape[0] * span, 8 * span


def descriptor(span: int, along: int, lines: int) -> str:
    return f"{SPANS[span] << 62 | lines >> 4 << 32 | along >> 4 << 16}ull"


def product(
    n: int, kind: str, a: str, b: str, orders: str = "", step: str = "", before: str = TAKE, after: str = WAIT
) -> str:
    """A body that multiplies once by descriptors (or registers x0 to x3), and puts the sums at c."""
    k = 8 if kind == "tf32" else 16
    sums = ", ".join(f"%{i}" for i in range(n // 2))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(n // 2))
    held = a.startswith("{")
    left = ", ".join(f'"r"(x{i})' for i in range(4)) if held else f'"l"({a})'
    first = "{" + ", ".join(f"%{n // 2 + i}" for i in range(4)) + "}" if held else f"%{n // 2}"
    second = n // 2 + (4 if held else 1)
    return f"""
        float d[{n // 2}];
        for (int i = 0; i < {n // 2}; i++) d[i] = 1;
        {before}
        asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} {{{sums}}},"
                     " {first}, %{second}, 1, 1, 1{orders};" : {outs} : {left}, "l"({b}) : "memory");
        {step}
        {after}
        for (int i = 0; i < {n // 2}; i++) ((float *)c)[i * 128 + me] = d[i];
    """


def bring(count_a: int, count_b: int, fence: str = FENCE) -> str:
    return f"""
        for (int i = me; i < {count_a}; i += 128) ((unsigned *)pool)[i] = a[i];
        for (int i = me; i < {count_b}; i += 128) ((unsigned *)(pool + 16384))[i] = b[i];
        {fence}
        __syncthreads();
        const u64 left = ADDRESS(pool) >> 4, right = ADDRESS(pool + 16384) >> 4;
    """


def sums(found: Array, n: int) -> Array:
    """[64, n] of [n / 2, 128]: "Register Fragments and Shared Memory Matrix Layouts" of wgmma, matrix D."""
    matrix = np.zeros((64, n), np.float32)
    for thread in range(128):
        for i in range(n // 2):
            row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
            matrix[row, 8 * (i // 4) + 2 * (thread % 4) + i % 2] = found[i, thread]
    return matrix


def integers(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


CASES = [
    (kind, n, span, ca, cb)
    for kind in ("f16", "bf16", "tf32")
    for n, span in ((16, 128), (64, 64), (40, 32), (24, 0), (128, 128))
    for ca, cb in ((False, False), (True, False), (False, True), (True, True))
    if (kind != "tf32" or not (ca or cb)) and (kind != "bf16" or (n, ca, cb) == (128, True, False))
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("kind", "n", "span", "cross_a", "cross_b"), CASES)
def test_operands_are_read_from_shared_memory_in_each_layout(
    kind: str, n: int, span: int, cross_a: bool, cross_b: bool
) -> None:
    dtype = KINDS[kind]
    k = 8 if kind == "tf32" else 16
    # Boxes have a whole span along k: the instruction reads the second 32 bytes of it, where there are any.
    deep = max(span, 32) // dtype.itemsize
    skip = k if span > 32 else 0
    side_b = -(-n * dtype.itemsize // max(span, 16)) * max(span, 16) // dtype.itemsize if cross_b else n
    a, b = integers((64, k if cross_a else deep), 1), integers((side_b, k if cross_b else deep), 2)
    image_a, along_a, lines_a = image(a.astype(dtype), span, cross_a)
    image_b, along_b, lines_b = image(b.astype(dtype), span, cross_b)
    words = [each.view(np.uint8).view(np.uint32) for each in (image_a, image_b)]
    left = f"left + {0 if cross_a else 2 * (skip > 0)} + {descriptor(span, along_a, lines_a)}"
    right = f"right + {0 if cross_b else 2 * (skip > 0)} + {descriptor(span, along_b, lines_b)}"
    orders = f", {int(cross_a)}, {int(cross_b)}" if kind != "tf32" else ""
    body = bring(len(words[0]), len(words[1])) + product(n, kind, left, right, orders)
    (_, _, found), _ = launched(body, [*words, np.zeros((n // 2, 128), np.float32)], threads=128, pool=65536)
    part_a = a if cross_a else a[:, skip : skip + k]
    part_b = b[:n] if cross_b else b[:n, skip : skip + k]
    assert np.array_equal(sums(found, n), part_a @ part_b.T + 1)


@pytest.mark.parametrize("kind", ["f16", "tf32"])
def test_the_first_operand_comes_from_registers(kind: str) -> None:
    dtype, n = KINDS[kind], 16
    k = 8 if kind == "tf32" else 16
    a, b = integers((64, k), 1), integers((n, k), 2)
    fragments = np.zeros((4, 128, 4 // dtype.itemsize), dtype)
    for thread in range(128):
        row, member = 16 * (thread // 32) + thread % 32 // 4, thread % 4
        for i in range(4):
            for e in range(4 // dtype.itemsize):
                column = member * (4 // dtype.itemsize) + e + i // 2 * (k // 2)
                fragments[i, thread, e] = a[row + i % 2 * 8, column]
    image_b, along, lines = image(b.astype(dtype), 32, False)
    words = image_b.view(np.uint8).view(np.uint32)
    takes = "".join(f"const unsigned x{i} = a[{i} * 128 + me];" for i in range(4))
    body = takes + bring(4, len(words)) + product(n, kind, "{}", f"right + {descriptor(32, along, lines)}")
    body = body.replace("1, 1, 1;", "1, 1, 1, 0;") if kind == "f16" else body
    given = [fragments.reshape(-1).view(np.uint32), words, np.zeros((n // 2, 128), np.float32)]
    (_, _, found), _ = launched(body, given, threads=128, pool=65536)
    assert np.array_equal(sums(found, n), a @ b.T + 1)


FAULTS = {
    "a wgmma, and no wgmma.fence": {"before": ""},
    "used before they were waited for": {"after": 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'},
    "no fence.proxy.async": {"fence": ""},
    "to what a wgmma reads": {"step": "pool[me] = 0;"},
    "was written after the last wgmma.fence": {"before": TAKE + "for (int i = 0; i < 8; i++) d[i] += a[i];"},
    "and no barrier": {"barrier": ""},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_wgmma_asks_for_and_does_not_get_is_told(fault: str) -> None:
    changed = dict(FAULTS[fault])
    words = [np.zeros(512, np.uint32), np.zeros(128, np.uint32), np.zeros((8, 128), np.float32)]
    start = bring(512, 128, changed.pop("fence", FENCE))
    start = start.replace("__syncthreads();", changed.pop("barrier", "__syncthreads();"))
    body = start + product(
        16, "f16", f"left + {descriptor(32, 0, 256)}", f"right + {descriptor(32, 0, 256)}", ", 0, 0", **changed
    )
    with pytest.raises(AssertionError, match=fault):
        launched(body, words, threads=128, pool=65536)
