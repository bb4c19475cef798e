// C[m,n] = op(A)[m,k] x op(B)[k,n] from global memory alone, one thread for each element of C.
//
// BM, BN   rows and columns of C that a block covers: BN x BM threads
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"

KERNEL(BN, BM)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k)
{
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM + THREAD_Y, col = BLOCK % across * BN + THREAD_X;
    const INDEX batch = BLOCK / across / down;
    if (row < m && col < n) {
        const GLOBAL REAL *const a0 = a + batch * m * k, *const b0 = b + batch * k * n;
        REAL sum = 0;
        for (INDEX i = 0; i < k; i++)
            sum = FMA(a0[TRANS_A ? i * m + row : row * k + i], b0[TRANS_B ? col * k + i : i * n + col], sum);
        c[(batch * m + row) * n + col] = sum;
    }
}
