// Tiles that lie in shared memory as in global memory, so that each copy is of 16 bytes whatever is transposed. Where
// that is along k, a thread reads WIDE of k at once, and threads beside each other read lines beside each other: the
// packs of these are dealt out over the 8 of 128 bytes, which are all banks, by an exclusive or with the number of
// `div`s before them, modulo `mod`. The including file defines before:
//
// BM, BN, BK  a tile's sides, powers of two     TM, TN   rows and columns that a thread has of it
// PER         tiles of a block                  TEAM     threads of a tile; THREADS of a block
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define COPIES 1 // from global into shared memory past the registers, so that no thread waits for its own
#else
#define COPIES 0
#endif
#define LEAST(x, y) ((x) < (y) ? (x) : (y))
#define MOST(x, y) ((x) > (y) ? (x) : (y))
#define ME ((unsigned)THREAD_X)
#define SPAN (8 * WIDE)
#define DEALT(x, div, mod) ((x) ^ (x) / (div) % (mod) * WIDE)
#define JOIN(mine, fixed) (((mine) ^ (fixed) % SPAN) + (fixed) / SPAN * SPAN)

// Up to 32 threads lie LANES_M x LANES_N over C, neighbours in pairs down and then across: whichever operand is read,
// each thread has one beside it that wants the same 16 bytes, and two quarters of a warp are served as one.
#define LANES_N LEAST(8, BN / TN)
#define LANES_M LEAST(32 / LANES_N, BM / TM)
#define LANE (ME % (LANES_M * LANES_N))
#define WARP (ME % TEAM / (LANES_M * LANES_N))
#define DOWN (LANE % 2 + LANE / (2 * LANES_N) * 2)
#define TOP (int)(WARP / (BN / TN / LANES_N) * LANES_M * TM + DOWN * RUN_M)
#define LEFT (int)(WARP % (BN / TN / LANES_N) * LANES_N * TN + LANE / 2 % LANES_N * RUN(TN))
#define RUN_M (TRANS_A ? WIDE : 1)
#define ROW(i) (TOP + (i) / RUN_M * LANES_M * RUN_M + (i) % RUN_M)
#define COLUMN(j) ((j) / RUN(TN) * LANES_N * RUN(TN) + (j) % RUN(TN))
#define DIV_A MOST(BK, SPAN)
#define MOD_A (TRANS_A ? 1 : MOST(1, LEAST(8, LANES_M * BK / DIV_A)))
#define DIV_B (BK * RUN(TN))
#define MOD_B (TRANS_B ? LANES_N : 1)

// Threads take an operand's packs, or elements, in the order in which memory has them. The bits of a place that are the
// thread's and those that are the turn's do not overlap.
#define ALONG(item) ((item) * w % length)
#define ACROSS(item) ((item) * w / length % lines)
#define WHICH(item) ((item) * w / (lines * length))
#define OFFSET(item) (WHICH(item) * stride + ACROSS(item) * pitch + ALONG(item))
#define TO (to + JOIN((int)DEALT(me * w, div, mod), DEALT(i * THREADS * w, div, mod)))
#define FROM (from + (int)OFFSET(me) + OFFSET(i * THREADS))
#define IS_INSIDE                                                                                       \
    (WHICH(me) + WHICH(i * THREADS) < count && ACROSS(me) + ACROSS(i * THREADS) < across                \
     && ALONG(me) + ALONG(i * THREADS) < along)

// All of PER tiles of `lines` lines of `length` elements, `pitch` apart; the tiles are `stride` apart.
INNER void move_whole(LOCAL REAL *to, const GLOBAL REAL *from, const int stride, const int pitch, const int lines,
                      const int length, const int div, const int mod)
{
    const unsigned me = ME;
    const int w = WIDE;
    TURNS(i, PER * lines * length / w / THREADS, 128) {
        if (COPIES) COPY(w, TO, FROM, 1);
        else STORE(WIDE, LOAD(WIDE, FROM), TO);
    }
}

// `across` lines of `along` elements of `count` tiles, zeros for the others. What places and comparisons need is not to
// be worked out before the loop over k by all who never come here: few turns are laid out, and `me` is ME and a zero
// that depends on k.
INNER void move_some(LOCAL REAL *to, const GLOBAL REAL *from, const int stride, const int pitch, const int lines,
                     const int length, const int div, const int mod, const int count, const int across,
                     const int along, const unsigned me, const int w)
{
    TURNS(i, PER * lines * length / w / THREADS, 2) {
        if (COPIES) COPY(w, TO, FROM, IS_INSIDE);
        else if (w == 1) *TO = IS_INSIDE ? *FROM : 0;
        else STORE(WIDE, IS_INSIDE ? LOAD(WIDE, FROM) : NOTHING(WIDE), TO);
    }
}
