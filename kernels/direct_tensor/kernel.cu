// C on tensor cores where k is short, or C small: both operands are loaded from global memory
// straight into the fragments of mma.sync. Each warp has a tile of C with all of its k in flight at
// once, and no barrier; or a slice of k, in passes. Slices are added up once: a block's in its
// shared memory, those of a cluster's blocks in each other's.
//
// BM         rows of a warp's tile of C
// BN         columns of it
// BK         all of k, or of a slice what it multiplies at once, padded with zeros
// TN         neighbouring columns of C that a thread has
// WARPS      warps of a block
// SLICE_K    slices of k in a block: its warps if more than one
// CLUSTER_K  blocks of a cluster that share k (from sm_90)
// REALIGN    matrices whose rows start anywhere: 1 for A and 2 for B, moved in aligned words; 4 for
//            C, stored by rows through shared memory
// TRANS_A    1 where A is stored k x m, else 0
// TRANS_B    1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(TN)
#error "TN must be defined"
#elif !defined(WARPS)
#error "WARPS must be defined"
#elif !defined(SLICE_K)
#error "SLICE_K must be defined"
#elif !defined(CLUSTER_K)
#error "CLUSTER_K must be defined"
#elif !defined(REALIGN)
#error "REALIGN must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#include "division.h"
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
#define ELEMENT_BYTES 2
#elif defined(PRECISION_TF32)
#define ELEMENT_BYTES 4
#else
#error "PRECISION_TF32 must be defined"
#endif
#define ACC Pack<4>
#define LANE (THREAD_X % 32)
#define GROUP_ID (LANE / 4)
#define THREAD_IN_GROUP (LANE % 4)
#define CLUSTER_SIZE CLUSTER_K
#include "mma_ptx.h"
#include "cluster.h"
#include "fragments.h"
#include "realigned.h"
#if ELEMENT_BYTES == 2
#include "cvt_pack.h"
#endif
#if REALIGN & 1
typedef RealignedFragments<BM / 8, !TRANS_A, 4> FragmentsA;
#else
typedef WarpFragments<BM / 8, !TRANS_A, 4> FragmentsA;
#endif
#if REALIGN & 2
typedef RealignedFragments<BN / 8, TRANS_B, TN / 2> FragmentsB;
#else
typedef WarpFragments<BN / 8, TRANS_B, TN / 2> FragmentsB;
#endif
#include "store_row.h"
#define MMAS_M (BM / 16)
#define MMAS_N (BN / 8)
// The k of a pass: past that of a realigned row along k there is room for what is before it.
#define PASS_K (BK - (((REALIGN & 1) && !TRANS_A) || ((REALIGN & 2) && TRANS_B) ? 8 : 0))

// The fragments of 16 rows times those of all columns.
INNER void multiply(ACC *acc, const FragmentsA &x, const FragmentsB &y, const int i)
{
    EACH(q, HALVES / 2) {
        const unsigned rows[4] = {x.words[2 * i][2 * q], x.words[2 * i + 1][2 * q],
                                  x.words[2 * i][2 * q + 1], x.words[2 * i + 1][2 * q + 1]};
        EACH(j, MMAS_N) {
            mma(acc[j], rows, y.words[j] + 2 * q);
        }
    }
}

// Loads of both operands are in flight before the first is waited for.
INNER void load_fragments(FragmentsA &x, FragmentsB &y, const OperandTile &a, const OperandTile &b)
{
    x.load(a);
    y.load(b);
    x.load_edges(a);
    y.load_edges(b);
    x.arrange(a);
    y.arrange(b);
}

// One of a thread's rows of the accumulators of 16, the upper one or that eight below.
INNER void pairs_of(Pair (&pairs)[MMAS_N], const ACC *acc, const int low)
{
    EACH(j, MMAS_N) {
        pairs[j] = {acc[j].element[low * 2], acc[j].element[low * 2 + 1]};
    }
}
#include "reduce.h"

