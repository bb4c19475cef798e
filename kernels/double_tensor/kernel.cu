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
#include "stream_k.h"
#include "tile_scheduler.h"
#include "copy_tile.h"
#define STAGE_SIZE ((BM + BN) * BK)

// Where C's rows are not aligned to 16 bytes, threads 2 apart exchange an element of their pairs:
// the four of a row then store four neighbours at once, and four more, instead of every other one.
INNER ACC neighbours_apart(const ACC sum)
{
    const REAL first = ELEMENT(sum, 0), second = ELEMENT(sum, 1);
    const bool upper = THREAD_IN_GROUP >= 2;
    const REAL got = __shfl_xor_sync(0xffffffff, upper ? first : second, 2);
    return {upper ? got : first, upper ? second : got};
}

// Stores pairs of accumulators that are neighbours in a row, or elements that are four apart.
INNER void store_tile(REAL *c, const INDEX n, const int rows, const int columns, const int wide,
                      const ACC *acc)
{
    const int t = THREAD_IN_GROUP, x = WARP_COL + (wide ? t * 2 : t % 2 * 2 + t / 2);
    EACH(r, MMAS_M * 2) {
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
            const ACC apart = neighbours_apart(sum);
            EACH(e, 2) {
                if (y < rows && x + j * 8 + e * 4 < columns) {
                    to[j * 8 + e * 4] = ELEMENT(apart, e);
                }
            }
        }
    }
}

// What a block makes next: a tile of C, with split-K a split of it, with stream-K some of its k
// tiles, from `first` on.
struct WorkTile {
    INDEX row, column, start, depth; // of k, both
    unsigned tile_idx, batch, split, first;
    int rows, columns, k_tiles;
};

// Work of `count` k tiles; `block_idx` counts tiles, splits and batches.
INNER WorkTile work_tile(const unsigned block_idx, const unsigned first, const unsigned count,
                         const INDEX m, const INDEX n, const INDEX k, const unsigned splits,
                         const unsigned group_m, const unsigned per_split)
{
    const unsigned down = (m + BM - 1) / BM, across = (n + BN - 1) / BN;
    const TileCoord at = tile_coord(block_idx, down, across, splits, group_m, STREAM_K_SMS > 0);
    WorkTile tile;
    tile.batch = at.batch;
    tile.split = at.split;
    tile.first = first;
    tile.tile_idx = (at.batch * down + at.row) * across + at.column;
    tile.row = (INDEX)at.row * BM;
    tile.column = (INDEX)at.column * BN;
    tile.rows = m - tile.row < BM ? (int)(m - tile.row) : BM;
    tile.columns = n - tile.column < BN ? (int)(n - tile.column) : BN;
    tile.start = ((INDEX)at.split * per_split + first) * BK;
    tile.depth = k - tile.start < (INDEX)count * BK ? k - tile.start : (INDEX)count * BK;
    tile.k_tiles = (int)((tile.depth + BK - 1) / BK);
    return tile;
}

// Split-K: `splits` blocks share a tile, with `k_per_split` of k each; `fan` of them are a group.
// `group_m` rows of tiles go through C's columns together.
//
// Stream-K: `blocks` blocks share the k tiles of the first tiles, the last block the first ones:
// `each` of them, and `more` blocks one more. Then each computes `rounds` whole tiles.
KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, REAL *workspace, const INDEX group_m, const INDEX splits,
       const INDEX fan, const INDEX k_per_split, const INDEX blocks, const INDEX each,
       const INDEX more, const INDEX rounds)
{
    DYNAMIC_SHARED(smem, STAGES * STAGE_SIZE);
    const unsigned block = BLOCK, rank = blocks - 1 - block,
                   per_split = (unsigned)(k_per_split / BK);
    unsigned next_k_tile = rank * each + (rank < more ? rank : more),
             remaining = STREAM_K_SMS ? each + (rank < more) : 0, round = 0;
    TileLoader<BM, !TRANS_A> load_a(a, TRANS_A ? m : k);
    TileLoader<BN, TRANS_B> load_b(b, TRANS_B ? k : n);
    REAL x[1 + AHEAD][MMAS_M][2 * FOURS], y[1 + AHEAD][MMAS_N][FOURS];
    REAL *current, *free;
    INDEX to_copy; // of the tile's k
    WorkTile tile;
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
    const auto start_tile = [&]() {
        unsigned tile_idx = block, first = 0, count = per_split;
        if (remaining > 0) {
            tile_idx = next_k_tile / per_split;
            first = next_k_tile % per_split;
            count = remaining < count - first ? remaining : count - first;
            remaining -= count;
            next_k_tile += count;
        } else if (STREAM_K_SMS) {
            tile_idx += (unsigned)(blocks * each + more) / per_split + round++ * blocks;
        }
        tile = work_tile(tile_idx, first, count, m, n, k, splits, group_m, per_split);
        load_a.begin(a + (tile.batch * m * k +
                          (TRANS_A ? tile.row + tile.start * m : tile.row * k + tile.start)),
                     tile.rows);
        load_b.begin(b + (tile.batch * k * n +
                          (TRANS_B ? tile.column * k + tile.start : tile.column + tile.start * n)),
                     tile.columns);
        to_copy = tile.depth;
        current = free = smem;
#pragma unroll 1
        for (int stage = 1; stage < STAGES; stage++) {
            copy_next_stage();
        }
    };
    start_tile();
#pragma unroll 1
    do {
        ACC acc[OUT_PACKS] = {}; // stay in registers: C is written once
        if (AHEAD) {
            WAIT_FOR_STAGE();
            load_fragments(current, 0, x[0], y[0]);
        }
#pragma unroll 1
        for (int p = 0; p < tile.k_tiles; p++) {
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
        const WorkTile done = tile;
        const int goes_on = STREAM_K_SMS && (remaining > 0 || round < rounds);
        if (STREAM_K_SMS) {
            BARRIER(); // all have read the last k tile: its stage is free
        }
        if (goes_on) {
            start_tile();
        }
        if (!STREAM_K_SMS && splits > 1 &&
            !reduce_split_k(workspace, done.tile_idx, done.split, splits, fan, (int *)smem, acc)) {
            return;
        }
        REAL *const parts = workspace + COUNTERS * 4 / (int)sizeof(REAL);
        if (STREAM_K_SMS && done.first > 0) {
            store_partial(workspace, parts, block, acc);
        } else {
            if (STREAM_K_SMS) {
                add_partials(workspace, parts, block, rank, per_split - done.k_tiles, each, more,
                             acc);
            }
            store_tile(c + (done.batch * m + done.row) * n + done.column, n, done.rows,
                       done.columns, n % WIDE == 0 && ADDRESS(c) % 16 == 0, acc);
        }
        if (!goes_on) {
            return;
        }
    } while (STREAM_K_SMS);
}
