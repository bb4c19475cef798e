// Each thread computes one element of C from a row of A and a column of B in global memory.
// Neighbouring threads of a warp have neighbouring rows, whose elements lie K apart, so that each
// of a warp's loads of A fetches 32 sectors of 32 bytes and uses 4 bytes of each. Every element of
// A is read N times and every element of B M times: 0.25 operations a byte.
#include "cuda_words.h"

MATMUL(TILE, TILE) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y;
    const int across = (N + TILE - 1) / TILE, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * TILE + tx, col = bx * TILE + ty;
    float sum = 0.0f;
    if (row < M && col < N) {
        for (int i = 0; i < K; i++) {
            sum += A[row * K + i] * B[i * N + col];
        }
        C[row * N + col] = sum;
    }
}
