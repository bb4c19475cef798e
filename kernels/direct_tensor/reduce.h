// The reduction over slices of k: a block's warps write their sums to its shared memory, and each
// adds those of some bands of eight rows, in the slices' order. Of a cluster's blocks each then
// adds some bands of all blocks, which these send to its shared memory.
#if SLICE_K > 1
#define BANDS (BM / 8)
// Bands of all blocks that one of a cluster adds.
#define OWN_BANDS ((BANDS + CLUSTER_K - 1) / CLUSTER_K)
#include "cluster_sums.h"

// The pairs of each lane for the columns of a band.
typedef Pair BandSums[MMAS_N][32];

INNER void expect_bands(const unsigned block)
{
#if CLUSTER_K > 1
    const int bands = (BANDS + CLUSTER_K - 1 - (int)block) / CLUSTER_K;
    expect_sums(sums_barrier(), CLUSTER_K * bands * (int)sizeof(BandSums));
#endif
}

// Adds a lane's pairs of `count` slices, each `apart` bands from the one before it.
template <int count>
INNER void add_bands(Pair (&to)[MMAS_N], const BandSums *first, const int apart)
{
    EACH(j, MMAS_N) {
        to[j] = first[0][j][LANE];
        EACH(s, count - 1) {
            const Pair more = first[(s + 1) * apart][j][LANE];
            to[j].first += more.first;
            to[j].second += more.second;
        }
    }
}

// `store` is given a band, a lane's pairs of it, and shared memory that no other warp reads then.
template <class Store>
INNER void add_slices(const ACC (&acc)[MMAS_M][MMAS_N], const unsigned warp, const unsigned block,
                      const Store &store)
{
    __shared__ BandSums sums[SLICE_K][BANDS];
    EACH(r, BANDS) {
        Pair pairs[MMAS_N];
        pairs_of(pairs, acc[r / 2], r % 2);
        EACH(j, MMAS_N) {
            sums[warp][r][j][LANE] = pairs[j];
        }
    }
    BARRIER();
#if CLUSTER_K > 1
    __shared__ BandSums of_blocks[CLUSTER_K][OWN_BANDS];
    cluster_wait(); // all blocks are there
#endif
    EACH(r, BANDS) {
        if (r % SLICE_K == warp) {
            Pair pairs[MMAS_N];
            add_bands<SLICE_K>(pairs, sums[0] + r, BANDS);
#if CLUSTER_K > 1
            const unsigned to = address_in_block(
                               (unsigned)__cvta_generic_to_shared(of_blocks[block][r / CLUSTER_K]),
                               r % CLUSTER_K),
                           barrier = address_in_block(sums_barrier(), r % CLUSTER_K);
            EACH(j, MMAS_N) {
                send_sums(to + (j * 32 + LANE) * (int)sizeof(Pair), pairs[j].first,
                          pairs[j].second, barrier);
            }
#else
            store(r, pairs, sums[0][r]);
#endif
        }
    }
#if CLUSTER_K > 1
    wait_for_sums(sums_barrier());
    EACH(i, OWN_BANDS) {
        const int band = i * CLUSTER_K + block;
        if (i % SLICE_K == warp && band < BANDS) {
            Pair pairs[MMAS_N];
            add_bands<CLUSTER_K>(pairs, of_blocks[0] + i, OWN_BANDS);
            store(band, pairs, of_blocks[0][i]);
        }
    }
#endif
}
#endif
