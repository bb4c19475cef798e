// C on Hopper's tensor cores: one warp brings tiles into a ring of stages in shared memory by the TMA unit, and groups
// of four warps multiply them from there, one piece of work after the other (PTX ISA, "wgmma", "cp.async.bulk.tensor").
//
// BM         rows of a block's tile of C: whole 64s for each consumer, without SWAP
// BN         columns of the tile: whole 64s for each consumer, with SWAP
// BK         a phase of k: 128 bytes
// STAGES     phases that have room in shared memory
// CONSUMERS  groups of four warps that multiply
// CLUSTER    blocks that share what they bring of one side
// SWAP       1 where C^T = B^T A^T is computed, else 0
// ALIGNED    operands that were copied into scratch, along k: 1 for A, 2 for B, 3 for both, or 0
// HELD       blocks that an SM is to hold at once
// BOXED      1 where C's rows are whole 16 bytes, and the TMA unit stores them, else 0
// PROMOTE    how far along k sums of high halves stay in the tensor cores, which cut off; 0 where there are no halves
// TRANS_A    1 where A is stored k x m, else 0
// TRANS_B    1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(CONSUMERS)
#error "CONSUMERS must be defined"
#elif !defined(CLUSTER)
#error "CLUSTER must be defined"
#elif !defined(SWAP)
#error "SWAP must be defined"
#elif !defined(ALIGNED)
#error "ALIGNED must be defined"
#elif !defined(HELD)
#error "HELD must be defined"
#elif !defined(BOXED)
#error "BOXED must be defined"
#elif !defined(PROMOTE)
#error "PROMOTE must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#elif defined(DTYPE_FLOAT32) && !defined(PRECISION_TF32) && !defined(PRECISION_EMULATED)
#error "PRECISION_TF32 or PRECISION_EMULATED must be defined"
#endif
#include "dtype.h"
#include "fp16_terms.h"
#include "config.h"
#include "sm90_ptx.h"
#include "wgmma.h"
#include "scheduler.h"
#include "epilogue.h"
#include "mainloop.h"

// `share` phases of k are a slice's; `works` pieces are dealt out to clusters in turn. Places in scratch are in lines
// of 128 bytes.
extern "C" __global__ CLUSTERED __launch_bounds__(THREADS, HELD) void
matmul(const STORED *a, const STORED *b, STORED *c, const INDEX m, const INDEX n, const INDEX k, float *scratch,
       SPLIT_PLACES, const INDEX slices, const INDEX at_sums, const INDEX share, const INDEX group, const INDEX works,
       const __grid_constant__ Map left, const __grid_constant__ Map right,
       const __grid_constant__ Map out)
{
    extern __shared__ __align__(1024) unsigned char pool[];
    const unsigned stages = SHARED_AT(pool), full = stages + BARRIERS_AT, empty = full + 8 * STAGES;
    const int consumer = __shfl_sync(~0u, THREAD_X / 128, 0); // as one lane says, it is known to be the warp's
    const unsigned rows = SWAP ? n : m, columns = SWAP ? m : n, steps = (k + BK - 1) / BK;
    const INDEX pitch = (columns + 7) / 8 * 8;
    if (PLANES == 2 && DECLINED(scratch)) return;
    if (THREAD_X == 128 * CONSUMERS) {
        fetch_map(left), fetch_map(right), fetch_map(out);
        EACH(i, STAGES) set_barrier(full + 8 * i, 1), set_barrier(empty + 8 * i, 4 * CONSUMERS * CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    announce(consumer == CONSUMERS);
    if (consumer == CONSUMERS) {
        GIVE_REGISTERS();
        if (THREAD_X == 128 * CONSUMERS) {
            Ring ring;
            for (unsigned number = BLOCK / CLUSTER; number < works; number += gridDim.x / CLUSTER) {
                const Work now(number, rows, columns, steps, slices, share, group);
                for (int p = 0; p < now.count; p++, ring.next()) {
                    await(empty + 8 * ring.at, ring.parity ^ 1);
                    expect(full + 8 * ring.at, STAGE);
                    bring(left, right, now, p, steps, stages + ring.at * STAGE, full + 8 * ring.at);
                }
            }
        }
    } else {
        GET_REGISTERS();
        Ring ring;
        Products products;
        unsigned char *const room = pool + ROOM_AT + consumer * (2 * STRIP_BYTES);
        int turn = 0;
        for (unsigned number = BLOCK / CLUSTER; number < works; number += gridDim.x / CLUSTER) {
            const Work now(number, rows, columns, steps, slices, share, group);
            products.add_up(now.count, ring, pool, full, empty, consumer);
            EACH(h, HEIGHT) {
                const int row = now.row + (consumer * HEIGHT + h) * 64;
                products.scale_back(EXPONENTS(scratch), now, row, rows, columns);
                if (slices > 1)
                    leave_sums(scratch + (at_sums * 32 + (now.batch * slices + now.slice) * rows * pitch), rows, pitch,
                               row, now.column, products.sums[h]);
                else store_boxes(out, c + now.batch * m * n, m, n, now, row, room, turn, consumer, products.sums[h]);
            }
        }
        if (THREAD_X % 128 == 0) STORES_READ(0);
    }
    if (CLUSTER > 1) meet_cluster(); // others arrive at this block's barriers until then
}
