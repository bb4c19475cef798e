// C on Hopper's tensor cores: a producer warp loads tiles by TMA into a ring of stages in shared
// memory, consumer warpgroups multiply them by wgmma, and blocks are persistent (PTX ISA, "wgmma",
// "cp.async.bulk.tensor").
//
// BM          rows of a block's tile of C: a multiple of 64 for each consumer, without SWAP_AB
// BN          columns of the tile: a multiple of 64 for each consumer, with SWAP_AB
// BK          depth of a k tile: 128 bytes
// STAGES      k tiles in shared memory
// C_IN_STAGES 1 if a block has one tile and its SM for itself, and the tile goes to C through its
//             stages, else 0
// CONSUMERS   consumer warpgroups, which share a tile, or take tiles of 64 rows in turn (ping-pong)
// CLUSTER     blocks of a cluster, which multicast the RHS to each other
// CLUSTER_K   blocks of a cluster that share the k of a tile; if more than one, CLUSTER and SPLIT_K
//             are 1, and no block is persistent
// SWAP_AB     1 to compute C^T = B^T A^T, else 0
// PACK_K      operands packed K-major into the workspace: 1 for A, 2 for B, 3 for both, or 0
// REALIGN     operands that the producer's threads copy, shifted or transposed, because TMA cannot
//             load them as wgmma needs them: 1 for A, 2 for B, 3 for both, or 0; if not 0,
//             CONSUMERS and CLUSTER are 1
// MIN_BLOCKS  minimum of blocks on an SM (__launch_bounds__)
// TMA_STORE   1 if TMA stores C, whose rows are then multiples of 16 bytes, else 0
// PROMOTE_K   how much of k sums of high terms stay in the tensor cores, which truncate; 0 if no
//             float32 is emulated
// TRANS_A     1 where A is stored k x m, else 0
// TRANS_B     1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(C_IN_STAGES)
#error "C_IN_STAGES must be defined"
#elif !defined(CONSUMERS)
#error "CONSUMERS must be defined"
#elif !defined(CLUSTER)
#error "CLUSTER must be defined"
#elif !defined(CLUSTER_K)
#error "CLUSTER_K must be defined"
#elif !defined(SWAP_AB)
#error "SWAP_AB must be defined"
#elif !defined(PACK_K)
#error "PACK_K must be defined"
#elif !defined(REALIGN)
#error "REALIGN must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(TMA_STORE)
#error "TMA_STORE must be defined"
#elif !defined(PROMOTE_K)
#error "PROMOTE_K must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#elif defined(DTYPE_FLOAT32) && !defined(PRECISION_TF32) && !defined(PRECISION_EMULATED)
#error "PRECISION_TF32 or PRECISION_EMULATED must be defined"
#endif
#include "dtype.h"
#include "fp16_terms.h"
#include "config.h"
#include "sm90_ptx.h"
#include "wgmma.h"
#include "scheduler.h"
#include "epilogue.h"
#if REALIGN
#include "realigned_load.h"
#endif
#include "cluster_reduce.h"
#include "mainloop.h"
#include "tile_reduce.h"
// Where consumers take tiles in turn, each meets the one before it at its own barrier: a stage's
// barrier tells two phases apart, so that no consumer may be at the next tile but one.
#define ORDER_BARRIER 5

// `k_tiles_per_split` k tiles are a split; `num_tiles` work tiles are dealt out to the clusters in
// turn. Offsets in the workspace are in lines of 128 bytes.
//
// If TMA moves neither operands nor C, there are no tensor maps.
#if REALIGN == 3 && !TMA_STORE
#define TENSOR_MAPS
#define NO_TENSOR_MAPS const TensorMap lhs = {}, rhs = {}, out = {}; // not read
#else
#define TENSOR_MAPS                                                                 \
    , const __grid_constant__ TensorMap lhs, const __grid_constant__ TensorMap rhs, \
        const __grid_constant__ TensorMap out
