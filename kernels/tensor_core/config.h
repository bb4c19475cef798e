// How a block of kernel.cu lays out its tiles, its teams and its warps' parts.
//
// ITEM     bytes of an operand's element as it is multiplied      ALONG_A, ALONG_B  1 where a tile's lines are along k
// PLANES   matrices that an operand is: with two it is split      LINE_A, LINE_B    bytes of a line
//          into halves by the steps before (steps/split_fp16.cu)            SIZE_A, SIZE_B    of a tile
// DEPTH    steps of a team in a phase, of 32 bytes of k each      STAGE             of a phase
#ifdef PRECISION_EMULATED
#define PLANES 2
#else
#define PLANES 1
#endif
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16) || defined(PRECISION_EMULATED)
#define ITEM 2
#else
#define ITEM 4
#endif
#define TEAM (BM / WM * (BN / WN) * 32)
#define THREADS (SLICES * TEAM)
#define COPIED_A (PLANES == 2 || (ALIGNED & 1))
#define COPIED_B (PLANES == 2 || ALIGNED / 2)
#define PADDED (COPIED_A && COPIED_B && BK * ITEM <= 128) // both operands' rows go on with zeros: phases are whole
#define ALONG_A (COPIED_A || !TRANS_A)
#define ALONG_B (COPIED_B || TRANS_B)
#define LINE_A ((ALONG_A ? BK : BM) * ITEM)
#define LINE_B ((ALONG_B ? BK : BN) * ITEM)
#define SIZE_A (BM * BK * ITEM)
#define SIZE_B (BN * BK * ITEM)
#define STAGE (PLANES * (SIZE_A + SIZE_B))
#define DEPTH (BK * ITEM / 32 / SLICES)
#define BURSTS (DEPTH > 1 ? DEPTH - 1 : 1)
#define STRIPS (WM / 16)
#define BANDS (WN / 8)
#define OWN_SUMS (STRIPS * BANDS)
#define SUMS OWN_SUMS
#define SUM PACK(4)
#define SUM_RUN 4
#define TOP (MATE / 32 / (BN / WN) * WM)
#define LEFT (MATE / 32 % (BN / WN) * WN)
#define SHARE_AT (TEAM_AT * DEPTH)
#include "swizzled_smem.h"
#include "slice_k.h"
#include "mma.h"
#include "split_k.h"
#include "fp16_terms.h"
#include "epilogue.h"
#include "tile_scheduler.h"

// What the steps before are told too. Rows of copies, or of both halves, are lines of 128 bytes; sums of slices come
// after all halves, as those of tiles from number `first` on.
#define LINES(k) (((k) + 63) / 64)
#ifdef PRECISION_EMULATED
#define NUMBERS const INDEX at_a, const INDEX at_b, const INDEX at_e, const INDEX at_f, const INDEX at_maxima, \
                const INDEX slab, const INDEX first
#define PITCH(lines) (2 * 128 * LINES(k))
#define FIRST_TILE first
#define EXPONENTS                                                          \
    (const int *)scratch + (at_e * 32 + at_c.batch * m + at_c.row),       \
        (const int *)scratch + (at_f * 32 + at_c.batch * n + at_c.column)
#else
#define NUMBERS const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b
#define PITCH(lines) ((lines) * 128)
#define FIRST_TILE 0
#define EXPONENTS nullptr, nullptr
#endif

// A block's tile, and its slice of k.
struct Spot {
    INDEX row, column, batch, number;
    int slice, rows, columns;
};

INNER Spot spot_of(const unsigned block, const INDEX m, const INDEX n, const INDEX group, const INDEX slices)
{
    const unsigned across = (n + BN - 1) / BN, down = (m + BM - 1) / BM, tiles = across * down;
    const Place at = place_of(block, down, across, (unsigned)slices, (unsigned)group, 0);
    const unsigned tile = block - (at.batch * (unsigned)slices + at.slice) * tiles;
    const INDEX row = (INDEX)at.row * BM, column = (INDEX)at.column * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM, columns = n - column < BN ? (int)(n - column) : BN;
    return {row, column, at.batch, (INDEX)at.batch * tiles + tile, (int)at.slice, rows, columns};
}
