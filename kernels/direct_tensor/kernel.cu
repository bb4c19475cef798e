// C on tensor cores where k is short: both operands are loaded from global memory straight into
// mma.sync's fragments. Each warp has a tile of C, with all of its k in flight at once; there is no
// shared memory and no barrier.
//
// BM       rows of a warp's tile of C
// BN       columns of it
// BK       all of k, padded with zeros
// TN       neighbouring columns of C that a thread has
// WARPS    warps of a block
// REALIGN  matrices whose rows start anywhere, moved in aligned words: 1 for A, 2 for B, 4 for C
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
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
#elif !defined(REALIGN)
#error "REALIGN must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
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
#include "mma_ptx.h"
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

// The last block's last warps may have no tile.
KERNEL(32 * WARPS, 1)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, const REAL *RESTRICT workspace, const INDEX tiles,
       const INDEX batches)
{
    const unsigned across = (unsigned)((n + BN - 1) / BN), down = (unsigned)((m + BM - 1) / BM);
    const unsigned tile = (unsigned)BLOCK * WARPS + THREAD_X / 32;
    if (tile >= tiles) {
        return;
    }
    // The first loads wait for this arithmetic: no division if a product is one tile.
    const unsigned high = across > 1 ? tile / across : tile, batch = down > 1 ? high / down : high;
    const INDEX row = (INDEX)(high - batch * down) * BM,
                column = (INDEX)(tile - high * across) * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM,
              columns = n - column < BN ? (int)(n - column) : BN;
    const OperandTile tile_a = {a + batch * m * k + (TRANS_A ? row : row * k), rows, (int)k,
                                TRANS_A ? m : k, a, a + batches * m * k};
    const OperandTile tile_b = {b + batch * k * n + (TRANS_B ? column * k : column), columns,
                                (int)k, TRANS_B ? k : n, b, b + batches * k * n};
    FragmentsA x;
    FragmentsB y;
    // Loads of both operands are in flight before the first is waited for.
    x.load(tile_a);
    y.load(tile_b);
    x.load_edges(tile_a);
    y.load_edges(tile_b);
    x.arrange(tile_a);
    y.arrange(tile_b);
    STORED *const to =
        c + ((batch * m + row + x.line(0, GROUP_ID)) * n + column + THREAD_IN_GROUP * OF_C);
    const int wide = n % OF_C == 0 && ADDRESS(c) % (4 * WORDS_OF_C) == 0;
    // The accumulators of 16 rows at a time: they are stored before the next ones take their
    // registers.
    EACH(i, MMAS_M) {
        ACC acc[MMAS_N];
        EACH(q, HALVES / 2) {
            const unsigned of_a[4] = {x.words[2 * i][2 * q], x.words[2 * i + 1][2 * q],
                                      x.words[2 * i][2 * q + 1], x.words[2 * i + 1][2 * q + 1]};
            EACH(j, MMAS_N) {
                if (q == 0) {
                    acc[j] = mma_zero(of_a, y.words[j]);
                } else {
                    mma(acc[j], of_a, y.words[j] + 2 * q);
                }
            }
        }
        EACH(low, 2) {
            const int down_here = x.line(2 * i + low, 0);
            store_row(to + down_here * n, acc, low, columns,
                      down_here < rows - x.line(0, GROUP_ID), wide);
        }
    }
}
