// From a warp's registers to C, rounded once: through shared memory, so that neighbouring threads have neighbours of a row,
// as many as one store takes. A round takes 16 rows of every warp's part. What the teams of a block have is added up on
// the way, and so is what the blocks of a tile's slices of k have left in scratch: always in the same order. The including
// file defines before what split_k.h, slice_k.h and mma.h say, and PLACE of swizzled_smem.h.
#define ROUND_ROWS (BM / WM * 16)
#define ROUND (ROUND_ROWS * BN)

// Where the tile is in C, and for split operands the exponents of its rows and columns.
struct Target {
    STORED *c;
    INDEX n;
    int rows, columns;
    const int *exponents, *more;
};

INNER void stage(char *pool, const SUM *sums)
{
    EACH(j, BANDS) EACH(h, 2) {
        const int y = TOP / WM * 16 + QUAD + h * 8, piece = LEFT / 4 + j * 2 + MEMBER / 2;
        const float2 two = {ELEMENT(sums[j], 2 * h), ELEMENT(sums[j], 2 * h + 1)};
        *(float2 *)(pool + (TEAM_AT * ROUND * 4 + PLACE(y, piece, BN * 4, 1) + MEMBER % 2 * 8)) = two;
    }
}

// `w` neighbours, number `e` of a round.
template <int w> struct __align__(4 * w) Neighbours { REAL element[w]; };
#define ROW_OF(e) ((e) / (BN / w))
#define COLUMN_OF(e) ((e) % (BN / w) * w)
template <int w> INNER Neighbours<w> staged(const char *pool, const int e)
{
    const char *const at = pool + PLACE(ROW_OF(e), COLUMN_OF(e) / 4, BN * 4, 1) + COLUMN_OF(e) % 4 * 4;
    Neighbours<w> all;
    EACH(t, SLICES) {
        const Neighbours<w> own = *(const Neighbours<w> *)(at + t * (ROUND * 4));
        EACH(j, w) all.element[j] = t ? all.element[j] + own.element[j] : own.element[j];
    }
    return all;
}

#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
#include "cvt_pack.h"
INNER void put_four(STORED *to, const REAL *v) { *(uint2 *)to = make_uint2(pair_of(v[0], v[1]), pair_of(v[2], v[3])); }
INNER void put_one(STORED *to, const REAL v) { *to = (STORED)pair_of(v, 0); }
#else
INNER void put_four(STORED *to, const REAL *v) { *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]); }
INNER void put_one(STORED *to, const REAL v) { *to = v; }
#endif

// One element after the other where rows of C do not start at multiples of four elements' bytes.
template <int w> INNER void put(const Target &to, const int round, const int e, Neighbours<w> v, const int wide)
{
    const int y = ROW_OF(e) / 16 * WM + round * 16 + ROW_OF(e) % 16, x = COLUMN_OF(e);
    if (y >= to.rows || x >= to.columns) return;
    STORED *const at = to.c + (y * to.n + x);
#ifdef PRECISION_EMULATED
    EACH(j, w) v.element[j] = SCALED_BACK(v.element[j], 0, to.exponents[y], x + j < to.columns ? to.more[x + j] : 0);
#endif
    if (w == 4 && wide) put_four(at, v.element);
    else EACH(j, w) if (x + j < to.columns) put_one(at + j, v.element[j]);
}

// A thread's turns of a round. All threads have equally many, but where parts are narrow and teams are many.
#define TURNS_OF(w) ((ROUND / w + THREADS - 1) / THREADS)
#define EACH_OF_ROUND(e, w)                                                        \
    _Pragma("unroll 4") for (int i = 0, e = THREAD_X; i < TURNS_OF(w); i++, e += THREADS) \
        if (ROUND / w % THREADS == 0 || e < ROUND / w)

template <int w> INNER void put_round(const Target &to, const char *pool, const int round)
{
    EACH_OF_ROUND(e, w) put<w>(to, round, e, staged<w>(pool, e), w == 4);
}

INNER void leave_round(REAL *to, const char *pool)
{
    EACH_OF_ROUND(e, 4) *(Neighbours<4> *)(to + e * 4) = staged<4>(pool, e);
}

// What `count` slices have left, `pitch` apart, added up in their order; past the SM's own cache, which may be older.
INNER Neighbours<4> gathered(const REAL *from, const int count, const INDEX pitch)
{
    Neighbours<4> all = {};
#pragma unroll 8
    for (int i = 0; i < count; i++, from += pitch) {
        const float4 v = __ldcg((const float4 *)from);
        const REAL own[4] = {v.x, v.y, v.z, v.w};
        EACH(j, 4) all.element[j] += own[j];
    }
    return all;
}

// In two levels, as split_k.h has it: the last block of a group of `fan` slices adds up the group's, the last of those the
// groups'. `left` is where the tile's slices begin.
INNER void add_slices(int *scratch, REAL *left, const INDEX tile, const int slice, const int slices, const int fan,
                      int *told, const Target &to, const int wide)
{
    const int groups = (slices + fan - 1) / fan, group = slice / fan;
    int *counter = scratch + tile * (groups + 1) + group;
    int members = slices - group * fan < fan ? slices - group * fan : fan, last = groups == 1;
    REAL *from = left + (INDEX)group * fan * (BM * BN);
    INDEX pitch = BM * BN;
#pragma unroll 1
    while (all_arrived(counter, members, told)) {
#pragma unroll 1
        for (int e = THREAD_X; e < BM * BN / 4; e += THREADS) {
            const Neighbours<4> all = gathered(from + e * 4, members, pitch);
            if (!last) *(Neighbours<4> *)(from + e * 4) = all;
            else put(to, e / (ROUND / 4), e % (ROUND / 4), all, wide);
        }
        if (last) return;
        counter += groups - group, members = groups, from = left, pitch *= fan, last = 1;
    }
}
