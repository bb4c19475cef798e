// A warp's WM x WN part of C in float64: 16 x 8 accumulators for each instruction, and their
// fragments, loaded from shared memory. The including file defines before:
//
// WARP_ROW, WARP_COL  first row and column of the warp's part
// BM, BN, BK          the block's tile
// MMA_K               k of an instruction
// TRANS_A, TRANS_B    1 where stored k x m, n x k
//
// An instruction's A (16 x MMA_K), B (MMA_K x 8) and C (16 x 8): groupID's row of A and C and the
// one eight below, and groupID's column of B; threadID_in_group is the thread's k and its pair of
// C's columns (PTX ISA, "Matrix Fragments for mma.m16n8k4, mma.m16n8k8 and mma.m16n8k16 with
// .f64").
#define GROUP_ID (THREAD_X % 32 / 4)
#define THREAD_IN_GROUP (THREAD_X % 4)
#define MMAS_M (WM / 16)
#define MMAS_N (WN / 8)
#define FOURS (MMA_K / 4)
#define ACC PACK(2)
#define ACC_WIDTH 2
#define OUT_PACKS (MMAS_M * MMAS_N * 2)

// Tiles have the layout of global memory. Half a warp reads four elements (32 bytes) of each of
// four lines: runs of four are swizzled by the line's number, so that these fall on different
// banks, while the 16 bytes of a copy stay contiguous.
#define SWIZZLED(x, line) ((x) ^ ((line) & 3) << 2)

// A thread's element of a fragment: `r` rows (columns, of B) and `q` of k past the warp's first
// ones. What depends on the thread is computed once and what depends on `r` and `q` is constant.
INNER REAL element(const REAL *tile, const int first, const int r, const int q, const int side,
                   const int along_k)
{
    if (along_k) {
        return (tile + ((first + GROUP_ID) * BK + THREAD_IN_GROUP +
                        SWIZZLED(q & 12, GROUP_ID)))[r * BK + (q & ~12)];
    }
    return (tile + (THREAD_IN_GROUP * side + first +
                    SWIZZLED((r & 8) + GROUP_ID, THREAD_IN_GROUP)))[q * side + (r & ~8)];
}

// Loads the fragments of MMA_K for all of the warp's instructions.
INNER void load_fragments(const REAL *tiles, const int q, REAL x[MMAS_M][2 * FOURS],
                          REAL y[MMAS_N][FOURS])
{
    EACH(i, MMAS_M) {
        EACH(e, 2 * FOURS) {
            x[i][e] = element(tiles, WARP_ROW, i * 16 + e % 2 * 8, q + e / 2 * 4, BM, !TRANS_A);
        }
    }
    EACH(j, MMAS_N) {
        EACH(e, FOURS) {
            y[j][e] = element(tiles + BM * BK, WARP_COL, j * 8, q + e * 4, BN, TRANS_B);
        }
    }
}

#include "dmma.h"
