"""A tiled matmul in Triton: grouped tiles, a batch along the grid's second axis, operands stored either way."""
# Triton reads this file in its own way: parameters have no types, what is constant has capitals, branches stay apart.
# ruff: noqa: ANN001, ANN201, N803, SIM108
# mypy: disable-error-code="misc, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul(
    a,
    b,
    c,
    m,
    n,
    k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    TRANS_A: tl.constexpr,
    TRANS_B: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """C = op(A) op(B), a tile of C a program. Rows and columns past the edges wrap around, and are not stored."""
    # GROUP rows of tiles are done column by column, so that programs that run together share what they read.
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    first = tile // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - first, GROUP)
    tile_m = first + tile % (GROUP * tiles_n) % rows
    tile_n = tile % (GROUP * tiles_n) // rows

    i = tile_m * BM + tl.arange(0, BM)
    j = tile_n * BN + tl.arange(0, BN)
    steps = tl.arange(0, BK)
    a += batch * m * k
    b += batch * k * n
    if TRANS_A:
        from_a = a + (i % m)[:, None] + steps[None, :] * m
    else:
        from_a = a + (i % m)[:, None] * k + steps[None, :]
    if TRANS_B:
        from_b = b + steps[:, None] + (j % n)[None, :] * k
    else:
        from_b = b + steps[:, None] * n + (j % n)[None, :]

    # Elements of 16 bits are added up in float32, and rounded once.
    dtype = tl.float64 if c.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BM, BN), dtype=dtype)
    for step in range(tl.cdiv(k, BK)):
        if EVEN_K:
            part_a, part_b = tl.load(from_a), tl.load(from_b)
        else:
            left = k - step * BK
            part_a = tl.load(from_a, mask=steps[None, :] < left, other=0.0)
            part_b = tl.load(from_b, mask=steps[:, None] < left, other=0.0)
        total = tl.dot(part_a, part_b, total, input_precision=PRECISION, out_dtype=dtype)
        from_a += BK * m if TRANS_A else BK
        from_b += BK if TRANS_B else BK * n
    into = c + batch * m * n + i[:, None] * n + j[None, :]
    tl.store(into, total.to(c.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))
