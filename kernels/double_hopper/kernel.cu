// C[m,n] = op(A)[m,k] x op(B)[k,n] in float64 on Hopper's tensor cores: a producer warp loads tiles
// by TMA into a ring of stages in shared memory, consumer warps multiply them by mma.sync (DMMA),
// and blocks may be persistent (PTX ISA, "cp.async.bulk.tensor", "mma").
//
// BM          rows of C's tile
// BN          columns of C's tile
// BK          depth of a k tile in shared memory: a multiple of 16, 128 bytes
// WM          rows of the tile that a consumer warp keeps in registers
// WN          columns of the tile that a consumer warp keeps in registers
// MMA_K       k of an instruction: 8 or 16
// AHEAD       1 to load the next instructions' fragments before these are issued, else 0
// STAGES      k tiles in shared memory
// CLUSTER     blocks of a cluster, which multicast B to each other: 1 or 2
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
#elif !defined(AHEAD)
#error "AHEAD must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(CLUSTER)
#error "CLUSTER must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "config.h"
#include "sm90_ptx.h"
#include "persistent.h"
#include "tile_scheduler.h"
#include "load_operand.h"
#include "fragments.h"
#include "dmma.h"
#include "mainloop.h"
#include "store_tile.h"
// Those that have sums add them up: the producer has gone.
#undef THREADS
#define THREADS CONSUMERS
#undef BARRIER
#define BARRIER() named_barrier_sync(1, CONSUMERS)
#include "split_k.h"
// Registers of larger parts of C are too few to add up others' beside them.
#define MAY_SPLIT (CLUSTER == 1 && WM * WN <= 32 * 32)

// `group_m` rows of tiles go through C's columns together; `num_tiles` are dealt out to the
// clusters in turn, with `k_tiles` each. Split-K: a tile is `splits` of them, of `per_split` k
// tiles; `fan` of them are a group, and a block has one.
extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) void matmul(
    const REAL *a, const REAL *b, REAL *c, const INDEX m, const INDEX n, const INDEX k,
    REAL *workspace, const INDEX group_m, const INDEX num_tiles, const INDEX k_tiles,
    const INDEX splits, const INDEX fan, const INDEX per_split, TILE_ORDER_ARGUMENTS,
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    const TileOrder order = TILE_ORDER;
    const unsigned stages = SMEM_ADDRESS(smem), full_barriers = stages + STAGES * STAGE_BYTES,
                   empty_barriers = full_barriers + 8 * STAGES;
    const int warp = __shfl_sync(~0u, THREAD_X / 32, 0); // uniform, as the compiler sees
    if (THREAD_X == 32 * WARPS) {
        prefetch_tensormap(map_a);
        prefetch_tensormap(map_b);
        EACH(i, STAGES) {
            mbarrier_init(full_barriers + 8 * i, 1);
            mbarrier_init(empty_barriers + 8 * i, WARPS * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_barrier_init();
    if (warp >= WARPS) {
        PRODUCER_REG_DEALLOC();
        if (warp == WARPS && elect_one()) {
            PipelineState state;
            for (TileScheduler scheduler(num_tiles); scheduler.has_tile(); scheduler.advance()) {
                const OutputTile tile = output_tile(scheduler.tile_idx, m, n, group_m, splits,
                                                    k_tiles, per_split, order);
                for (int p = tile.first; p < tile.first + tile.count; p++, state.advance()) {
                    const unsigned to = stages + state.index * STAGE_BYTES,
                                   full = full_barriers + 8 * state.index;
                    mbarrier_wait(empty_barriers + 8 * state.index, state.phase ^ 1);
                    mbarrier_arrive_expect_tx(full, STAGE_BYTES);
                    load_operand<BM, !TRANS_A, 1>(to, map_a, tile.row, p * BK, tile.batch, full);
                    load_operand<BN, TRANS_B, CLUSTER>(to + A_BYTES, map_b, tile.column, p * BK,
                                                       tile.batch, full);
                }
            }
            wait_until_released(empty_barriers, state);
        }
    } else {
        CONSUMER_REG_ALLOC();
        Mainloop mainloop = {full_barriers, THREAD_X % 32u,
                             fragment_addresses(stages, WARP_ROW(warp), WARP_COL(warp))};
        // kept in registers: found again, they would be waited for in each k tile
        asm volatile("" : "+r"(mainloop.barriers), "+r"(mainloop.lane));
        for (TileScheduler scheduler(num_tiles); scheduler.has_tile(); scheduler.advance()) {
            ACC acc[2 * MMAS_LEFT * MMAS_RIGHT] = {}; // stay in registers: C is written once
            const OutputTile now = output_tile(scheduler.tile_idx, m, n, group_m, splits, k_tiles,
                                               per_split, order);
            mainloop.run(acc, now.count);
            INDEX rows = m, columns = n;
            int thread = THREAD_X;
            // recompute what depends on them: there are no registers to keep it
            asm volatile("" : "+l"(rows), "+l"(columns), "+r"(thread));
            const OutputTile tile = output_tile(scheduler.tile_idx, rows, columns, group_m, splits,
                                                k_tiles, per_split, order);
            if (MAY_SPLIT && splits > 1 &&
                !reduce_split_k(workspace, AFTER_COUNTERS(workspace), tile.number, tile.split,
                                splits, fan, (int *)smem, acc)) {
                return;
            }
            store_tile(c + tile.batch * rows * columns, rows, columns, tile.row, tile.column,
                       thread, acc);
        }
    }
}