// The last block's last warps may have no tile.
KERNEL(32 * WARPS, 1)
CLUSTER_DIMS
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, const REAL *RESTRICT workspace, const INDEX tiles,
       const INDEX batches, const INDEX k_per_slice, const INDEX by_across,
       const INDEX by_down)
{
    const unsigned across = (unsigned)((n + BN - 1) / BN), down = (unsigned)((m + BM - 1) / BM);
    const unsigned warp = THREAD_X / 32, block = cta_rank_in_cluster(),
                   slice = block * SLICE_K + warp % SLICE_K;
#if SLICE_K > 1
    if (THREAD_X == 0) {
        expect_bands(block);
    }
    cluster_arrive();
#endif
    const unsigned tile = (unsigned)BLOCK / CLUSTER_K * (WARPS / SLICE_K) + warp / SLICE_K;
    if (tile >= tiles) {
        return;
    }
    const unsigned high = quotient(tile, by_across), batch = quotient(high, by_down);
    const INDEX row = (INDEX)(high - batch * down) * BM,
                column = (INDEX)(tile - high * across) * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM,
              columns = n - column < BN ? (int)(n - column) : BN;
    const INDEX start = slice * k_per_slice, left = k - start;
    int depth = (int)(left < 0 ? 0 : left < k_per_slice ? left : k_per_slice);
    OperandTile tile_a = {a + batch * m * k + (TRANS_A ? start * m + row : row * k + start),
                          rows, depth, TRANS_A ? m : k, a, a + batches * m * k};
    OperandTile tile_b = {b + batch * k * n + (TRANS_B ? column * k + start : start * n + column),
                          columns, depth, TRANS_B ? k : n, b, b + batches * k * n};
    // A thread's rows begin at the lane's one.
    const int lane_row = FragmentsA::line(0, GROUP_ID), rows_here = rows - lane_row;
    STORED *const corner = c + ((batch * m + row) * n + column),
                  *const to = corner + (lane_row * n + THREAD_IN_GROUP * OF_C);
    const int wide = n % OF_C == 0 && ADDRESS(c) % (4 * WORDS_OF_C) == 0;
#if SLICE_K == 1
#if REALIGN & 4
    __shared__ StagedRows staged[WARPS];
#endif
    FragmentsA x;
    FragmentsB y;
    load_fragments(x, y, tile_a, tile_b);
    // 16 rows at a time: they are stored before the next ones take their registers.
    EACH(i, MMAS_M) {
        ACC acc[MMAS_N] = {};
        multiply(acc, x, y, i);
        EACH(low, 2) {
            const int band = 2 * i + low, down = FragmentsA::line(band, 0);
            Pair pairs[MMAS_N];
            pairs_of(pairs, acc, low);
#if REALIGN & 4
            store_staged({corner, n, rows, columns}, band, pairs, staged[warp]);
#else
            store_row(to + down * n, pairs, columns, down < rows_here, wide);
#endif
        }
    }
#else
    ACC acc[MMAS_M][MMAS_N] = {};
#pragma unroll 1
    for (; depth > 0; depth -= PASS_K) {
        FragmentsA x;
        FragmentsB y;
        tile_a.k = tile_b.k = depth < PASS_K ? depth : PASS_K;
        // Rows' addresses are computed in each pass: there are no registers to keep them.
        asm volatile("" : "+l"(tile_a.pitch), "+l"(tile_b.pitch));
        load_fragments(x, y, tile_a, tile_b);
        EACH(i, MMAS_M) {
            multiply(acc[i], x, y, i);
        }
        tile_a.from += TRANS_A ? PASS_K * m : PASS_K;
        tile_b.from += TRANS_B ? PASS_K : PASS_K * n;
    }
    add_slices(acc, warp, block, [&](const int band, Pair (&pairs)[MMAS_N], BandSums &own) {
#if REALIGN & 4
        EACH(j, MMAS_N) {
            own[j][LANE] = pairs[j];
        }
        __syncwarp();
        store_band({corner, n, rows, columns}, band, [&](const int y, const int x) {
            const PlaceInPairs at = place_in_pairs(y, x);
            return (&own[at.pair][at.lane].first)[at.second];
        });
#else
        const int down = FragmentsA::line(band, 0);
        store_row(to + down * n, pairs, columns, down < rows_here, wide);
#endif
    });
#endif
}
