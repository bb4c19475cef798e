// Adds up what slices of k left in scratch, always in the same order, and writes C: the step after hopper/kernel.cu.
//
// TEAMS  threads that share out an element's slices    SWAP  1 where it is C^T that slices left
#if !defined(TEAMS)
#error "TEAMS must be defined"
#elif !defined(SWAP)
#error "SWAP must be defined"
#endif
#include "dtype.h"
#define THREADS 256
#define LANES (THREADS / TEAMS)
#define RUN_OF 4
#ifdef PRECISION_EMULATED
#define SPLIT_PLACES \
    const INDEX at_a, const INDEX at_b, const INDEX at_e, const INDEX at_f, const INDEX at_maxima, const INDEX slab
#else
#define SPLIT_PLACES const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b
#endif

// The arguments are the first of the launch before. A slice has whole rows of eights: what lanes read are neighbours in
// memory, 16 bytes each, and no read waits for another. Teams meet in shared memory.
KERNEL(THREADS, 1)
join(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m, const INDEX n,
     const INDEX k, const REAL *RESTRICT scratch, SPLIT_PLACES, const INDEX slices, const INDEX at_sums)
{
    SHARED Pack<RUN_OF> parts[THREADS];
    const INDEX rows = SWAP ? n : m, columns = SWAP ? m : n, pitch = (columns + 7) / 8 * 8, size = rows * pitch;
    const INDEX blocks = (size + LANES * RUN_OF - 1) / (LANES * RUN_OF), batch = BLOCK / blocks;
    const INDEX at = (BLOCK % blocks * LANES + THREAD_X % LANES) * RUN_OF, row = at / pitch, column = at % pitch;
    const REAL *const from = scratch + at_sums * 32 + batch * slices * size + at;
    const int team = THREAD_X / LANES;
    Pack<RUN_OF> sum = {};
    if (at < size)
        TURNS(i, (int)((slices - team + TEAMS - 1) / TEAMS), 8)
            sum = scaled<RUN_OF>(1, *(const Pack<RUN_OF> *)(from + (i * TEAMS + team) * size), sum);
    if (TEAMS > 1) {
        parts[THREAD_X] = sum;
        BARRIER();
        EACH(i, TEAMS - 1) if (team == 0) sum = scaled<RUN_OF>(1, parts[(i + 1) * LANES + THREAD_X], sum);
    }
    STORED *const to = c + batch * m * n;
    if (team == 0 && at < size)
        EACH(e, RUN_OF) if (column + e < columns)
            WRITE(to, SWAP ? (column + e) * n + row : row * n + column + e, sum.element[e]);
}
