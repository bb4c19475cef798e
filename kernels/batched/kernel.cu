// C[m,n] = op(A)[m,k] x op(B)[k,n] for many small products: a block has the operands of
// BATCH_PER_BLOCK of them in flight at once.
//
// BM               rows of C's tile: all of them, if a product is one tile
// BN               columns of C's tile
// BK               depth of a k tile in shared memory: all of k, if a product is one k tile
// TM               rows of C that a thread keeps in registers
// TN               columns of C that a thread keeps in registers
// BATCH_PER_BLOCK  products of a block, each with threads of its own
// STAGES           k tiles in shared memory, all in flight from the start
// MIN_BLOCKS       minimum of blocks on an SM (__launch_bounds__)
// TRANS_A          1 where A is stored k x m, else 0
// TRANS_B          1 where B is stored n x k, else 0
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
#elif !defined(BATCH_PER_BLOCK)
#error "BATCH_PER_BLOCK must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "division.h"
#define PRODUCT_THREADS (BM / TM * (BN / TN)) // threads of one product
#define THREADS (BATCH_PER_BLOCK * PRODUCT_THREADS)
#include "smem_layout.h"
#define PACKS (TN / RUN(TN))
#define ACC PACK(RUN(TN))
#define TILE_SIZE_A (BM * BK)
#define TILE_SIZE_B (BK * BN)
#define STAGE_SIZE (BATCH_PER_BLOCK * (TILE_SIZE_A + TILE_SIZE_B))

// Arguments of load_full and load_predicated for each operand: pitch, lines, their length, swizzle.
#define OF_A \
    to, a, m *k, TRANS_A ? m : k, TRANS_A ? BK : BM, TRANS_A ? BM : BK, SWIZZLE_DIV_A, SWIZZLE_MOD_A
#define OF_B                                                                        \
    to + BATCH_PER_BLOCK *TILE_SIZE_A, b, n *k, TRANS_B ? k : n, TRANS_B ? BN : BK, \
        TRANS_B ? BK : BN, SWIZZLE_DIV_B, SWIZZLE_MOD_B
#define LOAD_PREDICATED_A(w) \
    load_predicated(OF_A, count, TRANS_A ? depth : rows, TRANS_A ? rows : depth, me, w)
#define LOAD_PREDICATED_B(w) \
    load_predicated(OF_B, count, TRANS_B ? columns : depth, TRANS_B ? depth : columns, me, w)

// `wide` is a mask: 1 if A's rows are aligned to 16 bytes, 2 if B's are, 4 if the tile is inside C.
PART void load_tiles(LOCAL REAL *to, const GLOBAL REAL *a, const GLOBAL REAL *b, const int m,
                     const int n, const int k, const int count, const int rows, const int columns,
                     const int depth, const int wide, const unsigned me)
{
    if (wide == 7 && depth == BK) {
        load_full(OF_A);
        load_full(OF_B);
        return;
    }
    if (wide & 1) {
        LOAD_PREDICATED_A(WIDE);
    } else {
        LOAD_PREDICATED_A(1);
    }
    if (wide & 2) {
        LOAD_PREDICATED_B(WIDE);
    } else {
        LOAD_PREDICATED_B(1);
    }
}

// For WIDE of k a thread reads TM + TN packs, in either layout, for TM * TN * WIDE FMAs. STEP of k
// are unrolled, as many as the instruction cache allows; within these, offsets are constants.
#define STEP MAX(WIDE, MIN(BK, 1024 / (TM * TN)))
PART void add_tiles(const LOCAL REAL *As, const LOCAL REAL *Bs, ACC *acc)
{
    TURNS(turn, BK / STEP, 1) {
        const int first = turn * STEP;
        const int at_a =
            TRANS_A ? THREAD_ROW + first * BM
                    : SWIZZLED_ADD(SWIZZLED(THREAD_ROW * BK, SWIZZLE_DIV_A, SWIZZLE_MOD_A), first);
        const int at_b =
            TRANS_B ? SWIZZLED_ADD(SWIZZLED(THREAD_COL * BK, SWIZZLE_DIV_B, SWIZZLE_MOD_B), first)
                    : THREAD_COL + first * BN;
        EACH(q, STEP / WIDE) {
            PACK(WIDE) x[TM], z[TN];
            ACC y[WIDE * PACKS];
            EACH(i, TM) {
                if (TRANS_A) {
                    x[i] = LOAD(WIDE,
                                As + at_a + (q * WIDE + i % WIDE) * BM + i / WIDE * WIDE * LANES_M);
                } else {
                    x[i] = LOAD(WIDE, As + SWIZZLED_ADD(at_a, i * LANES_M * BK + q * WIDE));
                }
            }
            if (TRANS_B) {
                EACH(j, TN) {
                    z[j] = LOAD(WIDE, Bs + SWIZZLED_ADD(at_b, ACC_COL(j) * BK + q * WIDE));
                }
            }
            EACH(e, WIDE * PACKS) {
                if (!TRANS_B) {
                    y[e] = LOAD(RUN(TN), Bs + at_b + (q * WIDE + e / PACKS) * BN +
                                             ACC_COL(e % PACKS * RUN(TN)));
                } else {
                    EACH(j, RUN(TN)) {
                        ELEMENT(y[e], j) = ELEMENT(z[e % PACKS * RUN(TN) + j], e / PACKS);
                    }
                }
            }
            EACH(f, WIDE * TM * PACKS) {
                const int e = f / (TM * PACKS), i = f / PACKS % TM, j = f % PACKS;
                const REAL each =
                    TRANS_A ? ELEMENT(x[i / WIDE * WIDE + e], i % WIDE) : ELEMENT(x[i], e);
                acc[i * PACKS + j] = FMA_PACK(RUN(TN), each, y[e * PACKS + j], acc[i * PACKS + j]);
            }
        }
    }
}

