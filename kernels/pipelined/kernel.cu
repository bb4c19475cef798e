// register_tiled's product with nothing to wait for in the loop over k: operands are read from shared memory one k before
// their FMAs, and copies into it are sent off between these. CUDA only, from sm_80.
//
// BM       rows of C's tile
// BN       columns of C's tile
// BK       how much of k each phase brings into shared memory
// TM       rows of C that a thread keeps in registers
// TN       columns of C that a thread keeps in registers
// WN       columns of the tile that 32 threads, a warp, cover together; its rows follow
// STAGES   phases in shared memory, all but one of them on their way
// HELD     blocks that an SM is to hold at once, at least
// SLICES   teams of threads that share out each phase, and each have the whole tile
// STREAM_K SMs whose blocks share out all phases of all tiles; 0 where each block has one tile, or a slice of it
// REPACK   1 where an operand stored along k, or in rows not whole 16 bytes, was copied into scratch as rows along C
// VECTOR   elements along C that one copy brings: 4, or 1 where rows are not whole 16 bytes
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
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
#elif !defined(HELD)
#error "HELD must be defined"
#elif !defined(SLICES)
#error "SLICES must be defined"
#elif !defined(STREAM_K)
#error "STREAM_K must be defined"
#elif !defined(REPACK)
#error "REPACK must be defined"
#elif !defined(VECTOR)
#error "VECTOR must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "pipeline.h"

