// The reduction over slices of k: a block's warps write their sums to its shared memory, and each
// adds those of some bands of eight rows, in the slices' order. Of a cluster's blocks each then
// adds some bands of all blocks, which these write to its shared memory (PTX ISA, "mapa").
#if SLICE_K > 1
#define BANDS (BM / 8)
// Bands of all blocks that one of a cluster adds.
#define OWN_BANDS ((BANDS + CLUSTER_K - 1) / CLUSTER_K)

// The pairs of each lane for the columns of a band.
typedef Pair BandSums[MMAS_N][32];

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

INNER void write_to_block(const Pair *at, const unsigned block, const Pair &value)
{
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 " st.shared::cluster.v2.f32 [there], {%2, %3};}" ::"r"(
                     (unsigned)__cvta_generic_to_shared(at)),
                 "r"(block), "f"(value.first), "f"(value.second)
                 : "memory");
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
            EACH(j, MMAS_N) {
                write_to_block(&of_blocks[block][r / CLUSTER_K][j][LANE], r % CLUSTER_K, pairs[j]);
            }
#else
            store(r, pairs, sums[0][r]);
#endif
        }
    }
#if CLUSTER_K > 1
    cluster_sync();
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
