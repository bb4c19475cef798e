// C in float64 on tensor cores where k is short, or C small: both operands are loaded from global
// memory straight into the fragments of mma.sync (DMMA). Each warp has a tile of C, and no barrier;
// or a slice of k, in passes. Slices meet once: a block's in its shared memory, those of a
// cluster's blocks in each other's.
//
// BM         rows of a warp's tile of C
// BN         columns of it
// BK         k of a pass, of which all loads are in flight at once; the last is padded with zeros
// STAGES     passes of which a warp has operands: all but the one that it multiplies in flight
// WARPS      warps of a block
// SLICE_K    slices of a tile's k that the block's warps have
// CLUSTER_K  blocks of a cluster that share k (from sm_90)
// GROUP_M    rows of tiles that go through C's columns together, for neighbouring warps
// TRANS_A    1 where A is stored k x m, else 0
// TRANS_B    1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(WARPS)
#error "WARPS must be defined"
#elif !defined(SLICE_K)
#error "SLICE_K must be defined"
#elif !defined(CLUSTER_K)
#error "CLUSTER_K must be defined"
#elif !defined(GROUP_M)
#error "GROUP_M must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "division.h"
#if __CUDA_ARCH__ >= 900 && !(TRANS_A && !TRANS_B)
#define MMA_K 8
#else
#define MMA_K 4 // of two MN-major operands: what is loaded at once are an instruction's operands
#endif
#define ACC PACK(2)
#define LANE ((int)(threadIdx.x % 32))
#define GROUP_ID (LANE / 4)
#define THREAD_IN_GROUP (LANE % 4)
#define CLUSTER_SIZE CLUSTER_K
#define SLICES (SLICE_K * CLUSTER_K)
#define TEAMS (WARPS / SLICE_K) // of warps that have slices of the same tile
// Instructions make C transposed, so that eight lanes store 128 bytes of a row: their rows are B's
// columns. But where A's rows lie along memory and B's columns do not: their registers are then
// those of a load.
#define SWAP_AB (!TRANS_A || !TRANS_B)
#define STRIPS ((SWAP_AB ? BN : BM) / 16)
#define BANDS ((SWAP_AB ? BM : BN) / 8)
#include "dmma.h"
#include "cluster.h"
#include "fragments.h"
#include "store_tile.h"
#include "reduce.h"
typedef Fragments<BM / 8, !TRANS_A> FragmentsA;
typedef Fragments<BN / 8, TRANS_B> FragmentsB;

template <class Rows, class Columns>
INNER void multiply(ACC *acc, const Rows &x, const Columns &y)
{
    constexpr int fours = MMA_K / 4;
    EACH(i, STRIPS) {
        EACH(q, FOURS_OF_K / fours) {
            REAL rows[2 * fours];
            EACH(e, 2 * fours) {
                rows[e] = x.element[2 * i + e % 2][q * fours + e / 2];
            }
            EACH(j, BANDS) {
                mma(acc + (i * BANDS + j) * 2, rows, y.element[j] + q * fours);
            }
        }
    }
}

// Sizes are of 31 bits, and their products take one instruction.
INNER INDEX times(const unsigned x, const unsigned y)
{
    return (INDEX)((unsigned long long)x * y);
}

INNER int is_aligned(const void *operand)
{
    return ADDRESS(operand) % 16 == 0;
}

// The last block's last warps may have no tile, nor has what a group has past C's last row.
extern "C" __global__ CLUSTER_DIMS __launch_bounds__(32 * WARPS, 1) void
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, const REAL *RESTRICT workspace, const INDEX batches,
       const INDEX k_per_slice, const INDEX by_across, const INDEX by_down)
{
    const unsigned warp = threadIdx.x / 32, block = cta_rank_in_cluster(),
                   slice = block * SLICE_K + warp % SLICE_K;
#if SLICES > 1
    if (threadIdx.x == 0) {
        expect_elements(block);
    }
    cluster_arrive();
#endif
    const unsigned tile = blockIdx.x / CLUSTER_K * TEAMS + warp / SLICE_K, high = tile / GROUP_M;
    const unsigned across = ((unsigned)n + BN - 1) / BN,
                   down = ((unsigned)m + BM * GROUP_M - 1) / (BM * GROUP_M);
    const unsigned strip = quotient_or_zero(high, across, by_across),
                   batch = batches > 1 ? quotient(strip, by_down) : 0,
                   row = ((strip - batch * down) * GROUP_M + tile % GROUP_M) * BM,
                   column = (high - strip * across) * BN;
    const int is_tile = batch < batches && row < m;
    if (SLICES == 1 && !is_tile) {
        return;
    }
    if (batch > 0) {
        a += batch * (m * k);
        b += batch * (k * n);
        c += batch * (m * n);
    }
    const unsigned start = slice * (unsigned)k_per_slice;
#if SLICES == 1
    int depth = (int)k; // ptxas of CUDA 13.0 leaves half of a minimum of two parameters undefined
#else
    int depth = is_tile ? MIN((int)k - (int)start, (int)k_per_slice) : 0;
#endif
    const int rows = is_tile ? MIN((int)m - (int)row, BM) : 0,
              columns = MIN((int)n - (int)column, BN);
    // An axis has pairs where each matrix that has it along its rows can be read or stored by them.
    const Axis axis_k = {(!TRANS_A || TRANS_B) && k % 2 == 0 && (TRANS_A || is_aligned(a)) &&
                             (!TRANS_B || is_aligned(b)),
                         THREAD_IN_GROUP, 4},
               axis_m = {TRANS_A && BM > 8 && m % 2 == 0 && is_aligned(a),
                         SWAP_AB ? BAND_LINE(GROUP_ID) : GROUP_ID, 8},
               axis_n = {BN > 8 && n % 2 == 0 && is_aligned(c) && (TRANS_B || is_aligned(b)),
                         SWAP_AB ? GROUP_ID : BAND_LINE(GROUP_ID), 8};
    a += TRANS_A ? times(start, m) + row : times(row, k) + start;
    b += TRANS_B ? times(column, k) + start : times(start, n) + column;
    OperandTile<!TRANS_A> tile_a = {a, rows, depth, TRANS_A ? m : k};
    OperandTile<TRANS_B> tile_b = {b, columns, depth, TRANS_B ? k : n};
    FragmentsA x[STAGES];
    FragmentsB y[STAGES];
    const auto load = [&](const int stage) {
        if (tile_a.k > 0) {
            // Rows' addresses are computed in each pass: there are no registers to keep them.
            asm volatile("" : "+l"(tile_a.pitch), "+l"(tile_b.pitch));
            x[stage].load(tile_a, axis_m, axis_k);
            y[stage].load(tile_b, axis_n, axis_k);
            tile_a.next();
            tile_b.next();
        }
    };
    ACC acc[STRIPS * BANDS * 2] = {};
    EACH(s, STAGES - 1) {
        load(s);
    }
#pragma unroll 1
    while (depth > 0) {
        EACH(s, STAGES) {
            load((s + STAGES - 1) % STAGES);
            if (s == 0 || depth > 0) {
#if SWAP_AB
                multiply(acc, y[s], x[s]);
#else
                multiply(acc, x[s], y[s]);
#endif
            }
            depth -= BK;
        }
    }
    const TileOfC to = tile_of_c(c + (times(row, n) + column), n, rows, columns, axis_m, axis_n);
#if SLICES == 1
    store_tile(to, acc);
#else
    add_slices(to, acc, warp, block);
#endif
}
