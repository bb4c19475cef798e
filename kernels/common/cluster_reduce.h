// Sums over the blocks of a cluster that share k (CLUSTER_K > 1; from sm_90). A thread's
// accumulators are rows of packs, which the blocks deal out: each sends its sums of the others'
// rows to the same threads there, and adds to its own rows what these send. The order is fixed, so
// that results are deterministic. The including file defines:
//
// THREADS         threads of a block, one-dimensional
// ACC, ACC_WIDTH  pack of accumulators, and its elements
// DEALT_ROWS      rows of a thread's packs
// ROW_PACKS       packs of a row
//
// What a block receives lies where nothing else does: RECEIVED_SIZE elements of shared memory, to
// which others send as soon as all blocks have begun, and 16 bytes with the mbarrier after them.
#define CLUSTER_SIZE CLUSTER_K
#include "cluster.h"
#if CLUSTER_K == 1
#define RECEIVED_SIZE 0
#define IS_OWN_ROW(row) 1
#define JOIN_CLUSTER(received)
#define ADD_BLOCKS(received, acc)
#else
#include "cluster_sums.h"
#define ROW_ELEMENTS (ROW_PACKS * ACC_WIDTH)
#define OWN_ROWS ((DEALT_ROWS + CLUSTER_K - 1) / CLUSTER_K)
#define SUMS_SIZE (OWN_ROWS * (CLUSTER_K - 1) * ROW_ELEMENTS * THREADS)
#define RECEIVED_SIZE (SUMS_SIZE + 16 / (int)sizeof(REAL))
#define IS_OWN_ROW(row) ((row) % CLUSTER_K == (int)cta_rank_in_cluster())
// Of a block's rows the i-th, as the block sends it that is `distance` + 1 after it in turn.
#define RECEIVED_AT(i, distance) (((i) * (CLUSTER_K - 1) + (distance)) * ROW_ELEMENTS * THREADS)
#define JOIN_CLUSTER(received) join_cluster((unsigned)__cvta_generic_to_shared(received))
#define ADD_BLOCKS(received, acc) add_blocks(received, acc)
#define BARRIER_AFTER(received) ((received) + SUMS_SIZE * (int)sizeof(REAL))

// Says that this block is there, and what it expects of the others.
INNER void join_cluster(const unsigned received)
{
    if (THREAD_X == 0) {
        const int rows =
            (DEALT_ROWS + CLUSTER_K - 1 - (int)cta_rank_in_cluster()) / CLUSTER_K;
        expect_sums(BARRIER_AFTER(received),
                    rows * (CLUSTER_K - 1) * ROW_ELEMENTS * THREADS * (int)sizeof(REAL));
    }
    cluster_arrive();
}

// Sends one by one, coalesced: packs would have to be in aligned registers, which in some main
// loops causes bank conflicts.
INNER void send_row(const unsigned received, const int row, const unsigned block, const ACC *acc)
{
    const int owner = row % CLUSTER_K;
    const unsigned distance = (block + CLUSTER_K - 1 - owner) % CLUSTER_K,
                   at = RECEIVED_AT(row / CLUSTER_K, distance) + THREAD_X,
                   to = address_in_block(received + at * (int)sizeof(REAL), owner),
                   full = address_in_block(BARRIER_AFTER(received), owner);
    EACH(e, ROW_ELEMENTS) {
        send_sum(to + e * (THREADS * (int)sizeof(REAL)),
                 ELEMENT(acc[row * ROW_PACKS + e / ACC_WIDTH], e % ACC_WIDTH), full);
    }
}

INNER void add_row(const REAL *received, const int row, ACC *acc)
{
    EACH(distance, CLUSTER_K - 1) {
        const REAL *const from = received + (RECEIVED_AT(row / CLUSTER_K, distance) + THREAD_X);
        EACH(e, ROW_ELEMENTS) {
            ELEMENT(acc[row * ROW_PACKS + e / ACC_WIDTH], e % ACC_WIDTH) += from[e * THREADS];
        }
    }
}

INNER void add_blocks(const REAL *received, ACC *acc)
{
    const unsigned block = cta_rank_in_cluster(),
                   at = (unsigned)__cvta_generic_to_shared(received);
    cluster_wait(); // all blocks are there
    EACH(row, DEALT_ROWS) {
        if (!IS_OWN_ROW(row)) {
            send_row(at, row, block, acc);
        }
    }
    wait_for_sums(BARRIER_AFTER(at));
    EACH(row, DEALT_ROWS) {
        if (IS_OWN_ROW(row)) {
            add_row(received, row, acc);
        }
    }
}
#endif
