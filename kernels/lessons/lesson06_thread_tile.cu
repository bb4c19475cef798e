// Each thread computes TM x TN elements of C: it reads TM elements of A's tile and TN of B's for
// TM * TN products. With 8 x 8 that is a quarter of a load for each product, where the first tiles
// took two. The sums stay in registers, which are the fastest memory and the largest.
#include "cuda_words.h"
#define THREADS (BN / TN * (BM / TM))

MATMUL(BN / TN, BM / TM) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y, me = ty * (BN / TN) + tx;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * BM + ty * TM, col = bx * BN + tx * TN;
    __shared__ float As[BK][BM + 4], Bs[BK][BN];
    float sum[TM][TN] = {{0.f}}, a[TM], b[TN];
    for (int tile = 0; tile < K; tile += BK) {
        for (int i = me; i < BM * BK; i += THREADS) {
            const int y = by * BM + i / BK, x = tile + i % BK;
            As[i % BK][i / BK] = y < M && x < K ? A[y * K + x] : 0.0f;
        }
        for (int i = me; i < BK * BN; i += THREADS) {
            const int y = tile + i / BN, x = bx * BN + i % BN;
            Bs[i / BN][i % BN] = y < K && x < N ? B[y * N + x] : 0.0f;
        }
        __syncthreads(); // the tiles are whole
        UNROLLED(i, BK) {
            UNROLLED(r, TM)
                a[r] = As[i][ty * TM + r];
            UNROLLED(c, TN)
                b[c] = Bs[i][tx * TN + c];
            UNROLLED(e, TM * TN)
                sum[e / TN][e % TN] += a[e / TN] * b[e % TN];
        }
        __syncthreads(); // and free: all have read them
    }
    UNROLLED(e, TM * TN) {
        if (row + e / TN < M && col + e % TN < N) {
            C[(row + e / TN) * N + col + e % TN] = sum[e / TN][e % TN];
        }
    }
}
