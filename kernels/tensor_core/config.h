// The layout of a block's tiles, slices and warps.
//
// ELEMENT_BYTES               bytes of an operand's element as it is multiplied
// PLANES                      matrices of an operand: 2 if steps/split_fp16.cu split it into
//                             float16 terms
// K_MAJOR_A, K_MAJOR_B        1 if the tile is K-major in shared memory
// ROW_BYTES_A, ROW_BYTES_B    bytes of a line of the tile
// TILE_BYTES_A, TILE_BYTES_B  bytes of the tile
// STRIDE_M, STRIDE_N          from 16 rows or columns of a warp to its next: of a side of three
//                             times a power of two, warps have 16 each in turn, so that a warp's
//                             offset and its fragments' have no bits in common
// K_STEPS                     mma steps of a slice in a k tile, of 32 bytes of k each
// STAGE_BYTES                 bytes of a stage
// threadIdx.x, known not to be negative: divisions of it by powers of two are shifts.
INNER int thread_x()
{
    __builtin_assume(threadIdx.x < 1024);
    return (int)threadIdx.x;
}
#undef THREAD_X
#define THREAD_X thread_x()

#ifdef PRECISION_EMULATED
#define PLANES 2
#else
#define PLANES 1
#endif
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16) || defined(PRECISION_EMULATED)
#define ELEMENT_BYTES 2
#else
#define ELEMENT_BYTES 4
#endif
#define SLICE_THREADS (BM / WM * (BN / WN) * 32)
#define THREADS (SLICE_K * SLICE_THREADS)
#define PACKED_A (PLANES == 2 || (PACK_K & 1))
#define PACKED_B (PLANES == 2 || PACK_K / 2)
#define PADDED               \
    (PACKED_A && PACKED_B && \
     BK * ELEMENT_BYTES <=   \
         128) // rows of both operands are padded with zeros: all k tiles are whole
#define REALIGNED_A ((REALIGN & 1) && !PACKED_A)
#define REALIGNED_B (REALIGN / 2 && !PACKED_B)
// Whether an operand is copied by cp.async of its size in the main loop; all k tiles but the last
// are followed by what a realigned one reads past them.
#define IS_WIDE(realigned, operand, matrix, pitch, size) \
    ((realigned ? ADDRESS(operand) : ADDRESS(matrix) | (pitch)) % (size) == 0)
#define FOLLOWING (REALIGNED_A || REALIGNED_B ? PIECE : 0)
#define K_MAJOR_A (PACKED_A || !TRANS_A)
#define K_MAJOR_B (PACKED_B || TRANS_B)
#define LINE_BYTES(k_major, side, realign)                 \
    ((realign) ? REALIGNED_LINE((k_major) ? BK : side, k_major) \
               : SWIZZLED_LINE((k_major) ? BK : side))
#define ROW_BYTES_A LINE_BYTES(K_MAJOR_A, BM, REALIGNED_A)
#define ROW_BYTES_B LINE_BYTES(K_MAJOR_B, BN, REALIGNED_B)
#define TILE_BYTES_A ((K_MAJOR_A ? BM : BK) * ROW_BYTES_A)
#define TILE_BYTES_B ((K_MAJOR_B ? BN : BK) * ROW_BYTES_B)
#define STAGE_BYTES (PLANES * (TILE_BYTES_A + TILE_BYTES_B))
#define K_STEPS (BK * ELEMENT_BYTES / 32 / SLICE_K)
#define BURSTS (K_STEPS > 1 ? K_STEPS - 1 : 1)
#define MMAS_M (WM / 16)
#define MMAS_N (WN / 8)
#define ACC_PACKS (MMAS_M * MMAS_N)
#define OUT_PACKS ACC_PACKS
#define ACC PACK(4)
#define ACC_WIDTH 4
#define STRIDE_M (BM % 3 ? 16 : BM / WM * 16)
#define STRIDE_N (BN % 3 ? 16 : BN / WN * 16)
#define WARP_DOWN (SLICE_THREAD / 32 / (BN / WN))
#define WARP_ROW (WARP_DOWN * (BM % 3 ? WM : 16))
#define WARP_COL (SLICE_THREAD / 32 % (BN / WN) * (BN % 3 ? WN : 16))
#define FIRST_K_STEP (SLICE_IDX * K_STEPS)
// A row of packs for each mma of a warp's rows.
#define DEALT_ROWS MMAS_M
#define ROW_PACKS MMAS_N
#include "cluster_reduce.h"
#include "swizzled_smem.h"
#include "slice_k.h"
#include "mma.h"
#include "split_k.h"
#include "fp16_terms.h"
#include "epilogue.h"
#define EPILOGUE_SIZE (SLICE_K * EPI_BYTES / 4)
#define STAGES_SIZE (STAGES * STAGE_BYTES / 4)
#define RECEIVED_FROM (STAGES_SIZE > EPILOGUE_SIZE ? STAGES_SIZE : EPILOGUE_SIZE)
#include "tile_scheduler.h"

// Arguments that the steps before the launch share. Rows of packed operands, or of both terms, are
// lines of 128 bytes; partial sums follow all terms, as those of tiles from number `first` on.
#define LINES(k) (((k) + 63) / 64)
#ifdef PRECISION_EMULATED
#define STEP_ARGUMENTS                                                                             \
    const INDEX at_a, const INDEX at_b, const INDEX at_e, const INDEX at_f, const INDEX at_maxima, \
        const INDEX slab, const INDEX first
#define PACKED_PITCH(lines) (2 * 128 * LINES(k))
#define FIRST_TILE first
#define EXPONENTS                                                   \
    (const int *)workspace + (at_e * 32 + at_c.batch * m + at_c.row), \
        (const int *)workspace + (at_f * 32 + at_c.batch * n + at_c.column)
#else
#define STEP_ARGUMENTS const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b
#define PACKED_PITCH(lines) ((lines) * 128)
#define FIRST_TILE 0
#define EXPONENTS nullptr, nullptr
#endif

// A block's tile of C and its split of k.
struct BlockTile {
    INDEX row, column, batch, tile_idx;
    int split, rows, columns;
};

INNER BlockTile block_tile(const unsigned block, const INDEX m, const INDEX n, const INDEX group_m,
                           const INDEX splits, const TileOrder order)
{
    const unsigned across = (unsigned)(((unsigned long long)n + BN - 1) / BN),
                   down = (unsigned)(((unsigned long long)m + BM - 1) / BM), tiles = across * down;
    const TileCoord at =
        tile_coord(block, down, across, (unsigned)splits, (unsigned)group_m, order, 0);
    const unsigned tile = block - (at.batch * (unsigned)splits + at.split) * tiles;
    const INDEX row = (INDEX)at.row * BM, column = (INDEX)at.column * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM,
              columns = n - column < BN ? (int)(n - column) : BN;
    return {row, column, at.batch, (INDEX)at.batch * tiles + tile, (int)at.split, rows, columns};
}
