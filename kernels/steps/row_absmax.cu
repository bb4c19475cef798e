// Finds the greatest magnitude of each line of float32 operands, a row of op(A) or a column of op(B), in slabs of k: the
// step before split_fp16.cu.
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

// The arguments are the first of the launch that comes after. Whichever way an operand is stored, a warp reads neighbours
// in memory, and all reads of a thread are under way before the first is waited for.
KERNEL(THREADS, 1)
survey(NAMES)
{
    SHARED unsigned square[SIDE * EDGE];
    const INDEX slabs = (k + slab - 1) / slab;
    const Share s = share_of(a, b, m, n, k, slabs);
    const int x = THREAD_X % SIDE, y = THREAD_X / SIDE, depth = (int)min(k - s.part * slab, slab);
    const float *const from = s.from + s.part * slab * (s.cross ? s.length : 1);
    unsigned top[SIDE / TURN] = {};
    if (s.cross) {
        if (x < s.lines)
#pragma unroll 16
            for (int p = y; p < depth; p += TURN) top[0] = max(top[0], __float_as_uint(fabsf(from[p * s.pitch + x])));
        square[x * EDGE + y] = top[0];
    } else {
        for (int p = x; p < depth; p += SIDE) EACH(i, SIDE / TURN)
            if (y + i * TURN < s.lines)
                top[i] = max(top[i], __float_as_uint(fabsf(from[(y + i * TURN) * s.pitch + p])));
        EACH(i, SIDE / TURN) square[(y + i * TURN) * EDGE + x] = top[i];
    }
    BARRIER();
    if (THREAD_X >= s.lines) return;
    unsigned most = 0;
    for (int j = 0; j < (s.cross ? TURN : SIDE); j++) most = max(most, square[THREAD_X * EDGE + j]);
    maxima(scratch, at_maxima, s, m + n, slabs, m)[s.part * s.length + THREAD_X] = most;
}
