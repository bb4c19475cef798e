// SPLIT_K blocks share the k of a tile of C, and a second launch adds up their sums in a fixed
// order. Where C is small and k is long there are too few tiles for all SMs: more blocks put the
// others to work. It costs writing and reading the partial sums, so it is for such shapes alone.
#include "cuda_words.h"
#define THREADS (BN / TN * (BM / TM))
#define AT(j) ((me + (j) * THREADS) * 4) // the first element of a thread's load j
#define LOADS(side) (side * BK / 4 / THREADS)
#define LANES_N (WN / TN)
#define LANES_M (32 / LANES_N)

MATMUL(THREADS, 1) matmul(OPERANDS, GLOBAL float *parts, const LONG depth, const LONG fours)
{
    const int M = m, N = n, K = k, me = threadIdx.x, warp = me / 32, lane = me % 32;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across;
    const int by = blockIdx.x / across / SPLIT_K, split = blockIdx.x / across % SPLIT_K;
    const int start = split * depth, end = min(start + (int)depth, K);
    const int row = warp / (BN / WN) * LANES_M * TM + lane / LANES_N * 4;
    const int col = warp % (BN / WN) * WN + lane % LANES_N * 4;
    __shared__ __align__(16) float As[2][BK][BM + 4], Bs[2][BK][BN];
    __align__(16) float sum[TM][TN] = {{0.f}}, a[TM], b[TN], in_a[LOADS(BM)][4], in_b[LOADS(BN)][4];
    for (int tile = start - BK, at = 1; tile < end; tile += BK, at ^= 1) {
        UNROLLED(j, LOADS(BM)) {
            const int i = AT(j), y = by * BM + i / BK, x = tile + BK + i % BK;
            LOAD4(in_a[j], y < M && x < end, A + y * K + x);
        }
        UNROLLED(j, LOADS(BN)) {
            const int i = AT(j), y = tile + BK + i / BN, x = bx * BN + i % BN;
            LOAD4(in_b[j], y < end && x < N, B + y * N + x);
        }
        if (tile >= start) UNROLLED(i, BK) {
            UNROLLED(r, TM / 4)
                COPY4(a + r * 4, &As[at][i][row + r * LANES_M * 4]);
            UNROLLED(c, TN / 4)
                COPY4(b + c * 4, &Bs[at][i][col + c * LANES_N * 4]);
            UNROLLED(e, TM * TN)
                sum[e / TN][e % TN] += a[e / TN] * b[e % TN];
        }
        UNROLLED(e, LOADS(BM) * 4)
            As[at ^ 1][AT(e / 4) % BK + e % 4][AT(e / 4) / BK] = in_a[e / 4][e % 4];
        UNROLLED(j, LOADS(BN))
            COPY4(&Bs[at ^ 1][AT(j) / BN][AT(j) % BN], in_b[j]);
        __syncthreads(); // the next tiles are whole, and these are free
    }
    UNROLLED(e, TM * TN / 4) {
        const int r = e * 4 / TN, c = e * 4 % TN, y = by * BM + row + r / 4 * LANES_M * 4 + r % 4,
                  x = bx * BN + col + c * LANES_N;
        if (y < M && x < N)
            COPY4(parts + fours * 4 + split * M * N + y * N + x, &sum[r][c]);
    }
}
