// A product whose k is shared out among blocks: each leaves the sums of its slice in scratch, and the last to arrive
// adds them up, always in the same order, so that one input has one output. There is no second launch.
//
// Slices come in groups of `fan`. A group's last block adds up the group's sums, and of the groups' last blocks the last
// one adds up those: two short waits where one long one would be. The including file defines before:
//
// THREADS  threads of a block, one-dimensional     SUM        a PACK of sums, of SUM_RUN elements
// SUMS     packs of sums that a thread has         SUM_RUN    RUN of what a thread's neighbours are
//
// Scratch starts with 16,384 counters that are zero before and after a launch; tiles * (groups + 1) must not exceed it.
#define COUNTERS 16384
#define SUM_SIZE (SUMS * SUM_RUN)

// Whether all `of` blocks that count here have come; the last one puts the counter back to zero. `told` is SHARED.
#ifdef __OPENCL_VERSION__
#define FRESH(n, p) LOAD(n, p)
#else
// What other blocks wrote is read past the SM's own cache, which may be older.
template <int n> INNER Pack<n> fresh(const REAL *p)
{
    static_assert(sizeof(Pack<n>) == 16, "16 bytes are read at once");
    Pack<n> pack;
    *(float4 *)&pack = __ldcg((const float4 *)p);
    return pack;
}
#define FRESH(n, p) fresh<n>(p)
INNER int all_arrived(int *counter, const int of, int *told)
{
    __threadfence(); // every thread's sums are out before its block is counted
    __syncthreads();
    if (THREAD_X == 0) {
        *told = atomicAdd(counter, 1);
        if (*told == of - 1) *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return *told == of - 1;
}
#endif

// One block reads what many wrote, and each read takes long: as many slices at a time as fill 8 packs of a thread.
#define TOGETHER (SUMS < 8 ? 8 / SUMS : 1)
// Neighbouring threads have neighbouring packs in scratch: a warp writes and reads whole lines.
#define SUM_AT(e) (((e) * THREADS + THREAD_X) * SUM_RUN)

INNER void leave_sums(GLOBAL REAL *to, SUM *sums)
{
    EACH(e, SUMS) STORE(SUM_RUN, sums[e], to + SUM_AT(e));
}

INNER void gather_sums(const GLOBAL REAL *from, const int count, const INDEX pitch, SUM *sums)
{
    EACH(e, SUMS) sums[e] = NOTHING(SUM_RUN);
    for (int i = 0; i < count; i += TOGETHER) {
        SUM read[TOGETHER * SUMS];
        EACH(e, TOGETHER * SUMS)
            read[e] = i + e / SUMS < count ? FRESH(SUM_RUN, from + (i + e / SUMS) * pitch + SUM_AT(e % SUMS))
                                           : NOTHING(SUM_RUN);
        EACH(e, TOGETHER * SUMS) sums[e % SUMS] = SCALED(SUM_RUN, 1, read[e], sums[e % SUMS]);
    }
}

#ifdef __OPENCL_VERSION__
// As below, in a loop that all threads go through alike: a barrier behind a condition makes PoCL compile all that
// follows it once more.
INNER int sum_slices(GLOBAL REAL *scratch, const INDEX tile, const int slice, const int slices, const int fan,
                     LOCAL int *told, SUM *sums)
{
    const INDEX pitch = THREADS * SUM_SIZE;
    const int groups = (slices + fan - 1) / fan, group = slice / fan;
    const int members = slices - group * fan < fan ? slices - group * fan : fan;
    GLOBAL int *const counters = (GLOBAL int *)scratch + tile * (groups + 1);
    GLOBAL REAL *const left = scratch + COUNTERS * 4 / (int)sizeof(REAL) + tile * slices * pitch;
    int whole = 1;
    for (int level = 0; level < (slices == 1 ? 0 : groups == 1 ? 1 : 2); level++) {
        GLOBAL int *const counter = counters + (level ? groups : group);
        const int of = level ? groups : members;
        if (whole) leave_sums(left + (level ? group * fan : slice) * pitch, sums);
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (whole && THREAD_X == 0) {
            mem_fence(CLK_GLOBAL_MEM_FENCE);
            *told = atomic_inc((volatile GLOBAL int *)counter);
            if (*told == of - 1) *counter = 0;
            mem_fence(CLK_GLOBAL_MEM_FENCE);
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        whole = whole && *told == of - 1;
        if (whole) gather_sums(left + (level ? 0 : group * fan) * pitch, of, (level ? fan : 1) * pitch, sums);
    }
    return whole;
}
#else
// Whether this block now has the tile's whole sums, and is to write them to C: of all slices' blocks one has.
INNER int sum_slices(GLOBAL REAL *scratch, const INDEX tile, const int slice, const int slices, const int fan,
                     LOCAL int *told, SUM *sums)
{
    const INDEX pitch = THREADS * SUM_SIZE;
    const int groups = (slices + fan - 1) / fan, group = slice / fan;
    const int members = slices - group * fan < fan ? slices - group * fan : fan;
    GLOBAL int *const counters = (GLOBAL int *)scratch + tile * (groups + 1);
    GLOBAL REAL *const left = scratch + COUNTERS * 4 / (int)sizeof(REAL) + tile * slices * pitch;
    leave_sums(left + slice * pitch, sums);
    if (!all_arrived(counters + group, members, told)) return 0;
    gather_sums(left + group * fan * pitch, members, pitch, sums);
    if (groups == 1) return 1;
    leave_sums(left + group * fan * pitch, sums);
    if (!all_arrived(counters + groups, groups, told)) return 0;
    gather_sums(left, groups, fan * pitch, sums);
    return 1;
}
#endif
