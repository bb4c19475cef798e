// C[m,n] = op(A)[m,k] x op(B)[k,n] on tensor cores, with sums in float32: each warp multiplies its part of a tile that is
// copied into shared memory while the phase before is multiplied. CUDA from sm_80.
//
// BM       rows of C's tile
// BN       columns of C's tile
// BK       how much of k each phase brings into shared memory
// WM       rows of the tile that 32 threads, a warp, keep in registers
// WN       columns of the tile that a warp keeps in registers
// STAGES   phases in shared memory, all but one of them on their way
// SLICES   teams of warps that share out each phase, and each have the whole tile
// AHEAD    1 where a warp reads the next step's operands before it multiplies this one's, else 0
// HELD     blocks that an SM is to hold at once, at least
// ALIGNED  operands copied into scratch in rows along k of whole 16 bytes before: 1 for A, 2 for B, 3 for both, or 0
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(WM)
#error "WM must be defined"
#elif !defined(WN)
#error "WN must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(SLICES)
#error "SLICES must be defined"
#elif !defined(AHEAD)
#error "AHEAD must be defined"
#elif !defined(HELD)
#error "HELD must be defined"
#elif !defined(ALIGNED)
#error "ALIGNED must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#include "config.h"

HELD_KERNEL(THREADS, 1, HELD)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m, const INDEX n,
       const INDEX k, REAL *scratch, NUMBERS, const INDEX group, const INDEX slices, const INDEX fan, const INDEX share)
{
    if (PLANES == 2 && DECLINED(scratch)) return;
    extern __shared__ __align__(128) REAL pool[];
    const Spot spot = spot_of((unsigned)BLOCK, m, n, group, slices);
    const INDEX row = spot.row, column = spot.column, batch = spot.batch;
    const INDEX start = spot.slice * share, depth = k - start < share ? k - start : share;
    const INDEX pitch_a = COPIED_A ? PITCH(lines_a) : (TRANS_A ? m : k) * ITEM;
    const INDEX pitch_b = COPIED_B ? PITCH(lines_b) : (TRANS_B ? k : n) * ITEM;
    const char *const of_a = COPIED_A ? (const char *)scratch + (at_a * 128 + batch * m * pitch_a)
                                      : (const char *)(a + batch * m * k);
    const char *const of_b = COPIED_B ? (const char *)scratch + (at_b * 128 + batch * n * pitch_b)
                                      : (const char *)(b + batch * k * n);
    const int wide_a = COPIED_A || (ADDRESS(of_a) | pitch_a) % 16 == 0;
    const int wide_b = COPIED_B || (ADDRESS(of_b) | pitch_b) % 16 == 0;
    // Phases of whole BK, in pieces of 16 bytes, run on. Rows of both copies go on with zeros past k.
    const int fits = wide_a && wide_b && (pitch_a | pitch_b) >> 31 == 0;
    const int phases = (int)((depth + BK - 1) / BK);
    const int quick = PADDED ? phases : fits ? (int)(depth / BK) : 0;
    const unsigned base = SHARED_AT(pool);
    Side<BM, ALONG_A> at_rows(base, of_a + (ALONG_A ? row * pitch_a + start * ITEM : start * pitch_a + row * ITEM),
                              pitch_a, spot.rows);
    Side<BN, ALONG_B> at_columns(base + PLANES * SIZE_A,
                                 of_b + (ALONG_B ? column * pitch_b + start * ITEM : start * pitch_b + column * ITEM),
                                 pitch_b, spot.columns);
    const auto bring_slowly = [&](const int p) {
        const int deep = depth - (INDEX)p * BK < BK ? (int)(depth - (INDEX)p * BK) : BK;
        at_rows.bring_slowly(deep, wide_a), at_columns.bring_slowly(deep, wide_b);
    };
    unsigned as = base + PLACE_A, bs = base + PLANES * SIZE_A + PLACE_B;
    SUM sums[OWN_SUMS] = {}, crossed[PLANES == 2 ? OWN_SUMS : 1] = {}; // stay in registers: C is written once
    Operands held[1 + AHEAD];
    int p = 1 - STAGES, at = 0;
    // Before a phase's last step is multiplied the next phase is here, and the place of the one before is free. A phase
    // that is not quick comes back out for its copies.
#pragma unroll 1
    while (p < phases) {
        const int last = quick - (STAGES - 1), copies = p < last, stop = copies ? last : p + 1;
        if (!PADDED && !copies && p + STAGES - 1 < phases) bring_slowly(p + STAGES - 1);
        if (p < 0) { // no phase to multiply yet: only what the first ones need is brought
            at_rows.bring(0, 1, copies), at_columns.bring(0, 1, copies);
            COPIES_SENT();
            at_rows.next(STAGE), at_columns.next(STAGE);
            if (++p < 0) continue;
            COPIES_LEFT(STAGES - 2);
            BARRIER();
            if (AHEAD) held[0].read(as, bs, 0);
            continue;
        }
#pragma unroll 1
        do {
            EACH(q, DEPTH) {
                if (!AHEAD) held[0].read(as, bs, q);
                if (q < BURSTS) at_rows.bring(q, BURSTS, copies), at_columns.bring(q, BURSTS, copies);
                if (q == DEPTH - 1) {
                    COPIES_SENT();
                    COPIES_LEFT(STAGES - 2);
                    const int step = (at == STAGES - 1 ? 1 - STAGES : 1) * STAGE;
                    as += step, bs += step, at = at == STAGES - 1 ? 0 : at + 1;
                    BARRIER();
                }
                if (AHEAD) held[(q + 1) % 2].read(as, bs, (q + 1) % DEPTH);
                held[AHEAD & q].round();
                held[AHEAD & q].add(sums, crossed);
            }
            const int step = (at == 1 ? 1 - STAGES : 1) * STAGE; // what is brought is a stage behind what is read
            at_rows.next(step), at_columns.next(step);
        } while (++p < stop);
    }
    COPIES_LEFT(0); // zeros past k may still be on their way into what sums use
    if (PLANES == 2) EACH(e, OWN_SUMS) sums[e] = SCALED(4, 1.f / 2048, crossed[e], sums[e]);
    unsigned block = BLOCK;
    asm volatile("" : "+r"(block)); // what follows from it is worked out again: no registers are left to keep it
    const Spot at_c = spot_of(block, m, n, group, slices);
    const Target to = {c + (at_c.batch * m + at_c.row) * n + at_c.column, n, at_c.rows, at_c.columns, EXPONENTS};
    const int wide = (ADDRESS(to.c) | n * (int)sizeof(STORED)) % (4 * (int)sizeof(STORED)) == 0;
    const INDEX number = FIRST_TILE + at_c.number;
    REAL *const left = scratch + COUNTERS + number * slices * (BM * BN);
#pragma unroll 1
    for (int i = 0; i < STRIPS; i++) {
        BARRIER(); // nobody reads what the pool has held before
        stage((char *)pool, sums);
        BARRIER();
        if (slices > 1) leave_round(left + at_c.slice * (BM * BN) + i * ROUND, (char *)pool);
        else if (wide) put_round<4>(to, (char *)pool, i);
        else put_round<1>(to, (char *)pool, i);
        EACH(e, OWN_SUMS - BANDS) sums[e] = sums[e + BANDS];
    }
    if (slices > 1) add_slices((int *)scratch, left, number, at_c.slice, slices, fan, (int *)pool, to, wide);
}
