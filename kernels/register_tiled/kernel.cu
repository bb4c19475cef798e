// C[m,n] = op(A)[m,k] x op(B)[k,n] by tiles in shared memory and, of these, TM x TN elements in a thread's registers.
//
// BM       rows of C's tile
// BN       columns of C's tile
// BK       how much of k each phase brings into shared memory
// TM       rows of C that a thread keeps in registers
// TN       columns of C that a thread keeps in registers
// WN       columns of the tile that 32 threads, a warp, cover together; its rows follow
// STAGES   phases in shared memory: 1; 2, the next one read into registers meanwhile; 3 and more, copied meanwhile
// HELD     blocks that an SM is to hold at once, at least
// SLICES   teams of threads that share out each phase, and each have the whole tile
// REPACK   1 where an operand stored along k, or in rows not whole 16 bytes, was copied into scratch as rows along C
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
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#define TEAM (BM / TM * (BN / TN))
#define THREADS (SLICES * TEAM)
#define PACKS (TN / RUN(TN))
#define SUM PACK(RUN(TN))
#define SUM_RUN RUN(TN)
#define OWN_SUMS (TM * PACKS)
#define SUMS (OWN_SUMS / SLICES)
#include "smem_tile.h"
#include "split_k.h"
#include "slice_k.h"
#include "tile_scheduler.h"
// A warp is LANES_M x LANES_N threads, and neighbours read neighbouring packs of A and of B: no bank is asked twice,
// one read serves all who want the same pack, and what the warp writes of C fills whole sectors.
#define LANES_N (WN / TN)
#define LANES_M (32 / LANES_N)
#define TOP (MATE / 32 / (BN / WN) * LANES_M * TM + MATE % 32 / LANES_N * RUN(TM))
#define LEFT (MATE / 32 % (BN / WN) * WN + MATE % LANES_N * RUN(TN))
#define ROW(i) (TOP + (i) / RUN(TM) * LANES_M * RUN(TM) + (i) % RUN(TM))
#define COLUMN(pack) (LEFT + (pack) * LANES_N * RUN(TN))
// Copies made before lie as the tiles do, so that nothing is left to be written crosswise.
#define CROSS_A (!(TRANS_A | REPACK))
#define CROSS_B (TRANS_B & !REPACK)
#define LINE_A LINE(BM, CROSS_A)
#define LINE_B LINE(BN, CROSS_B)
#define STAGE (BK * (LINE_A + LINE_B))
#define DEPTH (BK / SLICES)
#define ROOM (STAGES * STAGE > SLICES * BM * BN || SLICES == 1 ? STAGES * STAGE : SLICES * BM * BN)
#define IN_SCRATCH(lines) ((INDEX)(lines) * (128 / (int)sizeof(REAL)))

// 16 bytes at a time where all stored rows start at multiples of 16 (`wide`: 1 for A, 2 for B), copied crosswise fewer.
PART void move_tiles(LOCAL REAL *to, REAL *in, const GLOBAL REAL *a, const GLOBAL REAL *b, const INDEX pitch_a,
                     const INDEX pitch_b, const int rows, const int columns, const int depth, const int writes,
                     const int wide)
{
    if (wide & 1 & ((STAGES < 3) | !CROSS_A)) move(to, in, a, pitch_a, rows, depth, writes, BM, CROSS_A, WIDE);
    else move(to, in, a, pitch_a, rows, depth, writes, BM, CROSS_A, 1);
    to += BK * LINE_A, in += SHARE(BM);
    if (wide >> 1 & ((STAGES < 3) | !CROSS_B)) move(to, in, b, pitch_b, columns, depth, writes, BN, CROSS_B, WIDE);
    else move(to, in, b, pitch_b, columns, depth, writes, BN, CROSS_B, 1);
}

// For each k, the TM + TN elements that a thread reads serve TM * TN FMAs. As many of these as the instruction cache
// likes are laid out one after the other, so that reads run ahead of them.
PART void add_tiles(const LOCAL REAL *as, const LOCAL REAL *bs, SUM *sums)
{
    TURNS(q, DEPTH, TM * TN * DEPTH <= 1024 ? DEPTH : 1024 / (TM * TN)) {
        PACK(RUN(TM)) x[TM / RUN(TM)];
        SUM y[PACKS];
        EACH(i, TM / RUN(TM)) x[i] = LOAD(RUN(TM), as + q * LINE_A + ROW(i * RUN(TM)));
        EACH(j, PACKS) y[j] = LOAD(RUN(TN), bs + q * LINE_B + COLUMN(j));
        EACH(e, TM * PACKS)
            sums[e] = SCALED(RUN(TN), ELEMENT(x[e / PACKS / RUN(TM)], e / PACKS % RUN(TM)), y[e % PACKS], sums[e]);
    }
}

