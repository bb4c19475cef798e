// Tensor cores multiply tiles of 16 x 16 for a warp at once, float16 operands with sums in float32:
// one instruction does 4,096 products, where a thread's did one. A warp has WM x WN of C in such
// tiles. Copies move eight elements of 16 bits at once, and the sums go through shared memory, as
// nobody but the architecture knows which thread has which.
#include "cuda_words.h"
#include "wmma.h"
#include "half.h"
#define THREADS (BM / WM * (BN / WN) * 32)
#define COUNT (WM / 16 * (WN / 16))

MATMUL(THREADS, 1) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, me = threadIdx.x, warp = me / 32, lane = me % 32;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = warp / (BN / WN) * WM, col = warp % (BN / WN) * WN;
    __shared__ __align__(32) ELEMENT As[BM][BK + 8], Bs[BK][BN + 8];
    __shared__ __align__(32) float Cs[THREADS / 32][256];
    float sum[COUNT][8] = {{0.f}};
    unsigned a[WM / 16][8], b[WN / 16][8];
    for (int tile = 0; tile < K; tile += BK) {
        UNROLLED(j, BM * BK / 8 / THREADS) {
            const int i = (me + j * THREADS) * 8, y = by * BM + i / BK, x = tile + i % BK;
            LOAD4((float *)&As[i / BK][i % BK], y < M && x < K, (const float *)(A + y * K + x));
        }
        UNROLLED(j, BK * BN / 8 / THREADS) {
            const int i = (me + j * THREADS) * 8, y = tile + i / BN, x = bx * BN + i % BN;
            LOAD4((float *)&Bs[i / BN][i % BN], y < K && x < N, (const float *)(B + y * N + x));
        }
        __syncthreads(); // the tiles are whole
        UNROLLED(i, BK / 16) {
            UNROLLED(r, WM / 16)
                WMMA_LOAD("a", a[r], &As[row + r * 16][i * 16], BK + 8);
            UNROLLED(c, WN / 16)
                WMMA_LOAD("b", b[c], &Bs[i * 16][col + c * 16], BN + 8);
            UNROLLED(e, COUNT)
                wmma_mma(sum[e], a[e / (WN / 16)], b[e % (WN / 16)]);
        }
        __syncthreads(); // and free: all have read them
    }
    UNROLLED(e, COUNT) {
        wmma_store(Cs[warp], sum[e]);
        __syncwarp(); // each lane reads what others have put there
        UNROLLED(j, 4) {
            const int i = (lane + j * 32) * 2, y = by * BM + row + e / (WN / 16) * 16 + i / 16,
                      x = bx * BN + col + e % (WN / 16) * 16 + i % 16;
            if (y < M && x < N)
                *(unsigned *)(C + y * N + x) = half2_of(Cs[warp][i], Cs[warp][i + 1]);
        }
        __syncwarp();
    }
}
