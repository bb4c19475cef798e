// C[m,n] = op(A)[m,k] x op(B)[k,n] by mma.sync with float32 accumulators, from tiles in shared
// memory that cp.async fills while the k tile before is multiplied. CUDA from sm_80.
//
// BM          rows of C's tile
// BN          columns of C's tile
// BK          depth of a k tile in shared memory
// WM          rows of the tile that a warp keeps in registers
// WN          columns of the tile that a warp keeps in registers
// STAGES      k tiles in shared memory, all but one of them in flight
// SLICE_K     slices of warps that share the k of each k tile (sliced-K)
// CLUSTER_K   blocks of a cluster that share the k of a tile, or of a split of it (from sm_90)
// AHEAD       1 to load the next mma step's fragments before this one's mma, else 0
// MIN_BLOCKS  minimum of blocks on an SM (__launch_bounds__)
// PACK_K      operands packed K-major into the workspace, rows of whole 128 bytes: 1 for A, 2 for
//             B, 3 for both, or 0
// REALIGN     operands whose rows start anywhere in 16 bytes and lie so in shared memory, for
//             fragments that are loaded by words: 1 for A, 2 for B, 3 for both, or 0
// CP_SIZE_A   bytes of a cp.async of A: 16, or, where rows that are not realigned are no multiples
//             of that, 8 or 4
// CP_SIZE_B   those of a cp.async of B
// TRANS_A     1 where A is stored k x m, else 0
// TRANS_B     1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(WM)
#error "WM must be defined"
#elif !defined(WN)
#error "WN must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(SLICE_K)
#error "SLICE_K must be defined"
#elif !defined(CLUSTER_K)
#error "CLUSTER_K must be defined"
#elif !defined(AHEAD)
#error "AHEAD must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(PACK_K)
#error "PACK_K must be defined"
#elif !defined(REALIGN)
#error "REALIGN must be defined"
#elif !defined(CP_SIZE_A)
#error "CP_SIZE_A must be defined"
#elif !defined(CP_SIZE_B)
#error "CP_SIZE_B must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#include "config.h"

KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
CLUSTER_DIMS
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, REAL *workspace, STEP_ARGUMENTS, const INDEX group_m,
       const INDEX splits, const INDEX fan, const INDEX k_per_block, TILE_ORDER_ARGUMENTS)
{
    if (PLANES == 2 && DECLINED(workspace)) {
        return;
    }
    extern __shared__ __align__(128) REAL smem[];
    JOIN_CLUSTER(smem + RECEIVED_FROM);
    const TileOrder order = TILE_ORDER;
    const BlockTile tile = block_tile((unsigned)BLOCK / CLUSTER_K, m, n, group_m, splits, order);
    const INDEX row = tile.row, column = tile.column, batch = tile.batch;
    const INDEX start = (tile.split * CLUSTER_K + (INDEX)cta_rank_in_cluster()) * k_per_block,
                left = k - start, part = left < k_per_block ? left : k_per_block,
                depth = CLUSTER_K > 1 && part < 0 ? 0 : part; // a cluster's last may have none
    const INDEX pitch_a = PACKED_A ? PACKED_PITCH(lines_a) : (TRANS_A ? m : k) * ELEMENT_BYTES;
    const INDEX pitch_b = PACKED_B ? PACKED_PITCH(lines_b) : (TRANS_B ? k : n) * ELEMENT_BYTES;
    const char *const of_a = PACKED_A ? (const char *)workspace + (at_a * 128 + batch * m * pitch_a)
                                      : (const char *)(a + batch * m * k);
    const char *const of_b = PACKED_B ? (const char *)workspace + (at_b * 128 + batch * n * pitch_b)
                                      : (const char *)(b + batch * k * n);
    const int wide_a = PACKED_A || IS_WIDE(REALIGNED_A, a, of_a, pitch_a, CP_SIZE_A);
    const int wide_b = PACKED_B || IS_WIDE(REALIGNED_B, b, of_b, pitch_b, CP_SIZE_B);
    // Full k tiles are copied by whole cp.async in the main loop. Rows of packed operands are
    // padded with zeros past k.
    const int fits = wide_a && wide_b && (pitch_a | pitch_b) >> 31 == 0;
    const int k_tiles = (int)(((unsigned long long)depth + BK - 1) / BK);
    const INDEX before_last = k - start - FOLLOWING,
                whole = depth < before_last ? depth : before_last;
    const int full_k_tiles = PADDED ? k_tiles : fits && whole > 0 ? (int)(whole / BK) : 0;
    const unsigned base = SMEM_ADDRESS(smem);
    const char *const from_a = of_a + (K_MAJOR_A ? row * pitch_a + start * ELEMENT_BYTES
                                                 : start * pitch_a + row * ELEMENT_BYTES);
    const char *const from_b = of_b + (K_MAJOR_B ? column * pitch_b + start * ELEMENT_BYTES
                                                 : start * pitch_b + column * ELEMENT_BYTES);
    TileLoader<BM, K_MAJOR_A, REALIGNED_A, CP_SIZE_A> load_a(base, from_a, pitch_a, tile.rows, a);
    TileLoader<BN, K_MAJOR_B, REALIGNED_B, CP_SIZE_B> load_b(base + PLANES * TILE_BYTES_A, from_b,
                                                             pitch_b, tile.columns, b);
    const auto copy_predicated = [&](const int p) {
        const int deep = depth - (INDEX)p * BK < BK ? (int)(depth - (INDEX)p * BK) : BK;
        load_a.copy_predicated(deep, wide_a);
        load_b.copy_predicated(deep, wide_b);
    };
    const Pairs pairs_a = lane_pairs(WARP_ROW, ROW_BYTES_A, K_MAJOR_A, from_a, pitch_a),
                pairs_b = lane_pairs(WARP_COL, ROW_BYTES_B, K_MAJOR_B, from_b, pitch_b);
    unsigned As = base + (REALIGNED_A ? pairs_a.at : LANE_ADDRESS_A),
             Bs = base + PLANES * TILE_BYTES_A + (REALIGNED_B ? pairs_b.at : LANE_ADDRESS_B);
    ACC acc[ACC_PACKS] = {},
        crossed[PLANES == 2 ? ACC_PACKS : 1] = {}; // stay in registers: C is written once
    Fragments fragments[1 + AHEAD];
    int p = 1 - STAGES, at = 0;
    // Before a k tile's last mma step, the next k tile is complete and the stage before is free.
    // The inner loop is left for k tiles that are not full.
#pragma unroll 1
    while (p < k_tiles) {
        const int last = full_k_tiles - (STAGES - 1), copies = p < last,
                  stop = copies ? last : p + 1;
        if (!PADDED && !copies && p + STAGES - 1 < k_tiles) {
            copy_predicated(p + STAGES - 1);
        }
        if (p < 0) { // prologue: only copies
            load_a.copy(0, 1, copies);
            load_b.copy(0, 1, copies);
            cp_async_commit_group();
            load_a.advance(STAGE_BYTES);
            load_b.advance(STAGE_BYTES);
            if (++p < 0) {
                continue;
            }
            cp_async_wait_group(STAGES - 2);
            BARRIER();
            if (AHEAD) {
                fragments[0].read(As, Bs, 0, pairs_a, pairs_b);
            }
            continue;
        }
#pragma unroll 1
        do {
            EACH(q, K_STEPS) {
                if (!AHEAD) {
                    fragments[0].read(As, Bs, q, pairs_a, pairs_b);
                }
                if (q < BURSTS) {
                    load_a.copy(q, BURSTS, copies);
                    load_b.copy(q, BURSTS, copies);
                }
                if (q == K_STEPS - 1) {
                    cp_async_commit_group();
                    cp_async_wait_group(STAGES - 2);
                    const int step = (at == STAGES - 1 ? 1 - STAGES : 1) * STAGE_BYTES;
                    As += step;
                    Bs += step;
                    at = at == STAGES - 1 ? 0 : at + 1;
                    BARRIER();
                }
                if (AHEAD) {
                    fragments[(q + 1) % 2].read(As, Bs, (q + 1) % K_STEPS, pairs_a,
                                                pairs_b);
                }
                fragments[AHEAD & q].round_to_tf32();
                fragments[AHEAD & q].add(acc, crossed);
            }
            const int step =
                (at == 1 ? 1 - STAGES : 1) * STAGE_BYTES; // copies are a stage behind loads
            load_a.advance(step);
            load_b.advance(step);
        } while (++p < stop);
    }
    cp_async_wait_group(0); // zeros past k may still be in flight into what the epilogue uses
    if (PLANES == 2) {
        EACH(e, ACC_PACKS) {
            acc[e] = FMA_PACK(4, 1.f / 2048, crossed[e], acc[e]);
        }
    }
    ADD_BLOCKS(smem + RECEIVED_FROM, acc);
    unsigned block = (unsigned)BLOCK / CLUSTER_K;
    if (ACC_PACKS >= 16) { // recompute what depends on it: there are no registers to keep it
        asm volatile("" : "+r"(block));
    }
    const BlockTile at_c = block_tile(block, m, n, group_m, splits, order);
    const OutputTile to = {c + (at_c.batch * m + at_c.row) * n + at_c.column, n, at_c.rows,
                           at_c.columns, EXPONENTS};
    const int wide = (ADDRESS(to.c) | n * (int)sizeof(STORED)) % (4 * (int)sizeof(STORED)) == 0;
    const INDEX tile_idx = FIRST_TILE + at_c.tile_idx;
    REAL *const partials = workspace + COUNTERS + tile_idx * splits * (BM * BN);
#pragma unroll 1
    for (int i = 0; i < MMAS_M; i++) {
        if (IS_OWN_ROW(i)) {
            BARRIER(); // the last contents have been read
            store_acc_to_smem((char *)smem, acc);
            BARRIER();
            if (splits > 1) {
                store_epi_partials(partials + at_c.split * (BM * BN) + i * EPI_SIZE, (char *)smem);
            } else if (wide) {
                store_round<4>(to, (char *)smem, i);
            } else if (STORES_BY_TWOS(to)) {
                store_round<2>(to, (char *)smem, i);
            } else {
                store_round<1>(to, (char *)smem, i);
            }
        }
        EACH(e, ACC_PACKS - MMAS_N) {
            acc[e] = acc[e + MMAS_N];
        }
    }
    if (splits > 1) {
        reduce_split_k_tile((int *)workspace, partials, tile_idx, at_c.split, splits, fan,
                            (int *)smem, to, wide);
    }
}
