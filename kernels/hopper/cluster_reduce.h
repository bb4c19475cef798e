// Sums of the k that the blocks of a cluster share (CLUSTER_K > 1). Each block's consumers leave
// their accumulators in its stages, which nothing reads any more; then the blocks deal out the
// pieces of the tile, and each adds up its own through distributed shared memory (PTX ISA, "mapa").
//
// A consumer thread's accumulators lie in packs of four, PACK_STRIDE bytes apart: neighbouring
// threads write and read neighbouring packs.
#define PACK_STRIDE (128 * CONSUMERS * 16)
#define PACKS_N (TILE_N / 8) // of 64 rows
#define PIECE_PACKS (EPI_COLUMNS / 8)

INNER void leave_partials(unsigned char *stages, const Accumulators (&acc)[WGMMAS_M])
{
    // the wgmmas of all consumers have read their stages
    named_barrier_sync(4, 128 * CONSUMERS);
    EACH(h, WGMMAS_M) {
        EACH(p, PACKS_N) {
            const float *const of = acc[h] + p * 4;
            *(float4 *)(stages + THREAD_X * 16 + (h * PACKS_N + p) * PACK_STRIDE) =
                make_float4(of[0], of[1], of[2], of[3]);
        }
    }
}

INNER float4 read_partial(const unsigned at)
{
    float4 pack;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(pack.x), "=f"(pack.y), "=f"(pack.z), "=f"(pack.w)
                 : "r"(at));
    return pack;
}

// Piece `s` of the `h`-th 64 rows, added up from the first block to the last.
INNER void add_partials(const unsigned stages, const int h, const int s,
                        float (&sums)[EPI_COLUMNS / 2])
{
    EACH(e, EPI_COLUMNS / 2) {
        sums[e] = 0;
    }
#pragma unroll 1
    for (unsigned block = 0; block < CLUSTER_K; block++) {
        unsigned from;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(from)
                     : "r"(stages + THREAD_X * 16 + (h * PACKS_N + s * PIECE_PACKS) * PACK_STRIDE),
                       "r"(block));
        EACH(p, PIECE_PACKS) {
            if (s * PIECE_PACKS + p < PACKS_N) {
                const float4 pack = read_partial(from + p * PACK_STRIDE);
                sums[p * 4] += pack.x;
                sums[p * 4 + 1] += pack.y;
                sums[p * 4 + 2] += pack.z;
                sums[p * 4 + 3] += pack.w;
            }
        }
    }
}
