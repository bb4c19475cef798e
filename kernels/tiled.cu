// C[m,n] = op(A)[m,k] x op(B)[k,n] by tiles in shared memory, one thread for each element of C's tile.
//
// BM, BN   rows and columns of C's tile: a block of BN x BM threads
// BK       how much of k one phase brings into shared memory
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"

#define THREADS (BM * BN)
// Shared memory serves 128 bytes at once, one element from each of WIDE columns of it.
#define WIDE (128 / (int)sizeof(REAL))
#define PAD(rows, along_k) ((along_k) && (rows) * BK > WIDE ? (WIDE > BK ? WIDE / BK : 1) : 0)
#define STRIDE_A (BM + PAD(BM, !TRANS_A))
#define STRIDE_B (BN + PAD(BN, TRANS_B))

KERNEL(BN, BM)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k)
{
    SHARED REAL as[BK * STRIDE_A];
    SHARED REAL bs[BK * STRIDE_B];
    const int tx = THREAD_X, ty = THREAD_Y, t = ty * BN + tx;
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM, col = BLOCK % across * BN, batch = BLOCK / across / down;
    const GLOBAL REAL *const a0 = a + batch * m * k, *const b0 = b + batch * k * n;
    REAL sum = 0;
    for (INDEX k0 = 0; k0 < k; k0 += BK) {
        for (int i = t; i < BM * BK; i += THREADS) {
            const int r = TRANS_A ? i % BM : i / BK, q = TRANS_A ? i / BM : i % BK;
            const INDEX y = row + r, x = k0 + q;
            as[q * STRIDE_A + r] = y < m && x < k ? a0[TRANS_A ? x * m + y : y * k + x] : 0;
        }
        for (int i = t; i < BK * BN; i += THREADS) {
            const int r = TRANS_B ? i / BK : i % BN, q = TRANS_B ? i % BK : i / BN;
            const INDEX y = k0 + q, x = col + r;
            bs[q * STRIDE_B + r] = y < k && x < n ? b0[TRANS_B ? x * k + y : y * n + x] : 0;
        }
        BARRIER();
        for (int i = 0; i < BK; i++) sum = FMA(as[i * STRIDE_A + ty], bs[i * STRIDE_B + tx], sum);
        BARRIER();
    }
    if (row + ty < m && col + tx < n) c[(batch * m + row + ty) * n + col + tx] = sum;
}
