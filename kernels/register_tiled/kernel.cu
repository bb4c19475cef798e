// C[m,n] = op(A)[m,k] x op(B)[k,n] by tiles in shared memory; each thread computes TM x TN elements
// of C in registers.
//
// BM          rows of C's tile
// BN          columns of C's tile
// BK          depth of a k tile in shared memory
// TM          rows of C that a thread keeps in registers
// TN          columns of C that a thread keeps in registers
// WN          columns of the tile that a warp covers; its rows follow
// STAGES      k tiles in shared memory: 1; 2, with the next one prefetched into registers; from 3
//             on, copied by cp.async
// MIN_BLOCKS  minimum of blocks on an SM (__launch_bounds__)
// SLICE_K     slices of threads that share the k of each k tile (sliced-K)
// PACK_MN     1 if K-major operands, and those whose rows are not multiples of 16 bytes, were
//             packed MN-major into the workspace
// TRANS_A     1 where A is stored k x m, else 0
// TRANS_B     1 where B is stored n x k, else 0
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
#elif !defined(PACK_MN)
#error "PACK_MN must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#define SLICE_THREADS (BM / TM * (BN / TN))
#define THREADS (SLICE_K * SLICE_THREADS)
#define PACKS (TN / RUN(TN))
#define ACC PACK(RUN(TN))
#define ACC_WIDTH RUN(TN)
#define ACC_PACKS (TM * PACKS)
#define OUT_PACKS (ACC_PACKS / SLICE_K)
#include "smem_tile.h"
#include "split_k.h"
#include "slice_k.h"
#include "tile_scheduler.h"
// A warp is LANES_M x LANES_N threads, and neighbours read neighbouring packs of A and of B: there
// are no bank conflicts, a pack is broadcast to all who read it, and a warp's stores to C fill
// whole sectors.
#define LANES_N (WN / TN)
#define LANES_M (32 / LANES_N)
#define THREAD_ROW \
    (SLICE_THREAD / 32 / (BN / WN) * LANES_M * TM + SLICE_THREAD % 32 / LANES_N * RUN(TM))
#define THREAD_COL (SLICE_THREAD / 32 % (BN / WN) * WN + SLICE_THREAD % LANES_N * RUN(TN))
#define ACC_ROW(i) (THREAD_ROW + (i) / RUN(TM) * LANES_M * RUN(TM) + (i) % RUN(TM))
#define ACC_COL(pack) (THREAD_COL + (pack) * LANES_N * RUN(TN))
// Packed operands are MN-major, as the tiles are: nothing is transposed on its way.
#define TRANSPOSE_A (!(TRANS_A | PACK_MN))
#define TRANSPOSE_B (TRANS_B & !PACK_MN)
#define LD_A LD(BM, TRANSPOSE_A)
#define LD_B LD(BN, TRANSPOSE_B)
#define STAGE_SIZE (BK * (LD_A + LD_B))
#define SLICE_BK (BK / SLICE_K)
#define SMEM_SIZE                                                                  \
    (STAGES * STAGE_SIZE > SLICE_K * BM * BN || SLICE_K == 1 ? STAGES * STAGE_SIZE \
                                                             : SLICE_K * BM * BN)
#define LINES_TO_ELEMENTS(lines) ((INDEX)(lines) * (128 / (int)sizeof(REAL)))

// Copies of 16 bytes for operands whose rows are aligned to that (`wide`: 1 for A, 2 for B), unless
// cp.async would have to transpose.
PART void load_tiles(LOCAL REAL *to, REAL *in, const GLOBAL REAL *a, const GLOBAL REAL *b,
                     const INDEX pitch_a, const INDEX pitch_b, const int rows, const int columns,
                     const int depth, const int writes, const int wide)
{
    if (wide & 1 & ((STAGES < 3) | !TRANSPOSE_A)) {
        load_tile(to, in, a, pitch_a, rows, depth, writes, BM, TRANSPOSE_A, WIDE);
    } else {
        load_tile(to, in, a, pitch_a, rows, depth, writes, BM, TRANSPOSE_A, 1);
    }
    to += BK * LD_A;
    in += LOADS_PER_THREAD(BM);
    if (wide >> 1 & ((STAGES < 3) | !TRANSPOSE_B)) {
        load_tile(to, in, b, pitch_b, columns, depth, writes, BN, TRANSPOSE_B, WIDE);
    } else {
        load_tile(to, in, b, pitch_b, columns, depth, writes, BN, TRANSPOSE_B, 1);
    }
}

// For each k a thread reads TM + TN elements for TM * TN FMAs. The loop is unrolled as far as the
// instruction cache allows, so that loads run ahead of FMAs.
PART void add_tiles(const LOCAL REAL *As, const LOCAL REAL *Bs, ACC *acc)
{
    TURNS(q, SLICE_BK, TM * TN * SLICE_BK <= 1024 ? SLICE_BK : 1024 / (TM * TN)) {
        PACK(RUN(TM)) x[TM / RUN(TM)];
        ACC y[PACKS];
        EACH(i, TM / RUN(TM)) {
            x[i] = LOAD(RUN(TM), As + q * LD_A + ACC_ROW(i * RUN(TM)));
        }
        EACH(j, PACKS) {
            y[j] = LOAD(RUN(TN), Bs + q * LD_B + ACC_COL(j));
        }
        EACH(e, TM * PACKS) {
            acc[e] = FMA_PACK(RUN(TN), ELEMENT(x[e / PACKS / RUN(TM)], e / PACKS % RUN(TM)),
                              y[e % PACKS], acc[e]);
        }
    }
}

