// The split-K reduction after kernel.cu: partial sums are laid out as C.
#include "portable.h"
#include "split_k_reduce.h"
#define BLOCK_ELEMENTS (BLOCK_PACKS * WIDE)
#define LINE (128 / (int)sizeof(REAL))

// The arguments are the first of the launch before. Each split starts at a multiple of 128 bytes.
KERNEL(THREADS, 1)
split_k_reduce(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b,
               GLOBAL REAL *RESTRICT c, const INDEX m, const INDEX n, const INDEX k,
               const GLOBAL REAL *RESTRICT workspace, const INDEX splits, const INDEX at_c,
               const INDEX share, const INDEX group_m, const INDEX at_a, const INDEX lines_a,
               const INDEX at_b, const INDEX lines_b)
{
    SHARED REAL smem[THREADS * WIDE];
    const INDEX size = m * n, pitch = (size + LINE - 1) / LINE * LINE,
                blocks = (size + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
    const INDEX batch = BLOCK / blocks,
                at = BLOCK % blocks * BLOCK_ELEMENTS + THREAD_X % BLOCK_PACKS * WIDE;
    const GLOBAL REAL *const partials = workspace + at_c * LINE + batch * splits * pitch + at;
    const PACK(WIDE) sum = reduce_splits(partials, splits, pitch, at < size, smem);
    GLOBAL REAL *const to = c + batch * size + at;
    if (REDUCER == 0 && at + WIDE <= size && ADDRESS(to) % 16 == 0) {
        STORE(WIDE, sum, to);
    } else if (REDUCER == 0) {
        EACH(e, WIDE) {
            if (at + e < size) {
                to[e] = ELEMENT(sum, e);
            }
        }
    }
}
