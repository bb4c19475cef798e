// C[m,n] = op(A)[m,k] x op(B)[k,n] for many small products: the operands of PER of them are on their way at once.
//
// BM       rows of C's tile: all of them, where a product is one tile
// BN       columns of C's tile
// BK       how much of k a phase brings into shared memory: all of it, where a product is one phase
// TM       rows of C that a thread keeps in registers
// TN       columns of C that a thread keeps in registers
// PER      products a block, each with threads of its own
// STAGES   phases in shared memory, all on their way from the start
// HELD     blocks that an SM is to hold at once, at least
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
#elif !defined(PER)
#error "PER must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(HELD)
#error "HELD must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#define TEAM (BM / TM * (BN / TN)) // threads of one product
#define THREADS (PER * TEAM)
#include "smem_layout.h"
#define PACKS (TN / RUN(TN))
#define SUM PACK(RUN(TN))
#define SIZE_A (BM * BK)
#define SIZE_B (BK * BN)
#define STAGE (PER * (SIZE_A + SIZE_B))

// What move_whole and move_some want to know of an operand: its pitch, its lines and their length, how it is dealt out.
#define OF_A to, a, m * k, TRANS_A ? m : k, TRANS_A ? BK : BM, TRANS_A ? BM : BK, DIV_A, MOD_A
#define OF_B to + PER * SIZE_A, b, n * k, TRANS_B ? k : n, TRANS_B ? BN : BK, TRANS_B ? BK : BN, DIV_B, MOD_B
#define SOME_A(w) move_some(OF_A, count, TRANS_A ? depth : rows, TRANS_A ? rows : depth, me, w)
#define SOME_B(w) move_some(OF_B, count, TRANS_B ? columns : depth, TRANS_B ? depth : columns, me, w)

// `wide` says which operands' rows all start at multiples of 16 bytes: 1 for A, 2 for B; 4: all is in C.
PART void move_tiles(LOCAL REAL *to, const GLOBAL REAL *a, const GLOBAL REAL *b, const int m, const int n, const int k,
                     const int count, const int rows, const int columns, const int depth, const int wide,
                     const unsigned me)
{
    if (wide == 7 && depth == BK) { move_whole(OF_A); move_whole(OF_B); return; }
    if (wide & 1) SOME_A(WIDE);
    else SOME_A(1);
    if (wide & 2) SOME_B(WIDE);
    else SOME_B(1);
}

// For WIDE of k a thread reads TM + TN packs, whichever way these lie, and has TM * TN * WIDE FMAs for them. STEP of k
// are laid out one after the other, as many as the instruction cache likes: in these, places differ by constants.
#define STEP MOST(WIDE, LEAST(BK, 1024 / (TM * TN)))
PART void add_tiles(const LOCAL REAL *as, const LOCAL REAL *bs, SUM *sums)
{
    TURNS(turn, BK / STEP, 1) {
        const int first = turn * STEP;
        const int at_a = TRANS_A ? TOP + first * BM : JOIN(DEALT(TOP * BK, DIV_A, MOD_A), first);
        const int at_b = TRANS_B ? JOIN(DEALT(LEFT * BK, DIV_B, MOD_B), first) : LEFT + first * BN;
        EACH(q, STEP / WIDE) {
            PACK(WIDE) x[TM], z[TN];
            SUM y[WIDE * PACKS];
            EACH(i, TM) {
                if (TRANS_A) x[i] = LOAD(WIDE, as + at_a + (q * WIDE + i % WIDE) * BM + i / WIDE * WIDE * LANES_M);
                else x[i] = LOAD(WIDE, as + JOIN(at_a, i * LANES_M * BK + q * WIDE));
            }
            if (TRANS_B) EACH(j, TN) z[j] = LOAD(WIDE, bs + JOIN(at_b, COLUMN(j) * BK + q * WIDE));
            EACH(e, WIDE * PACKS) {
                if (!TRANS_B)
                    y[e] = LOAD(RUN(TN), bs + at_b + (q * WIDE + e / PACKS) * BN + COLUMN(e % PACKS * RUN(TN)));
                else EACH(j, RUN(TN)) ELEMENT(y[e], j) = ELEMENT(z[e % PACKS * RUN(TN) + j], e / PACKS);
            }
            EACH(f, WIDE * TM * PACKS) {
                const int e = f / (TM * PACKS), i = f / PACKS % TM, j = f % PACKS;
                const REAL each = TRANS_A ? ELEMENT(x[i / WIDE * WIDE + e], i % WIDE) : ELEMENT(x[i], e);
                sums[i * PACKS + j] = SCALED(RUN(TN), each, y[e * PACKS + j], sums[i * PACKS + j]);
            }
        }
    }
}

