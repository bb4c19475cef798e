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
#include "fragments.h"
#include "dmma.h"
#include "store_tile.h"

// Where a tile is.
struct OutputTile {
    INDEX batch;
    int row, column;
};

INNER OutputTile output_tile(const unsigned idx, const INDEX m, const INDEX n,
                             const unsigned group_m)
{
    const unsigned down = (m + BM - 1) / BM, across = (n + BN - 1) / BN;
    const TileCoord at = tile_coord(idx, down, across, 1, group_m, 0);
    return {at.batch, (int)at.row * BM, (int)at.column * BN};
}

// Loads a k tile of an operand's `side` rows (columns, of B) from `first` on: boxes of 16 of k if a
// line of memory is along k, else of 16 of its rows.
template <int side, int along_k> INNER void load_operand(const unsigned to, const TensorMap &map,
                                                         const int first, const int k,
                                                         const int batch, const unsigned barrier)
{
    EACH(i, (along_k ? BK : side) / LINE) {
        tma_load(to + i * (along_k ? side : BK) * LINE_BYTES, map, (along_k ? k : first) + i * LINE,
                 along_k ? first : k, batch, barrier);
    }
}

// A consumer warp's sums of one tile, from a ring that goes on from tile to tile. A `barrier` is
// full where a stage's loads have come, and STAGES further on empty where all warps have read it.
struct Mainloop {
    unsigned barriers, is_first; // of the warp's threads
    FragmentAddresses at;
    PipelineState state;
    REAL x[1 + AHEAD][MMAS_LEFT][2 * SLOTS], y[1 + AHEAD][MMAS_RIGHT][SLOTS];

    __device__ __forceinline__ void wait() const
    {
        mbarrier_wait(barriers + 8 * state.index, state.phase);
    }

    // Gives the stage back, which all of the warp's threads have read.
    __device__ __forceinline__ void release() const
    {
        __syncwarp();
        if (is_first) {
            mbarrier_arrive(barriers + 8 * (STAGES + state.index), 0);
        }
    }

    __device__ __forceinline__ void advance()
    {
        at.advance(state.index == STAGES - 1 ? -(STAGES - 1) * STAGE_BYTES : STAGE_BYTES);
        state.advance();
    }

    // Loads the fragments of the stage's step `q`: of the side that all rounds multiply, and of one
    // round.
    __device__ __forceinline__ void load_shared(const int q, const int to)
    {
        EACH(e, ROUND_MMAS) {
            if (BY_RIGHT) {
                load_left(at, q, e, x[to][e]);
            } else {
                load_right(at, q, e, y[to][e]);
            }
        }
    }

    __device__ __forceinline__ void load_round(const int q, const int round, const int to)
    {
        if (BY_RIGHT) {
            load_right(at, q, round, y[to][round]);
        } else {
            load_left(at, q, round, x[to][round]);
        }
    }

    __device__ __forceinline__ void multiply(ACC *acc, const int round, const int from) const
    {
        EACH(e, ROUND_MMAS) {
            const int i = BY_RIGHT ? e : round, j = BY_RIGHT ? round : e;
            mma(acc + 2 * (i * MMAS_RIGHT + j), x[from][i], y[from][j]);
        }
    }

    __device__ __forceinline__ void load(const int q, const int to)
    {
        load_shared(q, to);
        EACH(round, ROUNDS) {
            load_round(q, round, to);
        }
    }

    // A k tile whose first fragments are loaded already; `half` is its number modulo TURN.
    __device__ __forceinline__ void run_ahead(ACC *acc, const int half, const bool last)
    {
        EACH(q, STEPS) {
            const int from = (half * STEPS + q) % 2;
            if (q < STEPS - 1) {
                load(q + 1, 1 - from);
            } else {
                release();
                advance();
                if (!last) {
                    wait();
                    load(0, 1 - from);
                }
            }
            EACH(round, ROUNDS) {
                multiply(acc, round, from);
            }
        }
    }

