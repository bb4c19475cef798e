// Adds up what slices of k left in scratch, always in the same order, and writes C: the step after a tiled kernel.
//
// TEAMS  threads that share out an element's slices
#if !defined(TEAMS)
#error "TEAMS must be defined"
#endif
#include "portable.h"
#define THREADS 256
#define LANES (THREADS / TEAMS)
#define SIDE (LANES * WIDE)
#define LINE (128 / (int)sizeof(REAL))

// The arguments are the first of the launch before. A slice's sums lie as C does, each from a multiple of 128 bytes on:
// what lanes read are neighbours in memory, 16 bytes each, and no read waits for another. Teams meet in shared memory.
KERNEL(THREADS, 1)
join(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
     const INDEX n, const INDEX k, const GLOBAL REAL *RESTRICT scratch, const INDEX split_k, const INDEX at_c,
     const INDEX share, const INDEX group, const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b)
{
    SHARED REAL sums[THREADS * WIDE];
    const INDEX size = m * n, pitch = (size + LINE - 1) / LINE * LINE, parts = (size + SIDE - 1) / SIDE;
    const INDEX batch = BLOCK / parts, at = BLOCK % parts * SIDE + THREAD_X % LANES * WIDE;
    const GLOBAL REAL *const from = scratch + at_c * LINE + batch * split_k * pitch + at;
    const int team = THREAD_X / LANES;
    PACK(WIDE) sum = NOTHING(WIDE);
    if (at < size)
        TURNS(i, (int)((split_k - team + TEAMS - 1) / TEAMS), 8)
            sum = SCALED(WIDE, 1, LOAD(WIDE, from + (i * TEAMS + team) * pitch), sum);
    if (TEAMS > 1) {
        STORE(WIDE, sum, sums + THREAD_X * WIDE);
        BARRIER();
        EACH(i, TEAMS - 1)
            if (team == 0) sum = SCALED(WIDE, 1, LOAD(WIDE, sums + ((i + 1) * LANES + THREAD_X) * WIDE), sum);
    }
    GLOBAL REAL *const to = c + batch * size + at;
    if (team == 0 && at + WIDE <= size && ADDRESS(to) % 16 == 0) STORE(WIDE, sum, to);
    else if (team == 0) EACH(e, WIDE) if (at + e < size) to[e] = ELEMENT(sum, e);
}