// `wide`: all packs of C are aligned to 16 bytes, and none is cut by the edge.
PART void store_tile(GLOBAL REAL *c, const int n, const int rows, const int columns, const int wide,
                     ACC *acc)
{
    EACH_ROLLED(e, TM * PACKS) {
        const int y = ACC_ROW(e / PACKS), x = THREAD_COL + ACC_COL(e % PACKS * RUN(TN));
        if (wide && y < rows && x < columns) {
            STORE(RUN(TN), acc[e], c + y * n + x);
        }
        EACH_ROLLED(j, RUN(TN)) {
            if (!wide && y < rows && x + j < columns) {
                c[y * n + x + j] = ELEMENT(acc[e], j);
            }
        }
    }
}

// Products are small: offsets within one fit in 32 bits.
KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
       const INDEX m_, const INDEX n_, const INDEX k_, GLOBAL REAL *RESTRICT workspace,
       const INDEX batch, const INDEX by_tiles, const INDEX by_across)
{
    DYNAMIC_SHARED(smem, STAGES * STAGE_SIZE);
    const int m = (int)m_, n = (int)n_, k = (int)k_;
    const unsigned across = (unsigned)(n + BN - 1) / BN,
                   tiles = (unsigned)(m + BM - 1) / BM * across;
    const unsigned block = (unsigned)BLOCK, group = tiles > 1 ? quotient(block, by_tiles) : block;
    const unsigned tile = block - group * tiles, down = quotient_or_zero(tile, across, by_across);
    const int row = (int)down * BM, column = (int)(tile - down * across) * BN;
    // A block's last products may be past the end of the batch: nothing of theirs is copied or
    // stored.
    const INDEX first = (INDEX)group * BATCH_PER_BLOCK;
    const int count = (int)MIN(batch - first, BATCH_PER_BLOCK);
    const int rows = MIN(m - row, BM), columns = MIN(n - column, BN);
    const GLOBAL REAL *const a0 = a + first * (m * k) + (TRANS_A ? row : row * k);
    const GLOBAL REAL *const b0 = b + first * (k * n) + (TRANS_B ? column * k : column);
    const int wide = ((TRANS_A ? m : k) % WIDE == 0 && ADDRESS(a) % 16 == 0) +
                     2 * ((TRANS_B ? k : n) % WIDE == 0 && ADDRESS(b) % 16 == 0) +
                     4 * (count == BATCH_PER_BLOCK && rows == BM && columns == BN);
    ACC acc[TM * PACKS] = {0}; // stay in registers: C is written once
#pragma unroll 1
    for (int p = 1 - STAGES, at = 1 % STAGES; p * BK < k; p++, at = (at + 1) % STAGES) {
        const int next = (at + STAGES - 1) % STAGES, q = (p + STAGES - 1) * BK;
        const int waits =
            p * (STAGES > 1) == 0; // for the copies it issues now, with nothing to do meanwhile
        if (HAS_CP_ASYNC) {
            if (!waits && p > 0) {
                cp_async_wait_group(STAGES - 2);
            }
        }
        if (p > 0) {
            // this phase is whole, where it has been under way, and all have read the one before
            BARRIER();
        }
        if (q < k) {
            load_tiles(smem + next * STAGE_SIZE, a0 + (TRANS_A ? q * m : q),
                       b0 + (TRANS_B ? q : q * n), m, n, k, count, rows, columns, MIN(k - q, BK),
                       wide, ME + (unsigned)(q >> 30));
        }
        if (HAS_CP_ASYNC) {
            cp_async_commit_group();
        }
        if (HAS_CP_ASYNC) {
            if (waits) {
                cp_async_wait_group(STAGES - 1);
            }
        }
        if (waits) {
            BARRIER();
        }
        const LOCAL REAL *const As = smem + at * STAGE_SIZE, *const Bs =
                                                                 As + BATCH_PER_BLOCK * TILE_SIZE_A;
        if (p >= 0) {
            add_tiles(As + ME / PRODUCT_THREADS * TILE_SIZE_A,
                      Bs + ME / PRODUCT_THREADS * TILE_SIZE_B, acc);
        }
    }
    if ((int)(ME / PRODUCT_THREADS) < count) {
        store_tile(c + ((first + ME / PRODUCT_THREADS) * m + row) * n + column, n, rows, columns,
                   n % RUN(TN) == 0 && ADDRESS(c) % 16 == 0, acc);
    }
}
