// The split-K reduction after kernel.cu: float32 partial sums in rows of the LHS, padded to
// multiples of 8.
//
// SWAP_AB  1 if the partial sums are of C^T
#if !defined(SWAP_AB)
#error "SWAP_AB must be defined"
#endif
#include "dtype.h"
#include "split_k_reduce.h"
#include "step_arguments.h"

// The arguments are the first of the launch before.
KERNEL(THREADS, 1)
split_k_reduce(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c,
               const INDEX m, const INDEX n, const INDEX k, const REAL *RESTRICT workspace,
               STEP_ARGUMENTS, const INDEX splits, const INDEX at_sums)
{
    SHARED REAL smem[THREADS * WIDE];
    const INDEX rows = SWAP_AB ? n : m, columns = SWAP_AB ? m : n, pitch = (columns + 7) / 8 * 8,
                size = rows * pitch;
    const INDEX blocks = (size + BLOCK_PACKS * WIDE - 1) / (BLOCK_PACKS * WIDE),
                batch = BLOCK / blocks;
    const INDEX at = (BLOCK % blocks * BLOCK_PACKS + THREAD_X % BLOCK_PACKS) * WIDE,
                row = at / pitch, column = at % pitch;
    const REAL *const partials = workspace + at_sums * 32 + batch * splits * size + at;
    const PACK(WIDE) sum = reduce_splits(partials, splits, size, at < size, smem);
    STORED *const to = c + batch * m * n;
    if (REDUCER == 0 && at < size) {
        EACH(e, WIDE) {
            if (column + e < columns) {
                WRITE(to, SWAP_AB ? (column + e) * n + row : row * n + column + e, sum.element[e]);
            }
        }
    }
}
