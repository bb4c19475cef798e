// register_tiled with a software-pipelined main loop: fragments are loaded from shared memory one k
// ahead of their FMAs, and cp.async is issued between these. CUDA only, from sm_80.
//
// BM            rows of C's tile
// BN            columns of C's tile
// BK            depth of a k tile in shared memory
// TM            rows of C that a thread keeps in registers
// TN            columns of C that a thread keeps in registers
// WN            columns of the tile that a warp covers; its rows follow
// STAGES        k tiles in shared memory, all but one of them in flight
// MIN_BLOCKS    minimum of blocks on an SM (__launch_bounds__)
// SLICE_K       slices of threads that share the k of each k tile (sliced-K)
// CLUSTER_K     blocks of a cluster that share the k of a tile (from sm_90); if more than one,
//               split_k is 1 and STREAM_K_SMS 0
// STREAM_K_SMS  SMs whose blocks share the k tiles of all tiles (stream-K); 0 if each block has one
//               tile or a split of it
// PACK_MN       1 if K-major operands, and those whose rows are not multiples of 16 bytes, were
//               packed MN-major into the workspace
// K_MAJOR       1 if two K-major operands stay so in shared memory, 0 if K-major operands are
//               transposed on their way there
// CP_SIZE_A     bytes of a cp.async of A: the most that divide its rows up to 16, or 4 if it is
//               transposed on its way
// CP_SIZE_B     those of a cp.async of B
// STAGE_C       1 if a tile goes to C through shared memory
// TRANS_A       1 where A is stored k x m, else 0
// TRANS_B       1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(TM)
#error "TM must be defined"
#elif !defined(TN)
#error "TN must be defined"
#elif !defined(WN)
#error "WN must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(SLICE_K)
#error "SLICE_K must be defined"
#elif !defined(CLUSTER_K)
#error "CLUSTER_K must be defined"
#elif !defined(STREAM_K_SMS)
#error "STREAM_K_SMS must be defined"
#elif !defined(PACK_MN)
#error "PACK_MN must be defined"
#elif !defined(K_MAJOR)
#error "K_MAJOR must be defined"
#elif !defined(CP_SIZE_A)
#error "CP_SIZE_A must be defined"
#elif !defined(CP_SIZE_B)
#error "CP_SIZE_B must be defined"
#elif !defined(STAGE_C)
#error "STAGE_C must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "pipeline.h"

