// The reduction over slices of k: a block's warps write their sums to its shared memory, and each
// adds those of some elements, in the slices' order. Of a cluster's blocks each then adds some
// elements of all blocks, which these send to its shared memory.
#if SLICES > 1
// Elements of all blocks that one of a cluster adds.
#define OWN_ELEMENTS ((ELEMENTS + CLUSTER_K - 1) / CLUSTER_K)
#include "cluster_sums.h"

INNER void expect_elements(const int block)
{
#if CLUSTER_K > 1
    const int elements = (ELEMENTS + CLUSTER_K - 1 - block) / CLUSTER_K;
    expect_sums(sums_barrier(), TEAMS * CLUSTER_K * elements * (32 * (int)sizeof(REAL)));
#endif
}

// Adds `count` sums of a lane, each `apart` lines of 32 from the one before it.
template <int count> INNER REAL sum_of(const REAL *sums, const int apart)
{
    REAL sum = sums[LANE];
    EACH(s, count - 1) {
        sum += sums[(s + 1) * apart * 32 + LANE];
    }
    return sum;
}

INNER void add_slices(const TileOfC &to, const ACC *acc, const int warp, const int block)
{
    const int team = warp / SLICE_K, slice = warp % SLICE_K;
    __shared__ REAL sums[TEAMS][SLICE_K][ELEMENTS][32];
    EACH(e, ELEMENTS) {
        sums[team][slice][e][LANE] = element_of(acc, e);
    }
    BARRIER();
#if CLUSTER_K > 1
    __shared__ REAL of_blocks[TEAMS][CLUSTER_K][OWN_ELEMENTS][32];
    cluster_wait(); // all blocks are there
#endif
    for (int e = slice; e < ELEMENTS; e += SLICE_K) {
        const REAL sum = sum_of<SLICE_K>(sums[team][0][e], ELEMENTS);
#if CLUSTER_K > 1
        const unsigned at = (unsigned)__cvta_generic_to_shared(
            &of_blocks[team][block][e / CLUSTER_K][LANE]);
        send_sum(address_in_block(at, e % CLUSTER_K), sum,
                 address_in_block(sums_barrier(), e % CLUSTER_K));
#else
        store_element(to, e, sum);
#endif
    }
#if CLUSTER_K > 1
    wait_for_sums(sums_barrier());
    for (int i = slice; i < OWN_ELEMENTS; i += SLICE_K) {
        const int e = i * CLUSTER_K + block;
        if (e < ELEMENTS) {
            store_element(to, e, sum_of<CLUSTER_K>(of_blocks[team][0][i], OWN_ELEMENTS));
        }
    }
#endif
}
#endif
