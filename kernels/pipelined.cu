// register_tiled's product with nothing to wait for in the loop over k: operands are read from shared memory one k before
// their FMAs, and copies into it are sent off between these. CUDA only, from sm_80.
//
// BM       rows of C's tile
// BN       columns of C's tile
// BK       how much of k each phase brings into shared memory
// TM       rows of C that a thread keeps in registers
// TN       columns of C that a thread keeps in registers
// WN       columns of the tile that 32 threads, a warp, cover together; its rows follow
// STAGES   phases in shared memory, all but one of them on their way
// HELD     blocks that an SM is to hold at once, at least
// SLICES   teams of threads that share out each phase, and each have the whole tile
// REPACK   1 where an operand stored along k, or in rows not whole 16 bytes, was copied into scratch as rows along C
// VECTOR   elements along C that one copy brings: 4, or 1 where rows are not whole 16 bytes
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(TM)
#error "TM must be defined"
#elif !defined(TN)
#error "TN must be defined"
#elif !defined(WN)
#error "WN must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(HELD)
#error "HELD must be defined"
#elif !defined(SLICES)
#error "SLICES must be defined"
#elif !defined(REPACK)
#error "REPACK must be defined"
#elif !defined(VECTOR)
#error "VECTOR must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "pipeline.h"

// Stores stand each in a branch of its own: in one straight line they make ptxas keep the sums in aligned quads, and then
// sums and operands meet on the register banks all through the loop over k.
PART void store_tile(REAL *c, const INDEX n, const int rows, const int columns, const int wide, const SUM *sums)
{
    EACH(e, SUMS) {
        const int y = ROW(TEAM_AT * (TM / SLICES) + e / PACKS_N), x = COLUMN(e % PACKS_N);
        if (wide && y < rows && x + WIDE <= columns) STORE(WIDE, sums[e], c + y * n + x);
        else EACH(j, WIDE) if (y < rows && x + j < columns) c[y * n + x + j] = sums[e].element[j];
    }
}

