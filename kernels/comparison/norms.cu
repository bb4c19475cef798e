// The norms of a matrix's rows, in float64. Where a row's elements lie one after the other a warp
// has a row and its lanes read along it, else the lanes read along LANES rows and the warps share
// out their elements: both are coalesced.
//
// THREADS  threads of a block
// TURNED   1 where the matrix is stored columns x rows, else 0
#if !defined(THREADS)
#error "THREADS must be defined"
#elif !defined(TURNED)
#error "TURNED must be defined"
#endif
#include "dtype.h"
#define LANES 32
#define WARPS (THREADS / LANES)
#define ROWS (TURNED ? LANES : WARPS)   // of a block
#define SHARES (TURNED ? WARPS : LANES) // of a row
// A row of shares is padded: threads that add up one each read from different banks.
#define LD (SHARES + 1)

// m rows of n elements, in batches; the norms are stored from element `start` of `out` on.
KERNEL(THREADS, 1)
norms(const GLOBAL STORED *RESTRICT matrix, const GLOBAL STORED *RESTRICT unused,
      GLOBAL double *RESTRICT out, const INDEX m, const INDEX n, const INDEX k,
      const GLOBAL double *workspace, const INDEX start)
{
    SHARED double sums[ROWS * LD];
    const INDEX down = (m + ROWS - 1) / ROWS, batch = BLOCK / down, top = BLOCK % down * ROWS;
    const int lane = THREAD_X % LANES, warp = THREAD_X / LANES, own = TURNED ? lane : warp,
              share = TURNED ? warp : lane;
    const INDEX row = top + own < m ? top + own : m - 1, apart = TURNED ? m : 1;
    const GLOBAL STORED *const from = matrix + batch * m * n + row * (TURNED ? 1 : n);
    double sum = 0;
#pragma unroll 8
    for (INDEX at = share; at < n; at += SHARES) {
        const double value = READ(from, at * apart);
        sum = fma(value, value, sum);
    }
    sums[own * LD + share] = sum;
    BARRIER();
    if (THREAD_X < ROWS && top + THREAD_X < m) {
        double total = 0;
        for (int i = 0; i < SHARES; i++) {
            total += sums[THREAD_X * LD + i];
        }
        out[start + batch * m + top + THREAD_X] = sqrt(total);
    }
}