PART void store_tile(GLOBAL REAL *c, const INDEX n, const int rows, const int columns, const int wide, SUM *sums)
{
    EACH(e, SUMS) {
        const int y = ROW(TEAM_AT * (TM / SLICES) + e / PACKS), x = COLUMN(e % PACKS);
        if (wide && y < rows && x + RUN(TN) <= columns) STORE(RUN(TN), sums[e], c + y * n + x);
        else EACH(j, RUN(TN)) if (y < rows && x + j < columns) c[y * n + x + j] = ELEMENT(sums[e], j);
    }
}

// `split_k` blocks of a tile have `share` phases of k each, `fan` is for split_k.h. `group` rows of tiles go through C's
// columns together: blocks that run at one time share what the cache has. A's copy begins in scratch at line `at_a` of
// 128 bytes and has `lines_a` for each k, 0 where A is read as it is stored; so has B's. Blocks fit in 32 bits.
HELD_KERNEL(THREADS, 1, HELD)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, GLOBAL REAL *scratch, const INDEX split_k, const INDEX fan, const INDEX share,
       const INDEX group, const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b)
{
    POOL(pool, ROOM);
    const unsigned across = (n + BN - 1) / BN, down = (m + BM - 1) / BM, tiles = across * down, slices = split_k;
    const Place at_c = place_of((unsigned)BLOCK, down, across, slices, (unsigned)group, 0);
    const unsigned batch = at_c.batch, slice = at_c.slice, tile = (unsigned)BLOCK - (batch * slices + slice) * tiles;
    const INDEX row = at_c.row * (INDEX)BM, column = at_c.column * (INDEX)BN;
    const int rows = m - row < BM ? m - row : BM, columns = n - column < BN ? n - column : BN;
    const INDEX first = share * slice * BK, end = slice + 1 < slices ? first + share * BK : k; // of this slice
    const int packed_a = REPACK & (!TRANS_A | (lines_a > 0)), packed_b = REPACK & (TRANS_B | (lines_b > 0));
    const INDEX pitch_a = packed_a ? IN_SCRATCH(lines_a) : TRANS_A ? m : k;
    const INDEX pitch_b = packed_b ? IN_SCRATCH(lines_b) : TRANS_B ? k : n;
    const GLOBAL REAL *const a0 = packed_a ? scratch + IN_SCRATCH(at_a) + batch * k * pitch_a : a + batch * m * k;
    const GLOBAL REAL *const b0 = packed_b ? scratch + IN_SCRATCH(at_b) + batch * k * pitch_b : b + batch * k * n;
    const int wide = (packed_a || (pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0)) +
                     2 * (packed_b || (pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0));
    REAL in[SHARE(BM) + SHARE(BN)];
    SUM sums[OWN_SUMS] = {0}; // stay in registers: C is written once
#define FROM_A(q) (a0 + (CROSS_A ? row * k + (q) : (q) * pitch_a + row))
#define FROM_B(q) (b0 + (CROSS_B ? column * k + (q) : (q) * pitch_b + column))
#define MOVE_TILES(s, q, writes) move_tiles(pool + (s) * STAGE, in, FROM_A(q), FROM_B(q), pitch_a, pitch_b, rows, \
                                            columns, end - (q) < BK ? end - (q) : BK, writes, wide)
#pragma unroll 1
    for (INDEX q = first + (1 - STAGES) * BK, at = 1 % STAGES; q < end; q += BK, at = (at + 1) % STAGES) {
        const INDEX next = (at + STAGES - 1) % STAGES;
        if (STAGES > 2) COPIES_LEFT(STAGES - 2);
        BARRIER(); // this phase's tiles are whole, and the next ones' place is free: all have read the phase before
        if (STAGES < 3 || q + (STAGES - 1) * BK < end) MOVE_TILES(next, q + (STAGES - 1) * BK, 0);
        if (STAGES > 2) COPIES_SENT();
        if (STAGES == 1) { MOVE_TILES(next, q, 1); BARRIER(); }
        const LOCAL REAL *const as = pool + at * STAGE, *const bs = as + BK * LINE_A;
        if (q >= first) add_tiles(as + TEAM_AT * DEPTH * LINE_A, bs + TEAM_AT * DEPTH * LINE_B, sums);
        if (STAGES == 2) MOVE_TILES(next, q + BK, 1);
    }
    // The sums of the teams come together in shared memory, those of the slices in scratch; one block has the whole.
    if (SLICES > 1) join_teams(pool, sums);
    if (slices > 1 && !sum_slices(scratch, batch * tiles + tile, slice, slices, fan, (LOCAL int *)pool, sums)) return;
    store_tile(c + (batch * m + row) * n + column, n, rows, columns, n % WIDE == 0 && ADDRESS(c) % 16 == 0, sums);
}
