// Sliced-K: the threads of a block form SLICE_K slices. Each slice accumulates a part of every k
// tile for the whole tile of C; at the end the slices are reduced through shared memory in a fixed
// order, and each thread has the result for a part of the tile. The including file defines before:
//
// SLICE_THREADS   threads of a slice
// SLICE_K         slices of a block
// ACC, ACC_WIDTH  pack of accumulators, and its elements
// ACC_PACKS       packs that a thread accumulates
// OUT_PACKS       packs that a thread has after the reduction
#define SLICE_THREAD (SLICE_K == 1 ? THREAD_X : THREAD_X % SLICE_THREADS)
#define SLICE_IDX (SLICE_K == 1 ? 0 : THREAD_X / SLICE_THREADS)
// Neighbouring threads write neighbouring packs: no bank conflicts.
#define SLICE_SMEM_AT(team, e) \
    ((((team) * ACC_PACKS + (e)) * SLICE_THREADS + SLICE_THREAD) * ACC_WIDTH)

INNER void reduce_slices(LOCAL REAL *smem, ACC *acc)
{
    BARRIER(); // all have read the last k tile: its stage is free
    EACH_ROLLED(e, ACC_PACKS) {
        STORE(ACC_WIDTH, acc[e], smem + SLICE_SMEM_AT(SLICE_IDX, e));
    }
    BARRIER();
    EACH_ROLLED(e, OUT_PACKS) {
        acc[e] = LOAD(ACC_WIDTH, smem + SLICE_SMEM_AT(0, SLICE_IDX * OUT_PACKS + e));
        EACH_ROLLED(i, SLICE_K - 1) {
            acc[e] = FMA_PACK(
                ACC_WIDTH, 1,
                LOAD(ACC_WIDTH, smem + SLICE_SMEM_AT(i + 1, SLICE_IDX * OUT_PACKS + e)), acc[e]);
        }
    }
}
