// cp.async copies from global into shared memory by itself: no register holds what is on its way,
// and STAGES pairs of tiles can be. A's tile keeps the order of its rows, since nothing can be
// turned on its way, and a thread reads four elements of a row for four steps of k at once. Lines
// longer by four floats put the rows that a warp reads on different banks.
#include "cuda_words.h"
#include "cp_async.h"
#define THREADS (BN / TN * (BM / TM))
#define AT(j) ((me + (j) * THREADS) * 4) // the first element of a thread's load j
#define LANES_N (WN / TN)
#define LANES_M (32 / LANES_N)

MATMUL(THREADS, 1) matmul(OPERANDS)
{
    const int M = m, N = n, K = k, me = threadIdx.x, warp = me / 32, lane = me % 32;
    const int across = (N + BN - 1) / BN, bx = blockIdx.x % across, by = blockIdx.x / across;
    const int row = warp / (BN / WN) * LANES_M * TM + lane / LANES_N;
    const int col = warp % (BN / WN) * WN + lane % LANES_N * 4;
    extern __shared__ __align__(16) float shared[];
    float(*As)[BM][BK + 4] = (float(*)[BM][BK + 4])shared;
    float(*Bs)[BK][BN] = (float(*)[BK][BN])(shared + STAGES * BM * (BK + 4));
    __align__(16) float sum[TM][TN] = {{0.f}}, a[TM][4], b[TN];
    for (int tile = (1 - STAGES) * BK, at = 1; tile < K; tile += BK, at = (at + 1) % STAGES) {
        const int next = tile + (STAGES - 1) * BK, to = (at + STAGES - 1) % STAGES;
        cp_async_wait_group(STAGES - 2);
        __syncthreads(); // these tiles are whole, and those before are free
        UNROLLED(j, BM * BK / 4 / THREADS) {
            const int i = AT(j), y = by * BM + i / BK, x = next + i % BK;
            const bool inside = y < M && x < K;
            cp_async(&As[to][i / BK][i % BK], inside ? A + y * K + x : A, inside);
        }
        UNROLLED(j, BK * BN / 4 / THREADS) {
            const int i = AT(j), y = next + i / BN, x = bx * BN + i % BN;
            const bool inside = y < K && x < N;
            cp_async(&Bs[to][i / BN][i % BN], inside ? B + y * N + x : B, inside);
        }
        cp_async_commit_group();
        if (tile >= 0) UNROLLED(i, BK) {
            if (i % 4 == 0)
                UNROLLED(r, TM)
                    COPY4(a[r], &As[at][row + r * LANES_M][i]);
            UNROLLED(c, TN / 4)
                COPY4(b + c * 4, &Bs[at][i][col + c * LANES_N * 4]);
            UNROLLED(e, TM * TN)
                sum[e / TN][e % TN] += a[e / TN][i % 4] * b[e % TN];
        }
    }
    UNROLLED(e, TM * TN / 4) {
        const int r = e * 4 / TN, c = e * 4 % TN, y = by * BM + row + r * LANES_M,
                  x = bx * BN + col + c * LANES_N;
        if (y < M && x < N)
            COPY4(C + y * N + x, &sum[r][c]);
    }
}
