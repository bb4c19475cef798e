// The work tile of a block, its epilogue, and stream-K's partial sums. The including file defines
// before:
//
// BM, BN, BK                 tile of C, and depth of a k tile
// THREADS                    threads of a block
// ACC                        pack of WIDE accumulators
// OUT_PACKS                  how many of them a thread stores
// STAGE_C                    whether a tile goes to C through shared memory
// ACC_ROW(i), ACC_COL(pack)  where in the tile they are: TM / SLICE_K rows, from that times
//                            SLICE_IDX on, of PACKS_N packs
#include "tile_scheduler.h"

// A tile, or with split-K or stream-K some of its k tiles.
struct WorkTile {
    INDEX row, column, first, depth;
    unsigned batch, split, start;
    int rows, columns, k_tiles, full_k_tiles;

    // `count` k tiles from `start` on, of a split of `k_tiles_per_split` of them; the first
    // `longer` splits have one more. The blocks of a cluster are splits, too. `full_k_tiles` are
    // whole. `tile_idx` counts tiles, splits and batches.
    __device__ __forceinline__ void place(const unsigned tile_idx, const unsigned splits,
                                          const unsigned group_m, const INDEX k_tiles_per_split,
                                          const unsigned longer, const unsigned start,
                                          unsigned count, const INDEX m, const INDEX n,
                                          const INDEX k, const TileOrder order)
    {
        const TileCoord at = tile_coord(tile_idx, (m + BM - 1) / BM, (n + BN - 1) / BN, splits,
                                        group_m, order, !STREAM_K_SMS);
        batch = at.batch;
        split = CLUSTER_K > 1 ? cta_rank_in_cluster() : at.split;
        this->start = start;
        row = (INDEX)at.row * BM;
        column = (INDEX)at.column * BN;
        rows = m - row < BM ? (int)(m - row) : BM;
        columns = n - column < BN ? (int)(n - column) : BN;
        first = (k_tiles_per_split * split + (split < longer ? split : longer) + start) * BK;
        count += split < longer;
        depth = k - first < (INDEX)count * BK ? k - first : (INDEX)count * BK;
        k_tiles = (int)((depth + BK - 1) / BK);
        full_k_tiles = (int)(depth / BK);
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

#if !STAGE_C
// Each store has a branch of its own: in straight-line code ptxas keeps the accumulators in aligned
// quads, which causes register bank conflicts all through the main loop.
PART void store_tile(REAL *c, const INDEX n, const WorkTile &at, const ACC *acc)
{
    const int wide = n % WIDE == 0 && ADDRESS(c) % 16 == 0;
    EACH(e, OUT_PACKS) {
        if (!IS_OWN_ROW(e / PACKS_N)) {
            continue;
        }
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
#define STORE_TILE(c, at) store_tile(c, n, at, acc)
#else
// Without a branch: lanes past C's edge stay beside the others.
PART void store_if(const int inside, REAL *to, const REAL element)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.f32 [%0], %1;}" ::"l"(to),
                 "f"(element), "r"(inside)
                 : "memory");
}

// Through shared memory, a row of each thread at a time, so that a warp stores whole sectors: of
// rows that are not aligned to 16 bytes a thread's own elements fill a quarter of four times as
// many. They are stored there one by one: in vectors they would have to be in aligned registers,
// which causes bank conflicts all through the main loop.
PART void store_tile(REAL *c, const INDEX n, const WorkTile &at, const ACC *acc, REAL *staging)
{
    constexpr int lanes = WN % 32 == 0 ? 32 : 16, at_once = 32 / lanes; // rows that 32 lanes store
    REAL *const own = staging + THREAD_X / 32 * STAGED_SIZE;
    const int lane = THREAD_X % 32, row = lane / LANES_N, column = lane % LANES_N * WIDE;
    const unsigned to = (unsigned)__cvta_generic_to_shared(own + STAGED_ROW(row) + column);
    const REAL *const mine = own + (lane / lanes * WN + lane % lanes);
    const int x = THREAD_COL - column + lane % lanes,
              first = THREAD_ROW - row * WIDE + lane / lanes * WIDE;
    const INDEX pitch = at_once * WIDE * n;
    EACH(i, TM / SLICE_K) {
        if (!IS_OWN_ROW(i)) {
            continue;
        }
        const int of = SLICE_IDX * (TM / SLICE_K) + i;
        const int y = first + of / WIDE * LANES_M * WIDE + of % WIDE;
        __syncwarp();
        EACH(j, PACKS_N) {
            EACH(e, WIDE) {
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                                 to + (j * LANES_N * WIDE + e) * (int)sizeof(REAL)),
                             "f"(acc[i * PACKS_N + j].element[e])
                             : "memory");
            }
        }
        __syncwarp();
        REAL *line = c + (y * n + x);
        EACH(m, LANES_M / at_once) {
            EACH(q, WN / lanes) {
                store_if(y + m * at_once * WIDE < at.rows && x + q * lanes < at.columns,
                         line + q * lanes, mine[STAGED_ROW(m * at_once) + q * lanes]);
            }
            // asm, or each row's address is computed anew from the tile's
            asm("add.s64 %0, %0, %1;" : "+l"(line) : "l"(pitch * (INDEX)sizeof(REAL)));
        }
    }
}
#define STORE_TILE(c, at) store_tile(c, n, at, acc, smem + STAGING_AT)
#endif
#include "stream_k.h"
