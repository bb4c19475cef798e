// Adds a slice's product to C: what the launches of the slices of k of one tile leave in a buffer
// of C's sizes is added up in the order of the slices, so that results are deterministic.
#include "portable.h"
#define THREADS 256
#define PACKS 4 // of a thread, all of whose loads are in flight before the first is waited for

// The arguments are a launch's: A is the product of the slice, of m x n elements as C. Loads and
// stores are coalesced, 16 bytes each.
KERNEL(THREADS, 1)
accumulate(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
           const INDEX m, const INDEX n, const INDEX k)
{
    const INDEX size = m * n, first = (BLOCK * PACKS * THREADS + THREAD_X) * WIDE;
    PACK(WIDE) sum[PACKS];
    EACH(i, PACKS) {
        const INDEX at = first + i * THREADS * WIDE;
        if (at + WIDE <= size) {
            sum[i] = FMA_PACK(WIDE, 1, LOAD(WIDE, a + at), LOAD(WIDE, c + at));
        }
    }
    EACH(i, PACKS) {
        const INDEX at = first + i * THREADS * WIDE;
        if (at + WIDE <= size) {
            STORE(WIDE, sum[i], c + at);
        } else if (at < size) {
            for (INDEX e = at; e < size; e++) {
                c[e] += a[e];
            }
        }
    }
}
