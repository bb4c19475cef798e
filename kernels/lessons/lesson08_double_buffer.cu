// While a block computes with one pair of tiles, its threads load the next pair from global memory
// into registers, and put it into the other half of shared memory afterwards. Memory's latency
// passes while there is arithmetic to do, and one barrier a tile is enough. The first turn of the
// loop only loads.
#include "cuda_words.h"
#define THREADS (BN / TN * (BM / TM))
#define AT(j) ((me + (j) * THREADS) * 4) // the first element of a thread's load j
#define LOADS(side) (side * BK / 4 / THREADS)

MATMUL(BN / TN, BM / TM) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y, me = ty * (BN / TN) + tx;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * BM + ty * TM, col = bx * BN + tx * TN;
    __shared__ __align__(16) float As[2][BK][BM + 4], Bs[2][BK][BN];
    __align__(16) float sum[TM][TN] = {{0.f}}, a[TM], b[TN], in_a[LOADS(BM)][4], in_b[LOADS(BN)][4];
    for (int tile = -BK, at = 1; tile < K; tile += BK, at ^= 1) {
        UNROLLED(j, LOADS(BM)) {
            const int i = AT(j), y = by * BM + i / BK, x = tile + BK + i % BK;
            LOAD4(in_a[j], y < M && x < K, A + y * K + x);
        }
        UNROLLED(j, LOADS(BN)) {
            const int i = AT(j), y = tile + BK + i / BN, x = bx * BN + i % BN;
            LOAD4(in_b[j], y < K && x < N, B + y * N + x);
        }
        if (tile >= 0) UNROLLED(i, BK) {
            UNROLLED(r, TM / 4)
                COPY4(a + r * 4, &As[at][i][ty * TM + r * 4]);
            UNROLLED(c, TN / 4)
                COPY4(b + c * 4, &Bs[at][i][tx * TN + c * 4]);
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
        const int y = e * 4 / TN, x = e * 4 % TN;
        if (row + y < M && col + x < N) {
            COPY4(C + (row + y) * N + col + x, &sum[y][x]);
        }
    }
}
