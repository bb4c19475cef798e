// Epilogue: accumulators go to C through shared memory, rounded once, so that neighbouring threads
// store neighbouring elements. An epilogue tile has 16 rows of every warp's part. On the way the
// slices of a block are reduced, and so are the splits of a tile, always in a fixed order. The
// including file defines before what split_k.h, slice_k.h and mma.h say, and SWIZZLED_AT of
// swizzled_smem.h.
#define EPI_ROWS (BM / WM * 16)
#define EPI_SIZE (EPI_ROWS * BN)
// Bytes of a row of it in shared memory, and of all of it.
#define EPI_LINE WHOLE_LINE(BN * 4)
#define EPI_BYTES (EPI_ROWS * EPI_LINE)
// Whether C's rows are aligned to two elements, and a thread has registers for a third way to store
// a tile.
#define STORES_BY_TWOS(to)               \
    (ACC_PACKS < 32 && PLANES == 1 &&    \
     (ADDRESS((to).c) | (to).n * sizeof(STORED)) % (2 * sizeof(STORED)) == 0)

// The tile in C, and for emulated float32 the exponents of its rows and columns.
struct OutputTile {
    STORED *c;
    INDEX n;
    int rows, columns;
    const int *exponents, *more;
};

INNER void store_acc_to_smem(char *smem, const ACC *acc)
{
    EACH(j, MMAS_N) {
        EACH(h, 2) {
            const int y = (BM % 3 ? WARP_ROW / WM * 16 : WARP_ROW) + GROUP_ID + h * 8,
                      on = BN % 3 ? j * 2 : j / 2 * (STRIDE_N / 4) + j % 2 * 2,
                      piece = WARP_COL / 4 + on + THREAD_IN_GROUP / 2;
            const float2 two = {ELEMENT(acc[j], 2 * h), ELEMENT(acc[j], 2 * h + 1)};
            *(float2 *)(smem + (SLICE_IDX * EPI_BYTES + SWIZZLED_AT(y, piece, EPI_LINE, 1) +
                                THREAD_IN_GROUP % 2 * 8)) = two;
        }
    }
}

// Number `e` of the epilogue tile's runs of `w` contiguous elements, summed over the slices.
template <int w> struct __align__(4 * w) Neighbours {
    REAL element[w];
};
#define ROW_OF(e) ((e) / (BN / w))
#define COLUMN_OF(e) ((e) % (BN / w) * w)
// The row of C's tile that row `y` of the first epilogue tile is.
#define C_ROW(y) (BM % 3 ? (y) / 16 * WM + (y) % 16 : (y))
template <int w> INNER Neighbours<w> load_staged(const char *smem, const unsigned e)
{
    const char *const at =
        smem + SWIZZLED_AT(ROW_OF(e), COLUMN_OF(e) / 4, EPI_LINE, 1) + COLUMN_OF(e) % 4 * 4;
    Neighbours<w> all;
    EACH(t, SLICE_K) {
        const Neighbours<w> own = *(const Neighbours<w> *)(at + t * EPI_BYTES);
        EACH(j, w) {
            all.element[j] = t ? all.element[j] + own.element[j] : own.element[j];
        }
    }
    return all;
}

// Stores `w` neighbours of a row at once. Those of 32 bits are the first to be evicted from L2,
// which a large C fills; emulated float32 has no registers for it.
#ifdef PRECISION_EMULATED
#define STORE_EVICT_FIRST(to, v) (*(to) = (v))
#else
#define STORE_EVICT_FIRST(to, v) __stcs(to, v)
#endif
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
#include "cvt_pack.h"
template <int w> INNER void store_run(STORED *to, const REAL *v)
{
    if constexpr (w == 4) {
        *(uint2 *)to = make_uint2(pair_of(v[0], v[1]), pair_of(v[2], v[3]));
    } else if constexpr (w == 2) {
        *(unsigned *)to = pair_of(v[0], v[1]);
    } else {
        *to = (STORED)pair_of(v[0], 0);
    }
}
#else
template <int w> INNER void store_run(STORED *to, const REAL *v)
{
    if constexpr (w == 4) {
        STORE_EVICT_FIRST((float4 *)to, make_float4(v[0], v[1], v[2], v[3]));
    } else if constexpr (w == 2) {
        STORE_EVICT_FIRST((float2 *)to, make_float2(v[0], v[1]));
    } else {
        STORE_EVICT_FIRST(to, v[0]);
    }
}
#endif

// Stores at row `y` and column `x` of the tile; by the element if C's rows are not aligned to w.
template <int w> INNER void store_elements(const OutputTile &to, STORED *at, const int y,
                                           const int x, Neighbours<w> v, const int wide)
{
    if (y >= to.rows || x >= to.columns) {
        return;
    }
#ifdef PRECISION_EMULATED
    EACH(j, w) {
        v.element[j] =
            SCALED_BACK(v.element[j], 0, to.exponents[y], x + j < to.columns ? to.more[x + j] : 0);
    }
#endif
    if (w > 1 && wide) {
        store_run<w>(at, v.element);
    } else {
        EACH(j, w) {
            if (x + j < to.columns) {
                store_run<1>(at + j, v.element + j);
            }
        }
    }
}