// Split-K: `split_k` blocks share a tile, with `k_tiles_per_split` k tiles each and one more in the
// first `more` of them. Partial sums begin at line `at_c` (128 bytes) of the workspace; a launch
// after this one reduces them. The packed A and B begin at lines `at_a` and `at_b` and have
// `lines_a` and `lines_b` lines for each k, 0 if not packed. `group_m` rows of tiles go through C's
// columns together.
//
// Stream-K: `blocks` blocks share the k tiles of the first tiles, the last block the first ones:
// `each` of them, and `more` blocks one more. Then each computes `rounds` whole tiles (Osama et
// al., "Stream-K", PPoPP 2023).
KERNEL_MIN_BLOCKS(THREADS, 1, LEAST_BLOCKS)
CLUSTER_DIMS
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, REAL *workspace, const INDEX split_k, const INDEX at_c,
       const INDEX k_tiles_per_split, const INDEX group_m, const INDEX at_a, const INDEX lines_a,
       const INDEX at_b, const INDEX lines_b, const INDEX blocks, const INDEX each,
       const INDEX more, const INDEX rounds, TILE_ORDER_ARGUMENTS)
{
    DYNAMIC_SHARED(smem, SMEM_SIZE);
    JOIN_CLUSTER(smem + RECEIVED_FROM);
    const int packed_a = PACK_MN && (!TRANS_A || lines_a),
              packed_b = PACK_MN && (TRANS_B || lines_b);
    const INDEX pitch_a = packed_a ? LINES_TO_ELEMENTS(lines_a) : TRANS_A ? m : k;
    const INDEX pitch_b = packed_b ? LINES_TO_ELEMENTS(lines_b) : TRANS_B ? k : n;
    const int wide_a = packed_a || (pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0);
    const int wide_b = packed_b || (pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0);
    // Whether the main loop copies all k tiles: copy_predicated does where an operand is not
    // aligned to its copies.
    const int fits = (packed_a || TileLoader<LOADER_A>::is_aligned(a, pitch_a)) &&
                     (packed_b || TileLoader<LOADER_B>::is_aligned(b, pitch_b)) &&
                     (pitch_a | pitch_b) >> 31 == 0;
    const unsigned splits = STREAM_K_SMS ? 1 : split_k, block = (unsigned)BLOCK / CLUSTER_K,
                   rank = blocks - 1 - block;
    unsigned next_k_tile = rank * each + (rank < more ? rank : more),
             remaining = STREAM_K_SMS ? each + (rank < more) : 0, round = 0;
    const TileOrder order = TILE_ORDER;
    TileLoader<LOADER_A> load_a(smem, pitch_a);
    TileLoader<LOADER_B> load_b(smem + TILE_SIZE_A, pitch_b);
    WorkTile tile;
    // Leaves of a thread's copies those of k tile `p`, which is the one that k ends in, or past it.
    const auto end_copies = [&](const int p) {
        const int tail = (int)(tile.depth % BK);
        if (!fits && p < tile.k_tiles) {
            load_a.copy_predicated(p, tile.depth, wide_a);
            load_b.copy_predicated(p, tile.depth, wide_b);
        }
        if (fits && p == tile.full_k_tiles && tail > 0) {
            load_a.cut(tail, p % STAGES);
            load_b.cut(tail, p % STAGES);
        } else {
            load_a.kept = load_b.kept = 0;
        }
    };
    // Starts the next work tile and issues its first copies.
    const auto start_tile = [&]() {
        unsigned tile_idx = block, start = 0, count = k_tiles_per_split;
        if (remaining > 0) {
            tile_idx = next_k_tile / (unsigned)k_tiles_per_split;
            start = next_k_tile % (unsigned)k_tiles_per_split;
            count = remaining < count - start ? remaining : count - start;
            remaining -= count;
            next_k_tile += count;
        } else if (STREAM_K_SMS) {
            tile_idx +=
                (unsigned)(blocks * each + more) / (unsigned)k_tiles_per_split + round++ * blocks;
        }
        tile.place(tile_idx, splits, group_m, k_tiles_per_split, STREAM_K_SMS ? 0 : more, start,
                   count, m, n, k, order);
        const REAL *const of_a =
            packed_a ? workspace + LINES_TO_ELEMENTS(at_a) + tile.batch * k * pitch_a
                     : a + tile.batch * m * k;
        const REAL *const of_b =
            packed_b ? workspace + LINES_TO_ELEMENTS(at_b) + tile.batch * k * pitch_b
                     : b + tile.batch * k * n;
        load_a.begin(
            of_a + (TRANSPOSE_A ? tile.row * k + tile.first : tile.first * pitch_a + tile.row),
            tile.rows);
        load_b.begin(of_b + (TRANSPOSE_B ? tile.column * k + tile.first
                                         : tile.first * pitch_b + tile.column),
                     tile.columns);
        if (!fits) {
#pragma unroll 1
            for (int p = 0; p < STAGES - 1; p++) {
                end_copies(p);
                cp_async_commit_group();
            }
            return;
        }
        const unsigned kept_a = load_a.kept, kept_b = load_b.kept;
        if (tile.full_k_tiles < STAGES - 1) {
            end_copies(tile.full_k_tiles);
        }
        EACH(p, STAGES - 1) { // in a loop, ptxas finds too few registers for some tiles
            const int full = p < tile.full_k_tiles, end = p == tile.full_k_tiles;
            load_a.copy(0, 1, full ? kept_a : end ? load_a.kept : 0);
            load_b.copy(0, 1, full ? kept_b : end ? load_b.kept : 0);
            cp_async_commit_group();
            load_a.advance(STAGE_SIZE);
            load_b.advance(STAGE_SIZE);
        }
    };
    start_tile();
#pragma unroll 1
    do {
        ACC acc[ACC_PACKS] = {0}; // stay in registers: C is written once
        Fragments ahead;
        const REAL *As = smem + FIRST_A, *Bs = smem + TILE_SIZE_A + FIRST_B;
        cp_async_wait_group(STAGES - 2);
        BARRIER();
        ahead.first(As, Bs);
        int p = 0, at = 0;
        // Only the last step of a k tile has a barrier before it, hidden behind its remaining FMAs:
        // then the next k tile is complete and the stage before is free. The inner loop is left
        // where a thread's copies become others: for the k tile that k ends in, and for none.
#pragma unroll 1
        while (p < tile.k_tiles) {
            const int next = p + STAGES - 1, full = fits ? tile.full_k_tiles : 0;
            const int more = next < full ? full - next : fits && next >= tile.k_tiles ? STAGES : 1,
                      stop = p + more < tile.k_tiles ? p + more : tile.k_tiles;
            if (next >= full) {
                end_copies(next);
            }
#pragma unroll 1
            do {
                EACH(e, STEPS) {
                    if (e == STEPS - 1) {
                        cp_async_commit_group();
                        cp_async_wait_group(STAGES - 2);
                        const int step = (at == STAGES - 1 ? 1 - STAGES : 1) * STAGE_SIZE;
                        As += step;
                        Bs += step;
                        at = at == STAGES - 1 ? 0 : at + 1;
                        BARRIER();
                    }
                    ahead.read(As, Bs, (e + 1) % STEPS);
                    if (e % (STEPS / BURSTS) == 0) {
                        load_a.copy(e / (STEPS / BURSTS), BURSTS, load_a.kept);
                        load_b.copy(e / (STEPS / BURSTS), BURSTS, load_b.kept);
                    }
                    IN_ORDER();
                    ahead.add(acc, As, Bs, e);
                }
                const int step =
                    (at == 1 ? 1 - STAGES : 1) * STAGE_SIZE; // copies are a stage behind loads
                load_a.advance(step);
                load_b.advance(step);
            } while (++p < stop);
        }
        if (SLICE_K > 1) {
            reduce_slices(smem, acc);
        }
        ADD_BLOCKS(smem + RECEIVED_FROM, acc);
        const WorkTile done = tile;
        const int goes_on = STREAM_K_SMS && (remaining > 0 || round < rounds);
        if (STREAM_K_SMS || STAGE_C) {
            BARRIER(); // all have read the last k tile: its stage is free
        }
        if (goes_on) {
            start_tile();
        }
        REAL *const parts = workspace + LINES_TO_ELEMENTS(at_c);
        if (STREAM_K_SMS && done.start > 0) {
            store_partial(workspace, parts, block, acc);
        } else {
            if (STREAM_K_SMS) {
                add_partials(workspace, parts, block, rank, k_tiles_per_split - done.k_tiles, each,
                             more, acc);
            }
            if (splits > 1) {
                STORE_TILE(parts + done.in_splits(splits, m, n), done); // for split_k_reduce.cu
            } else {
                STORE_TILE(c + done.corner(m, n), done);
            }
        }
        if (!goes_on) {
            return;
        }
    } while (STREAM_K_SMS);
}
