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

// How many products each turn of the loop over k adds, their loads under way together: what NVRTC does to a plain loop.
#define TURN 4

// One more product. Threads of a row read one element of A, and neighbours of a row read neighbours of B's row (not
// with TRANS_B: then each runs along a row of its own, and only the caches see that these follow each other).
// Threads past C's edge that stay to keep step repeat the last row, or add zeros, and write nothing.
#define ADD(q)                                            \
    FMA(READ(a, TRANS_A ? (q) * m + y : y * k + (q)),     \
        x < columns ? READ(b, TRANS_B ? x * k + (q) : (q) * n + x) : 0, sum)

PART REAL add_one(const GLOBAL STORED *a, const GLOBAL STORED *b, const INDEX m, const INDEX n, const INDEX k,
                  const int rows, const int columns, REAL sum)
{
    const int y = THREAD_Y < rows ? THREAD_Y : rows - 1, x = THREAD_X;
    return ADD(0);
}

PART REAL add_turn(const GLOBAL STORED *a, const GLOBAL STORED *b, const INDEX m, const INDEX n, const INDEX k,
                   const int rows, const int columns, REAL sum)
{
    const int y = THREAD_Y < rows ? THREAD_Y : rows - 1, x = THREAD_X;
#pragma unroll
    for (int q = 0; q < TURN; q++) sum = ADD(q);
    return sum;
}

KERNEL(BN, BM)
matmul(const GLOBAL STORED *RESTRICT a, const GLOBAL STORED *RESTRICT b, GLOBAL STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k)
{
    // Blocks that follow each other share rows of A: these stay in the cache while B's columns pass.
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM, column = BLOCK % across * BN, batch = BLOCK / across / down;
    const int rows = m - row < BM ? (int)(m - row) : BM, columns = n - column < BN ? (int)(n - column) : BN;
    const GLOBAL STORED *const a0 = a + batch * m * k + (TRANS_A ? row : row * k);
    const GLOBAL STORED *const b0 = b + batch * k * n + (TRANS_B ? column * k : column);
    GLOBAL STORED *const c0 = c + (batch * m + row) * n + column;
    IDLE(THREAD_Y >= rows || THREAD_X >= columns);
    const INDEX whole = k / TURN * TURN;
    REAL sum = 0; // stays in a register: C is written once
#pragma unroll 1
    for (INDEX i = 0; i < whole; i += TURN) {
        IN_STEP();
        sum = add_turn(a0 + (TRANS_A ? i * m : i), b0 + (TRANS_B ? i : i * n), m, n, k, rows, columns, sum);
    }
    for (INDEX i = whole; i < k; i++) {
        IN_STEP();
        sum = add_one(a0 + (TRANS_A ? i * m : i), b0 + (TRANS_B ? i : i * n), m, n, k, rows, columns, sum);
    }
    if (THREAD_Y < rows && THREAD_X < columns)
        WRITE(c0, THREAD_Y * n + THREAD_X, sum);
}
