// A thread moves four neighbouring floats by one instruction, between global memory, shared memory
// and registers. That is a quarter of the loads and stores for the same bytes, and fewer addresses.
// Rows must start at multiples of 16 bytes, so N and K are multiples of 4, as a rule of the space
// says.
#include "cuda_words.h"
#define THREADS (BN / TN * (BM / TM))

MATMUL(BN / TN, BM / TM) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y, me = ty * (BN / TN) + tx;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * BM + ty * TM, col = bx * BN + tx * TN;
    __shared__ __align__(16) float As[BK][BM + 4], Bs[BK][BN];
    __align__(16) float sum[TM][TN] = {{0.f}}, a[TM], b[TN], four[4];
    for (int tile = 0; tile < K; tile += BK) {
        _Pragma("unroll 1") for (int i = me * 4; i < BM * BK; i += THREADS * 4) {
            const int y = by * BM + i / BK, x = tile + i % BK;
            LOAD4(four, y < M && x < K, A + y * K + x);
            UNROLLED(e, 4)
                As[i % BK + e][i / BK] = four[e];
        }
        _Pragma("unroll 1") for (int i = me * 4; i < BK * BN; i += THREADS * 4) {
            const int y = tile + i / BN, x = bx * BN + i % BN;
            LOAD4(four, y < K && x < N, B + y * N + x);
            COPY4(&Bs[i / BN][i % BN], four);
        }
        __syncthreads(); // the tiles are whole
        UNROLLED(i, BK) {
            UNROLLED(r, TM / 4)
                COPY4(a + r * 4, &As[i][ty * TM + r * 4]);
            UNROLLED(c, TN / 4)
                COPY4(b + c * 4, &Bs[i][tx * TN + c * 4]);
            UNROLLED(e, TM * TN)
                sum[e / TN][e % TN] += a[e / TN] * b[e % TN];
        }
        __syncthreads(); // and free: all have read them
    }
    UNROLLED(e, TM * TN / 4) {
        const int y = e * 4 / TN, x = e * 4 % TN;
        if (row + y < M && col + x < N) {
            COPY4(C + (row + y) * N + col + x, &sum[y][x]);
        }
    }
}
