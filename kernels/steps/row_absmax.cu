// The maximum magnitude of each row of op(A) and column of op(B) in slabs of k, for float32
// operands: the step before split_fp16.cu.
//
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "row_scale.h"

// The arguments are the first of the launch that follows. Loads are coalesced in either layout, and
// all of a thread are in flight before the first is waited for.
KERNEL(THREADS, 1)
row_absmax(STEP_PARAMETERS)
{
    SHARED unsigned square[SIDE * LD];
    const INDEX slabs = (k + slab - 1) / slab;
    const BlockRows s = block_rows(a, b, m, n, k, slabs);
    const int x = THREAD_X % SIDE, y = THREAD_X / SIDE, depth = (int)min(k - s.part * slab, slab);
    const float *const from = s.from + s.part * slab * (s.transpose ? s.length : 1);
    unsigned top[SIDE / ROWS_AT_ONCE] = {};
    if (s.transpose) {
        if (x < s.lines)
#pragma unroll 16
            for (int p = y; p < depth; p += ROWS_AT_ONCE) {
                top[0] = max(top[0], __float_as_uint(fabsf(from[p * s.pitch + x])));
            }
        square[x * LD + y] = top[0];
    } else {
        for (int p = x; p < depth; p += SIDE) {
            EACH(i, SIDE / ROWS_AT_ONCE) {
                if (y + i * ROWS_AT_ONCE < s.lines) {
                    top[i] = max(
                        top[i], __float_as_uint(fabsf(from[(y + i * ROWS_AT_ONCE) * s.pitch + p])));
                }
            }
        }
        EACH(i, SIDE / ROWS_AT_ONCE) {
            square[(y + i * ROWS_AT_ONCE) * LD + x] = top[i];
        }
    }
    BARRIER();
    if (THREAD_X >= s.lines) {
        return;
    }
    unsigned most = 0;
    for (int j = 0; j < (s.transpose ? ROWS_AT_ONCE : SIDE); j++) {
        most = max(most, square[THREAD_X * LD + j]);
    }
    maxima(workspace, at_maxima, s, m + n, slabs, m)[s.part * s.length + THREAD_X] = most;
}
