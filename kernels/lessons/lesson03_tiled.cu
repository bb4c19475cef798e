// A block brings a tile of A and a tile of B into shared memory, and all its threads use them:
// every element is read from global memory TILE times less often. A's tile is turned on its way, as
// the threads of a warp read down a column of it. Zeros past the edges add nothing to a sum.
#include "cuda_words.h"

MATMUL(TILE, TILE) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, tx = threadIdx.x, ty = threadIdx.y;
    const int across = (N + TILE - 1) / TILE, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = by * TILE + ty, col = bx * TILE + tx;
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
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
