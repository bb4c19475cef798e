// Split-K's reduction as a launch of its own: each pack of C's partial sums is summed over the
// splits in a fixed order, so that results are deterministic. Loads are coalesced, 16 bytes each,
// and independent. The including file has included portable.h.
//
// REDUCERS  threads that share the splits of a pack; their sums meet in shared memory
#if !defined(REDUCERS)
#error "REDUCERS must be defined"
#endif
#define THREADS 256
#define BLOCK_PACKS (THREADS / REDUCERS)
#define REDUCER (THREAD_X / BLOCK_PACKS)

// The sum over splits of the pack at `partials`, the first split's, each `pitch` after the one
// before. Complete in threads with REDUCER 0. `inside` is 0 in threads past C's end.
INNER PACK(WIDE) reduce_splits(const GLOBAL REAL *partials, const INDEX splits, const INDEX pitch,
                               const int inside, LOCAL REAL *smem)
{
    PACK(WIDE) sum = ZERO_PACK(WIDE);
    if (inside) {
        TURNS(i, (int)((splits - REDUCER + REDUCERS - 1) / REDUCERS), 8) {
            const GLOBAL REAL *const at = partials + (i * REDUCERS + REDUCER) * pitch;
            sum = FMA_PACK(WIDE, 1, LOAD(WIDE, at), sum);
        }
    }
    if (REDUCERS > 1) {
        STORE(WIDE, sum, smem + THREAD_X * WIDE);
        BARRIER();
        EACH(i, REDUCERS - 1) {
            if (REDUCER == 0) {
                const LOCAL REAL *const at = smem + ((i + 1) * BLOCK_PACKS + THREAD_X) * WIDE;
                sum = FMA_PACK(WIDE, 1, LOAD(WIDE, at), sum);
            }
        }
    }
    return sum;
}
