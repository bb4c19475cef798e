// mma.sync says which thread has which element, so that sums go straight from registers to C and
// ldmatrix fills the operands' registers with four matrices of 8 x 8 at once. cp.async brings the
// next STAGES - 1 pairs of tiles meanwhile. Lines longer by 16 bytes put the eight rows that
// ldmatrix reads at once on different banks.
#include "cuda_words.h"
#include "cp_async.h"
#include "mma.h"
#include "half.h"
#define THREADS (BM / WM * (BN / WN) * 32)
#define EIGHTS (WN / 8) // instructions side by side

MATMUL(THREADS, 1) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, me = threadIdx.x, warp = me / 32, lane = me % 32;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = warp / (BN / WN) * WM, col = warp % (BN / WN) * WN;
    extern __shared__ __align__(16) ELEMENT shared[];
    ELEMENT(*As)[BM][BK + 8] = (ELEMENT(*)[BM][BK + 8])shared;
    ELEMENT(*Bs)[BK][BN + 8] = (ELEMENT(*)[BK][BN + 8])(shared + STAGES * BM * (BK + 8));
    float sum[WM / 16][EIGHTS][4] = {{{0.f}}};
    unsigned a[WM / 16][4], b[WN / 16][4];
    for (int tile = (1 - STAGES) * BK, at = 1; tile < K; tile += BK, at = (at + 1) % STAGES) {
        const int next = tile + (STAGES - 1) * BK, to = (at + STAGES - 1) % STAGES;
        cp_async_wait_group(STAGES - 2);
        __syncthreads(); // these tiles are whole, and those before are free
        UNROLLED(j, BM * BK / 8 / THREADS) {
            const int i = (me + j * THREADS) * 8, y = by * BM + i / BK, x = next + i % BK;
            const bool inside = y < M && x < K;
            cp_async(&As[to][i / BK][i % BK], inside ? A + y * K + x : A, inside);
        }
        UNROLLED(j, BK * BN / 8 / THREADS) {
            const int i = (me + j * THREADS) * 8, y = next + i / BN, x = bx * BN + i % BN;
            const bool inside = y < K && x < N;
            cp_async(&Bs[to][i / BN][i % BN], inside ? B + y * N + x : B, inside);
        }
        cp_async_commit_group();
        if (tile >= 0) UNROLLED(i, BK / 16) {
            UNROLLED(r, WM / 16)
                LDMATRIX("", a[r], &As[at][row + r * 16 + lane % 16][i * 16 + lane / 16 * 8]);
            UNROLLED(c, WN / 16)
                LDMATRIX(".trans", b[c], &Bs[at][i * 16 + lane % 16][col + c * 16 + lane / 16 * 8]);
            UNROLLED(e, WM / 16 * EIGHTS)
                mma(sum[e / EIGHTS][e % EIGHTS], a[e / EIGHTS], b[e % EIGHTS / 2] + e % 2 * 2);
        }
    }
    UNROLLED(e, WM / 16 * EIGHTS * 2) {
        const int r = e / 2 / EIGHTS, c = e / 2 % EIGHTS, half = e % 2,
                  y = by * BM + row + r * 16 + half * 8 + lane / 4,
                  x = bx * BN + col + c * 8 + lane % 4 * 2;
        if (y < M && x < N)
            *(unsigned *)(C + y * N + x) = half2_of(sum[r][c][half * 2], sum[r][c][half * 2 + 1]);
    }
}
