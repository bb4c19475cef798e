// The largest magnitude among some elements of each row: SAMPLE to twice as many, evenly spaced. It
// is NaN if one of them is.
//
// SAMPLE  elements of a row that are looked at, if it has as many
// TURNED  1 where the matrix is stored columns x rows, else 0
#if !defined(SAMPLE)
#error "SAMPLE must be defined"
#elif !defined(TURNED)
#error "TURNED must be defined"
#endif
#include "dtype.h"
#include "sketch.h"
#define ROWS 4 // of a block: a sector of the cache of a turned matrix in float64
#define SHARES (THREADS / ROWS)
#define LARGER(x, y) ((x) != (x) || (x) > (y) ? (x) : (y))

KERNEL(THREADS, 1)
row_peaks(const GLOBAL double *RESTRICT left, const GLOBAL STORED *RESTRICT matrix,
          GLOBAL double *RESTRICT out, const INDEX m, const INDEX n, const INDEX k)
{
    SHARED double peaks[THREADS];
    const INDEX across = (k + ROWS - 1) / ROWS, batch = BLOCK / across,
                first = BLOCK % across * ROWS, apart = n / SAMPLE > 1 ? n / SAMPLE : 1,
                own = first + THREAD_X % ROWS, row = own < k ? own : k - 1;
    const GLOBAL STORED *const from = matrix + batch * n * k + row * (TURNED ? 1 : n);
    double most = 0;
    for (INDEX at = THREAD_X / ROWS * apart; at < n; at += SHARES * apart) {
        const double size = fabs((double)READ(from, at * (TURNED ? k : 1)));
        most = LARGER(most, size);
    }
    peaks[THREAD_X] = most;
    BARRIER();
    if (THREAD_X < ROWS && first + THREAD_X < k) {
        for (int i = 1; i < SHARES; i++) {
            most = LARGER(most, peaks[i * ROWS + THREAD_X]);
        }
        out[batch * k + first + THREAD_X] = most;
    }
}
