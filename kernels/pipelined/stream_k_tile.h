// The work tile of a block, its epilogue, and stream-K's partial sums. The including file defines
// before:
//
// BM, BN, BK                 tile of C, and depth of a k tile
// THREADS                    threads of a block
// ACC                        pack of WIDE accumulators
// OUT_PACKS                  how many of them a thread stores
// ACC_ROW(i), ACC_COL(pack)  where in the tile they are: TM / SLICE_K rows, from that times
//                            SLICE_IDX on, of PACKS_N packs
#include "tile_scheduler.h"

// A tile, or with split-K or stream-K some of its k tiles.
struct WorkTile {
    INDEX row, column, first, depth;
    unsigned batch, split, start;
    int rows, columns, k_tiles, full_k_tiles;

    // `count` k tiles from `start` on, of a split of `k_tiles_per_split` of them; the first
    // `longer` splits have one more. `full_k_tiles` are whole, if these fit the copies. `tile_idx`
    // counts tiles, splits and batches.
    __device__ __forceinline__ void place(const unsigned tile_idx, const unsigned splits,
                                          const unsigned group_m, const INDEX k_tiles_per_split,
                                          const unsigned longer, const unsigned start,
                                          unsigned count, const INDEX m, const INDEX n,
                                          const INDEX k, const int fits)
    {
        const TileCoord at = tile_coord(tile_idx, (m + BM - 1) / BM, (n + BN - 1) / BN, splits,
                                        group_m, STREAM_K_SMS > 0);
        batch = at.batch;
        split = at.split;
        this->start = start;
        row = (INDEX)at.row * BM;
        column = (INDEX)at.column * BN;
        rows = m - row < BM ? (int)(m - row) : BM;
        columns = n - column < BN ? (int)(n - column) : BN;
        first = (k_tiles_per_split * split + (split < longer ? split : longer) + start) * BK;
        count += split < longer;
        depth = k - first < (INDEX)count * BK ? k - first : (INDEX)count * BK;
        k_tiles = (int)((depth + BK - 1) / BK);
        full_k_tiles = fits ? (int)(depth / BK) : 0;
    }

    // Offset of the tile in C, or in the partial sums of its split: laid out as C, each split at a
    // multiple of 128 bytes.
    __device__ __forceinline__ INDEX corner(const INDEX m, const INDEX n) const
    {
        return (batch * m + row) * n + column;
    }

    __device__ __forceinline__ INDEX in_splits(const unsigned splits, const INDEX m,
                                               const INDEX n) const
    {
        const INDEX line = 128 / (int)sizeof(REAL), size = (m * n + line - 1) / line * line;
        return ((INDEX)batch * splits + split) * size + row * n + column;
    }
};

// Each store has a branch of its own: in straight-line code ptxas keeps the accumulators in aligned
// quads, which causes register bank conflicts all through the main loop.
PART void store_tile(REAL *c, const INDEX n, const WorkTile &at, const ACC *acc)
{
    const int wide = n % WIDE == 0 && ADDRESS(c) % 16 == 0;
    EACH(e, OUT_PACKS) {
        const int y = ACC_ROW(SLICE_IDX * (TM / SLICE_K) + e / PACKS_N), x = ACC_COL(e % PACKS_N);
        if (wide && y < at.rows && x + WIDE <= at.columns) {
            STORE(WIDE, acc[e], c + y * n + x);
        } else {
            EACH(j, WIDE) {
                if (y < at.rows && x + j < at.columns) {
                    c[y * n + x + j] = acc[e].element[j];
                }
            }
        }
    }
}

// Stream-K: if several blocks share a tile's k tiles, all but the one that has the first store
// partial sums in the workspace, and that one adds them up in a fixed order. It waits for blocks
// with lower indices, which are running or have finished. The workspace starts with 16,384 flags,
// zero before and after a launch: a block's partial sums are stored.
#define PARTIAL_ELEMENTS (OUT_PACKS * WIDE)
#define IS_STORED(block) ((volatile int *)workspace)[block]

// Neighbouring threads have neighbouring elements: a warp accesses whole lines.
INNER void store_partial(REAL *workspace, REAL *remaining, const unsigned block, const ACC *acc)
{
    REAL *const own = remaining + (INDEX)block * (THREADS * PARTIAL_ELEMENTS) + THREAD_X;
    EACH(e, PARTIAL_ELEMENTS) {
        own[e * THREADS] = acc[e / WIDE].element[e % WIDE];
    }
    __threadfence(); // every thread's partial sums are visible before the flag
    BARRIER();
    if (THREAD_X == 0) {
        IS_STORED(block) = 1;
    }
}

// `rest` k tiles belong to blocks before this one: of each the last `each` that it has, one more
// from rank `more` down, or what remains.
INNER void add_partials(REAL *workspace, const REAL *remaining, const unsigned block, unsigned rank,
                        unsigned rest, const unsigned each, const unsigned more, ACC *acc)
{
#pragma unroll 1
    for (unsigned from = block; rest > 0;) {
        const unsigned work = each + (++rank < more);
        rest -= rest < work ? rest : work;
        from--;
        if (THREAD_X == 0) {
            while (IS_STORED(from) == 0) {
                continue;
            }
            IS_STORED(from) = 0;
        }
        __threadfence();
        BARRIER();
        const REAL *const other = remaining + (INDEX)from * (THREADS * PARTIAL_ELEMENTS) + THREAD_X;
        EACH(e, PARTIAL_ELEMENTS) {
            acc[e / WIDE].element[e % WIDE] += __ldcg(other + e * THREADS); // from L2
        }
    }
}
