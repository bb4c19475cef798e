// C[m,n] = op(A)[m,k] x op(B)[k,n] in float64 by mma.sync (DMMA): 16 x 8 accumulators for each
// instruction of a warp.
//
// BM            rows of C's tile
// BN            columns of C's tile
// BK            depth of a k tile in shared memory
// WM            rows of the tile that a warp keeps in registers
// WN            columns of the tile that a warp keeps in registers
// MMA_K         k of an instruction: 4; from sm_90 on also 8 and 16
// STAGES        k tiles in shared memory, all but one of them in flight
// AHEAD         1 to load the next instructions' fragments before these are issued, else 0
// MIN_BLOCKS    minimum of blocks on an SM (__launch_bounds__)
// STREAM_K_SMS  SMs whose blocks share the k tiles of all tiles (stream-K); 0 if each block has one
//               tile or a split of it
// CLUSTER_K     blocks of a cluster that share the k of a tile (from sm_90); if more than one,
//               splits is 1 and STREAM_K_SMS 0
// TRANS_A       1 where A is stored k x m, else 0
// TRANS_B       1 where B is stored n x k, else 0
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
#elif !defined(STREAM_K_SMS)
#error "STREAM_K_SMS must be defined"
#elif !defined(CLUSTER_K)
#error "CLUSTER_K must be defined"
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
// A row of packs for each instruction's rows.
#define DEALT_ROWS MMAS_M
#define ROW_PACKS (2 * MMAS_N)
#include "cluster_reduce.h"
#include "split_k.h"
#include "stream_k.h"
#include "tile_scheduler.h"
#include "copy_tile.h"
#define STAGE_SIZE ((BM + BN) * BK)

// Stores pairs of accumulators that are neighbours in a row, or elements that are four apart.
INNER void store_tile(REAL *c, const INDEX n, const int rows, const int columns, const int wide,
                      const ACC *acc)
{
    const int t = THREAD_IN_GROUP, x = WARP_COL + (wide ? t * 2 : t % 2 * 2 + t / 2);
    EACH(r, MMAS_M * 2) {
        if (!IS_OWN_ROW(r / 2)) {
            continue;
        }
        const int y = WARP_ROW + r * 8 + GROUP_ID;
        REAL *const to = c + (y * n + x);
        EACH(j, MMAS_N) {
            const ACC sum = acc[(r / 2 * MMAS_N + j) * 2 + r % 2];
            if (wide) {
                if (y < rows && x + j * 8 < columns) {
                    STORE(2, sum, to + j * 8);
                }
                continue;
            }
            const ACC apart = neighbours_apart(sum, THREAD_IN_GROUP >= 2);
            EACH(e, 2) {
                if (y < rows && x + j * 8 + e * 4 < columns) {
                    to[j * 8 + e * 4] = ELEMENT(apart, e);
                }
            }
        }
    }
}

// What a block makes next: `count` k tiles of a tile of C, or with split-K of a split of it, from
// `first` on. `idx` counts tiles, splits and batches.
struct Work {
    unsigned idx, first, count;
};

// Where a tile is.
struct OutputTile {
    unsigned number, split;
    INDEX batch, row, column;
    int rows, columns;
};

INNER OutputTile output_tile(const unsigned idx, const INDEX m, const INDEX n,
                             const unsigned splits, const unsigned group_m,
                             const TileOrder order)
{
    const unsigned down = (m + BM - 1) / BM, across = (n + BN - 1) / BN;
    const TileCoord at = tile_coord(idx, down, across, splits, group_m, order, 0);
    const INDEX row = (INDEX)at.row * BM, column = (INDEX)at.column * BN;
    return {(at.batch * down + at.row) * across + at.column,
            at.split,
            at.batch,
            row,
            column,
            m - row < BM ? (int)(m - row) : BM,
            n - column < BN ? (int)(n - column) : BN};
}

