// Split-K's reduction as a launch of its own: sums the splits' partial sums in a fixed order and
// writes C. The step after pipelined/kernel.cu.
//
// REDUCERS  threads that share the splits of an element
#if !defined(REDUCERS)
#error "TEAMS must be defined"
#endif
#include "portable.h"
#define THREADS 256
#define BLOCK_PACKS (THREADS / REDUCERS)
#define SIDE (BLOCK_PACKS * WIDE)
#define LD (128 / (int)sizeof(REAL))

// The arguments are the first of the launch before. Partial sums are laid out as C, each split at a
// multiple of 128 bytes: loads are coalesced, 16 bytes each, and independent. Reducers meet in
// shared memory.
KERNEL(THREADS, 1)
split_k_reduce(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b,
               GLOBAL REAL *RESTRICT c, const INDEX m, const INDEX n, const INDEX k,
               const GLOBAL REAL *RESTRICT scratch, const INDEX split_k, const INDEX at_c,
               const INDEX share, const INDEX group_m, const INDEX at_a, const INDEX lines_a,
               const INDEX at_b, const INDEX lines_b)
{
    SHARED REAL acc[THREADS * WIDE];
    const INDEX size = m * n, pitch = (size + LD - 1) / LD * LD, parts = (size + SIDE - 1) / SIDE;
    const INDEX batch = BLOCK / parts, at = BLOCK % parts * SIDE + THREAD_X % BLOCK_PACKS * WIDE;
    const GLOBAL REAL *const from = scratch + at_c * LD + batch * split_k * pitch + at;
    const int reducer = THREAD_X / BLOCK_PACKS;
    PACK(WIDE) sum = ZERO_PACK(WIDE);
    if (at < size) {
        TURNS(i, (int)((split_k - reducer + REDUCERS - 1) / REDUCERS), 8) {
            sum = FMA_PACK(WIDE, 1, LOAD(WIDE, from + (i * REDUCERS + reducer) * pitch), sum);
        }
    }
    if (REDUCERS > 1) {
        STORE(WIDE, sum, acc + THREAD_X * WIDE);
        BARRIER();
        EACH(i, REDUCERS - 1) {
            if (reducer == 0) {
                sum = FMA_PACK(WIDE, 1, LOAD(WIDE, acc + ((i + 1) * BLOCK_PACKS + THREAD_X) * WIDE),
                               sum);
            }
        }
    }
    GLOBAL REAL *const to = c + batch * size + at;
    if (reducer == 0 && at + WIDE <= size && ADDRESS(to) % 16 == 0) {
        STORE(WIDE, sum, to);
    } else if (reducer == 0) {
        EACH(e, WIDE) {
            if (at + e < size) {
                to[e] = ELEMENT(sum, e);
            }
        }
    }
}