    __device__ __forceinline__ void run_behind(ACC *acc)
    {
        wait();
        EACH(q, STEPS) {
            load_shared(q, 0);
            EACH(round, ROUNDS) {
                load_round(q, round, 0);
                if (q == STEPS - 1 && round == ROUNDS - 1) {
                    release();
                    advance();
                }
                multiply(acc, round, 0);
            }
        }
    }

    __device__ __forceinline__ void run(ACC *acc, const int k_tiles)
    {
        if (AHEAD) {
            wait();
            load(0, 0);
        }
#pragma unroll 1
        for (int p = 0; p < k_tiles; p += TURN) {
            EACH(half, TURN) {
                if (!AHEAD) {
                    run_behind(acc);
                } else if (half == 0 || p + half < k_tiles) {
                    run_ahead(acc, half, p + half + 1 == k_tiles);
                }
            }
        }
    }
};

// `group_m` rows of tiles go through C's columns together; `num_tiles` are dealt out to the blocks
// in turn, with `k_tiles` each.
extern "C" __global__ __launch_bounds__(THREADS, MIN_BLOCKS) void matmul(
    const REAL *a, const REAL *b, REAL *c, const INDEX m, const INDEX n, const INDEX k,
    REAL *workspace, const INDEX group_m, const INDEX num_tiles, const INDEX k_tiles,
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    const unsigned stages = SMEM_ADDRESS(smem), full_barriers = stages + STAGES * STAGE_BYTES,
                   empty_barriers = full_barriers + 8 * STAGES;
    const int warp = __shfl_sync(~0u, THREAD_X / 32, 0); // uniform, as the compiler sees
    if (THREAD_X == 32 * WARPS) {
        prefetch_tensormap(map_a);
        prefetch_tensormap(map_b);
        EACH(i, STAGES) {
            mbarrier_init(full_barriers + 8 * i, 1);
            mbarrier_init(empty_barriers + 8 * i, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_barrier_init(warp >= WARPS);
    if (warp >= WARPS) {
        PRODUCER_REG_DEALLOC();
        if (THREAD_X == 32 * WARPS) {
            PipelineState state;
            for (TileScheduler scheduler(num_tiles); scheduler.has_tile(); scheduler.advance()) {
                const OutputTile tile = output_tile(scheduler.tile_idx, m, n, group_m);
                for (int p = 0; p < k_tiles; p++, state.advance()) {
                    const unsigned to = stages + state.index * STAGE_BYTES,
                                   full = full_barriers + 8 * state.index;
                    mbarrier_wait(empty_barriers + 8 * state.index, state.phase ^ 1);
                    mbarrier_arrive_expect_tx(full, STAGE_BYTES);
                    load_operand<BM, !TRANS_A>(to, map_a, tile.row, p * BK, tile.batch, full);
                    load_operand<BN, TRANS_B>(to + A_BYTES, map_b, tile.column, p * BK, tile.batch,
                                              full);
                }
            }
        }
    } else {
        CONSUMER_REG_ALLOC();
        Mainloop mainloop = {full_barriers, THREAD_X % 32 == 0,
                             fragment_addresses(stages, WARP_ROW(warp), WARP_COL(warp))};
        // kept in registers: found again, they would be waited for in each k tile
        asm volatile("" : "+r"(mainloop.barriers), "+r"(mainloop.is_first));
        for (TileScheduler scheduler(num_tiles); scheduler.has_tile(); scheduler.advance()) {
            ACC acc[2 * MMAS_LEFT * MMAS_RIGHT] = {}; // stay in registers: C is written once
            mainloop.run(acc, k_tiles);
            const OutputTile tile = output_tile(scheduler.tile_idx, m, n, group_m);
            int thread = THREAD_X;
            asm volatile("" : "+r"(thread)); // recompute what depends on it: registers are few
            store_tile(c + tile.batch * m * n, m, n, tile.row, tile.column, thread, acc);
        }
    }
}