// A thread's iterations over an epilogue tile: as many for all threads, unless parts are narrow and
// slices many.
#define EPI_TURNS(w) ((EPI_SIZE / w + THREADS - 1) / THREADS)
#define EACH_OF_EPI_TILE(e, w)                                               \
    _Pragma("unroll 4") for (unsigned i = 0, e = THREAD_X; i < EPI_TURNS(w); \
                             i++,                                            \
                             e += THREADS) if (EPI_SIZE / w % THREADS == 0 || e < EPI_SIZE / w)

// A thread's runs of an epilogue tile. Where threads are a multiple of a row's runs, or the other
// way round, a run's place is the thread's own plus a constant.
template <int w> INNER void store_round(const OutputTile &to, const char *smem, const int epi_tile)
{
    if constexpr (BN % 3 == 0) {
        unsigned e = THREAD_X;
        asm volatile("" : "+r"(e)); // places are computed anew: there are no registers to keep them
#pragma unroll 2
        for (; e < EPI_SIZE / w; e += THREADS) {
            const int y = (int)C_ROW(ROW_OF(e)) + epi_tile * STRIDE_M, x = (int)COLUMN_OF(e);
            store_elements<w>(to, to.c + (y * to.n + x), y, x, load_staged<w>(smem, e), 1);
        }
        return;
    }
    const int row = (int)ROW_OF(THREAD_X), x = (int)COLUMN_OF(THREAD_X),
              y = C_ROW(row) + epi_tile * STRIDE_M;
    STORED *const at = to.c + (y * to.n + x);
    EACH(i, EPI_TURNS(w)) {
        const int e = i * THREADS, down = C_ROW(ROW_OF(e)), on = COLUMN_OF(e);
        if (EPI_SIZE / w % THREADS == 0 || THREAD_X + e < EPI_SIZE / w) {
            store_elements<w>(to, at + (down * to.n + on), y + down, x + on,
                              load_staged<w>(smem, (unsigned)(THREAD_X + e)), 1);
        }
    }
}

INNER void store_epi_partials(REAL *to, const char *smem)
{
    EACH_OF_EPI_TILE(e, 4) {
        *(Neighbours<4> *)(to + e * 4) = load_staged<4>(smem, e);
    }
}

// Sum of `count` splits, `pitch` apart, in their order; read from L2, as L1 may be stale.
INNER Neighbours<4> sum_of_partials(const REAL *from, const int count, const INDEX pitch)
{
    Neighbours<4> all = {};
#pragma unroll 8
    for (int i = 0; i < count; i++, from += pitch) {
        const float4 v = __ldcg((const float4 *)from);
        const REAL own[4] = {v.x, v.y, v.z, v.w};
        EACH(j, 4) {
            all.element[j] += own[j];
        }
    }
    return all;
}

// Two levels as in split_k.h: the last block of a group of `fan` splits sums the group, the last of
// those blocks the groups. `partials` points to the tile's partial sums, of which each of a
// cluster's blocks adds its own rows.
INNER void reduce_split_k_tile(int *workspace, REAL *partials, const INDEX tile, const int split,
                               const int splits, const int fan, int *arrivals, const OutputTile &to,
                               const int wide)
{
    const int groups = (splits + fan - 1) / fan, group = split / fan;
    const INDEX counted = tile * CLUSTER_K + cta_rank_in_cluster();
    int *counter = workspace + counted * (groups + 1) + group;
    int members = splits - group * fan < fan ? splits - group * fan : fan, last = groups == 1;
    REAL *from = partials + (INDEX)group * fan * (BM * BN);
    INDEX pitch = BM * BN;
#pragma unroll 1
    while (last_block_arrived(counter, members, arrivals)) {
#pragma unroll 1
        for (unsigned e = THREAD_X; e < BM * BN / 4; e += THREADS) {
            if (!IS_OWN_ROW((int)(e / (EPI_SIZE / 4)))) {
                continue;
            }
            const Neighbours<4> all = sum_of_partials(from + e * 4, members, pitch);
            if (!last) {
                *(Neighbours<4> *)(from + e * 4) = all;
            } else {
                constexpr int w = 4;
                const unsigned inside = e % (EPI_SIZE / w);
                const int x = (int)COLUMN_OF(inside),
                          y = (int)(C_ROW(ROW_OF(inside)) + e / (EPI_SIZE / w) * STRIDE_M);
                store_elements<w>(to, to.c + (y * to.n + x), y, x, all, wide);
            }
        }
        if (last) {
            return;
        }
        counter += groups - group;
        members = groups;
        from = partials;
        pitch *= fan;
        last = 1;
    }
}
