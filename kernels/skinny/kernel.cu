// C[m,n] = op(A)[m,k] x op(B)[k,n] where C has a short side: the operand of its long side is read once, and all that C
// wants of an element is added up while a thread has it. Until then it is in the thread's own part of shared memory.
//
// BM       rows of C's tile
// BN       columns of C's tile; the shorter of the two is along C's short side
// BK       how much of k of the short operand is in shared memory at a time
// TM       rows of C that a thread keeps in registers
// TN       columns of C that a thread keeps in registers; along the short side the whole tile
// SLICES   threads that share out k among them, for the same elements of C
// STAGES   steps of the long operand that a thread has under way; without asynchronous copies one
// HELD     blocks that an SM is to hold at once, at least
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
#elif !defined(SLICES)
#error "SLICES must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(HELD)
#error "HELD must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
// Where n is the short side A is the long operand, and all is as in C's mirror image.
#define FLAT (BM < BN)
#define SHORT (FLAT ? BM : BN)
#define LONG (FLAT ? BN : BM)
#define EACH_LONG (FLAT ? TN : TM)
#define LANES (LONG / EACH_LONG)
// Neighbouring threads follow the memory of the long operand: along k, or across it, along C's long side.
#define LONG_BY_K (FLAT ? TRANS_B : !TRANS_A)
#define SHORT_BY_K (FLAT ? !TRANS_A : TRANS_B)
#define LANE (LONG_BY_K ? THREAD_X / SLICES : THREAD_X % LANES)
#define SLICE (LONG_BY_K ? THREAD_X % SLICES : THREAD_X / LANES)
// In a step a thread has EACH_LONG packs of the long operand: WIDE of k for each of its elements along the long side.
#define STEP (SLICES * WIDE)
#include "reduce.h"
#include "pipeline.h"
#include "split_k.h"
#define ROOM MOST(RING + 2 * PHASE, ROUND * LONG * (SLICES + 1))

// A pack of the short operand, along k, serves EACH_LONG elements of the long one, and all LANES.
INNER void add_step(const LOCAL REAL *y, SUM *x, REAL *sums)
{
    EACH(s, SHORT) {
        if (s % 8 == 0) NO_SOONER();
        SUM pack = LOAD(WIDE, y + s * (BK + 4) + SLICE * WIDE);
        EACH(e, WIDE) EACH(j, EACH_LONG)
            sums[s * EACH_LONG + j] = FMA(ELEMENT(pack, e), LONG_BY_K ? ELEMENT(x[j], e)
                                          : ELEMENT(x[e * PACKS + j / WIDE], j % WIDE), sums[s * EACH_LONG + j]);
    }
}

// What a thread brings it alone reads: no step waits for other threads. As soon as a step is added its place in the
// ring is filled again; before the first, places only are filled.
#define LOAD_STEP(w) load_step(mine, x, *from, pitch, rows, left, w)
PART void add_phase(const LOCAL REAL *y, LOCAL REAL *ring, int *slot, const GLOBAL REAL **from, const INDEX pitch,
                    const int rows, int left, const int steps, const int fills, const int wide, REAL *sums)
{
    TURNS(i, steps, 1) {
        LOCAL REAL *const mine = ring + *slot + THREAD_X * WIDE;
        SUM x[EACH_LONG];
        if (COPIES && !fills) COPIES_LEFT(STAGES - 1);
        if (COPIES && !fills) EACH(p, EACH_LONG) x[p] = LOAD(WIDE, mine + p * THREADS * WIDE);
        if (COPIES <= fills && wide) LOAD_STEP(WIDE);
        if (COPIES <= fills && !wide) LOAD_STEP(1);
        if (!fills) add_step(y + i * STEP, x, sums);
        if (COPIES && !fills && wide) LOAD_STEP(WIDE);
        if (COPIES && !fills && !wide) LOAD_STEP(1);
        if (COPIES) COPIES_SENT();
        *from += STEP * (LONG_BY_K ? 1 : pitch), left -= STEP;
        *slot = *slot < RING - EACH_LONG * THREADS * WIDE ? *slot + EACH_LONG * THREADS * WIDE : 0;
    }
}

