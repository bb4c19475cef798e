// Split-K in one launch: each block stores the partial sums of its split in the workspace, and the
// last block to arrive adds them up in a fixed order, so that results are deterministic.
//
// Splits come in groups of `fan`. The last block of a group sums the group, and the last of those
// blocks sums the groups: two short waits instead of a long one. The including file defines before:
//
// THREADS    threads of a block, one-dimensional
// ACC        pack of accumulators, of ACC_WIDTH elements
// OUT_PACKS  packs of accumulators that a thread has
//
// The workspace starts with 16,384 counters that are zero before and after a launch; tiles *
// (groups + 1) must not exceed them.
#define COUNTERS 16384
#define AFTER_COUNTERS(workspace) ((workspace) + COUNTERS * 4 / (int)sizeof(REAL))
#define PARTIAL_SIZE (OUT_PACKS * ACC_WIDTH)

// True in the last of `of` blocks to arrive at the counter, which it resets. `arrivals` is in
// shared memory.
#ifdef __OPENCL_VERSION__
#define LOAD_L2(n, p) LOAD(n, p)
#else
#include "gpu_scope.h"
// Reads what other blocks wrote from L2 (ld.cg), as L1 may be stale.
template <int n> INNER Pack<n> load_l2(const REAL *p)
{
    static_assert(sizeof(Pack<n>) == 16, "16 bytes are read at once");
    Pack<n> pack;
    *(float4 *)&pack = __ldcg((const float4 *)p);
    return pack;
}
#define LOAD_L2(n, p) load_l2<n>(p)
INNER int last_block_arrived(int *counter, const int of, int *arrivals)
{
    BARRIER();
    if (THREAD_X == 0) {
        *arrivals = arrive_acq_rel(counter);
        if (*arrivals == of - 1) {
            *counter = 0;
        }
    }
    BARRIER();
    return *arrivals == of - 1;
}
#endif

// The reads are latency-bound: load as many splits at once as fill so many packs of a thread.
#ifndef PACKS_IN_FLIGHT
#define PACKS_IN_FLIGHT 8
#endif
#define LOADS_IN_FLIGHT (OUT_PACKS < PACKS_IN_FLIGHT ? PACKS_IN_FLIGHT / OUT_PACKS : 1)
// Neighbouring threads have neighbouring packs in the workspace: a warp accesses whole lines.
#define PARTIAL_AT(e) (((e) * THREADS + THREAD_X) * ACC_WIDTH)

INNER void store_partials(GLOBAL REAL *to, ACC *acc)
{
    EACH_ROLLED(e, OUT_PACKS) {
        STORE(ACC_WIDTH, acc[e], to + PARTIAL_AT(e));
    }
}

INNER void sum_partials(const GLOBAL REAL *from, const int count, const INDEX pitch, ACC *acc)
{
    EACH_ROLLED(e, OUT_PACKS) {
        acc[e] = ZERO_PACK(ACC_WIDTH);
    }
    for (int i = 0; i < count; i += LOADS_IN_FLIGHT) {
        ACC read[LOADS_IN_FLIGHT * OUT_PACKS];
        EACH_ROLLED(e, LOADS_IN_FLIGHT * OUT_PACKS) {
            read[e] = i + e / OUT_PACKS < count
                          ? LOAD_L2(ACC_WIDTH,
                                    from + (i + e / OUT_PACKS) * pitch + PARTIAL_AT(e % OUT_PACKS))
                          : ZERO_PACK(ACC_WIDTH);
        }
        EACH_ROLLED(e, LOADS_IN_FLIGHT * OUT_PACKS) {
            acc[e % OUT_PACKS] = FMA_PACK(ACC_WIDTH, 1, read[e], acc[e % OUT_PACKS]);
        }
    }
}

#ifdef __OPENCL_VERSION__
// As below, in a uniform loop: a conditional barrier makes PoCL compile all that follows it twice.
INNER int reduce_split_k(GLOBAL REAL *workspace, GLOBAL REAL *partials, const INDEX tile,
                         const int split, const int splits, const int fan, LOCAL int *arrivals,
                         ACC *acc)
{
    const INDEX pitch = THREADS * PARTIAL_SIZE;
    const int groups = (splits + fan - 1) / fan, group = split / fan;
    const int members = splits - group * fan < fan ? splits - group * fan : fan;
    GLOBAL int *const counters = (GLOBAL int *)workspace + tile * (groups + 1);
    partials += tile * splits * pitch;
    int whole = 1;
    for (int level = 0; level < (splits == 1 ? 0 : groups == 1 ? 1 : 2); level++) {
        GLOBAL int *const counter = counters + (level ? groups : group);
        const int of = level ? groups : members;
        if (whole) {
            store_partials(partials + (level ? group * fan : split) * pitch, acc);
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (whole && THREAD_X == 0) {
            mem_fence(CLK_GLOBAL_MEM_FENCE);
            *arrivals = atomic_inc((volatile GLOBAL int *)counter);
            if (*arrivals == of - 1) {
                *counter = 0;
            }
            mem_fence(CLK_GLOBAL_MEM_FENCE);
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        whole = whole && *arrivals == of - 1;
        if (whole) {
            sum_partials(partials + (level ? 0 : group * fan) * pitch, of,
                         (level ? fan : 1) * pitch, acc);
        }
    }
    return whole;
}
#else
// True in the one block of a tile that has its whole sums and is to store them to C.
INNER int reduce_split_k(GLOBAL REAL *workspace, GLOBAL REAL *partials, const INDEX tile,
                         const int split, const int splits, const int fan, LOCAL int *arrivals,
                         ACC *acc)
{
    const INDEX pitch = THREADS * PARTIAL_SIZE;
    const int groups = (splits + fan - 1) / fan, group = split / fan;
    const int members = splits - group * fan < fan ? splits - group * fan : fan;
    GLOBAL int *const counters = (GLOBAL int *)workspace + tile * (groups + 1);
    partials += tile * splits * pitch;
    store_partials(partials + split * pitch, acc);
    if (!last_block_arrived(counters + group, members, arrivals)) {
        return 0;
    }
    sum_partials(partials + group * fan * pitch, members, pitch, acc);
    if (groups == 1) {
        return 1;
    }
    store_partials(partials + group * fan * pitch, acc);
    if (!last_block_arrived(counters + groups, groups, arrivals)) {
        return 0;
    }
    sum_partials(partials, groups, fan * pitch, acc);
    return 1;
}
#endif
