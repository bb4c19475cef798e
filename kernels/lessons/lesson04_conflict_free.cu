// Shared memory has 32 banks of 4 bytes, and a warp waits while several of its threads want one
// bank. In the lesson before, the threads that store a row of A's tile as a column met on one bank
// in 32 (of a tile of 32), TILE elements apart. Lines that are longer by PAD = 1 put every element
// of a column on a bank of its own.
#include "cuda_words.h"

MATMUL(TILE, TILE) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y;
    const int across = (N + TILE - 1) / TILE, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * TILE + ty, col = bx * TILE + tx;
    __shared__ float As[TILE][TILE + PAD], Bs[TILE][TILE];
    float sum = 0.0f;
    for (int tile = 0; tile < K; tile += TILE) {
        As[tx][ty] = row < M && tile + tx < K ? A[row * K + tile + tx] : 0.0f;
        Bs[ty][tx] = tile + ty < K && col < N ? B[(tile + ty) * N + col] : 0.0f;
        __syncthreads(); // the tiles are whole
        for (int i = 0; i < TILE; i++) {
            sum += As[i][ty] * Bs[i][tx];
        }
        __syncthreads(); // and free: all have read them
    }
    if (row < M && col < N) {
        C[row * N + col] = sum;
    }
}
