// The producer if operands are realigned: a warpgroup that copies k tiles and two that shift them.
#define SHIFTING_GROUPS 2
#define SHIFTERS_BARRIER 2 // of the first of them
#include "realigned_tile.h"

// What the producer's warpgroups load of A and B, as LHS and RHS.
struct RealignedProducer {
    const STORED *lhs, *rhs;
    const INDEX rows, columns, k;
    const unsigned stages, full_barriers, empty_barriers;

    typedef RealignedTile<REALIGN_LHS ? TILE_M : 8, LHS_MN_MAJOR, TURNED_LHS, SWIZZLE_LHS> Lhs;
    typedef RealignedTile<REALIGN_RHS ? TILE_N : 8, RHS_MN_MAJOR, TURNED_RHS, SWIZZLE_RHS> Rhs;

    // Fills the stages of a tile: the first warpgroup copies, and one of its threads issues TMA
    // loads of the operand that is not copied; the others shift what has arrived.
    __device__ __forceinline__ void run(const TensorMap &lhs_map, const TensorMap &rhs_map,
                                        const WorkTile &tile, PipelineState &state,
                                        unsigned &turn) const
    {
        const int group = THREAD_X / COPIERS - CONSUMERS;
        const INDEX deep = (INDEX)tile.first * BK;
        const Lhs of_lhs(lhs, tile.batch, rows, k, tile.row, deep);
        const Rhs of_rhs(rhs, tile.batch, columns, k, tile.column, deep);
        for (int p = 0; p < tile.count; p++, state.advance()) {
            const unsigned full = full_barriers + 8 * state.index,
                           empty = empty_barriers + 8 * state.index, copied = empty + 8 * STAGES,
                           stage = stages + state.index * STAGE_BYTES;
            const INDEX rest = k - deep - p * BK;
            const int left = rest < BK ? (int)rest : BK;
            if (group == 0) {
                mbarrier_wait(empty, state.phase ^ 1);
                if (TMA_BYTES > 0 && SELF == 0) {
                    mbarrier_arrive_expect_tx(full, TMA_BYTES);
                    tma_load_stage(lhs_map, rhs_map, tile, p, 0, stage, full);
                }
                if (REALIGN_LHS) {
                    of_lhs.copy(p, left, stage);
                }
                if (REALIGN_RHS) {
                    of_rhs.copy(p, left, stage + RHS_AT);
                }
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(copied)
                             : "memory");
            } else if (turn++ % SHIFTING_GROUPS == group - 1) {
                mbarrier_wait(copied, state.phase);
                shift(of_lhs, of_rhs, p, left, stage, group);
                fence_proxy_async();
                __syncwarp();
                if (LANE == 0) {
                    mbarrier_arrive(full, 0);
                }
            }
        }
    }

    // All pieces are in registers before the first one is stored where others were.
    static __device__ __forceinline__ void shift(const Lhs &of_lhs, const Rhs &of_rhs, const int p,
                                                 const int left, const unsigned stage,
                                                 const int group)
    {
        uint4 lhs_pieces[Lhs::words], rhs_pieces[Rhs::words];
        if (REALIGN_LHS) {
            of_lhs.load(stage, lhs_pieces);
        }
        if (REALIGN_RHS) {
            of_rhs.load(stage + RHS_AT, rhs_pieces);
        }
        named_barrier_sync(SHIFTERS_BARRIER - 1 + group, COPIERS);
        if (REALIGN_LHS) {
            of_lhs.store(stage, lhs_pieces, p, left);
        }
        if (REALIGN_RHS) {
            of_rhs.store(stage + RHS_AT, rhs_pieces, p, left);
        }
    }
};
