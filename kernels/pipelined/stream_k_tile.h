// What a block of a tiled kernel has to do, and where its sums go. The including file defines before:
//
// BM, BN, BK  the tile of C, and a phase of k        ROW(i), COLUMN(pack)  where in the tile a thread's sums are:
// THREADS     threads of a block                     TM / SLICES rows, from that times TEAM_AT on, of PACKS_N packs
// SUM         a PACK of WIDE sums                    SUMS                  how many of them a thread has
//
#include "tile_scheduler.h"

// A share of one tile: all of it, but where k is split or phases are shared out.
struct Work {
    INDEX row, column, first, depth;
    unsigned batch, slice, start;
    int rows, columns, phases, quick;

    // `count` phases from `start` on, of a slice of `share` of them; the first `longer` slices have one more. `quick` ones
    // are whole, where these fit the copies. `number` counts tiles, slices and batches.
    __device__ __forceinline__ void place(const unsigned number, const unsigned slices, const unsigned group,
                                          const INDEX share, const unsigned longer, const unsigned start, unsigned count,
                                          const INDEX m, const INDEX n, const INDEX k, const int fits)
    {
        const Place at = place_of(number, (m + BM - 1) / BM, (n + BN - 1) / BN, slices, group, STREAM_K > 0);
        batch = at.batch, slice = at.slice, this->start = start;
        row = (INDEX)at.row * BM, column = (INDEX)at.column * BN;
        rows = m - row < BM ? (int)(m - row) : BM, columns = n - column < BN ? (int)(n - column) : BN;
        first = (share * slice + (slice < longer ? slice : longer) + start) * BK, count += slice < longer;
        depth = k - first < (INDEX)count * BK ? k - first : (INDEX)count * BK;
        phases = (int)((depth + BK - 1) / BK), quick = fits ? (int)(depth / BK) : 0;
    }

    // Where the sums begin in C, or in what slices leave: as C would lie there, each from a multiple of 128 bytes on.
    __device__ __forceinline__ INDEX corner(const INDEX m, const INDEX n) const { return (batch * m + row) * n + column; }

    __device__ __forceinline__ INDEX in_slices(const unsigned slices, const INDEX m, const INDEX n) const
    {
        const INDEX line = 128 / (int)sizeof(REAL), size = (m * n + line - 1) / line * line;
        return ((INDEX)batch * slices + slice) * size + row * n + column;
    }
};

// Stores stand each in a branch of its own: in one straight line they make ptxas keep the sums in aligned quads, and then
// sums and operands meet on the register banks all through the loop over k.
PART void store_tile(REAL *c, const INDEX n, const Work &at, const SUM *sums)
{
    const int wide = n % WIDE == 0 && ADDRESS(c) % 16 == 0;
    EACH(e, SUMS) {
        const int y = ROW(TEAM_AT * (TM / SLICES) + e / PACKS_N), x = COLUMN(e % PACKS_N);
        if (wide && y < at.rows && x + WIDE <= at.columns) STORE(WIDE, sums[e], c + y * n + x);
        else EACH(j, WIDE) if (y < at.rows && x + j < at.columns) c[y * n + x + j] = sums[e].element[j];
    }
}

// Where blocks share out a tile's phases, all but the one that has the first leave their sums in scratch, and that one
// adds them up, always in the same order. It waits for blocks that were launched before it: they run, or have run.
// Scratch starts with 16,384 words, zero before and after a launch, in which a block says that its sums are there.
#define PART_SUMS (SUMS * WIDE)
#define SAID(block) ((volatile int *)scratch)[block]

// Neighbouring threads have neighbouring elements, which are whole lines, and no four of them need be together.
INNER void leave_part(REAL *scratch, REAL *left, const unsigned block, const SUM *sums)
{
    REAL *const own = left + (INDEX)block * (THREADS * PART_SUMS) + THREAD_X;
    EACH(e, PART_SUMS) own[e * THREADS] = sums[e / WIDE].element[e % WIDE];
    __threadfence(); // every thread's sums are out before its block says so
    BARRIER();
    if (THREAD_X == 0) SAID(block) = 1;
}

// `rest` phases of the tile are of blocks before this one: of each the last `each` that it has, or one more from rank
// `more` down, or what there is left.
INNER void add_parts(REAL *scratch, const REAL *left, const unsigned block, unsigned rank, unsigned rest,
                     const unsigned each, const unsigned more, SUM *sums)
{
#pragma unroll 1
    for (unsigned from = block; rest > 0;) {
        const unsigned work = each + (++rank < more);
        rest -= rest < work ? rest : work, from--;
        if (THREAD_X == 0) {
            while (SAID(from) == 0) continue;
            SAID(from) = 0;
        }
        __threadfence();
        BARRIER();
        const REAL *const other = left + (INDEX)from * (THREADS * PART_SUMS) + THREAD_X;
        EACH(e, PART_SUMS) sums[e / WIDE].element[e % WIDE] += __ldcg(other + e * THREADS); // past the SM's own cache
    }
}