HELD_KERNEL(THREADS, 1, HELD)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, GLOBAL REAL *scratch, const INDEX slices, const INDEX fan, const INDEX depth)
{
    POOL(pool, ROOM + 16);
    const INDEX shorter = FLAT ? m : n, longer = FLAT ? n : m, pitch = LONG_BY_K ? k : longer;
    // Blocks that read the same of the long operand follow each other, and then those of the same slice of k.
    const unsigned across = (unsigned)((shorter + SHORT - 1) / SHORT), down = (unsigned)((longer + LONG - 1) / LONG);
    const unsigned line = (unsigned)BLOCK / across, pile = line / down, count = (unsigned)slices, batch = pile / count;
    const INDEX row = (INDEX)(line % down) * LONG, column = (INDEX)((unsigned)BLOCK % across) * SHORT;
    const INDEX start = pile % count * depth, left = LEAST(depth, k - start);
    const int rows = (int)LEAST(longer - row, LONG), columns = (int)LEAST(shorter - column, SHORT);
    const int wide = pitch % WIDE == 0 && ADDRESS(FLAT ? b : a) % 16 == 0;
    const int own = !LONG_BY_K && wide ? LANE * WIDE : LANE, first = LONG_BY_K && !wide ? SLICE : SLICE * WIDE;
    const GLOBAL REAL *x0 = (FLAT ? b : a) + batch * longer * k + (row + own) * (LONG_BY_K ? k : 1)
                            + (start + first) * (LONG_BY_K ? 1 : pitch);
    const INDEX along = SHORT_BY_K ? 1 : shorter;
    const INDEX offset = batch * shorter * k + column * (SHORT_BY_K ? k : 1) + start * along;
    const GLOBAL REAL *const y0 = FLAT ? a : b;
    const int even = k % WIDE == 0 && ADDRESS(y0) % 16 == 0, packed = COPIES & SHORT_BY_K & even & (!LONG_BY_K | wide);
    LOCAL INDEX *const place = (LOCAL INDEX *)(pool + ROOM); // what the loop over k does not want takes no registers
    if (THREAD_X == 0) {
        place[0] = batch * m * n + column * (FLAT ? n : 1) + row * (FLAT ? 1 : n), place[1] = pile % count;
        place[2] = (batch * down + line % down) * across + (unsigned)BLOCK % across, place[3] = columns;
        place[4] = rows, place[5] = offset;
    }
    LOCAL REAL *const phases = pool + RING;
    SUM totals[SUMS];
    REAL sums[SHORT * EACH_LONG] = {0}; // stay in registers: C is written once
    int next = 0, now = 0;
#define ADD_PHASE(y, q, steps, fills)                               \
    const int rest = (int)LEAST(left - first - (q), 1 << 30); \
    add_phase(y, pool, &next, &x0, pitch, rows - own, rest, steps, fills, wide, sums)
#define STAGED(y, start, q, w)                                                                        \
    stage(y, y0 + start + (q) * along, SHORT_BY_K ? k : shorter, columns, (int)LEAST(left - (q), BK), \
          LONG_BY_K && !wide, w)
#define STAGE(y, start, q)                 \
    if (packed) STAGED(y, start, q, WIDE); \
    if (!packed) STAGED(y, start, q, 1)
    // The first phase of the short operand and a ring full of the long one are under way together.
    STAGE(phases, offset, 0);
    if (COPIES) { ADD_PHASE(phases, 0, STAGES, 1); }
#pragma unroll 1
    for (INDEX q = 0; q < left; q += BK, now = PHASE - now) {
        if (COPIES) COPIES_LEFT(LEAST(STAGES, BK / STEP) - 1);
        BARRIER(); // this phase is whole, and all have added the one before
        if (q + BK < left) { STAGE(phases + (PHASE - now), place[5], q + BK); }
        ADD_PHASE(phases + now, q + AHEAD, ((int)LEAST(left - q, BK) + STEP - 1) / STEP, 0);
    }
    // What is still under way is zeros past the end of k; then the ring's place is the sums'.
    if (COPIES) COPIES_LEFT(0);
    join_slices(pool, sums, totals);
    LOCAL int *const told = (LOCAL int *)(place + 6);
    if (slices == 1 || sum_slices(scratch, place[2], (int)place[1], (int)slices, (int)fan, told, totals))
        store_sums(c + place[0], FLAT ? n : 1, FLAT ? 1 : n, (int)place[3], (int)place[4], !LONG_BY_K && wide, totals);
}
