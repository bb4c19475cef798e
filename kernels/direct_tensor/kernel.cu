// C on tensor cores where k is short: both operands are loaded from global memory straight into
// mma.sync's fragments. Each warp has a tile of C, with all of its k in flight at once; there is no
// shared memory and no barrier.
//
// BM       rows of a warp's tile of C
// BN       columns of it
// BK       all of k, padded with zeros
// TN       neighbouring columns of C that a thread has
// WARPS    warps of a block
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
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#define ELEMENT_BYTES 2
#define ACC Pack<4>
#define LANE (THREAD_X % 32)
#define GROUP_ID (LANE / 4)
#define THREAD_IN_GROUP (LANE % 4)
#include "mma_ptx.h"
#include "fragments.h"
#include "cvt_pack.h"
typedef WarpFragments<BM / 8, !TRANS_A, 4> FragmentsA;
typedef WarpFragments<BN / 8, TRANS_B, TN / 2> FragmentsB;
#define MMAS_M (BM / 16)
#define MMAS_N (BN / 8)

// A thread's accumulators of one row are contiguous across TN / 2 tiles. They are stored at once if
// aligned; a group of four threads stores up to 64 contiguous bytes. If not, they are stored by the
// element, and the fewer are contiguous the nearer to each other are those stored together.
INNER void write_row(STORED *row, const ACC *acc, const int low, const INDEX columns,
                     const int wide)
{
    constexpr int BESIDE = FragmentsB::BESIDE;
    EACH(g, MMAS_N / BESIDE) { // a group of four threads, side by side
        const int x = FragmentsB::line(g * BESIDE, 2 * THREAD_IN_GROUP);
        unsigned word[BESIDE];
        EACH(e, BESIDE) {
            const ACC &of = acc[g * BESIDE + e];
            word[e] = pair_of(of.element[low * 2], of.element[low * 2 + 1]);
        }
        if (wide && x < columns) {
            write_words(row + x, word);
        }
        EACH(e, 2 * BESIDE) {
            if (!wide && x + e < columns) {
                row[x + e] = (STORED)(word[e / 2] >> e % 2 * 16);
            }
        }
    }
}

// The last block's last warps may have no tile.
KERNEL(32 * WARPS, 1)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, const REAL *RESTRICT workspace, const INDEX tiles)
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
    // All loads are independent and in flight before the first is waited for.
    FragmentsA x;
    FragmentsB y;
    x.read(a + batch * m * k + (TRANS_A ? row : row * k), m - row, k, TRANS_A ? m : k,
           x.is_wide(a, TRANS_A ? m : k));
    y.read(b + batch * k * n + (TRANS_B ? column * k : column), n - column, k, TRANS_B ? k : n,
           y.is_wide(b, TRANS_B ? k : n));
    x.transpose();
    y.transpose();
    // A thread's contiguous elements of C are all inside or all outside, and aligned.
    STORED *const to = c + (batch * m + row) * n + column;
    const int wide =
        n % (2 * FragmentsB::BESIDE) == 0 && ADDRESS(c) % (4 * FragmentsB::BESIDE) == 0;
    // The accumulators of 16 rows at a time: they are stored before the next ones take their
    // registers.
    EACH(i, MMAS_M) {
        ACC acc[MMAS_N];
        EACH(q, BK / 16) {
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
            const int down_here = x.line(2 * i + low, GROUP_ID);
            if (down_here < m - row) {
                write_row(to + down_here * n, acc, low, n - column, wide);
            }
        }
    }
}
