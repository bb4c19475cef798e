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
// GROUP    rows of tiles that go through C's columns together
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
#elif !defined(GROUP)
#error "GROUP must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#define THREADS (BM / TM * (BN / TN))
#define PACKS (TN / RUN(TN))
#define SUM PACK(RUN(TN))
// A warp is LANES_M x LANES_N threads, and neighbours read neighbouring packs of A and of B: no bank is asked twice,
// one read serves all who want the same pack, and what the warp writes of C fills whole sectors.
#define LANES_N (WN / TN)
#define LANES_M (32 / LANES_N)
#define TOP (THREAD_X / 32 / (BN / WN) * LANES_M * TM + THREAD_X % 32 / LANES_N * RUN(TM))
#define LEFT (THREAD_X / 32 % (BN / WN) * WN + THREAD_X % LANES_N * RUN(TN))
#define ROW(i) (TOP + (i) / RUN(TM) * LANES_M * RUN(TM) + (i) % RUN(TM))
#define COLUMN(pack) (LEFT + (pack) * LANES_N * RUN(TN))
// Both tiles lie with C's rows or columns along the banks. What memory has along k is written crosswise: in lines that
// are 4 elements longer than the banks, a sector of k of each row that a warp brings falls on banks of its own.
#define LINE(side, cross) ((side) + ((cross) ? 4 : 0))
#define SIZE_A (BK * LINE(BM, !TRANS_A))
#define STAGE (SIZE_A + BK * LINE(BN, TRANS_B))
#define SHARE(side) ((side) * BK / THREADS)
// Threads deal a tile out among them in turns, `w` neighbours in memory at a time: along C's rows or columns line by
// line, along k a sector (32 bytes) of each line, so that none is fetched twice and crosswise writes do not meet. The
// thread's bits of a place and the turn's do not overlap: they add up, and the turn's are the same for all.
#define ME ((unsigned)THREAD_X)
#define SPAN ((cross ? 32 / (int)sizeof(REAL) : side) / w)
#define ALONG(item) ((int)((item) % SPAN + (item) / (SPAN * (cross ? side : BK)) * SPAN) * w)
#define ACROSS(item) ((int)((item) / SPAN % (cross ? side : BK)))
#define PLACE(item) ((cross ? ALONG(item) : ACROSS(item)) * LINE(side, cross) + (cross ? ACROSS(item) : ALONG(item)))
#define FROM (from + (ACROSS(ME) * pitch + ALONG(ME)) + (ACROSS(i * THREADS) * pitch + ALONG(i * THREADS)))
#define TO (to + PLACE(ME) + PLACE(i * THREADS))

// Bring a thread's share of a tile into its registers, with zeros past the edges (they add nothing), and from there
// into shared memory; or, with STAGES > 2, copy it past the registers while the threads go on.
INNER void move(LOCAL REAL *to, REAL *in, const GLOBAL REAL *from, const INDEX pitch, const int sides, const int depth,
                const int writes, const int side, const int cross, const int w)
{
    TURNS(i, SHARE(side) / w, 256) {
        const int x = ALONG(ME) + ALONG(i * THREADS), y = ACROSS(ME) + ACROSS(i * THREADS);
        const int inside = x < (cross ? depth : sides) && y < (cross ? sides : depth);
        if (STAGES > 2) COPY(w, TO, FROM, inside);
        else if (!writes && w == 1) in[i] = inside ? *FROM : 0;
        else if (!writes) STORE(WIDE, inside ? LOAD(WIDE, FROM) : NOTHING(WIDE), in + i * w);
        else if (!cross && w > 1) STORE(WIDE, LOAD(WIDE, in + i * w), TO);
        else EACH(e, w) TO[e * LINE(side, cross)] = in[i * w + e];
    }
}

// 16 bytes at a time where all stored rows start at multiples of 16 (`wide`: 1 for A, 2 for B), copied crosswise fewer.
PART void move_tiles(LOCAL REAL *to, REAL *in, const GLOBAL REAL *a, const GLOBAL REAL *b, const INDEX pitch_a,
                     const INDEX pitch_b, const int rows, const int columns, const int depth, const int writes,
                     const int wide)
{
    if (wide & 1 & ((STAGES < 3) | TRANS_A)) move(to, in, a, pitch_a, rows, depth, writes, BM, !TRANS_A, WIDE);
    else move(to, in, a, pitch_a, rows, depth, writes, BM, !TRANS_A, 1);
    to += SIZE_A, in += SHARE(BM);
    if (wide >> 1 & ((STAGES < 3) | !TRANS_B)) move(to, in, b, pitch_b, columns, depth, writes, BN, TRANS_B, WIDE);
    else move(to, in, b, pitch_b, columns, depth, writes, BN, TRANS_B, 1);
}