// `wide` says that all packs of C lie at multiples of 16 bytes, and none is partly past the edge.
PART void store_tile(GLOBAL REAL *c, const int n, const int rows, const int columns, const int wide, SUM *sums)
{
    EACH(e, TM * PACKS) {
        const int y = ROW(e / PACKS), x = LEFT + COLUMN(e % PACKS * RUN(TN));
        if (wide && y < rows && x < columns) STORE(RUN(TN), sums[e], c + y * n + x);
        EACH(j, RUN(TN)) if (!wide && y < rows && x + j < columns) c[y * n + x + j] = ELEMENT(sums[e], j);
    }
}

// Products are small: within one, 32 bits are enough for a place.
HELD_KERNEL(THREADS, 1, HELD)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m_,
       const INDEX n_, const INDEX k_, GLOBAL REAL *RESTRICT scratch, const INDEX batch)
{
    POOL(pool, STAGES * STAGE);
    const int m = (int)m_, n = (int)n_, k = (int)k_;
    // The first copies wait for this arithmetic: it has no division where a product is one tile.
    const unsigned across = (unsigned)(n + BN - 1) / BN, tiles = (unsigned)(m + BM - 1) / BM * across;
    const unsigned block = (unsigned)BLOCK, group = tiles > 1 ? block / tiles : block;
    const unsigned tile = tiles > 1 ? block % tiles : 0, down = tiles > 1 ? tile / across : 0;
    const int row = (int)down * BM, column = (int)(tile - down * across) * BN;
    // A block's last products may be past the end of the batch: nothing of theirs is copied or stored.
    const INDEX first = (INDEX)group * PER;
    const int count = (int)LEAST(batch - first, PER);
    const int rows = LEAST(m - row, BM), columns = LEAST(n - column, BN);
    const GLOBAL REAL *const a0 = a + first * (m * k) + (TRANS_A ? row : row * k);
    const GLOBAL REAL *const b0 = b + first * (k * n) + (TRANS_B ? column * k : column);
    const int wide = ((TRANS_A ? m : k) % WIDE == 0 && ADDRESS(a) % 16 == 0)
                     + 2 * ((TRANS_B ? k : n) % WIDE == 0 && ADDRESS(b) % 16 == 0)
                     + 4 * (count == PER && rows == BM && columns == BN);
    SUM sums[TM * PACKS] = {0}; // stay in registers: C is written once
#pragma unroll 1
    for (int p = 1 - STAGES, at = 1 % STAGES; p * BK < k; p++, at = (at + 1) % STAGES) {
        const int next = (at + STAGES - 1) % STAGES, q = (p + STAGES - 1) * BK;
        const int waits = p * (STAGES > 1) == 0; // for what it sends for now, with nothing to do before
        if (COPIES) if (!waits && p > 0) COPIES_LEFT(STAGES - 2);
        if (p > 0) BARRIER(); // this phase is whole, where it has been under way, and all have read the one before
        if (q < k)
            move_tiles(pool + next * STAGE, a0 + (TRANS_A ? q * m : q), b0 + (TRANS_B ? q : q * n), m, n, k, count,
                       rows, columns, LEAST(k - q, BK), wide, ME + (unsigned)(q >> 30));
        if (COPIES) COPIES_SENT();
        if (COPIES) if (waits) COPIES_LEFT(STAGES - 1);
        if (waits) BARRIER();
        const LOCAL REAL *const as = pool + at * STAGE, *const bs = as + PER * SIZE_A;
        if (p >= 0) add_tiles(as + ME / TEAM * SIZE_A, bs + ME / TEAM * SIZE_B, sums);
    }
    if ((int)(ME / TEAM) < count)
        store_tile(c + ((first + ME / TEAM) * m + row) * n + column, n, rows, columns,
                   n % RUN(TN) == 0 && ADDRESS(c) % 16 == 0, sums);
}
