// Decodes a block's tile index into a tile of C, a split of k and a product of the batch.
#include "division.h"
typedef struct {
    unsigned row, column, split, batch;
} TileCoord; // in tiles

// What tile indices are divided by, as tile_scheduler.py makes it: the tiles of a product, its
// splits, the tiles of a group, and the rows of a group and of the last one. A block's first loads
// wait for these divisions.
typedef struct {
    INDEX product, split, group, height, last;
} TileOrder;
#define TILE_ORDER_ARGUMENTS                                                                   \
    const INDEX by_product, const INDEX by_split, const INDEX by_group, const INDEX by_height, \
        const INDEX by_last
#define TILE_ORDER {by_product, by_split, by_group, by_height, by_last}

// Grouped ordering: `group_m` rows of tiles go through C's columns together, so that blocks that
// run at the same time share operands in L2.
INNER TileCoord tile_coord(const unsigned tile_idx, const unsigned down, const unsigned across,
                           const unsigned splits, const unsigned group_m, const TileOrder order)
{
    const unsigned high = group_m < down ? group_m : down;
    const unsigned product = quotient(tile_idx, order.product),
                   tile = tile_idx - product * (down * across),
                   batch = quotient(product, order.split);
    const unsigned group = quotient(tile, order.group), top = group * high,
                   in_group = tile - top * across;
    const unsigned is_whole = down - top >= high, height = is_whole ? high : down - top,
                   column = quotient(in_group, is_whole ? order.height : order.last);
    const TileCoord found = {top + in_group - column * height, column, product - batch * splits,
                             batch};
    return found;
}
