// Split-K's reduction of float32 partial sums as a launch of its own, in a fixed order. The step
// after hopper/kernel.cu.
//
// REDUCERS  threads that share the splits of an element
// SWAP_AB   1 if the partial sums are of C^T
#if !defined(REDUCERS)
#error "TEAMS must be defined"
#elif !defined(SWAP_AB)
#error "SWAP_AB must be defined"
#endif
#include "dtype.h"
#define THREADS 256
#define BLOCK_PACKS (THREADS / REDUCERS)
#define RUN_OF 4
#ifdef PRECISION_EMULATED
#define SPLIT_PLACES                                                                               \
    const INDEX at_a, const INDEX at_b, const INDEX at_e, const INDEX at_f, const INDEX at_maxima, \
        const INDEX slab
#else
#define SPLIT_PLACES const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b
#endif

// The arguments are the first of the launch before. A split has rows padded to a multiple of 8:
// loads are coalesced, 16 bytes each, and independent. Reducers meet in shared memory.
KERNEL(THREADS, 1)
split_k_reduce(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c,
               const INDEX m, const INDEX n, const INDEX k, const REAL *RESTRICT scratch,
               SPLIT_PLACES, const INDEX splits, const INDEX at_sums)
{
    SHARED Pack<RUN_OF> parts[THREADS];
    const INDEX rows = SWAP_AB ? n : m, columns = SWAP_AB ? m : n, pitch = (columns + 7) / 8 * 8,
                size = rows * pitch;
    const INDEX blocks = (size + BLOCK_PACKS * RUN_OF - 1) / (BLOCK_PACKS * RUN_OF),
                batch = BLOCK / blocks;
    const INDEX at = (BLOCK % blocks * BLOCK_PACKS + THREAD_X % BLOCK_PACKS) * RUN_OF,
                row = at / pitch, column = at % pitch;
    const REAL *const from = scratch + at_sums * 32 + batch * splits * size + at;
    const int reducer = THREAD_X / BLOCK_PACKS;
    Pack<RUN_OF> sum = {};
    if (at < size) {
        TURNS(i, (int)((splits - reducer + REDUCERS - 1) / REDUCERS), 8) {
            sum = fma_pack<RUN_OF>(
                1, *(const Pack<RUN_OF> *)(from + (i * REDUCERS + reducer) * size), sum);
        }
    }
    if (REDUCERS > 1) {
        parts[THREAD_X] = sum;
        BARRIER();
        EACH(i, REDUCERS - 1) {
            if (reducer == 0) {
                sum = fma_pack<RUN_OF>(1, parts[(i + 1) * BLOCK_PACKS + THREAD_X], sum);
            }
        }
    }
    STORED *const to = c + batch * m * n;
    if (reducer == 0 && at < size) {
        EACH(e, RUN_OF) {
            if (column + e < columns) {
                WRITE(to, SWAP_AB ? (column + e) * n + row : row * n + column + e, sum.element[e]);
            }
        }
    }
}
