// A thread's share of a tile, from global into shared memory. The including file defines before:
//
// THREADS  threads of a block, one-dimensional     BK      how much of k a tile holds
// STAGES   tiles in shared memory; with 3 and more they are copied past the registers
//
// Tiles lie with C's rows or columns along the banks. What memory has along k is written crosswise: in lines that are 4
// elements longer than the banks, a sector of k of each row that a warp brings falls on banks of its own.
#define LINE(side, cross) ((side) + ((cross) ? 4 : 0))
#define SHARE(side) ((side) * BK / THREADS)
// Threads deal a tile out among them in turns, `w` neighbours in memory at a time: along C's rows or columns line by
// line, along k a sector (32 bytes) of each line, so that none is fetched twice and crosswise writes do not meet. The
// thread's bits of a place and the turn's do not overlap: they add up, and the turn's are the same for all.
#define ME ((unsigned)THREAD_X)
#define SPAN ((cross ? 32 / (int)sizeof(REAL) : side) / w)
#define ALONG(item) ((int)((item) % SPAN + (item) / (SPAN * (cross ? side : BK)) * SPAN) * w)
#define ACROSS(item) ((int)((item) / SPAN % (cross ? side : BK)))
#define PLACE(item) ((cross ? ALONG(item) : ACROSS(item)) * LINE(side, cross) + (cross ? ACROSS(item) : ALONG(item)))
#define FROM (from + (ACROSS(ME) * pitch + ALONG(ME)) + (ACROSS(i * THREADS) * pitch + ALONG(i * THREADS)))
#define TO (to + PLACE(ME) + PLACE(i * THREADS))

// Bring a thread's share of a tile into its registers, with zeros past the edges (they add nothing), and from there
// into shared memory; or, with STAGES > 2, copy it past the registers while the threads go on.
INNER void move(LOCAL REAL *to, REAL *in, const GLOBAL REAL *from, const INDEX pitch, const int sides, const int depth,
                const int writes, const int side, const int cross, const int w)
{
    TURNS(i, SHARE(side) / w, 256) {
        const int x = ALONG(ME) + ALONG(i * THREADS), y = ACROSS(ME) + ACROSS(i * THREADS);
        const int inside = x < (cross ? depth : sides) && y < (cross ? sides : depth);
        if (STAGES > 2) COPY(w, TO, FROM, inside);
        else if (!writes && w == 1) in[i] = inside ? *FROM : 0;
        else if (!writes) STORE(WIDE, inside ? LOAD(WIDE, FROM) : NOTHING(WIDE), in + i * w);
        else if (!cross && w > 1) STORE(WIDE, LOAD(WIDE, in + i * w), TO);
        else EACH(e, w) TO[e * LINE(side, cross)] = in[i * w + e];
    }
}
