// C[m,n] = op(A)[m,k] x op(B)[k,n] where C has a short side: the operand of its long side is read once, from memory
// into registers, and all that C wants of an element is added up while it is there.
//
// BM       rows of C's tile
// BN       columns of C's tile; the shorter of the two is along C's short side
// BK       how much of k of the short operand is in shared memory at a time
// TM       rows of C that a thread keeps in registers
// TN       columns of C that a thread keeps in registers; along the short side the whole tile
// SLICES   threads that share out k among them, for the same elements of C
// STAGES   steps of the long operand that a thread has under way
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
#include "slices.h"
#include "split.h"
#define PHASE (SHORT * (BK + 4))
#define ROOM MOST(2 * PHASE, ROUND * LONG * (SLICES + 1))

// Whole 16 bytes are read in packs (w is WIDE). Of other rows a pack's elements are LANES or SLICES apart, so that what a
// warp reads at once lies together. From the thread's first element on there are `rows` and `left` of k, then zeros.
INNER void load_step(SUM *x, const GLOBAL REAL *from, const INDEX pitch, const int rows, const int left, const int w)
{
    TURNS(p, EACH_LONG, 8) TURNS(e, w == 1 ? WIDE : 1, 4) {
        const int row = LANES * (LONG_BY_K ? p : w == 1 ? p % PACKS * WIDE + e : p % PACKS * WIDE);
        const int q = LONG_BY_K ? e * SLICES : p / PACKS, inside = row < rows && q < left;
        const GLOBAL REAL *const at = from + (LONG_BY_K ? row * pitch + q : q * pitch + row);
        if (w == 1) ELEMENT(x[p], e) = inside ? *at : 0;
        else x[p] = inside ? LOAD(WIDE, at) : NOTHING(WIDE);
    }
}

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

// As soon as a step is added its registers are filled again, for the next turn; before the first, they only are filled.
PART void add_phase(const LOCAL REAL *y, SUM *x, const GLOBAL REAL **from, INDEX *rest, const INDEX pitch,
                    const int rows, const int turns, const int fills, const int w, REAL *sums)
{
    TURNS(i, turns, 1) TURNS(s, STAGES, 4) {
        if (!fills) add_step(y + (i * STAGES + s) * STEP, x + s * EACH_LONG, sums);
        load_step(x + s * EACH_LONG, *from, pitch, rows, (int)LEAST(*rest, STEP), w);
        *from += STEP * (LONG_BY_K ? 1 : pitch), *rest -= STEP;
    }
}

// The short operand comes while threads go on, with k along the banks; where `apart`, in the order in which steps have it.
PART void stage(LOCAL REAL *y, const GLOBAL REAL *from, INDEX pitch, int columns, int left, int apart)
{
    TURNS(i, (SHORT * BK + THREADS - 1) / THREADS, 4) {
        const unsigned item = i * THREADS + THREAD_X;
        const int s = SHORT_BY_K ? item / BK : item % SHORT, q = SHORT_BY_K ? item % BK : item / SHORT;
        const int place = apart ? q / STEP * STEP + q % SLICES * WIDE + q / SLICES % WIDE : q;
        const int inside = s < columns && q < left;
        if (SHORT * BK % THREADS != 0 && item >= SHORT * BK) continue;
        if (COPIES) COPY(1, y + s * (BK + 4) + place, from + (SHORT_BY_K ? s * pitch + q : q * pitch + s), inside);
        else y[s * (BK + 4) + place] = inside ? from[SHORT_BY_K ? s * pitch + q : q * pitch + s] : 0;
    }
}

HELD_KERNEL(THREADS, 1, HELD)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, GLOBAL REAL *scratch, const INDEX slices, const INDEX fan, const INDEX depth)
{
    POOL(pool, ROOM + 12);
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
    const GLOBAL REAL *y0 = (FLAT ? a : b) + batch * shorter * k + column * (SHORT_BY_K ? k : 1) + start * along;
    LOCAL INDEX *const place = (LOCAL INDEX *)(pool + ROOM); // what only the end wants takes no registers until then
    if (THREAD_X == 0) {
        place[0] = batch * m * n + column * (FLAT ? n : 1) + row * (FLAT ? 1 : n), place[1] = pile % count;
        place[2] = (batch * down + line % down) * across + (unsigned)BLOCK % across, place[3] = columns, place[4] = rows;
    }
    SUM x[STAGES * EACH_LONG], totals[SUMS];
    REAL sums[SHORT * EACH_LONG] = {0}; // stay in registers: C is written once
    INDEX rest = left - first;
#define ADD_PHASE(y, turns, fills)                                                             \
    if (wide) add_phase(y, x, &x0, &rest, pitch, rows - own, turns, fills, WIDE, sums);        \
    else add_phase(y, x, &x0, &rest, pitch, rows - own, turns, fills, 1, sums)
#define STAGE(y, q) \
    stage(y, y0 + (q) * along, SHORT_BY_K ? k : shorter, columns, (int)LEAST(left - (q), BK), LONG_BY_K && !wide)
    ADD_PHASE(pool, 1, 1);
    STAGE(pool, 0);
#pragma unroll 1
    for (INDEX q = 0, now = 0; q < left; q += BK, now = PHASE - now) {
        if (COPIES) COPIES_SENT();
        if (COPIES) COPIES_LEFT(0);
        BARRIER(); // this phase is whole, and all have added the one before
        if (q + BK < left) STAGE(pool + (PHASE - now), q + BK);
        ADD_PHASE(pool + now, ((int)LEAST(left - q, BK) + STAGES * STEP - 1) / (STAGES * STEP), 0);
    }
    join_slices(pool, sums, totals);
    LOCAL int *const told = (LOCAL int *)(place + 5);
    if (slices == 1 || sum_slices(scratch, place[2], (int)place[1], (int)slices, (int)fan, told, totals))
        store_sums(c + place[0], FLAT ? n : 1, FLAT ? 1 : n, (int)place[3], (int)place[4], !LONG_BY_K && wide, totals);
}
