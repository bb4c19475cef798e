// C[m,n] = op(A)[m,k] x op(B)[k,n] from global memory alone, one thread for each element of C.
//
// BM       rows of C that a block covers, and its threads along y
// BN       columns of C that a block covers, and its threads along x
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
#include "dtype.h"

// Products of a loop iteration, whose loads are in flight together: what NVRTC does to a plain
// loop.
#define UNROLL_K 4

// One product. Threads of a row read one element of A, and neighbours read neighbours of B's row
// (with TRANS_B each reads along a row of its own, and only the caches help). On PoCL threads past
// C's edge must still reach the barrier: they read clamped addresses or add zeros, and store
// nothing.
#define ADD(q)                                        \
    FMA(READ(a, TRANS_A ? (q) * m + y : y * k + (q)), \
        x < columns ? READ(b, TRANS_B ? x * k + (q) : (q) * n + x) : 0, sum)

PART REAL add_one(const GLOBAL STORED *a, const GLOBAL STORED *b, const INDEX m, const INDEX n,
                  const INDEX k, const int rows, const int columns, REAL sum)
{
    const int y = THREAD_Y < rows ? THREAD_Y : rows - 1, x = THREAD_X;
    return ADD(0);
}

PART REAL add_unrolled(const GLOBAL STORED *a, const GLOBAL STORED *b, const INDEX m, const INDEX n,
                       const INDEX k, const int rows, const int columns, REAL sum)
{
    const int y = THREAD_Y < rows ? THREAD_Y : rows - 1, x = THREAD_X;
#pragma unroll
    for (int q = 0; q < UNROLL_K; q++) {
        sum = ADD(q);
    }
    return sum;
}

KERNEL(BN, BM)
matmul(const GLOBAL STORED *RESTRICT a, const GLOBAL STORED *RESTRICT b, GLOBAL STORED *RESTRICT c,
       const INDEX m, const INDEX n, const INDEX k)
{
    // Consecutive blocks share rows of A, which stay in the cache while B's columns pass.
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM, column = BLOCK % across * BN,
                batch = BLOCK / across / down;
    const int rows = m - row < BM ? (int)(m - row) : BM,
              columns = n - column < BN ? (int)(n - column) : BN;
    const GLOBAL STORED *const a0 = a + batch * m * k + (TRANS_A ? row : row * k);
    const GLOBAL STORED *const b0 = b + batch * k * n + (TRANS_B ? column * k : column);
    GLOBAL STORED *const c0 = c + (batch * m + row) * n + column;
    IDLE(THREAD_Y >= rows || THREAD_X >= columns);
    const INDEX whole = k / UNROLL_K * UNROLL_K;
    REAL sum = 0; // stays in a register: C is written once
#pragma unroll 1
    for (INDEX i = 0; i < whole; i += UNROLL_K) {
        IN_STEP();
        sum = add_unrolled(a0 + (TRANS_A ? i * m : i), b0 + (TRANS_B ? i : i * n), m, n, k, rows,
                           columns, sum);
    }
    for (INDEX i = whole; i < k; i++) {
        IN_STEP();
        sum = add_one(a0 + (TRANS_A ? i * m : i), b0 + (TRANS_B ? i : i * n), m, n, k, rows,
                      columns, sum);
    }
    if (THREAD_Y < rows && THREAD_X < columns) {
        WRITE(c0, THREAD_Y * n + THREAD_X, sum);
    }
}
