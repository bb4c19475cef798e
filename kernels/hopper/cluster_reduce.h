// Sums of the k that the blocks of a cluster share (CLUSTER_K > 1). The blocks deal out the pieces
// of the tile: each sends its accumulators of the others' pieces to them, and adds to its own what
// they sent.
//
// A consumer thread's accumulators lie in packs of four, PACK_STRIDE bytes apart: neighbouring
// threads write and read neighbouring packs.
#define PACK_STRIDE (128 * CONSUMERS * 16)
#define PACKS_N (TILE_N / 8) // of 64 rows
#define PIECE_PACKS (EPI_COLUMNS / 8)
#define PACKS_LEFT(s) (PACKS_N - (s) * PIECE_PACKS)
#define PACKS_OF(s) (PACKS_LEFT(s) < PIECE_PACKS ? PACKS_LEFT(s) : PIECE_PACKS)
// Of a block's pieces the i-th, as the block sends it that is `distance` + 1 after it in turn.
#define PARTIALS_AT(i, distance) (((i) * (CLUSTER_K - 1) + (distance)) * PACKS_OF(0) * PACK_STRIDE)
#if CLUSTER_K > 1
#include "cluster_sums.h"

INNER void expect_partials(const unsigned barrier, const unsigned block)
{
    int packs = 0;
    EACH(p, PIECES) {
        packs += p % CLUSTER_K == block ? PACKS_OF(p % PIECES_N) : 0;
    }
    expect_sums(barrier, (CLUSTER_K - 1) * packs * PACK_STRIDE);
}

INNER void send_partials(const unsigned received, const unsigned barrier, const unsigned block,
                         const Accumulators (&acc)[WGMMAS_M])
{
    EACH(p, PIECES) {
        const int owner = p % CLUSTER_K, s = p % PIECES_N;
        if (owner != block) {
            const unsigned distance = (block + CLUSTER_K - 1 - owner) % CLUSTER_K,
                           at = PARTIALS_AT(p / CLUSTER_K, distance),
                           to = address_in_block(received + THREAD_X * 16 + at, owner),
                           full = address_in_block(barrier, owner);
            EACH(q, PACKS_OF(s)) {
                const float *const of = acc[p / PIECES_N] + (s * PIECE_PACKS + q) * 4;
                send_sums(to + q * PACK_STRIDE, make_float4(of[0], of[1], of[2], of[3]), full);
            }
        }
    }
}

// Adds what the others sent of piece `p` to the block's own accumulators.
INNER void add_partials(const unsigned char *received, const int p, Accumulators (&acc)[WGMMAS_M])
{
    const int s = p % PIECES_N;
    EACH(distance, CLUSTER_K - 1) {
        const unsigned char *const from =
            received + (THREAD_X * 16 + PARTIALS_AT(p / CLUSTER_K, distance));
        EACH(q, PACKS_OF(s)) {
            float *const to = acc[p / PIECES_N] + (s * PIECE_PACKS + q) * 4;
            const float4 pack = *(const float4 *)(from + q * PACK_STRIDE);
            to[0] += pack.x;
            to[1] += pack.y;
            to[2] += pack.z;
            to[3] += pack.w;
        }
    }
}
#endif