// For each k, the TM + TN elements that a thread reads serve TM * TN FMAs. As many of these as the instruction cache
// likes are laid out one after the other, so that reads run ahead of them.
PART void add_tiles(const LOCAL REAL *as, const LOCAL REAL *bs, SUM *sums)
{
    TURNS(q, BK, TM * TN * BK <= 1024 ? BK : 1024 / (TM * TN)) {
        PACK(RUN(TM)) x[TM / RUN(TM)];
        SUM y[PACKS];
        EACH(i, TM / RUN(TM)) x[i] = LOAD(RUN(TM), as + q * LINE(BM, !TRANS_A) + ROW(i * RUN(TM)));
        EACH(j, PACKS) y[j] = LOAD(RUN(TN), bs + q * LINE(BN, TRANS_B) + COLUMN(j));
        EACH(e, TM * PACKS)
            sums[e] = SCALED(RUN(TN), ELEMENT(x[e / PACKS / RUN(TM)], e / PACKS % RUN(TM)), y[e % PACKS], sums[e]);
    }
}

PART void store_tile(GLOBAL REAL *c, const INDEX n, const int rows, const int columns, const int wide, SUM *sums)
{
    EACH(e, TM * PACKS) {
        const int y = ROW(e / PACKS), x = COLUMN(e % PACKS);
        if (wide && y < rows && x + RUN(TN) <= columns) STORE(RUN(TN), sums[e], c + y * n + x);
        else EACH(j, RUN(TN)) if (y < rows && x + j < columns) c[y * n + x + j] = ELEMENT(sums[e], j);
    }
}

HELD_KERNEL(THREADS, 1, HELD)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k)
{
    POOL(pool, STAGES * STAGE);
    // GROUP rows of tiles go through C's columns together: blocks that run at one time share what the cache has.
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM, tile = BLOCK % (across * down);
    const INDEX batch = BLOCK / (across * down), group = GROUP * across, top = tile / group * GROUP;
    const INDEX height = down - top < GROUP ? down - top : GROUP;
    const INDEX row = (top + tile % group % height) * BM, column = tile % group / height * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM, columns = n - column < BN ? (int)(n - column) : BN;
    const INDEX pitch_a = TRANS_A ? m : k, pitch_b = TRANS_B ? k : n;
    const GLOBAL REAL *const a0 = a + batch * m * k + (TRANS_A ? row : row * k);
    const GLOBAL REAL *const b0 = b + batch * k * n + (TRANS_B ? column * k : column);
    const int wide = (pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0) + 2 * (pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0);
    REAL in[SHARE(BM) + SHARE(BN)];
    SUM sums[TM * PACKS] = {0}; // stay in registers: C is written once
#define MOVE_TILES(s, q, writes)                                                                              \
    move_tiles(pool + (s) * STAGE, in, a0 + (TRANS_A ? (q) * m : (q)), b0 + (TRANS_B ? (q) : (q) * n), pitch_a, \
               pitch_b, rows, columns, k - (q) < BK ? (int)(k - (q)) : BK, writes, wide)
#pragma unroll 1
    for (INDEX q = (1 - STAGES) * BK, at = 1 % STAGES; q < k; q += BK, at = (at + 1) % STAGES) {
        const INDEX next = (at + STAGES - 1) % STAGES;
        if (STAGES > 2) COPIES_LEFT(STAGES - 2);
        BARRIER(); // this phase's tiles are whole, and the next ones' place is free: all have read the phase before
        MOVE_TILES(next, q + (STAGES - 1) * BK, 0);
        if (STAGES > 2) COPIES_SENT();
        if (STAGES == 1) { MOVE_TILES(next, q, 1); BARRIER(); }
        if (q >= 0) add_tiles(pool + at * STAGE, pool + at * STAGE + SIZE_A, sums);
        if (STAGES == 2) MOVE_TILES(next, q + BK, 1);
    }
    store_tile(c + (batch * m + row) * n + column, n, rows, columns, n % WIDE == 0 && ADDRESS(c) % 16 == 0, sums);
}
