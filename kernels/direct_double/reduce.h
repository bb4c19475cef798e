// The reduction over slices of k: a block's warps write their sums to its shared memory, and each
// adds those of some elements, in the slices' order. Of a cluster's blocks each then adds some
// elements of all blocks, which these write to its shared memory (PTX ISA, "mapa").
#if SLICES > 1
// Elements of all blocks that one of a cluster adds.
#define OWN_ELEMENTS ((ELEMENTS + CLUSTER_K - 1) / CLUSTER_K)

// Adds `count` sums of a lane, each `apart` lines of 32 from the one before it.
template <int count> INNER REAL sum_of(const REAL *sums, const int apart)
{
    REAL sum = sums[LANE];
    EACH(s, count - 1) {
        sum += sums[(s + 1) * apart * 32 + LANE];
    }
    return sum;
}

INNER void write_to_block(const REAL *at, const unsigned block, const REAL value)
{
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 " st.shared::cluster.f64 [there], %2;}" ::"r"(
                     (unsigned)__cvta_generic_to_shared(at)),
                 "r"(block), "d"(value)
                 : "memory");
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
        write_to_block(&of_blocks[team][block][e / CLUSTER_K][LANE], e % CLUSTER_K, sum);
#else
        store_element(to, e, sum);
#endif
    }
#if CLUSTER_K > 1
    cluster_sync();
    for (int i = slice; i < OWN_ELEMENTS; i += SLICE_K) {
        const int e = i * CLUSTER_K + block;
        if (e < ELEMENTS) {
            store_element(to, e, sum_of<CLUSTER_K>(of_blocks[team][0][i], OWN_ELEMENTS));
        }
    }
#endif
}
#endif
