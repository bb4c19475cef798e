// How both operands come into shared memory: each thread's share of the long one into a ring of STAGES steps that the
// thread has to itself, and of the short one a phase, BK of k, for all threads. reduce.h comes before; the including file
// defines what that wants, and what both operands are like:
//
// LONG_BY_K, SHORT_BY_K  1 where the operand lies along k in the device's memory
// STEP                   how much of k a step has, for all SLICES; a thread has EACH_LONG packs of it
//
// Where nothing can be copied past the registers there is no ring: a step's packs are read right before they are added.
#define PHASE (SHORT * (BK + 4))
#define RING (COPIES * STAGES * EACH_LONG * THREADS * WIDE)
#define AHEAD (COPIES * STAGES * STEP)

// Whole 16 bytes are read in packs (w is WIDE). Of other rows a pack's elements are LANES or SLICES apart, so that what
// a warp reads at once lies together. From the thread's first element on there are `rows` and `left` of k, then zeros.
INNER void load_step(LOCAL REAL *ring, SUM *x, const GLOBAL REAL *from, const INDEX pitch, const int rows,
                     const int left, const int w)
{
    TURNS(e, w == 1 ? WIDE : 1, COPIES ? 1 : 4) TURNS(p, EACH_LONG, 8) {
        const int row = LANES * (LONG_BY_K ? p : w == 1 ? p % PACKS * WIDE + e : p % PACKS * WIDE);
        const int q = LONG_BY_K ? e * SLICES : p / PACKS, inside = row < rows && q < left;
        const GLOBAL REAL *const at = from + (LONG_BY_K ? row * pitch + q : q * pitch + row);
        if (COPIES) COPY(w, ring + p * THREADS * WIDE + e, at, inside);
        else if (w == 1) ELEMENT(x[p], e) = inside ? *at : 0;
        else x[p] = inside ? LOAD(WIDE, at) : NOTHING(WIDE);
    }
}

// The short operand comes while threads go on, with k along the banks; where `apart`, in the order in which steps have
// it. It moves `w` neighbours in memory at a time.
#define RUN_SHORT (SHORT_BY_K ? BK / w : SHORT == 24 ? 32 : SHORT)
#define ACROSS LEAST(RUN_SHORT, THREADS)
PART void stage(LOCAL REAL *y, const GLOBAL REAL *from, INDEX pitch, int columns, int left, int apart, const int w)
{
    const int lines = SHORT_BY_K ? SHORT : BK, at_once = THREADS / ACROSS, turns = RUN_SHORT / ACROSS;
    const int ragged = RUN_SHORT % SHORT != 0 ? 1 : lines % at_once;
    TURNS(i, (lines + at_once - 1) / at_once * turns, 4) {
        const int along = (THREAD_X % ACROSS + i % turns * ACROSS) * w, line = THREAD_X / ACROSS + i / turns * at_once;
        const int s = SHORT_BY_K ? line : along, q = SHORT_BY_K ? along : line;
        const int place = apart ? q / STEP * STEP + q % SLICES * WIDE + q / SLICES % WIDE : q;
        const int inside = s < columns && q < left;
        if (ragged && (s >= SHORT || q >= BK)) continue;
        if (COPIES) COPY(w, y + s * (BK + 4) + place, from + (line * pitch + along), inside);
        else y[s * (BK + 4) + place] = inside ? from[line * pitch + along] : 0;
    }
}
