// The block is turned: neighbouring threads of a warp have neighbouring columns. A warp's loads of
// B and its stores to C are now of neighbouring elements, which memory moves as whole sectors, and
// its loads of A are of one element that all its threads share. The arithmetic is that of the
// lesson before, and each thread still reads every operand from global memory.
#include "cuda_words.h"

MATMUL(TILE, TILE) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y;
    const int across = (N + TILE - 1) / TILE, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * TILE + ty, col = bx * TILE + tx;
    float sum = 0.0f;
    if (row < M && col < N) {
        for (int i = 0; i < K; i++) {
            sum += A[row * K + i] * B[i * N + col];
        }
        C[row * N + col] = sum;
    }
}
