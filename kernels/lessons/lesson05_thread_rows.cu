// Each thread computes TM elements of a column of C: an element of B's tile, once in a register, is
// used TM times. A product then takes little more than one load from shared memory in place of two.
// The tiles are no longer square, and the threads bring them in by rounds.
#include "cuda_words.h"
#define THREADS (BN * (BM / TM))

MATMUL(BN, BM / TM) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y, me = ty * BN + tx;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * BM + ty * TM, col = bx * BN + tx;
    __shared__ float As[BK][BM + 4], Bs[BK][BN];
    float sum[TM] = {0.0f};
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
            const float b = Bs[i][tx];
            UNROLLED(r, TM)
                sum[r] += As[i][ty * TM + r] * b;
        }
        __syncthreads(); // and free: all have read them
    }
    UNROLLED(r, TM) {
        if (row + r < M && col < N) {
            C[(row + r) * N + col] = sum[r];
        }
    }
}
