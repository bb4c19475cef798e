// Decodes a block's tile index into a tile of C, a split of k and a product of the batch.
#include "division.h"
typedef struct {
    unsigned row, column, split, batch;
} TileCoord; // in tiles

// What tile indices are divided by, as division.py makes it: the tiles of a product, its
// splits, the tiles of a group, and the rows of a group and of the last one.
typedef struct {
    INDEX product, split, group, height, last;
} TileOrder;
#define TILE_ORDER_ARGUMENTS                                                                   \
    const INDEX by_product, const INDEX by_split, const INDEX by_group, const INDEX by_height, \
        const INDEX by_last
#define TILE_ORDER {by_product, by_split, by_group, by_height, by_last}
typedef struct {
    unsigned whole, rest;
} DivMod;

// Quotient and remainder. A block's first loads wait for four of them. Where it is `tested` whether
// the quotient is known, short launches of most kernels take 1 % longer, but NVRTC takes fewer
// registers: kernels with few to spare test.
INNER DivMod div_mod(const unsigned tile_idx, const unsigned of, const INDEX divider,
                     const int tested)
{
    DivMod found = {0, tile_idx};
    if (tested && of == 1) {
        found.whole = tile_idx;
        found.rest = 0;
    } else if (!tested || tile_idx >= of) {
        found.whole = quotient(tile_idx, divider);
        found.rest = tile_idx - found.whole * of;
    }
    return found;
}

// Grouped ordering: `group_m` rows of tiles go through C's columns together, so that blocks that
// run at the same time share operands in L2.
INNER TileCoord tile_coord(const unsigned tile_idx, const unsigned down, const unsigned across,
                           const unsigned splits, const unsigned group_m, const TileOrder order,
                           const int tested)
{
    const unsigned high = group_m < down ? group_m : down;
    const DivMod product = div_mod(tile_idx, down * across, order.product, tested),
                 split = div_mod(product.whole, splits, order.split, tested),
                 group = div_mod(product.rest, high * across, order.group, tested);
    const unsigned top = group.whole * high, is_whole = down - top >= high,
                   height = is_whole ? high : down - top;
    const DivMod column =
        div_mod(group.rest, height, is_whole ? order.height : order.last, tested);
    const TileCoord found = {top + column.rest, column.whole, split.rest, split.whole};
    return found;
}
