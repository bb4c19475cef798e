// C[m,n] = op(A)[m,k] x op(B)[k,n] by tiles in shared memory, one thread for each element of C's
// tile.
//
// BM       rows of C's tile, and threads of a block along y
// BN       columns of C's tile, and threads of a block along x
// BK       depth of a k tile in shared memory
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
#include "dtype.h"

// Tiles hold elements of the compute type. Shared memory has 128 bytes of banks (BANK_ELEMENTS).
// LD_A and LD_B are chosen against bank conflicts:
//
// As is row-major, so that one load brings 16 bytes of k (VECTOR elements) to all threads of a row.
// A warp covers up to eight rows; lines of an odd number of 16 bytes put each on different banks.
// If BK <= BN the rows fill the banks one after the other already, and the loads, along k, store in
// the order of the banks: no padding. Stores to padded rows have 2-way conflicts at most, 4-way
// with TRANS_A; there is one for every BN loads.
//
// Bs has n along the banks, as the threads read it. With TRANS_B it is transposed on its way: lines
// of an odd multiple of BANK_ELEMENTS / BK fill the gaps between the BK columns that a warp stores.
#define BANK_ELEMENTS (128 / (int)sizeof(REAL))
#define VECTOR (16 / (int)sizeof(REAL))
#define LD_A (BK + (BK > VECTOR && (TRANS_A || BK > BN) ? VECTOR : 0))
#define LD_B \
    (BN + (TRANS_B && BN * BK > BANK_ELEMENTS ? (BANK_ELEMENTS > BK ? BANK_ELEMENTS / BK : 1) : 0))

// Coalesced loads in either layout: the threads are arranged in rows of `f`, the length of the tile
// along memory. X_OF is a thread's place in its row and Y_OF the row; one round covers X_STEP x
// Y_STEP. All are powers of two: shifts and masks. A thread has LOADS_IN_FLIGHT loads in flight, as
// many as its registers hold.
#define LOADS_IN_FLIGHT (sizeof(REAL) == 4 ? 16 : 4)
#define THREADS (BM * BN)
#define ROWS_A_LINE(f) ((f) < BN ? 1 : (f) / BN)
#define X_OF(f) ((f) < BN ? THREAD_X % (f) : THREAD_Y % ROWS_A_LINE(f) * BN + THREAD_X)
#define Y_OF(f) ((f) < BN ? THREAD_Y * (BN / (f)) + THREAD_X / (f) : THREAD_Y / ROWS_A_LINE(f))
#define X_STEP(f) ((f) < THREADS ? (f) : THREADS)
#define Y_STEP(f) ((f) < THREADS ? THREADS / (f) : 1)

// Loads rows x depth of A, `pitch` elements between its stored rows, with zeros past its edges:
// they add nothing, as both tiles are zero past k, and what they add past m or n is never stored.
PART void load_a(LOCAL REAL *to, const GLOBAL STORED *from, const INDEX pitch, const int rows,
                 const int depth)
{
    const int fast = TRANS_A ? BM : BK, slow = TRANS_A ? BK : BM;
    const GLOBAL STORED *line = from + Y_OF(fast) * pitch + X_OF(fast);
#pragma unroll LOADS_IN_FLIGHT
    for (int s = 0; s < slow; s += Y_STEP(fast), line += Y_STEP(fast) * pitch)
#pragma unroll
        for (int f = 0; f < fast; f += X_STEP(fast)) {
            const int y = s + Y_OF(fast), x = f + X_OF(fast), r = TRANS_A ? x : y,
                      q = TRANS_A ? y : x;
            if (Y_STEP(fast) <= slow || y < slow) {
                to[r * LD_A + q] = r < rows && q < depth ? READ(line, f) : 0;
            }
        }
}

// The same for depth x columns of B.
PART void load_b(LOCAL REAL *to, const GLOBAL STORED *from, const INDEX pitch, const int depth,
                 const int columns)
{
    const int fast = TRANS_B ? BK : BN, slow = TRANS_B ? BN : BK;
    const GLOBAL STORED *line = from + Y_OF(fast) * pitch + X_OF(fast);
#pragma unroll LOADS_IN_FLIGHT
    for (int s = 0; s < slow; s += Y_STEP(fast), line += Y_STEP(fast) * pitch)
#pragma unroll
        for (int f = 0; f < fast; f += X_STEP(fast)) {
            const int y = s + Y_OF(fast), x = f + X_OF(fast), q = TRANS_B ? x : y,
                      r = TRANS_B ? y : x;
            if (Y_STEP(fast) <= slow || y < slow) {
                to[q * LD_B + r] = q < depth && r < columns ? READ(line, f) : 0;
            }
        }
}

// Adds a k tile's part of one element. A's loads are broadcast in a warp, B's are contiguous.
PART REAL add_tiles(const LOCAL REAL *As, const LOCAL REAL *Bs, REAL sum)
{
#pragma unroll
    for (int q = 0; q < BK; q++) {
        sum = FMA(As[THREAD_Y * LD_A + q], Bs[q * LD_B + THREAD_X], sum);
    }
    return sum;
}

KERNEL(BN, BM)
matmul(const GLOBAL STORED *RESTRICT a, const GLOBAL STORED *RESTRICT b, GLOBAL STORED *RESTRICT c,
       const INDEX m, const INDEX n, const INDEX k)
{
    SHARED REAL As[BM * LD_A];
    SHARED REAL Bs[BK * LD_B];
    // Consecutive blocks share a row of tiles: A's stay in the cache while B's pass.
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM, column = BLOCK % across * BN,
                batch = BLOCK / across / down;
    const int rows = m - row < BM ? (int)(m - row) : BM,
              columns = n - column < BN ? (int)(n - column) : BN;
    const GLOBAL STORED *a0 = a + batch * m * k + (TRANS_A ? row : row * k);
    const GLOBAL STORED *b0 = b + batch * k * n + (TRANS_B ? column * k : column);
    GLOBAL STORED *const c0 = c + (batch * m + row) * n + column;
    REAL sum = 0;
#pragma unroll 1
    for (INDEX remaining = k; remaining > 0; remaining -= BK) {
        const int depth = remaining < BK ? (int)remaining : BK;
        // the tiles are free: all have read the k tile before (PoCL needs this barrier at the
        // loop's head)
        BARRIER();
        load_a(As, a0, TRANS_A ? m : k, rows, depth);
        load_b(Bs, b0, TRANS_B ? k : n, depth, columns);
        BARRIER(); // the tiles are whole
        sum = add_tiles(As, Bs, sum);
        a0 += TRANS_A ? BK * m : BK;
        b0 += TRANS_B ? BK : BK * n;
    }
    if (THREAD_Y < rows && THREAD_X < columns) {
        WRITE(c0, THREAD_Y * n + THREAD_X, sum);
    }
}
