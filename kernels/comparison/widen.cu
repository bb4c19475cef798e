// The rows of a matrix in float64, one after the other: what cuBLAS makes the reference of. Stores
// are coalesced; of a turned matrix each sector is read as often as it has elements, from the L2.
//
// THREADS   threads of a block
// ELEMENTS  elements that a thread widens
// TURNED    1 where the matrix is stored columns x rows, else 0
#if !defined(THREADS)
#error "THREADS must be defined"
#elif !defined(ELEMENTS)
#error "ELEMENTS must be defined"
#elif !defined(TURNED)
#error "TURNED must be defined"
#endif
#include "dtype.h"

// m rows of n elements; `size` elements in all batches.
KERNEL(THREADS, 1)
widen(const GLOBAL STORED *RESTRICT matrix, const GLOBAL STORED *RESTRICT unused,
      GLOBAL double *RESTRICT out, const INDEX m, const INDEX n, const INDEX k,
      const GLOBAL double *workspace, const INDEX size)
{
    const INDEX first = BLOCK * (THREADS * ELEMENTS) + THREAD_X;
    TURNS(i, ELEMENTS, ELEMENTS) {
        const INDEX at = first + i * THREADS;
        if (at < size) {
            const INDEX batch = at / (m * n), row = at / n % m, column = at % n;
            out[at] = READ(matrix, TURNED ? batch * m * n + column * m + row : at);
        }
    }
}
