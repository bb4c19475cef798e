"""Matmuls in Triton, operands stored either way: a tile a program, tiles that programs take in turn, k in slices."""
# Triton reads this file in its own way: parameters have no types, what is constant has capitals, branches stay apart.
# ruff: noqa: ANN001, ANN201, N803, SIM108
# mypy: disable-error-code="misc, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_and_columns(tile, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The rows and columns of a tile: GROUP rows of tiles are done column by column.

    Programs that run together share what they read then.
    """
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    top = tile // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - top, GROUP)
    i = (top + tile % (GROUP * tiles_n) % rows) * BM + tl.arange(0, BM)
    j = tile % (GROUP * tiles_n) // rows * BN + tl.arange(0, BN)
    return i, j


@triton.jit
def places_of_elements(a, b, m, n, k, i, j, steps, TRANS_A: tl.constexpr, TRANS_B: tl.constexpr):
    """Where a tile's elements of A and B lie, of its rows, columns and some k."""
    if TRANS_A:
        from_a = a + (i % m)[:, None] + steps[None, :] * m
    else:
        from_a = a + (i % m)[:, None] * k + steps[None, :]
    if TRANS_B:
        from_b = b + steps[:, None] + (j % n)[None, :] * k
    else:
        from_b = b + steps[:, None] * n + (j % n)[None, :]
    return from_a, from_b


@triton.jit
def sums_of_tile(
    a,
    b,
    c,
    m,
    n,
    k,
    tile,
    first,
    last,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    TRANS_A: tl.constexpr,
    TRANS_B: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The sums of a tile over the steps of k from `first` to `last`, and its rows and columns.

    Rows and columns past the edges wrap around, and are not to be stored.
    """
    i, j = rows_and_columns(tile, m, n, BM, BN, GROUP)
    steps = first * BK + tl.arange(0, BK)
    from_a, from_b = places_of_elements(a, b, m, n, k, i, j, steps, TRANS_A, TRANS_B)

    # Elements of 16 bits are added up in float32, and rounded once.
    dtype = tl.float64 if c.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((BM, BN), dtype=dtype)
    for step in range(first, last):
        if EVEN_K:
            part_a, part_b = tl.load(from_a), tl.load(from_b)
        else:
            left = k - (step - first) * BK
            part_a = tl.load(from_a, mask=steps[None, :] < left, other=0.0)
            part_b = tl.load(from_b, mask=steps[:, None] < left, other=0.0)
        total = tl.dot(part_a, part_b, total, input_precision=PRECISION, out_dtype=dtype)
        from_a += BK * m if TRANS_A else BK
        from_b += BK if TRANS_B else BK * n
    return total, i, j


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
    """C = op(A) op(B), a tile of C a program, a batch along the grid's second axis."""
    batch = tl.program_id(1).to(tl.int64)
    a += batch * m * k
    b += batch * k * n
    total, i, j = sums_of_tile(
        a, b, c, m, n, k, tl.program_id(0), 0, tl.cdiv(k, BK), BM, BN, BK, GROUP, TRANS_A, TRANS_B, EVEN_K, PRECISION
    )
    into = c + batch * m * n + i[:, None] * n + j[None, :]
    tl.store(into, total.to(c.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def persistent(
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
    """C = op(A) op(B): programs stay, and take tiles in turn."""
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        total, i, j = sums_of_tile(
            a, b, c, m, n, k, tile, 0, tl.cdiv(k, BK), BM, BN, BK, GROUP, TRANS_A, TRANS_B, EVEN_K, PRECISION
        )
        into = c + i[:, None].to(tl.int64) * n + j[None, :]
        tl.store(into, total.to(c.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def split_k(
    a,
    b,
    c,
    m,
    n,
    k,
    partials,
    counters,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    TRANS_A: tl.constexpr,
    TRANS_B: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """C = op(A) op(B), a slice of a tile's k a program: the last one that ends adds up all of the tile.

    Counters are zero before and after.
    """
    tile, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    steps = tl.cdiv(k, BK)
    each = tl.cdiv(steps, splits)
    first, last = min(split * each, steps), min(split * each + each, steps)
    total, i, j = sums_of_tile(
        a, b, partials, m, n, k, tile, first, last, BM, BN, BK, GROUP, TRANS_A, TRANS_B, EVEN_K, PRECISION
    )
    within = (i[:, None] < m) & (j[None, :] < n)
    at = i[:, None].to(tl.int64) * n + j[None, :]
    apart = tl.full((), 1, tl.int64) * m * n
    tl.store(partials + split * apart + at, total, mask=within)
    tl.debug_barrier()
    if tl.atomic_add(counters + tile, 1, sem="acq_rel") == splits - 1:
        for other in range(splits):
            if other != split:
                total += tl.load(partials + other * apart + at, mask=within, other=0.0, cache_modifier=".cg")
        tl.store(c + at, total.to(c.dtype.element_ty), mask=within)
        tl.store(counters + tile, 0)
