// What a block computes next, and its producer's loads.

#define CLUSTER_ROW ((int)(BLOCK % CLUSTER)) // the block's number in its cluster

// Where a tile is, and of how many k tiles the sums are from the first one on: blocks of a cluster
// have tiles below each other.
struct OutputTile {
    INDEX batch;
    int row, column, split, first, count;
    unsigned number;
};

INNER OutputTile output_tile(const unsigned idx, const INDEX m, const INDEX n,
                             const unsigned group_m, const unsigned splits,
                             const int k_tiles, const int per_split, const TileOrder order)
{
    const unsigned both = BM * CLUSTER, down = (m + both - 1) / both, across = (n + BN - 1) / BN;
    const TileCoord at = tile_coord(idx, down, across, splits, group_m, order, 1);
    const int first = at.split * per_split, left = k_tiles - first;
    return {at.batch,
            (int)(at.row * CLUSTER + CLUSTER_ROW) * BM,
            (int)at.column * BN,
            (int)at.split,
            first,
            left < per_split ? left : per_split,
            (at.batch * down + at.row) * across + at.column};
}

// Loads a k tile of an operand's `side` rows (columns, of B) from `first` on: boxes of 16 of k if a
// line of memory is along k, else of 16 of its rows. Of what the cluster's blocks share, each loads
// one of `parts` and multicasts it: one box after the other, as more are in more registers than the
// producer has.
template <int side, int along_k, int parts>
INNER void load_operand(const unsigned to, const TensorMap &map, const int first, const int k,
                        const int batch, const unsigned barrier)
{
    const int share = side / parts, begin = parts > 1 ? CLUSTER_ROW * share : 0;
    TURNS(i, (along_k ? BK : share) / LINE, (CLUSTER > 1 ? 1 : 8)) {
        const int lines = along_k ? i * side + begin : (begin / LINE + i) * BK;
        const int x = along_k ? k + i * LINE : first + begin + i * LINE,
                  y = along_k ? first + begin : k;
        if (parts > 1) {
            tma_load_multicast(to + lines * LINE_BYTES, map, x, y, batch, barrier);
        } else {
            tma_load(to + lines * LINE_BYTES, map, x, y, batch, barrier);
        }
    }
}
