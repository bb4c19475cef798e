// The partial sums of stream-K (Osama et al., "Stream-K", PPoPP 2023). The including file defines
// before:
//
// THREADS    threads of a block, one-dimensional
// ACC        pack of WIDE accumulators
// OUT_PACKS  packs of accumulators that a thread has
//
// Stream-K: if several blocks share a tile's k tiles, all but the one that has the first store
// partial sums in the workspace, and that one adds them up in a fixed order. It waits for blocks
// with lower indices, which are running or have finished. The workspace starts with 16,384 flags,
// zero before and after a launch: a block's partial sums are stored.
#define PARTIAL_ELEMENTS (OUT_PACKS * WIDE)
#define IS_STORED(block) ((int *)workspace + (block))
#include "gpu_scope.h"

// Neighbouring threads have neighbouring elements: a warp accesses whole lines.
INNER void store_partial(REAL *workspace, REAL *remaining, const unsigned block, const ACC *acc)
{
    REAL *const own = remaining + (INDEX)block * (THREADS * PARTIAL_ELEMENTS) + THREAD_X;
    EACH(e, PARTIAL_ELEMENTS) {
        own[e * THREADS] = acc[e / WIDE].element[e % WIDE];
    }
    BARRIER();
    if (THREAD_X == 0) {
        store_release(IS_STORED(block), 1);
    }
}

// `rest` k tiles belong to blocks before this one: of each the last `each` that it has, one more
// from rank `more` down, or what remains.
INNER void add_partials(REAL *workspace, const REAL *remaining, const unsigned block, unsigned rank,
                        unsigned rest, const unsigned each, const unsigned more, ACC *acc)
{
#pragma unroll 1
    for (unsigned from = block; rest > 0;) {
        const unsigned work = each + (++rank < more);
        rest -= rest < work ? rest : work;
        from--;
        if (THREAD_X == 0) {
            while (load_acquire(IS_STORED(from)) == 0) {
                continue;
            }
            *IS_STORED(from) = 0;
        }
        BARRIER();
        const REAL *const other = remaining + (INDEX)from * (THREADS * PARTIAL_ELEMENTS) + THREAD_X;
        EACH(e, PARTIAL_ELEMENTS) {
            acc[e / WIDE].element[e % WIDE] += __ldcg(other + e * THREADS); // from L2
        }
    }
}