// `split_k` blocks of a tile have `share` phases of k each, the first `more` of them one more: they run side by side, and
// the longest says how long. What they leave begins in scratch at line `at_c` of 128 bytes. Copies of A and B begin at
// lines `at_a` and `at_b` and have `lines_a` and `lines_b` for each k; 0 where there is none. `group` is how many rows of
// tiles go through C's columns together.
// With STREAM_K, `blocks` share out the first tiles' phases, the last block the first ones: `each` of them, and `more`
// blocks one more. Then they have `rounds` of the other tiles, one each (Osama et al., "Stream-K", PPoPP 2023).
HELD_KERNEL(THREADS, 1, HELD)
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m, const INDEX n, const INDEX k,
       REAL *scratch, const INDEX split_k, const INDEX at_c, const INDEX share, const INDEX group, const INDEX at_a,
       const INDEX lines_a, const INDEX at_b, const INDEX lines_b, const INDEX blocks, const INDEX each,
       const INDEX more, const INDEX rounds)
{
    POOL(pool, ROOM);
    const int packed_a = REPACK && (!TRANS_A || lines_a), packed_b = REPACK && (TRANS_B || lines_b);
    const INDEX pitch_a = packed_a ? IN_SCRATCH(lines_a) : TRANS_A ? m : k;
    const INDEX pitch_b = packed_b ? IN_SCRATCH(lines_b) : TRANS_B ? k : n;
    const int wide_a = packed_a || (pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0);
    const int wide_b = packed_b || (pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0);
    // Phases of whole BK, in the copies' own width, run on; others are brought by the element.
    const int fits = (VECTOR == 1 || ((CROSS_A || wide_a) && (CROSS_B || wide_b))) && (pitch_a | pitch_b) >> 31 == 0;
    const unsigned slices = STREAM_K ? 1 : split_k, block = BLOCK, rank = blocks - 1 - block;
    unsigned begun = rank * each + (rank < more ? rank : more), left = STREAM_K ? each + (rank < more) : 0, round = 0;
    Side<KIND_A> at_rows(pool, pitch_a);
    Side<KIND_B> at_columns(pool + SIZE_A, pitch_b);
    Work now;
    const auto bring_slowly = [&](const int p) {
        at_rows.bring_slowly(p, now.depth, wide_a), at_columns.bring_slowly(p, now.depth, wide_b);
    };
    // Takes up the next tile, and sends off its first copies.
    const auto take_up = [&]() {
        unsigned number = block, start = 0, count = share;
        if (left > 0) {
            number = begun / (unsigned)share, start = begun % (unsigned)share;
            count = left < count - start ? left : count - start, left -= count, begun += count;
        } else if (STREAM_K) number += (unsigned)(blocks * each + more) / (unsigned)share + round++ * blocks;
        now.place(number, slices, group, share, STREAM_K ? 0 : more, start, count, m, n, k, fits);
        const REAL *const of_a = packed_a ? scratch + IN_SCRATCH(at_a) + now.batch * k * pitch_a : a + now.batch * m * k;
        const REAL *const of_b = packed_b ? scratch + IN_SCRATCH(at_b) + now.batch * k * pitch_b : b + now.batch * k * n;
        at_rows.begin(of_a + (CROSS_A ? now.row * k + now.first : now.first * pitch_a + now.row), now.rows);
        at_columns.begin(of_b + (CROSS_B ? now.column * k + now.first : now.first * pitch_b + now.column), now.columns);
        EACH(p, STAGES - 1) { // in a loop, ptxas finds too few registers for some tiles
            if (p < now.quick) at_rows.bring(0, 1, 1), at_columns.bring(0, 1, 1);
            else if (p < now.phases) bring_slowly(p);
            COPIES_SENT();
            at_rows.next(STAGE), at_columns.next(STAGE);
        }
    };
    take_up();
#pragma unroll 1
    do {
        SUM sums[OWN_SUMS] = {0}; // stay in registers: C is written once
        Operands ahead[2];
        const REAL *as = pool + TOP + TEAM_AT * DEPTH * LINE_A, *bs = pool + SIZE_A + LEFT + TEAM_AT * DEPTH * LINE_B;
        COPIES_LEFT(STAGES - 2);
        BARRIER();
        ahead[0].read(as, bs, 0);
        int p = 0, at = 0;
        // Only the last k of a phase has a barrier before it, and that has FMAs left to hide behind: then the next phase
        // is here, and the place of the one before is free. A phase that is not quick comes back out for its copies.
#pragma unroll 1
        while (p < now.phases) {
            const int last = now.quick - (STAGES - 1), copies = p < last, stop = copies ? last : p + 1;
            if (!copies && p + STAGES - 1 < now.phases) bring_slowly(p + STAGES - 1);
#pragma unroll 1
            do {
                EACH(e, DEPTH) {
                    if (e == DEPTH - 1) {
                        COPIES_SENT();
                        COPIES_LEFT(STAGES - 2);
                        const int step = (at == STAGES - 1 ? 1 - STAGES : 1) * STAGE;
                        as += step, bs += step, at = at == STAGES - 1 ? 0 : at + 1;
                        BARRIER();
                    }
                    ahead[(e + 1) % 2].read(as, bs, (e + 1) % DEPTH);
                    if (e % (DEPTH / BURSTS) == 0) {
                        at_rows.bring(e / (DEPTH / BURSTS), BURSTS, copies);
                        at_columns.bring(e / (DEPTH / BURSTS), BURSTS, copies);
                    }
                    IN_ORDER();
                    ahead[e % 2].add(sums);
                }
                const int step = (at == 1 ? 1 - STAGES : 1) * STAGE; // what is brought is a stage behind what is read
                at_rows.next(step), at_columns.next(step);
            } while (++p < stop);
        }
        if (SLICES > 1) join_teams(pool, sums);
        const Work done = now;
        const int goes_on = STREAM_K && (left > 0 || round < rounds);
        if (STREAM_K) BARRIER(); // all have read the last phase: its place is free
        if (goes_on) take_up();
        REAL *const parts = scratch + IN_SCRATCH(at_c);
        if (STREAM_K && done.start > 0) leave_part(scratch, parts, block, sums);
        else {
            if (STREAM_K) add_parts(scratch, parts, block, rank, share - done.phases, each, more, sums);
            if (slices > 1) store_tile(parts + done.in_slices(slices, m, n), n, done, sums); // for steps/split_k_reduce.cu
            else store_tile(c + done.corner(m, n), n, done, sums);
        }
        if (!goes_on) return;
    } while (STREAM_K);
}
