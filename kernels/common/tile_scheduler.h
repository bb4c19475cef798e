// Decodes a block's tile index into a tile of C, a split of k and a product of the batch.
typedef struct {
    unsigned whole, rest;
} DivMod;
typedef struct {
    unsigned row, column, split, batch;
} TileCoord; // in tiles

// Quotient and remainder. A division takes some hundred cycles, and a block's first loads wait for
// four of them: where the quotient is known to be zero none is made. With `many` (a block that
// computes several tiles in its main loop has no registers for the tests) it always divides.
INNER DivMod div_mod(const unsigned tile_idx, const unsigned of, const int many)
{
    DivMod found = {0, tile_idx};
    if (many) {
        found.whole = tile_idx / of;
        found.rest = tile_idx % of;
    } else if (of == 1) {
        found.whole = tile_idx;
        found.rest = 0;
    } else if (tile_idx >= of) {
        found.whole = tile_idx / of;
        found.rest = tile_idx % of;
    }
    return found;
}

// Grouped ordering: `group_m` rows of tiles go through C's columns together, so that blocks that
// run at the same time share operands in L2.
INNER TileCoord tile_coord(const unsigned tile_idx, const unsigned down, const unsigned across,
                           const unsigned splits, const unsigned group_m, const int many)
{
    const unsigned high = group_m < down ? group_m : down;
    const DivMod tile = div_mod(tile_idx, down * across, many),
                 split = div_mod(tile.whole, splits, many);
    const DivMod wave = div_mod(tile.rest, high * across, many);
    const unsigned top = wave.whole * high, height = down - top < high ? down - top : high;
    const DivMod column = div_mod(wave.rest, height, many);
    const TileCoord found = {top + column.rest, column.whole, split.rest, split.whole};
    return found;
}
