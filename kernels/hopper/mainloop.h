// Main loop of a consumer warpgroup. The wgmmas of one k tile run while those of the next are
// issued; a stage is released once each warp that read it has arrived at the empty barriers of all
// blocks that fill it. Whether the next stage is full is asked before this one's wgmmas are issued,
// which hide the time until the answer; not beside promotion, which it would delay.
//
// Of emulated float32, the products of high terms leave the tensor cores every PROMOTE_K of k:
// these truncate, and what is added in registers is rounded to nearest. Products with a low term
// are so small that theirs need not be promoted.
struct Mainloop {
    Accumulators acc[WGMMAS_M];
#if PLANES == 2
    Accumulators high, crossed;
#endif
    unsigned held = 0; // stage that the last wgmmas read

    // Multiplies `count` k tiles. With PINGPONG `finish` waits for the last ones.
    __device__ __forceinline__ void run(const int count, PipelineState &state,
                                        const unsigned char *smem, const unsigned stages,
                                        const unsigned full_barriers,
                                        const unsigned empty_barriers, const int part)
    {
        int full = 0;
        if (CLUSTER_K > 1 && count <= 0) {
            EACH(h, WGMMAS_M) {
                EACH(e, TILE_N / 2) {
                    acc[h][e] = 0;
                }
            }
            return;
        }
        if (PLANES == 2) {
            EACH(e, TILE_N / 2) {
                acc[0][e] = 0;
            }
        }
        for (int p = 0; p < count; p++) {
            const unsigned index = state.index, stage = stages + index * STAGE_BYTES;
            const int lhs = part * (WGMMAS_M * 64 * 128);
            if (!full) {
                mbarrier_wait(full_barriers + 8 * index, state.phase);
            }
            state.advance();
            full = PLANES == 1 && p + 1 < count &&
                   mbarrier_try_wait(full_barriers + 8 * state.index, state.phase);
            if (LHS_IN_REGISTERS) { // the last wgmmas still read this thread's registers
                wgmma_wait_group(0);
                if (p > 0) {
                    consumer_release(empty_barriers + 8 * held);
                }
            }
            issue_wgmma(p, p + 1 == count, smem + index * STAGE_BYTES, part, stage + lhs,
                        make_smem_desc(stage + RHS_AT, SWIZZLE_RHS, RHS_MN_MAJOR));
            if (!LHS_IN_REGISTERS && p > 0) {
                consumer_release(empty_barriers + 8 * held);
            }
            held = index;
        }
        if (!PINGPONG) {
            finish(empty_barriers);
        }
    }

    __device__ __forceinline__ void finish(const unsigned empty_barriers)
    {
        wgmma_wait_group(0);
        consumer_release(empty_barriers + 8 * held);
        EACH(h, WGMMAS_M) {
            warpgroup_fence_operand(acc[h]);
        }
#if PLANES == 2
        warpgroup_fence_operand(crossed);
#endif
    }

    __device__ __forceinline__ static void consumer_release(const unsigned barrier)
    {
        if (LHS_IN_REGISTERS) {
            __syncwarp(); // its threads have read the stage themselves
        }
        if (LANE < CLUSTER) {
            mbarrier_arrive(barrier, LANE);
        }
    }

#if LHS_IN_REGISTERS
    __device__ __forceinline__ void issue_wgmma(const int p, const int, const unsigned char *side,
                                                const int part, const unsigned,
                                                const unsigned long long rhs)
    {
        LhsFragment lhs[WGMMAS_M][K_STEPS];
        const int mine = part * WGMMAS_M * 64;
        EACH(h, WGMMAS_M) {
            EACH(s, K_STEPS) {
                lhs[h][s] = load_lhs_fragment(side, mine + h * 64, s);
            }
        }
        wgmma_fence();
        EACH(s, K_STEPS) {
            EACH(h, WGMMAS_M) {
                wgmma(acc[h], lhs[h][s], rhs + s * ADVANCE_DESC(SWIZZLE_RHS, RHS_MN_MAJOR),
                      s > 0 || p > 0);
            }
        }
        wgmma_commit_group();
    }
#elif PLANES == 2
    __device__ __forceinline__ void issue_wgmma(const int p, const int last, const unsigned char *,
                                                const int, const unsigned side,
                                                const unsigned long long rhs)
    {
        const unsigned long long lhs = make_smem_desc(side, SWIZZLE_LHS, LHS_MN_MAJOR);
        const int promoted = p % (PROMOTE_K / BK);
        wgmma_fence();
        EACH(s, K_STEPS) {
            wgmma(high, lhs + s * 2, rhs + s * 2, promoted + s > 0);
        }
        wgmma_commit_group();
        EACH(s, K_STEPS) {
            wgmma(crossed, lhs + s * 2, rhs + RHS_BYTES / 16 + s * 2, p + s > 0);
            wgmma(crossed, lhs + LHS_BYTES / 16 + s * 2, rhs + s * 2, 1);
        }
        wgmma_commit_group();
        wgmma_wait_group(1); // promote these while the others run
        warpgroup_fence_operand(high);
        if (promoted + 1 == PROMOTE_K / BK || last) {
            EACH(e, TILE_N / 2) {
                acc[0][e] += high[e];
            }
        }
        warpgroup_fence_operand(acc[0]);
    }
#else
    __device__ __forceinline__ void issue_wgmma(const int p, const int, const unsigned char *,
                                                const int, const unsigned side,
                                                const unsigned long long rhs)
    {
        const unsigned long long lhs = make_smem_desc(side, SWIZZLE_LHS, LHS_MN_MAJOR);
        wgmma_fence();
        EACH(s, K_STEPS) {
            EACH(h, WGMMAS_M) {
                wgmma(acc[h],
                      lhs + h * (64 * 128 / 16) + s * ADVANCE_DESC(SWIZZLE_LHS, LHS_MN_MAJOR),
                      rhs + s * ADVANCE_DESC(SWIZZLE_RHS, RHS_MN_MAJOR), s > 0 || p > 0);
            }
        }
        wgmma_commit_group();
        wgmma_wait_group(1);
    }
#endif

    // Scales the accumulators of 64 rows back by the exponents of the LHS's and the RHS's rows.
    __device__ __forceinline__ void rescale(const int *lhs, const int *rhs, const WorkTile &tile,
                                            const int row, const int rows, const int columns)
    {
#if PLANES == 2
        lhs += (INDEX)tile.batch * rows;
        rhs += (INDEX)tile.batch * columns;
        EACH(e, TILE_N / 2) {
            const int r = row + acc_row(e / 2 % 2),
                      x = tile.column + e / 4 * 8 + LANE % 4 * 2 + e % 2;
            acc[0][e] =
                r < rows && x < columns ? SCALED_BACK(acc[0][e], crossed[e], lhs[r], rhs[x]) : 0;
        }
#endif
    }
};
