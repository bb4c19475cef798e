// Adds up the sums of project.cu's chunks, one after the other: the result is the same each time.
//
// CHUNK  rows of a chunk
#if !defined(CHUNK)
#error "CHUNK must be defined"
#endif
#include "portable.h"
#include "sketch.h"

// The arguments are those of the launch before. A thread has one sum of one column.
KERNEL(THREADS, 1)
add_chunks(const GLOBAL double *RESTRICT left, const GLOBAL double *RESTRICT matrix,
           GLOBAL double *RESTRICT out, const INDEX m, const INDEX n, const INDEX k,
           const GLOBAL double *workspace, const INDEX batches)
{
    const INDEX at = BLOCK * THREADS + THREAD_X, size = batches * SUMS * n, column = at % n,
                sum = at / n % SUMS, batch = at / n / SUMS;
    if (at < size) {
        double total = 0;
        TURNS(chunk, (int)((k + CHUNK - 1) / CHUNK), 8) {
            total += workspace[FIRST + chunk * size + at];
        }
        GLOBAL double *const to = out + (batch * n + column) * WIDTH;
        to[sum < VECTORS ? sum : VECTORS + 1] = total;
        if (sum == VECTORS) {
            to[WEIGHT] = 1;
        }
    }
}
