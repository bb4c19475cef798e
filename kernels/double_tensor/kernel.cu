// C[m,n] = op(A)[m,k] x op(B)[k,n] in float64 by mma.sync (DMMA): 16 x 8 accumulators for each
// instruction of a warp.
//
// BM          rows of C's tile
// BN          columns of C's tile
// BK          depth of a k tile in shared memory
// WM          rows of the tile that a warp keeps in registers
// WN          columns of the tile that a warp keeps in registers
// MMA_K       k of an instruction: 4; from sm_90 on also 8 and 16
// STAGES      k tiles in shared memory, all but one of them in flight
// AHEAD       1 to load the next instructions' fragments before these are issued, else 0
// MIN_BLOCKS  minimum of blocks on an SM (__launch_bounds__)
// TRANS_A     1 where A is stored k x m, else 0
// TRANS_B     1 where B is stored n x k, else 0
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
#elif !defined(MMA_K)
#error "MMA_K must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(AHEAD)
#error "AHEAD must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#define THREADS (BM / WM * (BN / WN) * 32)
#define WARP_ROW (THREAD_X / 32 / (BN / WN) * WM)
#define WARP_COL (THREAD_X / 32 % (BN / WN) * WN)
#include "mma_f64.h"
#include "split_k.h"
#define LINE_PAIRS_A ((TRANS_A ? BM : BK) / 2)
#define LINE_PAIRS_B ((TRANS_B ? BK : BN) / 2)
#define STAGE_SIZE ((BM + BN) * BK)

// Copies a tile by cp.async, with zeros past the edges: the threads take pairs of elements in
// rounds, line by line. `from` is the thread's first pair; its increments are the same for all
// threads. Pairs that are not aligned to 16 bytes are copied by elements.
INNER void copy_tile(REAL *to, const REAL *from, const INDEX pitch, const int lines,
                     const int inside, const int line_pairs, const int pairs, const int wide)
{
    int me = THREAD_X;
    asm volatile("" : "+r"(me)); // recompute what depends on it: there are no registers to keep it
    const int line = me / line_pairs, x = me % line_pairs * 2;
    EACH(i, pairs / THREADS) {
        const int down = i * THREADS / line_pairs, on = i * THREADS % line_pairs * 2;
        REAL *const at = to + (line * line_pairs * 2 + SWIZZLED(SWIZZLED(x, line), down)) +
                         (down * line_pairs * 2 + on);
        const int kept = line + down < lines ? inside - on - x : 0;
        if (wide) {
            cp_async(WIDE, at, from, kept > 0);
        } else {
            EACH(e, 2) {
                cp_async(1, at + e, from + e, kept > e);
            }
        }
        from += ((i + 1) * THREADS / line_pairs - down) * pitch +
                ((i + 1) * THREADS % line_pairs * 2 - on);
    }
}

// Stores pairs of accumulators, which are neighbours in a row, or elements at the edges.
INNER void store_tile(REAL *c, const INDEX n, const int rows, const int columns, const int wide,
                      ACC *acc)
{
    const int x = WARP_COL + THREAD_IN_GROUP * 2;
    EACH(r, MMAS_M * 2) {
        const int y = WARP_ROW + r * 8 + GROUP_ID;
        REAL *const to = c + (y * n + x);
        if (y < rows) {
            EACH(j, MMAS_N) {
                const ACC sum = acc[(r / 2 * MMAS_N + j) * 2 + r % 2];
                if (wide && x + j * 8 < columns) {
                    STORE(2, sum, to + j * 8);
                } else {
                    EACH(e, 2) {
                        if (x + j * 8 + e < columns) {
                            to[j * 8 + e] = ELEMENT(sum, e);
                        }
                    }
                }
            }
        }
    }
}

KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, REAL *workspace, const INDEX group_m, const INDEX splits,
       const INDEX fan, const INDEX k_per_split)
{
    DYNAMIC_SHARED(smem, STAGES * STAGE_SIZE);
    // Grouped ordering: `group_m` rows of tiles go through C's columns together, so that concurrent
    // blocks share operands in L2.
    const unsigned across = (n + BN - 1) / BN, down = (m + BM - 1) / BM, tiles = across * down;
    const unsigned tile = (unsigned)BLOCK % tiles,
                   split = (unsigned)BLOCK / tiles % (unsigned)splits;
    const unsigned batch = (unsigned)BLOCK / tiles / (unsigned)splits;
    const unsigned high = group_m, wave = high * across, top = tile / wave * high;
    const unsigned height = down - top < high ? down - top : high;
    const INDEX row = (INDEX)(top + tile % wave % height) * BM,
                column = (INDEX)(tile % wave / height) * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM,
              columns = n - column < BN ? (int)(n - column) : BN;
    const INDEX pitch_a = TRANS_A ? m : k, pitch_b = TRANS_B ? k : n, start = split * k_per_split;
    INDEX remaining = k - start < k_per_split ? k - start : k_per_split; // of k, to be copied
    const REAL *a0 = a + (batch * m * k + (TRANS_A ? row + start * m : row * k + start)) +
                     (THREAD_X / LINE_PAIRS_A * pitch_a + THREAD_X % LINE_PAIRS_A * 2);
    const REAL *b0 = b + (batch * k * n + (TRANS_B ? column * k + start : column + start * n)) +
                     (THREAD_X / LINE_PAIRS_B * pitch_b + THREAD_X % LINE_PAIRS_B * 2);
    const int wide_a = pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0;
    const int wide_b = pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0;
    REAL x[1 + AHEAD][MMAS_M][2 * FOURS], y[1 + AHEAD][MMAS_N][FOURS];
    REAL *current = smem, *free = smem;
    ACC acc[OUT_PACKS] = {}; // stay in registers: C is written once
#define NEXT_STAGE(stage) (stage == smem + (STAGES - 1) * STAGE_SIZE ? smem : stage + STAGE_SIZE)
#define COPY_NEXT_STAGE()                                                                      \
    const int deep = remaining < BK ? (int)remaining : BK;                                     \
    copy_tile(free, a0, pitch_a, TRANS_A ? deep : rows, TRANS_A ? rows : deep, LINE_PAIRS_A,   \
              BM * BK / 2, wide_a);                                                            \
    copy_tile(free + BM * BK, b0, pitch_b, TRANS_B ? columns : deep, TRANS_B ? deep : columns, \
              LINE_PAIRS_B, BN * BK / 2, wide_b);                                              \
    cp_async_commit_group();                                                                   \
    remaining -= BK;                                                                           \
    a0 += TRANS_A ? BK * m : BK;                                                               \
    b0 += TRANS_B ? BK : BK * n;                                                               \
    free = NEXT_STAGE(free)
// Waits until the next stage is complete and the one before is free.
#define WAIT_FOR_STAGE()             \
    cp_async_wait_group(STAGES - 2); \
    BARRIER()
    int k_tiles = (int)((remaining + BK - 1) / BK);
#pragma unroll 1
    for (int stage = 1; stage < STAGES; stage++) {
        COPY_NEXT_STAGE();
    }
    if (AHEAD) {
        WAIT_FOR_STAGE();
        load_fragments(current, 0, x[0], y[0]);
    }
#pragma unroll 1
    for (; k_tiles > 0; k_tiles--) {
        if (!AHEAD) {
            WAIT_FOR_STAGE();
        }
        COPY_NEXT_STAGE();
        EACH(q, BK / MMA_K) {
            const int last = q == BK / MMA_K - 1, one = AHEAD & q, other = AHEAD & ~q;
            if (AHEAD && last) {
                WAIT_FOR_STAGE();
                current = NEXT_STAGE(current);
            }
            load_fragments(current, (q + AHEAD) * MMA_K % BK, x[other], y[other]);
            EACH(e, MMAS_M * MMAS_N) {
                mma(acc + 2 * e, x[one][e / MMAS_N], y[one][e % MMAS_N]);
            }
        }
        if (!AHEAD) {
            current = NEXT_STAGE(current);
        }
    }
    cp_async_wait_group(0); // zeros past k may still be in flight into what split-K uses
    if (splits > 1 &&
        !reduce_split_k(workspace, batch * tiles + tile, split, splits, fan, (int *)smem, acc)) {
        return;
    }
    store_tile(c + (batch * m + row) * n + column, n, rows, columns,
               n % WIDE == 0 && ADDRESS(c) % 16 == 0, acc);
}