// Split-K: `splits` blocks share a tile, with `k_tiles_per_split` k tiles each; `fan` of them are a
// group. `group_m` rows of tiles go through C's columns together.
//
// Stream-K: `blocks` blocks share the k tiles of the first tiles, the last block the first ones:
// `each` of them, and `more` blocks one more. Then each computes `rounds` whole tiles.
KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
CLUSTER_DIMS
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, REAL *workspace, const INDEX group_m, const INDEX splits,
       const INDEX fan, const INDEX k_tiles_per_split, const INDEX blocks, const INDEX each,
       const INDEX more, const INDEX rounds, TILE_ORDER_ARGUMENTS)
{
    const TileOrder order = TILE_ORDER;
    DYNAMIC_SHARED(smem, STAGES *STAGE_SIZE + RECEIVED_SIZE);
    JOIN_CLUSTER(smem + STAGES * STAGE_SIZE);
    const unsigned block = (unsigned)BLOCK / CLUSTER_K, rank = blocks - 1 - block,
                   per_split = k_tiles_per_split;
    unsigned next_k_tile = rank * each + (rank < more ? rank : more),
             remaining = STREAM_K_SMS ? each + (rank < more) : 0, round = 0;
    TileLoader<BM, !TRANS_A> load_a(a, TRANS_A ? m : k);
    TileLoader<BN, TRANS_B> load_b(b, TRANS_B ? k : n);
    REAL x[1 + AHEAD][MMAS_M][2 * FOURS], y[1 + AHEAD][MMAS_N][FOURS];
    REAL *current, *free;
    INDEX to_copy; // of the work's k
    Work work;
#define NEXT_STAGE(stage) (stage == smem + (STAGES - 1) * STAGE_SIZE ? smem : stage + STAGE_SIZE)
// Waits until the next stage is complete and the one before is free.
#define WAIT_FOR_STAGE()             \
    cp_async_wait_group(STAGES - 2); \
    BARRIER()
    const auto copy_next_stage = [&]() {
        const int deep = to_copy < BK ? (int)to_copy : BK;
        load_a.copy(free, deep);
        load_b.copy(free + BM * BK, deep);
        cp_async_commit_group();
        to_copy -= BK;
        free = NEXT_STAGE(free);
    };
    // Goes to the block's next work, and issues its first copies.
    const auto start_work = [&]() {
        work = {block, 0, per_split};
        if (remaining > 0) {
            work.idx = next_k_tile / per_split;
            work.first = next_k_tile % per_split;
            work.count = remaining < per_split - work.first ? remaining : per_split - work.first;
            remaining -= work.count;
            next_k_tile += work.count;
        } else if (STREAM_K_SMS) {
            work.idx += (unsigned)(blocks * each + more) / per_split + round++ * blocks;
        }
        const OutputTile to = output_tile(work.idx, m, n, splits, group_m, order);
        const unsigned split = CLUSTER_K > 1 ? cta_rank_in_cluster() : to.split;
        const INDEX start = ((INDEX)split * per_split + work.first) * BK;
        load_a.begin(a + (to.batch * m * k + (TRANS_A ? to.row + start * m : to.row * k + start)),
                     to.rows);
        load_b.begin(
            b + (to.batch * k * n + (TRANS_B ? to.column * k + start : to.column + start * n)),
            to.columns);
        to_copy = k - start < (INDEX)work.count * BK ? k - start : (INDEX)work.count * BK;
        if (CLUSTER_K > 1 && to_copy < 0) {
            to_copy = 0; // a cluster's last blocks may have none
        }
        work.count = (unsigned)((to_copy + BK - 1) / BK); // the last split may have fewer
        current = free = smem;
#pragma unroll 1
        for (int stage = 1; stage < STAGES; stage++) {
            copy_next_stage();
        }
    };
    start_work();
#pragma unroll 1
    do {
        ACC acc[OUT_PACKS] = {}; // stay in registers: C is written once
        if (AHEAD) {
            WAIT_FOR_STAGE();
            load_fragments(current, 0, x[0], y[0]);
        }
#pragma unroll 1
        for (unsigned p = 0; p < work.count; p++) {
            if (!AHEAD) {
                WAIT_FOR_STAGE();
            }
            copy_next_stage();
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
        cp_async_wait_group(0); // zeros past k may still be in flight into what is used next
        ADD_BLOCKS(smem + STAGES * STAGE_SIZE, acc);
        Work done = work;
        const int goes_on = STREAM_K_SMS && (remaining > 0 || round < rounds);
        if (STREAM_K_SMS) {
            BARRIER(); // all have read the last k tile: its stage is free
        }
        if (goes_on) {
            start_work();
        }
        asm volatile("" : "+r"(done.idx)); // found again: there were no registers to keep it
        const OutputTile to = output_tile(done.idx, m, n, splits, group_m, order);
        if (!STREAM_K_SMS && splits > 1 &&
            !reduce_split_k(workspace, AFTER_COUNTERS(workspace), to.number, to.split, splits, fan,
                            (int *)smem, acc)) {
            return;
        }
        REAL *const parts = AFTER_COUNTERS(workspace);
        if (STREAM_K_SMS && done.first > 0) {
            store_partial(workspace, parts, block, acc);
        } else {
            if (STREAM_K_SMS) {
                add_partials(workspace, parts, block, rank, per_split - done.count, each, more,
                             acc);
            }
            store_tile(c + (to.batch * m + to.row) * n + to.column, n, to.rows, to.columns,
                       n % WIDE == 0 && ADDRESS(c) % 16 == 0, acc);
        }
        if (!goes_on) {
            return;
        }
    } while (STREAM_K_SMS);
}