#define NO_TENSOR_MAPS
#endif
extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS) void matmul(
    const STORED *a, const STORED *b, STORED *c, const INDEX m, const INDEX n, const INDEX k,
    float *workspace, STEP_ARGUMENTS, const INDEX splits, const INDEX at_sums,
    const INDEX k_tiles_per_split, const INDEX group_m, const INDEX num_tiles,
    TILE_ORDER_ARGUMENTS TENSOR_MAPS)
{
    NO_TENSOR_MAPS
    extern __shared__ __align__(1024) unsigned char smem[];
    const TileOrder order = TILE_ORDER;
    // uniform in the warp, as the compiler sees
    const unsigned stages = __shfl_sync(~0u, SMEM_ADDRESS(smem), 0),
                   full_barriers = stages + BARRIERS_AT,
                   empty_barriers = full_barriers + 8 * STAGES;
    const int consumer = __shfl_sync(~0u, THREAD_X / 128, 0);
    const unsigned rows = SWAP_AB ? n : m, columns = SWAP_AB ? m : n, k_tiles = (k + BK - 1) / BK;
    if (PLANES == 2 && DECLINED(workspace)) {
        return;
    }
    if (THREAD_X == 128 * CONSUMERS && (REALIGN != 3 || TMA_STORE)) {
        prefetch_tensormap(lhs);
        prefetch_tensormap(rhs);
        prefetch_tensormap(out);
    }
    if (THREAD_X == 0) { // meanwhile the producer finds its first tile
        EACH(i, STAGES) {
            mbarrier_init(full_barriers + 8 * i, FULL_ARRIVALS);
            mbarrier_init(empty_barriers + 8 * i, 4 * SHARERS * CLUSTER);
            if (REALIGN) {
                mbarrier_init(empty_barriers + 8 * (STAGES + i), COPIERS);
            }
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#if CLUSTER_K > 1
        expect_partials(stages + ARRIVALS_AT, cta_rank_in_cluster());
#endif
    }
    if (CLUSTER_K > 1) {
        cluster_arrive();
    }
    if (consumer >= CONSUMERS) {
        PRODUCER_REG_DEALLOC();
#if REALIGN
        sync_barrier_init();
        const RealignedProducer producer = {SWAP_AB ? b : a, SWAP_AB ? a : b, rows,
                                            columns, k, stages, full_barriers, empty_barriers};
        PipelineState state;
        unsigned turn = 0;
        for (TileScheduler scheduler(num_tiles); scheduler.has_tile(); scheduler.advance()) {
            const WorkTile tile(scheduler.tile_idx, rows, columns, k_tiles, splits,
                                k_tiles_per_split, group_m, order);
            producer.run(lhs, rhs, tile, state, turn);
        }
#else
        TileScheduler scheduler(num_tiles);
        WorkTile tile(scheduler.tile_idx, rows, columns, k_tiles, splits, k_tiles_per_split,
                      group_m, order);
        sync_barrier_init();
        if (__shfl_sync(~0u, THREAD_X / 32, 0) == 4 * CONSUMERS && elect_one()) {
            PipelineState state;
            int empty = 0;
            while (scheduler.has_tile()) {
                for (int p = 0; p < tile.count; p++) {
                    const unsigned stage = stages + state.index * STAGE_BYTES,
                                   full = full_barriers + 8 * state.index;
                    if (!empty) {
                        mbarrier_wait(empty_barriers + 8 * state.index, state.phase ^ 1);
                    }
                    state.advance(); // asked for ahead: the loads hide the time until the answer
                    empty = mbarrier_try_wait(empty_barriers + 8 * state.index, state.phase ^ 1);
                    mbarrier_arrive_expect_tx(full, TMA_BYTES);
                    tma_load_stage(lhs, rhs, tile, p, k_tiles, stage, full);
                }
                scheduler.advance();
                tile = WorkTile(scheduler.tile_idx, rows, columns, k_tiles, splits,
                                k_tiles_per_split, group_m, order);
            }
            wait_until_released(empty_barriers, state);
        }
#endif
    } else {
        CONSUMER_REG_ALLOC();
        sync_barrier_init();
        PipelineState state;
        Mainloop mainloop;
        const INDEX pitch = (columns + 7) / 8 * 8;
        float *const partials = workspace + at_sums * 32;
        unsigned char *const staging = smem + EPILOGUE_AT + consumer * (EPI_BUFFERS * EPI_BYTES);
        int buffer = 0;
        const int part = PINGPONG ? 0 : consumer; // of a tile
        TileScheduler scheduler(num_tiles);
        if (PINGPONG) {
            scheduler.advance(consumer);
            state.advance(consumer * k_tiles);
            if (consumer == CONSUMERS - 1) {
                named_barrier_arrive(ORDER_BARRIER, 2 * 128); // it is the first one's turn
            }
        }
        for (; scheduler.has_tile(); scheduler.advance(CONSUMERS / SHARERS)) {
            const WorkTile tile(scheduler.tile_idx, rows, columns, k_tiles, splits,
                                k_tiles_per_split, group_m, order);
            if (PINGPONG) {
                named_barrier_sync(ORDER_BARRIER + consumer, 2 * 128);
            }
            mainloop.run(tile.count, state, smem, stages, full_barriers, empty_barriers, part);
            if (PINGPONG) {
                state.advance((CONSUMERS - 1) * k_tiles);
                if (scheduler.has_next()) {
                    named_barrier_arrive(ORDER_BARRIER + (consumer + 1) % CONSUMERS, 2 * 128);
                }
                mainloop.finish(empty_barriers);
            }
            const int top = tile.row + part * (WGMMAS_M * 64);
#if CLUSTER_K > 1
            const unsigned block = cta_rank_in_cluster(), sums_full = stages + ARRIVALS_AT;
            cluster_wait(); // all blocks are there
            send_partials(stages + RECEIVED_AT, sums_full, block, mainloop.acc);
            wait_for_sums(sums_full);
            meet_consumers();
            EACH(p, PIECES) {
                if (p % CLUSTER_K == block) {
                    add_partials(smem + RECEIVED_AT, p, mainloop.acc);
                    epilogue_tma_store(
                        out, c + tile.batch * m * n, m, n, tile, top + p / PIECES_N * 64, staging,
                        buffer, consumer, p % PIECES_N,
                        mainloop.acc[p / PIECES_N] + p % PIECES_N * (EPI_COLUMNS / 2));
                }
            }
            break; // no block is persistent
#else
            EACH(h, WGMMAS_M) {
                const int row = top + h * 64;
                mainloop.rescale(EXPONENTS(workspace), tile, row, rows, columns);
                if (splits > 1 && !REDUCED_IN_LAUNCH(splits)) {
                    store_partial_rows(partials +
                                           (tile.batch * splits + tile.split) * rows * pitch,
                                       rows, pitch, row, tile.column, mainloop.acc[h]);
                }
            }
            if (splits > 1 &&
                (!REDUCED_IN_LAUNCH(splits) ||
                 !reduce_split_k(workspace, partials, tile.number, tile.split, splits, splits,
                                 (int *)(smem + ARRIVALS_AT), (ACC *)mainloop.acc))) {
                continue; // another block's, or split_k_reduce.cu's
            }
            meet_consumers();
            EACH(h, WGMMAS_M) {
                EACH(s, PIECES_N) {
                    epilogue_tma_store(out, c + tile.batch * m * n, m, n, tile, top + h * 64,
                                       staging, buffer, consumer, s,
                                       mainloop.acc[h] + s * (EPI_COLUMNS / 2));
                }
            }
#endif
        }
        if (THREAD_X % 128 == 0) {
            tma_store_wait_group_read(0);
        }
    }
}
