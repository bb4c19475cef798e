// C[m,n] = op(A)[m,k] x op(B)[k,n] by tiles in shared memory, one thread for each element of C's tile.
//
// BM       rows of C's tile, and threads of a block along y
// BN       columns of C's tile, and threads of a block along x
// BK       how much of k each phase brings into shared memory
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

// The tiles hold elements as they are computed with. Shared memory has 128 bytes of banks, LANES elements wide. Two
// threads of a warp that want different words of one bank wait for each other, so the strides of both are chosen:
// A's tile is kept row by row, so that one read brings 16 bytes of k (VECTOR elements) to all threads of a row. A warp
// spans up to eight rows; a stride of an odd number of 16 bytes puts each on banks of its own. Where BK <= BN its rows
// fill the banks one after the other already, and the load, along k, writes in the banks' order: no padding. Writes to
// padded rows meet twice at most, four times with TRANS_A; they are one for every BN reads.
// B's tile is kept with n along the banks, as the threads read it. A load along k (TRANS_B) writes it crosswise: a
// stride of an odd multiple of LANES / BK fills the gaps between the BK columns that a warp writes to: none meet.
#define LANES (128 / (int)sizeof(REAL))
#define VECTOR (16 / (int)sizeof(REAL))
#define STRIDE_A (BK + (BK > VECTOR && (TRANS_A || BK > BN) ? VECTOR : 0))
#define STRIDE_B (BN + (TRANS_B && BN * BK > LANES ? (LANES > BK ? LANES / BK : 1) : 0))

// Neighbouring threads load neighbouring elements of the stored rows, whatever is transposed: the threads, in their
// order, are dealt out over rows of `f`, the length of the tile along memory. ALONG is a thread's place in its row and
// ACROSS the row; one round covers STEP_ALONG x STEP_ACROSS. All are powers of two: shifts and masks.
// A thread keeps IN_FLIGHT loads under way, as many as its registers hold.
#define IN_FLIGHT (sizeof(REAL) == 4 ? 16 : 4)
#define THREADS (BM * BN)
#define FOLD(f) ((f) < BN ? 1 : (f) / BN)
#define ALONG(f) ((f) < BN ? THREAD_X % (f) : THREAD_Y % FOLD(f) * BN + THREAD_X)
#define ACROSS(f) ((f) < BN ? THREAD_Y * (BN / (f)) + THREAD_X / (f) : THREAD_Y / FOLD(f))
#define STEP_ALONG(f) ((f) < THREADS ? (f) : THREADS)
#define STEP_ACROSS(f) ((f) < THREADS ? THREADS / (f) : 1)

// Bring rows x depth of A, from `from` with `pitch` elements between its stored rows, and zeros past its edges: they
// add nothing, as both tiles are zero past k, and what they add past m or n is never written.
PART void load_a(LOCAL REAL *to, const GLOBAL STORED *from, const INDEX pitch, const int rows, const int depth)
{
    const int fast = TRANS_A ? BM : BK, slow = TRANS_A ? BK : BM;
    const GLOBAL STORED *line = from + ACROSS(fast) * pitch + ALONG(fast);
#pragma unroll IN_FLIGHT
    for (int s = 0; s < slow; s += STEP_ACROSS(fast), line += STEP_ACROSS(fast) * pitch)
#pragma unroll
        for (int f = 0; f < fast; f += STEP_ALONG(fast)) {
            const int y = s + ACROSS(fast), x = f + ALONG(fast), r = TRANS_A ? x : y, q = TRANS_A ? y : x;
            if (STEP_ACROSS(fast) <= slow || y < slow)
                to[r * STRIDE_A + q] = r < rows && q < depth ? READ(line, f) : 0;
        }
}

// The same for depth x columns of B.
PART void load_b(LOCAL REAL *to, const GLOBAL STORED *from, const INDEX pitch, const int depth, const int columns)
{
    const int fast = TRANS_B ? BK : BN, slow = TRANS_B ? BN : BK;
    const GLOBAL STORED *line = from + ACROSS(fast) * pitch + ALONG(fast);
#pragma unroll IN_FLIGHT
    for (int s = 0; s < slow; s += STEP_ACROSS(fast), line += STEP_ACROSS(fast) * pitch)
#pragma unroll
        for (int f = 0; f < fast; f += STEP_ALONG(fast)) {
            const int y = s + ACROSS(fast), x = f + ALONG(fast), q = TRANS_B ? x : y, r = TRANS_B ? y : x;
            if (STEP_ACROSS(fast) <= slow || y < slow)
                to[q * STRIDE_B + r] = q < depth && r < columns ? READ(line, f) : 0;
        }
}

// Add the tiles' part of one element. A warp's threads share A's words (one read serves a row) and read B's in a line.
PART REAL add_tiles(const LOCAL REAL *as, const LOCAL REAL *bs, REAL sum)
{
#pragma unroll
    for (int q = 0; q < BK; q++)
        sum = FMA(as[THREAD_Y * STRIDE_A + q], bs[q * STRIDE_B + THREAD_X], sum);
    return sum;
}

KERNEL(BN, BM)
matmul(const GLOBAL STORED *RESTRICT a, const GLOBAL STORED *RESTRICT b, GLOBAL STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k)
{
    SHARED REAL as[BM * STRIDE_A];
    SHARED REAL bs[BK * STRIDE_B];
    // Blocks that follow each other share a row of tiles: A's stay in the cache while B's pass.
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM, column = BLOCK % across * BN, batch = BLOCK / across / down;
    const int rows = m - row < BM ? (int)(m - row) : BM, columns = n - column < BN ? (int)(n - column) : BN;
    const GLOBAL STORED *a0 = a + batch * m * k + (TRANS_A ? row : row * k);
    const GLOBAL STORED *b0 = b + batch * k * n + (TRANS_B ? column * k : column);
    GLOBAL STORED *const c0 = c + (batch * m + row) * n + column;
    REAL sum = 0;
#pragma unroll 1
    for (INDEX left = k; left > 0; left -= BK) {
        const int depth = left < BK ? (int)left : BK;
        BARRIER(); // the tiles are free: all have read the phase before (PoCL needs it here, at the loop's head)
        load_a(as, a0, TRANS_A ? m : k, rows, depth);
        load_b(bs, b0, TRANS_B ? k : n, depth, columns);
        BARRIER(); // the tiles are whole
        sum = add_tiles(as, bs, sum);
        a0 += TRANS_A ? BK * m : BK;
        b0 += TRANS_B ? BK : BK * n;
    }
    if (THREAD_Y < rows && THREAD_X < columns)
        WRITE(c0, THREAD_Y * n + THREAD_X, sum);
}
