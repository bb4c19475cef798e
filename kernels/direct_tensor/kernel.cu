// C on tensor cores where k is short: both operands go from memory straight into the registers that instructions read.
// Each warp has a tile of C and all of its k under way at once; no shared memory, and nobody waits for anybody.
//
// BM       rows of a warp's tile of C
// BN       columns of it
// BK       all of k, and zeros past it
// WARPS    warps of a block
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(WARPS)
#error "WARPS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#define ITEM 2
#define SUM Pack<4>
#define LANE (THREAD_X % 32)
#define QUAD (LANE / 4)
#define MEMBER (LANE % 4)
#include "mma_ptx.h"
#include "fragments.h"
#include "cvt_pack.h"
typedef Side<BM / 8, !TRANS_A> SideA;
typedef Side<BN / 8, TRANS_B> SideB;
#define STRIPS (BM / 16)
#define BANDS (BN / 8)

// Of one row a thread has neighbours in the tiles that lie among each other. They leave at once where they may, and
// a quad's are up to 64 bytes of C side by side.
INNER void write_row(STORED *row, const SUM *sums, const int low, const INDEX columns, const int wide)
{
    constexpr int BESIDE = SideB::BESIDE;
    EACH(g, BANDS / BESIDE) { // the threads of a quad, side by side
        const int x = SideB::line(g * BESIDE, 2 * MEMBER);
        unsigned word[BESIDE];
        EACH(e, BESIDE) {
            const SUM &of = sums[g * BESIDE + e];
            word[e] = pair_of(of.element[low * 2], of.element[low * 2 + 1]);
        }
        if (wide && x < columns) write_words(row + x, word);
        EACH(e, 2 * BESIDE) if (!wide && x + e < columns) row[x + e] = (STORED)(word[e / 2] >> e % 2 * 16);
    }
}

// The last block's last warps may be past the `tiles`.
KERNEL(32 * WARPS, 1)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m, const INDEX n,
       const INDEX k, const REAL *RESTRICT scratch, const INDEX tiles)
{
    const unsigned across = (unsigned)((n + BN - 1) / BN), down = (unsigned)((m + BM - 1) / BM);
    const unsigned tile = (unsigned)BLOCK * WARPS + THREAD_X / 32;
    if (tile >= tiles) return;
    // The first reads wait for this arithmetic: it has no division where a product is one tile.
    const unsigned high = across > 1 ? tile / across : tile, batch = down > 1 ? high / down : high;
    const INDEX row = (INDEX)(high - batch * down) * BM, column = (INDEX)(tile - high * across) * BN;
    // All reads are under way before the first is waited for: nothing here depends on another's.
    SideA x;
    SideB y;
    x.read(a + batch * m * k + (TRANS_A ? row : row * k), m - row, k, TRANS_A ? m : k, x.is_wide(a, TRANS_A ? m : k));
    y.read(b + batch * k * n + (TRANS_B ? column * k : column), n - column, k, TRANS_B ? k : n,
           y.is_wide(b, TRANS_B ? k : n));
    x.turn(), y.turn();
    // Neighbours of C in a row, as many as a thread has, are there or are not, and lie at a multiple of their bytes.
    STORED *const to = c + (batch * m + row) * n + column;
    const int wide = n % (2 * SideB::BESIDE) == 0 && ADDRESS(c) % (4 * SideB::BESIDE) == 0;
    // Sums of one strip at a time: they leave before the next ones take their registers.
    EACH(i, STRIPS) {
        SUM sums[BANDS];
        EACH(q, BK / 16) {
            const unsigned of_a[4] = {x.words[2 * i][2 * q], x.words[2 * i + 1][2 * q], x.words[2 * i][2 * q + 1],
                                      x.words[2 * i + 1][2 * q + 1]};
            EACH(j, BANDS) {
                if (q == 0) sums[j] = product(of_a, y.words[j]);
                else multiply(sums[j], of_a, y.words[j] + 2 * q);
            }
        }
        EACH(low, 2) {
            const int down_here = x.line(2 * i + low, QUAD);
            if (down_here < m - row) write_row(to + down_here * n, sums, low, n - column, wide);
        }
    }
}
