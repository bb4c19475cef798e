// What a block of kernel.cu has to do, one piece after the other, and its ring of stages.
#include "tile_scheduler.h"

// Sides are named as in the instruction: ROWS of the left matrix and COLUMNS of the right one, which are A's rows and
// B's columns, or with SWAP B's columns and A's rows.
struct Work {
    int row, column, first, count;
    unsigned batch, slice;

    // The blocks of a cluster have tiles one below the other.
    __device__ __forceinline__ Work(const unsigned number, const unsigned rows, const unsigned columns,
                                    const unsigned steps, const unsigned slices, const unsigned share,
                                    const unsigned group)
    {
        const unsigned both = ROWS * CLUSTER, down = (rows + both - 1) / both;
        const Place at = place_of(number, down, (columns + COLUMNS - 1) / COLUMNS, slices, group, 0);
        slice = at.slice, batch = at.batch;
        row = (at.row * CLUSTER + rank_in_cluster()) * ROWS, column = at.column * COLUMNS;
        first = slice * share, count = steps - first < share ? steps - first : share;
    }
};

// A place in the ring: barriers there end a phase each time around.
struct Ring {
    unsigned at = 0, parity = 0;

    __device__ __forceinline__ void next()
    {
        if (++at == STAGES) at = 0, parity ^= 1;
    }
};

// Brings step `p` of k into a stage: of each side, high halves and then low ones where there are two planes, which
// follow each other along k. A block of a cluster brings its part of the right side for all.
INNER void bring(const Map &left, const Map &right, const Work &now, const int p, const int steps, const unsigned stage,
                 const unsigned barrier)
{
    const unsigned part = rank_in_cluster();
    EACH(plane, PLANES) {
        const int k = (now.first + p + plane * steps) * BK;
        const unsigned to = stage + plane * SIDE_L, other = stage + PLANES * SIDE_L + plane * SIDE_R;
        if (!CROSS_L) load_box(to, left, k, now.row, now.batch, barrier);
        else EACH(i, SIDE_L / (BK * SPAN_L))
            load_box(to + i * BK * SPAN_L, left, now.row + i * (SPAN_L / ELEMENT_BYTES), k, now.batch, barrier);
        if (!CROSS_R)
            load_box_for_all(other + part * (SIDE_R / CLUSTER), right, k, now.column + part * (COLUMNS / CLUSTER),
                             now.batch, barrier);
        else EACH(i, SIDE_R / (BK * SPAN_R))
            load_box_for_all(other + i * BK * SPAN_R + part * (BK / CLUSTER * SPAN_R), right,
                             now.column + i * (SPAN_R / ELEMENT_BYTES), k + part * (BK / CLUSTER), now.batch, barrier);
    }
}
