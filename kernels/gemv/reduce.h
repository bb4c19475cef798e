// Sums over the threads that share k: those of a warp by shuffles (PTX ISA, "shfl.sync"), a block's
// warps through shared memory, a cluster's blocks through each other's shared memory. The order is
// fixed, so that results are deterministic. The including file defines:
//
// SHORT, LONG, EACH_LONG  the tile, and a thread's elements along its long side
// LONG_AT(e)              where those lie
// SLICE_IDX, SLICE_K      which part of k the thread has; neighbours in a warp are LANES_APART
// CLUSTER_K               blocks that share k
#define LANES_APART (LONG_BY_K ? 1 : LONG_THREADS)
#define WARP_SLICES (32 / LANES_APART < 1 ? 1 : MIN(SLICE_K, 32 / LANES_APART))
#define WARPS_K (SLICE_K / WARP_SLICES)
// A line of shared memory has the sums of all warps for an element of the tile.
#define LINE (WARPS_K == 1 ? 1 : WARPS_K + 1)
#define ELEMENTS (SHORT * LONG)
#define TOTALS (ELEMENTS * LINE)
// Elements of all blocks that one of a cluster adds: whole sectors of C, where there are as many.
#define OWN_ELEMENTS MAX((ELEMENTS + CLUSTER_K - 1) / CLUSTER_K, 8)
#define BARRIER_SIZE (CLUSTER_K > 1 ? 16 / (int)sizeof(REAL) : 0) // an mbarrier, before the sums
#define SMEM_SIZE (BARRIER_SIZE + TOTALS + (CLUSTER_K > 1 ? CLUSTER_K * OWN_ELEMENTS : 0))
#include "cluster_sums.h"

INNER void expect_elements(REAL *smem, const int block)
{
#if CLUSTER_K > 1
    const int elements = MAX(MIN(ELEMENTS - block * OWN_ELEMENTS, OWN_ELEMENTS), 0);
    expect_sums((unsigned)__cvta_generic_to_shared(smem),
                CLUSTER_K * elements * (int)sizeof(REAL));
#endif
}

// Adds up `count` lanes that are `apart`; each of them has the sum.
template <int count, int apart> INNER REAL sum_of_lanes(REAL sum)
{
#pragma unroll
    for (int lanes = count / 2; lanes > 0; lanes /= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes * apart);
    }
    return sum;
}

INNER void reduce_slices(REAL *smem, const REAL (&acc)[SHORT][EACH_LONG])
{
    EACH(s, SHORT) {
        EACH(e, EACH_LONG) {
            const REAL sum = sum_of_lanes<WARP_SLICES, LANES_APART>(acc[s][e]);
            if (SLICE_IDX % WARP_SLICES == 0) {
                smem[BARRIER_SIZE + (s * LONG + LONG_AT(e)) * LINE + SLICE_IDX / WARP_SLICES] = sum;
            }
        }
    }
    BARRIER();
}

// C's elements are `down` apart along the tile's short side and `along` apart along its long one.
INNER void store_element(STORED *c, const int element, const INDEX down, const INDEX along,
                         const int shorts, const int longs, const REAL sum)
{
    const int s = element / LONG, l = element % LONG;
    if (s < shorts && l < longs) {
        WRITE(c, s * down + l * along, sum);
    }
}

// Each element's warps are added up by as many lanes.
INNER void store_sums(REAL *smem, STORED *c, const INDEX down, const INDEX along, const int shorts,
                      const int longs)
{
    constexpr int items = ELEMENTS * WARPS_K;
    const REAL *const sums = smem + BARRIER_SIZE;
#if CLUSTER_K > 1
    const REAL *const of_blocks = sums + TOTALS;
    const unsigned barrier = (unsigned)__cvta_generic_to_shared(smem);
    const int block = (int)cta_rank_in_cluster();
    cluster_wait(); // all blocks are there
#endif
    EACH(i, (items + THREADS - 1) / THREADS) {
        const int item = i * THREADS + THREAD_X, element = item / WARPS_K, warp = item % WARPS_K;
        const REAL sum =
            sum_of_lanes<WARPS_K, 1>(item < items ? sums[element * LINE + warp] : (REAL)0);
        if (item >= items || warp > 0) {
            continue;
        }
#if CLUSTER_K > 1
        const int owner = element / OWN_ELEMENTS;
        const unsigned at = (unsigned)__cvta_generic_to_shared(
            of_blocks + (block * OWN_ELEMENTS + element % OWN_ELEMENTS));
        send_sum(address_in_block(at, owner), sum, address_in_block(barrier, owner));
#else
        store_element(c, element, down, along, shorts, longs, sum);
#endif
    }
#if CLUSTER_K > 1
    for (int i = THREAD_X; i < OWN_ELEMENTS; i += THREADS) {
        const int element = block * OWN_ELEMENTS + i;
        if (element >= ELEMENTS) {
            break;
        }
        wait_for_sums(barrier);
        REAL sum = 0;
        EACH(from, CLUSTER_K) {
            sum += of_blocks[from * OWN_ELEMENTS + i];
        }
        store_element(c, element, down, along, shorts, longs, sum);
    }
#endif
}
