// Sums of a tile that SLICES threads of a block each have a part of: every thread gives its own into shared memory and
// takes some elements' sums of all slices, always added in their order. The including file defines before:
//
// SHORT      elements of the tile one way: a thread has all of them       LANE, LANES    which EACH_LONG the thread has
// EACH_LONG  elements of a thread the other way, a multiple of WIDE       SLICE, SLICES  which part of k the thread has
//
// ROUND of the tile's SHORT elements go through shared memory at a time, ROUND * LANES * EACH_LONG * (SLICES + 1) of
// them: that is odd for SLICES that are even, so that neither those who write nor those who read wait for a bank.
#define THREADS (LANES * SLICES)
#define LEAST(x, y) ((x) < (y) ? (x) : (y))
#define MOST(x, y) ((x) < (y) ? (y) : (x))
#define PACKS (EACH_LONG / WIDE)
#define ROUND LEAST(SHORT, MOST(1, 2048 * WIDE / (THREADS * EACH_LONG)))
#define SHARE ((ROUND * PACKS * LANES + THREADS - 1) / THREADS)
#define SUM PACK(WIDE)
#define SUM_RUN WIDE
#define SUMS ((SHORT + ROUND - 1) / ROUND * SHARE)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define COPIES 1 // from global into shared memory past the registers, so that no thread waits for its own
#else
#define COPIES 0
#endif

// What is read after this is read after this: what comes far ahead of its use takes registers from the sums.
#ifdef __OPENCL_VERSION__
#define NO_SOONER()
#else
#define NO_SOONER() __syncwarp()
#endif

// What a thread takes: of pack u, if there is one, WIDE elements LANES apart, that LANE had before.
#define TAKEN(u) ((u) % SHARE * THREADS + THREAD_X)
#define IS_TAKEN(u) (TAKEN(u) < LEAST(ROUND, SHORT - (u) / SHARE * ROUND) * PACKS * LANES)
#define TAKEN_SHORT(u) ((u) / SHARE * ROUND + TAKEN(u) / (PACKS * LANES))
#define TAKEN_PACK(u) (TAKEN(u) / LANES % PACKS)
#define TAKEN_LANE(u) (TAKEN(u) % LANES)

INNER void give_sums(LOCAL REAL *pool, const REAL *sums, const int round)
{
    TURNS(s, SHORT, 32) TURNS(j, EACH_LONG, 8)
        if (s / ROUND == round)
            pool[((s % ROUND * EACH_LONG + j) * LANES + LANE) * (SLICES + 1) + SLICE] = sums[s * EACH_LONG + j];
}

INNER void take_sums(const LOCAL REAL *pool, SUM *totals, const int round)
{
    EACH(i, SHARE) {
        const int u = round * SHARE + i, first = TAKEN(u) / LANES * WIDE * LANES + TAKEN_LANE(u);
        totals[u] = NOTHING(WIDE);
        if (IS_TAKEN(u)) TURNS(t, SLICES, 8) EACH(e, WIDE)
            ELEMENT(totals[u], e) += pool[(first + e * LANES) * (SLICES + 1) + t];
    }
}

INNER void join_slices(LOCAL REAL *pool, const REAL *sums, SUM *totals)
{
    EACH(round, SUMS / SHARE) {
        BARRIER(); // what was in the pool has been read
        give_sums(pool, sums, round);
        BARRIER();
        take_sums(pool, totals, round);
    }
}

// Elements of C that follow each other along the tile's short side are `down` apart, along its long side `along`. A
// pack's elements are neighbours there where the thread before had them so (`packed`), else LANES apart.
PART void store_sums(GLOBAL REAL *c, const INDEX down, const INDEX along, const int shorts, const int longs,
                     const int packed, SUM *totals)
{
    EACH(u, SUMS) {
        const int s = TAKEN_SHORT(u), pack = TAKEN_PACK(u), lane = TAKEN_LANE(u);
        if (IS_TAKEN(u) && s < shorts) EACH(e, WIDE) {
            const int at = packed ? (pack * LANES + lane) * WIDE + e : (pack * WIDE + e) * LANES + lane;
            if (at < longs) c[s * down + at * along] = ELEMENT(totals[u], e);
        }
    }
}
