// C[m,n] = op(A)[m,k] x op(B)[k,n] where C has a short side: the operand of the long side is read
// from memory once, by cp.async into a ring that each thread has for itself, and is used for all of
// the short side at once.
//
// BM          rows of C's tile
// BN          columns of C's tile; the shorter of the two is along C's short side
// BK          k of the short operand in shared memory
// TM          rows of C that a thread keeps in registers
// TN          columns of C that a thread keeps in registers; along the short side the whole tile
// SLICE_K     threads that share the k of the same elements of C (sliced-K)
// STAGES      steps of the long operand in a thread's ring; without cp.async, and for elements of
//             16 bits, there is no ring
// MIN_BLOCKS  minimum of blocks on an SM (__launch_bounds__)
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
#elif !defined(SLICE_K)
#error "SLICE_K must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#include "division.h"
// If n is the short side, A is the long operand and all is mirrored.
#define FLAT (BM < BN)
#define SHORT (FLAT ? BM : BN)
#define LONG (FLAT ? BN : BM)
#define EACH_LONG (FLAT ? TN : TM)
#define LONG_THREADS (LONG / EACH_LONG)
// Neighbouring threads read neighbouring memory of the long operand: along k, or along C's long
// side.
#define LONG_BY_K (FLAT ? TRANS_B : !TRANS_A)
#define SHORT_BY_K (FLAT ? !TRANS_A : TRANS_B)
#define LONG_THREAD (LONG_BY_K ? THREAD_X / SLICE_K : THREAD_X % LONG_THREADS)
#define SLICE_IDX (LONG_BY_K ? THREAD_X % SLICE_K : THREAD_X / LONG_THREADS)
// In a step a thread has EACH_LONG packs of the long operand: WIDE of k for each of its elements of
// the long side.
#define STEP (SLICE_K * WIDE)
#include "reduce.h"
#include "pipeline.h"
#include "split_k.h"
#define SMEM_SIZE MAX(RING_SIZE + 2 * SHORT_SIZE, ROUND * LONG * (SLICE_K + 1))

// A pack of the short operand, along k, is used for EACH_LONG elements of the long side and
// broadcast to all LONG_THREADS.
INNER void add_step(const LOCAL REAL *y, LONG_PACK *x, REAL *acc)
{
    EACH(s, SHORT) {
        if (s % 8 == 0) {
            KEEP_ORDER();
        }
        ACC pack = LOAD(WIDE, y + s * (BK + 4) + SLICE_IDX * WIDE);
        EACH(e, WIDE) {
            EACH(j, EACH_LONG) {
                acc[s * EACH_LONG + j] =
                    FMA(ELEMENT(pack, e),
                        LONG_BY_K ? LONG_ELEMENT(x[j], e)
                                  : LONG_ELEMENT(x[e * PACKS + j / WIDE], j % WIDE),
                        acc[s * EACH_LONG + j]);
            }
        }
    }
}

// A thread reads only what it copied itself: no step waits for other threads. A stage of the ring
// is refilled as soon as it is used; with `fills` stages are only filled.
#define LOAD_STEP(w) load_step(mine, x, *from, pitch, rows, remaining, w)
#if PREFETCHES
// Instead of a ring, the next step of the long operand is loaded into registers before this one is
// added, and converted when it is.
PART void add_phase(const LOCAL REAL *y, LONG_PACK *x, const STORED **from, const INDEX pitch,
                    const int rows, int remaining, const int steps, const int fills,
                    const int wide, REAL *acc)
{
    REAL *const mine = nullptr;
    TURNS(i, steps, 1) {
        LONG_PACK now[EACH_LONG];
        EACH(p, EACH_LONG) {
            now[p] = x[p];
        }
        if (wide) {
            LOAD_STEP(WIDE);
        } else {
            LOAD_STEP(1);
        }
        if (!fills) {
            add_step(y + i * STEP, now, acc);
        }
        *from += STEP * (LONG_BY_K ? 1 : pitch);
        remaining -= STEP;
    }
}
#else
PART void add_phase(const LOCAL REAL *y, LOCAL REAL *ring, int *slot, const GLOBAL STORED **from,
                    const INDEX pitch, const int rows, int remaining, const int steps,
                    const int fills, const int wide, REAL *acc)
{
    TURNS(i, steps, 1) {
        LOCAL REAL *const mine = ring + *slot + THREAD_X * WIDE;
        ACC x[EACH_LONG];
        if (HAS_CP_ASYNC && !fills) {
            cp_async_wait_group(STAGES - 1);
        }
        if (HAS_CP_ASYNC && !fills) {
            EACH(p, EACH_LONG) {
                x[p] = LOAD(WIDE, mine + p * THREADS * WIDE);
            }
        }
        if (HAS_CP_ASYNC <= fills && wide) {
            LOAD_STEP(WIDE);
        }
        if (HAS_CP_ASYNC <= fills && !wide) {
            LOAD_STEP(1);
        }
        if (!fills) {
            add_step(y + i * STEP, x, acc);
        }
        if (HAS_CP_ASYNC && !fills && wide) {
            LOAD_STEP(WIDE);
        }
        if (HAS_CP_ASYNC && !fills && !wide) {
            LOAD_STEP(1);
        }
        if (HAS_CP_ASYNC) {
            cp_async_commit_group();
        }
        *from += STEP * (LONG_BY_K ? 1 : pitch);
        remaining -= STEP;
        *slot =
            *slot < RING_SIZE - EACH_LONG * THREADS * WIDE ? *slot + EACH_LONG * THREADS * WIDE : 0;
    }
}
#endif

KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
matmul(const GLOBAL STORED *RESTRICT a, const GLOBAL STORED *RESTRICT b, GLOBAL STORED *RESTRICT c,
       const INDEX m, const INDEX n, const INDEX k, GLOBAL REAL *workspace, const INDEX splits,
       const INDEX fan, const INDEX depth, const INDEX by_across, const INDEX by_down,
       const INDEX by_splits)
{
    DYNAMIC_SHARED(smem, SMEM_SIZE + 16);
    const INDEX shorter = FLAT ? m : n, longer = FLAT ? n : m, pitch = LONG_BY_K ? k : longer;
    // Blocks that read the same part of the long operand follow each other, then those of the same
    // split.
    const unsigned across = (unsigned)((shorter + SHORT - 1) / SHORT),
                   down = (unsigned)((longer + LONG - 1) / LONG);
    const unsigned block = (unsigned)BLOCK, count = (unsigned)splits,
                   line = quotient_or_zero(block, across, by_across),
                   pile = quotient_or_zero(line, down, by_down),
                   batch = quotient_or_zero(pile, count, by_splits);
    const unsigned down_long = line - pile * down, across_short = block - line * across,
                   split = pile - batch * count;
    const INDEX row = (INDEX)down_long * LONG, column = (INDEX)across_short * SHORT;
    const INDEX start = split * depth, remaining = MIN(depth, k - start);
    const int rows = (int)MIN(longer - row, LONG), columns = (int)MIN(shorter - column, SHORT);
    const int wide = pitch % WIDE == 0 && ADDRESS(FLAT ? b : a) % 16 == 0;
    const int own = !LONG_BY_K && wide ? LONG_THREAD * WIDE : LONG_THREAD,
              first = LONG_BY_K && !wide ? SLICE_IDX : SLICE_IDX * WIDE;
    const GLOBAL STORED *x0 = (FLAT ? b : a) + batch * longer * k +
                            (row + own) * (LONG_BY_K ? k : 1) +
                            (start + first) * (LONG_BY_K ? 1 : pitch);
    const INDEX along = SHORT_BY_K ? 1 : shorter;
    const INDEX offset = batch * shorter * k + column * (SHORT_BY_K ? k : 1) + start * along;
    const GLOBAL STORED *const y0 = FLAT ? a : b;
    const int even = k % WIDE == 0 && ADDRESS(y0) % 16 == 0,
              packed = HAS_CP_ASYNC & SHORT_BY_K & even & (!LONG_BY_K | wide);
    LOCAL INDEX *const place =
        (LOCAL INDEX *)(smem +
                        SMEM_SIZE); // kept in shared memory, as the loop over k needs the registers
    if (THREAD_X == 0) {
        place[0] = batch * m * n + column * (FLAT ? n : 1) + row * (FLAT ? 1 : n);
        place[1] = split;
        place[2] = (batch * down + down_long) * across + across_short;
        place[3] = columns;
        place[4] = rows;
        place[5] = offset;
    }
    LOCAL REAL *const phases = smem + RING_SIZE;
    ACC totals[OUT_PACKS];
    REAL acc[SHORT * EACH_LONG] = {0}; // stay in registers: C is written once
#if PREFETCHES
    LONG_PACK next[EACH_LONG] = {};
#define RING next
#else
    int next = 0;
#define RING smem, &next
#endif
    int now = 0;
#define ADD_PHASE(y, q, steps, fills)                            \
    const int rest = (int)MIN(remaining - first - (q), 1 << 30); \
    add_phase(y, RING, &x0, pitch, rows - own, rest, steps, fills, wide, acc)
#define LOAD_SHORT_BY(y, start, q, w)                                          \
    load_short(y, y0 + start + (q) * along, SHORT_BY_K ? k : shorter, columns, \
               (int)MIN(remaining - (q), BK), LONG_BY_K && !wide, w)
#define LOAD_SHORT(y, start, q)           \
    if (packed)                           \
        LOAD_SHORT_BY(y, start, q, WIDE); \
    if (!packed)                          \
    LOAD_SHORT_BY(y, start, q, 1)
    // The first k tile of the short operand and a full ring of the long one are in flight together.
    LOAD_SHORT(phases, offset, 0);
    if (AHEAD > 0) {
        ADD_PHASE(phases, 0, AHEAD / STEP, 1);
    }
#pragma unroll 1
    for (INDEX q = 0; q < remaining; q += BK, now = SHORT_SIZE - now) {
        if (HAS_CP_ASYNC) {
            cp_async_wait_group(MIN(STAGES, BK / STEP) - 1);
        }
        BARRIER(); // this k tile is complete, and all have used the one before
        if (q + BK < remaining) {
            LOAD_SHORT(phases + (SHORT_SIZE - now), place[5], q + BK);
        }
        ADD_PHASE(phases + now, q + AHEAD, ((int)MIN(remaining - q, BK) + STEP - 1) / STEP, 0);
    }
    // Zeros past the end of k may still be in flight; then the ring's memory is used for the
    // reduction.
    if (HAS_CP_ASYNC) {
        cp_async_wait_group(0);
    }
    reduce_slices(smem, acc, totals);
    LOCAL int *const arrivals = (LOCAL int *)(place + 6);
    if (splits == 1 ||
        reduce_split_k(workspace, AFTER_COUNTERS(workspace), place[2], (int)place[1], (int)splits,
                       (int)fan, arrivals, totals)) {
        store_tile(c + place[0], FLAT ? n : 1, FLAT ? 1 : n, (int)place[3], (int)place[4],
                   !LONG_BY_K && wide, totals);
    }
}
