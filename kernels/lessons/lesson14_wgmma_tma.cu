// One thread tells the TMA unit which boxes of A and B to bring into a ring of STAGES, and groups
// of four warps multiply them there by wgmma, without loading an operand into a register. Barriers
// in shared memory say which stage is full and which is empty, so that neither side waits for a
// whole block. Blocks stay and take tile after tile, GROUP_M rows together, which share L2.
#include "cuda_words.h"
#define TILE_N BN
#include "wgmma.h"
#include "half.h"
#define THREADS (BM * 2 + 32) // 128 for each 64 rows, and a warp for TMA
#define STAGE_BYTES ((BM + BN) * 128)
#define EACH_TILE for (int tile = blockIdx.x; tile < across * down; tile += gridDim.x)
#define FIRST (tile / (GROUP_M * across) * GROUP_M) // row of tiles in a group of some
#define ROW ((FIRST + tile % (GROUP_M * across) % min(down - FIRST, GROUP_M)) * BM)
#define COL (tile % (GROUP_M * across) / min(down - FIRST, GROUP_M) * BN)

MATMUL(THREADS, 1) matmul(OPERANDS, MAP map_a, MAP map_b)
{
    const int M = m, N = n, K = k, me = threadIdx.x, lane = me % 32;
    const int warp = __shfl_sync(~0u, me / 32, 0); // the same in all its threads, as ptxas sees
    int across = (N + BN - 1) / BN, down = (M + BM - 1) / BM, turn = 0;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned stages = ADDRESS(shared), full = stages + STAGES * STAGE_BYTES;
    if (me < STAGES) {
        barrier_init(full + 8 * me, 1);
        barrier_init(full + 8 * (STAGES + me), BM / 16); // warps that multiply
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == BM / 16) { // TMA's
        EACH_TILE for (int i = 0; i < K && lane == 0; i += BK, turn++) {
            const unsigned at = turn % STAGES, As = stages + at * STAGE_BYTES;
            barrier_wait(full + 8 * (STAGES + at), turn / STAGES % 2 ^ 1);
            barrier_expect(full + 8 * at, STAGE_BYTES);
            tma_load(As, map_a, i, ROW, full + 8 * at);
            UNROLLED(c, BN / 64)
                tma_load(As + BM * 128 + c * 8192, map_b, COL + c * 64, i, full + 8 * at);
        }
    } else EACH_TILE {
        float acc[BN / 2];
        for (int i = 0; i < K; i += BK, turn++) {
            const int at = turn % STAGES, As = stages + at * STAGE_BYTES, Bs = As + BM * 128;
            barrier_wait(full + 8 * at, turn / STAGES % 2);
            wgmma_fence();
            UNROLLED(j, BK / 16)
                wgmma(acc, tile_at(As + warp / 4 * 8192 + j * 32, 1), tile_at(Bs + j * 2048, 512),
                      i + j);
            wgmma_commit_group();
            wgmma_wait_group(1); // the tiles before are no longer read
            barrier_arrive(full + 8 * (STAGES + (turn - 1) % STAGES), lane == 0 && i > 0);
        }
        wgmma_wait_group(0);
        wgmma_results();
        barrier_arrive(full + 8 * (STAGES + (turn - 1) % STAGES), lane == 0);
        UNROLLED(e, BN / 4) {
            const int y = ROW + warp * 16 + e % 2 * 8 + lane / 4, x = COL + e / 2 * 8 + me % 4 * 2;
            if (y < M && x < N)
                *(unsigned *)(C + y * N + x) = half2_of(acc[e * 2], acc[e * 2 + 1]);
        }
    }
}