PART void store_tile(GLOBAL REAL *c, const INDEX n, const int rows, const int columns,
                     const int wide, ACC *acc)
{
    EACH_ROLLED(e, OUT_PACKS) {
        const int y = ACC_ROW(SLICE_IDX * (TM / SLICE_K) + e / PACKS), x = ACC_COL(e % PACKS);
        if (wide && y < rows && x + RUN(TN) <= columns) {
            STORE(RUN(TN), acc[e], c + y * n + x);
        } else {
            EACH_ROLLED(j, RUN(TN)) {
                if (y < rows && x + j < columns) {
                    c[y * n + x + j] = ELEMENT(acc[e], j);
                }
            }
        }
    }
}

// `split_k` blocks share a tile, with `k_tiles_per_split` k tiles each; `fan` is for split_k.h.
// `group_m` rows of tiles go through C's columns together, so that concurrent blocks share operands
// in L2. The packed A begins at line `at_a` (128 bytes) of the workspace and has `lines_a` lines
// for each k, 0 if A is not packed; likewise B. Block indices fit in 32 bits.
KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
       const INDEX m, const INDEX n, const INDEX k, GLOBAL REAL *workspace, const INDEX split_k,
       const INDEX fan, const INDEX k_tiles_per_split, const INDEX group_m, const INDEX at_a,
       const INDEX lines_a, const INDEX at_b, const INDEX lines_b, TILE_ORDER_ARGUMENTS)
{
    DYNAMIC_SHARED(smem, SMEM_SIZE);
    const unsigned across = (n + BN - 1) / BN, down = (m + BM - 1) / BM, tiles = across * down,
                   splits = split_k;
    const TileOrder order = TILE_ORDER;
    const TileCoord at_c =
        tile_coord((unsigned)BLOCK, down, across, splits, (unsigned)group_m, order, 1);
    const unsigned batch = at_c.batch, split = at_c.split,
                   tile = (unsigned)BLOCK - (batch * splits + split) * tiles;
    const INDEX row = at_c.row * (INDEX)BM, column = at_c.column * (INDEX)BN;
    const int rows = m - row < BM ? m - row : BM, columns = n - column < BN ? n - column : BN;
    const INDEX first = k_tiles_per_split * split * BK,
                end = split + 1 < splits ? first + k_tiles_per_split * BK : k; // of this split
    const int packed_a = PACK_MN & (!TRANS_A | (lines_a > 0)),
              packed_b = PACK_MN & (TRANS_B | (lines_b > 0));
    const INDEX pitch_a = packed_a ? LINES_TO_ELEMENTS(lines_a) : TRANS_A ? m : k;
    const INDEX pitch_b = packed_b ? LINES_TO_ELEMENTS(lines_b) : TRANS_B ? k : n;
    const GLOBAL REAL *const a0 =
        packed_a ? workspace + LINES_TO_ELEMENTS(at_a) + batch * k * pitch_a : a + batch * m * k;
    const GLOBAL REAL *const b0 =
        packed_b ? workspace + LINES_TO_ELEMENTS(at_b) + batch * k * pitch_b : b + batch * k * n;
    const int wide = (packed_a || (pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0)) +
                     2 * (packed_b || (pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0));
    REAL in[LOADS_PER_THREAD(BM) + LOADS_PER_THREAD(BN)];
    ACC acc[ACC_PACKS] = {0}; // stay in registers: C is written once
#define FROM_A(q) (a0 + (TRANSPOSE_A ? row * k + (q) : (q) * pitch_a + row))
#define FROM_B(q) (b0 + (TRANSPOSE_B ? column * k + (q) : (q) * pitch_b + column))
#define LOAD_TILES(s, q, writes)                                                                   \
    load_tiles(smem + (s) * STAGE_SIZE, in, FROM_A(q), FROM_B(q), pitch_a, pitch_b, rows, columns, \
               end - (q) < BK ? end - (q) : BK, writes, wide)
#pragma unroll 1
    for (INDEX q = first + (1 - STAGES) * BK, at = 1 % STAGES; q < end;
         q += BK, at = (at + 1) % STAGES) {
        const INDEX next = (at + STAGES - 1) % STAGES;
        if (STAGES > 2) {
            cp_async_wait_group(STAGES - 2);
        }
        // this k tile is complete, and the next stage is free: all have read it
        BARRIER();
        if (STAGES < 3 || q + (STAGES - 1) * BK < end) {
            LOAD_TILES(next, q + (STAGES - 1) * BK, 0);
        }
        if (STAGES > 2) {
            cp_async_commit_group();
        }
        if (STAGES == 1) {
            LOAD_TILES(next, q, 1);
            BARRIER();
        }
        const LOCAL REAL *const As = smem + at * STAGE_SIZE, *const Bs = As + BK * LD_A;
        if (q >= first) {
            add_tiles(As + SLICE_IDX * SLICE_BK * LD_A, Bs + SLICE_IDX * SLICE_BK * LD_B, acc);
        }
        if (STAGES == 2) {
            LOAD_TILES(next, q + BK, 1);
        }
    }
    // Slices are reduced in shared memory, splits in the workspace; one block has the result.
    if (SLICE_K > 1) {
        reduce_slices(smem, acc);
    }
    if (splits > 1 && !reduce_split_k(workspace, AFTER_COUNTERS(workspace), batch * tiles + tile,
                                      split, splits, fan, (LOCAL int *)smem, acc)) {
        return;
    }
    store_tile(c + (batch * m + row) * n + column, n, rows, columns,
               n % WIDE == 0 && ADDRESS(c) % 16 == 0, acc);
}
