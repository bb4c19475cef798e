// The tiles that a block computes, one after the other, and its pipeline of stages.
#include "tile_scheduler.h"

// TILE_M and TILE_N are the wgmma tile: A's rows and B's columns, or with SWAP_AB the other way
// round. Blocks of a cluster either have tiles below each other, or with CLUSTER_K parts of the k
// of one tile.
#define CLUSTER_ROW (CLUSTER > 1 ? cta_rank_in_cluster() : 0)
// 128 registers a thread or fewer, until consumers take the producer's (setmaxnreg).
#define FEW_REGISTERS (BLOCK_THREADS * MIN_BLOCKS > 384)
struct WorkTile {
    int row, column, first, count;
    unsigned batch, split, number; // of the tile, whatever its split

    __device__ __forceinline__ WorkTile(const unsigned tile_idx, const unsigned rows,
                                        const unsigned columns, const unsigned k_tiles,
                                        const unsigned splits, const unsigned k_tiles_per_split,
                                        const unsigned group_m, const TileOrder order)
    {
        const unsigned both = TILE_M * CLUSTER, down = (rows + both - 1) / both;
        const unsigned across = (columns + TILE_N - 1) / TILE_N;
        const TileCoord coord =
            tile_coord(tile_idx, down, across, splits, group_m, order, FEW_REGISTERS);
        split = coord.split;
        batch = coord.batch;
        row = (coord.row * CLUSTER + CLUSTER_ROW) * TILE_M;
        column = coord.column * TILE_N;
        number = ((batch * across + coord.column) * down + coord.row) * CLUSTER + CLUSTER_ROW;
        first = (CLUSTER_K > 1 ? cta_rank_in_cluster() : split) * k_tiles_per_split;
        // none or fewer with CLUSTER_K where k is short
        count = (int)k_tiles - first < (int)k_tiles_per_split ? (int)k_tiles - first
                                                              : (int)k_tiles_per_split;
    }
};

#include "persistent.h"

// Loads k tile `p` into a stage. With two planes each operand has its high terms first, then the
// low ones, which follow each other along k. A block of a cluster loads its part of the RHS and
// multicasts it.
INNER void tma_load_stage(const TensorMap &lhs, const TensorMap &rhs, const WorkTile &tile,
                          const int p, const int k_tiles, const unsigned stage,
                          const unsigned barrier)
{
    const unsigned part = CLUSTER_ROW;
    EACH(plane, PLANES) {
        const int k = (tile.first + p + plane * k_tiles) * BK;
        const unsigned to = stage + plane * LHS_BYTES,
                       other = stage + RHS_AT + plane * RHS_BYTES;
        if (REALIGN_LHS) {
            // the producer's threads copy it
        } else if (!LHS_MN_MAJOR) {
            tma_load(to, lhs, k, tile.row, tile.batch, barrier);
        } else {
            EACH(i, LHS_BYTES / (BK * SWIZZLE_LHS)) {
                tma_load(to + i * BK * SWIZZLE_LHS, lhs,
                         tile.row + i * (SWIZZLE_LHS / ELEMENT_BYTES), k, tile.batch, barrier);
            }
        }
        if (REALIGN_RHS) {
            // as above
        } else if (!RHS_MN_MAJOR) {
            tma_load_multicast(other + part * (RHS_BYTES / CLUSTER), rhs, k,
                               tile.column + part * (TILE_N / CLUSTER), tile.batch, barrier);
        } else {
            EACH(i, RHS_BYTES / (BK * SWIZZLE_RHS)) {
                tma_load_multicast(other + i * BK * SWIZZLE_RHS +
                                       part * (BK / CLUSTER * SWIZZLE_RHS),
                                   rhs, tile.column + i * (SWIZZLE_RHS / ELEMENT_BYTES),
                                   k + part * (BK / CLUSTER), tile.batch, barrier);
            }
        }
    }
}