// `split_k` blocks of a tile have `share` phases of k each, and what they leave begins in scratch at line `at_c` of 128
// bytes. `group` rows of tiles go through C's columns together: blocks that run at one time share what the cache has.
// Copies of A and B begin at lines `at_a` and `at_b` and have `lines_a` and `lines_b` for each k; 0 where there is none.
HELD_KERNEL(THREADS, 1, HELD)
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m, const INDEX n, const INDEX k,
       REAL *scratch, const INDEX split_k, const INDEX at_c, const INDEX share, const INDEX group, const INDEX at_a,
       const INDEX lines_a, const INDEX at_b, const INDEX lines_b)
{
    POOL(pool, ROOM);
    const unsigned across = (n + BN - 1) / BN, down = (m + BM - 1) / BM, tiles = across * down, slices = split_k;
    const unsigned batch = (unsigned)BLOCK / (tiles * slices), slice = (unsigned)BLOCK / tiles % slices;
    const unsigned tile = (unsigned)BLOCK % tiles, high = group < down ? group : down, wave = high * across;
    const unsigned top = tile / wave * high, height = down - top < high ? down - top : high;
    const INDEX row = (INDEX)(top + tile % wave % height) * BM, column = (INDEX)(tile % wave / height) * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM, columns = n - column < BN ? (int)(n - column) : BN;
    const INDEX first = share * slice * BK, end = slice + 1 < slices ? first + share * BK : k, depth = end - first;
    const int packed_a = REPACK && (!TRANS_A || lines_a), packed_b = REPACK && (TRANS_B || lines_b);
    const INDEX pitch_a = packed_a ? IN_SCRATCH(lines_a) : TRANS_A ? m : k;
    const INDEX pitch_b = packed_b ? IN_SCRATCH(lines_b) : TRANS_B ? k : n;
    const REAL *const all_a = packed_a ? scratch + IN_SCRATCH(at_a) + batch * k * pitch_a : a + batch * m * k;
    const REAL *const all_b = packed_b ? scratch + IN_SCRATCH(at_b) + batch * k * pitch_b : b + batch * k * n;
    const int wide_a = packed_a || (pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0);
    const int wide_b = packed_b || (pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0);
    Side<KIND_A> at_rows(pool, all_a + (CROSS_A ? row * k + first : first * pitch_a + row), pitch_a, rows);
    Side<KIND_B> at_columns(pool + SIZE_A, all_b + (CROSS_B ? column * k + first : first * pitch_b + column), pitch_b,
                            columns);
    // Phases of whole BK, in the copies' own width, run on; others are brought by the element.
    const int phases = (int)((depth + BK - 1) / BK);
    const int fits = VECTOR == 1 || ((CROSS_A || wide_a) && (CROSS_B || wide_b));
    const int quick = fits && (pitch_a | pitch_b) >> 31 == 0 ? (int)(depth / BK) : 0;
#define SLOWLY(p)                                                         \
    at_rows.bring_slowly((p) % STAGES, p, depth - (INDEX)(p) * BK, wide_a), \
    at_columns.bring_slowly((p) % STAGES, p, depth - (INDEX)(p) * BK, wide_b)
#pragma unroll 1
    for (int p = 0; p < STAGES - 1; p++) {
        if (p < quick) at_rows.bring(0, 1, 1), at_columns.bring(0, 1, 1);
        else if (p < phases) SLOWLY(p);
        COPIES_SENT();
        at_rows.next(), at_columns.next();
    }
    SUM sums[OWN_SUMS] = {0}; // stay in registers: C is written once
    Operands ahead[2];
    const REAL *as = pool + TOP + TEAM_AT * DEPTH * LINE_A, *bs = pool + SIZE_A + LEFT + TEAM_AT * DEPTH * LINE_B;
    COPIES_LEFT(STAGES - 2);
    BARRIER();
    ahead[0].read(as, bs, 0);
    int p = 0, at = 0;
    // Only the last k of a phase has a barrier before it, and that has FMAs left to hide behind: then the next phase is
    // here, and the place of the one before is free. A phase that is not quick comes back out for the copies it needs.
#pragma unroll 1
    while (p < phases) {
        const int last = quick - (STAGES - 1), copies = p < last, stop = copies ? last : p + 1;
        if (!copies && p + STAGES - 1 < phases) SLOWLY(p + STAGES - 1);
#pragma unroll 1
        do {
            EACH(e, DEPTH) {
                if (e == DEPTH - 1) {
                    COPIES_SENT();
                    COPIES_LEFT(STAGES - 2);
                    const int step = (at == STAGES - 1 ? 1 - STAGES : 1) * STAGE;
                    as += step, bs += step, at = at == STAGES - 1 ? 0 : at + 1;
                    BARRIER();
                }
                ahead[(e + 1) % 2].read(as, bs, (e + 1) % DEPTH);
                if (e % (DEPTH / BURSTS) == 0) {
                    at_rows.bring(e / (DEPTH / BURSTS), BURSTS, copies);
                    at_columns.bring(e / (DEPTH / BURSTS), BURSTS, copies);
                }
                IN_ORDER();
                ahead[e % 2].add(sums);
            }
            at_rows.next(), at_columns.next();
        } while (++p < stop);
    }
    if (SLICES > 1) join_teams(pool, sums);
    // A slice's sums go where join.cu finds them, as C would lie there, from a multiple of 128 bytes on.
    const INDEX left = ((INDEX)batch * slices + slice) * ((m * n + IN_SCRATCH(1) - 1) / IN_SCRATCH(1));
    if (slices > 1) store_tile(scratch + IN_SCRATCH(at_c + left) + row * n + column, n, rows, columns, n % WIDE == 0, sums);
    else store_tile(c + (batch * m + row) * n + column, n, rows, columns, n % WIDE == 0 && ADDRESS(c) % 16 == 0, sums);
}
