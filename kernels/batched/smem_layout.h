// Tiles in shared memory with the layout of global memory, so that each copy is of 16 bytes in
// either layout. Of a K-major tile a thread reads WIDE of k at once, and neighbouring threads read
// neighbouring lines: packs are swizzled over the 8 of 128 bytes (all banks) by an exclusive or
// with the number of `div`s before them, modulo `mod`. The including file defines before:
//
// BM, BN, BK                sides of a tile, powers of two
// TM, TN                    rows and columns of it that a thread has
// BATCH_PER_BLOCK           products of a block
// PRODUCT_THREADS, THREADS  threads of a product, and of a block
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_CP_ASYNC 1 // cp.async
#else
#define HAS_CP_ASYNC 0
#endif
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))
#define ME ((unsigned)THREAD_X)
#define BANK_ELEMENTS (8 * WIDE)
#define SWIZZLED(x, div, mod) ((x) ^ (x) / (div) % (mod) * WIDE)
#define SWIZZLED_ADD(mine, fixed) \
    (((mine) ^ (fixed) % BANK_ELEMENTS) + (fixed) / BANK_ELEMENTS * BANK_ELEMENTS)

// Up to 32 threads are LANES_M x LANES_N over C, in pairs down and then across: whichever operand
// is read, a thread has a neighbour that reads the same 16 bytes, and two quarters of a warp are
// served together.
#define LANES_N MIN(8, BN / TN)
#define LANES_M MIN(32 / LANES_N, BM / TM)
#define TILE_THREAD (ME % (LANES_M * LANES_N))
#define TILE_WARP (ME % PRODUCT_THREADS / (LANES_M * LANES_N))
#define DOWN (TILE_THREAD % 2 + TILE_THREAD / (2 * LANES_N) * 2)
#define THREAD_ROW (int)(TILE_WARP / (BN / TN / LANES_N) * LANES_M * TM + DOWN * RUN_M)
#define THREAD_COL \
    (int)(TILE_WARP % (BN / TN / LANES_N) * LANES_N * TN + TILE_THREAD / 2 % LANES_N * RUN(TN))
#define RUN_M (TRANS_A ? WIDE : 1)
#define ACC_ROW(i) (THREAD_ROW + (i) / RUN_M * LANES_M * RUN_M + (i) % RUN_M)
#define ACC_COL(j) ((j) / RUN(TN) * LANES_N * RUN(TN) + (j) % RUN(TN))
#define SWIZZLE_DIV_A MAX(BK, BANK_ELEMENTS)
#define SWIZZLE_MOD_A (TRANS_A ? 1 : MAX(1, MIN(8, LANES_M * BK / SWIZZLE_DIV_A)))
#define SWIZZLE_DIV_B (BK * RUN(TN))
#define SWIZZLE_MOD_B (TRANS_B ? LANES_N : 1)

// Threads copy an operand in the order of memory. The bits of an offset that depend on the thread
// and on the round do not overlap.
#define X_OF(item) ((item) * w % length)
#define Y_OF(item) ((item) * w / length % lines)
#define PRODUCT_OF(item) ((item) * w / (lines * length))
#define OFFSET(item) (PRODUCT_OF(item) * stride + Y_OF(item) * pitch + X_OF(item))
#define TO (to + SWIZZLED_ADD((int)SWIZZLED(me * w, div, mod), SWIZZLED(i * THREADS * w, div, mod)))
#define FROM (from + (int)OFFSET(me) + OFFSET(i * THREADS))
#define IS_INSIDE                                                                                 \
    (PRODUCT_OF(me) + PRODUCT_OF(i * THREADS) < count && Y_OF(me) + Y_OF(i * THREADS) < across && \
     X_OF(me) + X_OF(i * THREADS) < along)

// Copies BATCH_PER_BLOCK whole tiles of `lines` lines of `length` elements, `pitch` apart; tiles
// are `stride` apart.
INNER void load_full(LOCAL REAL *to, const GLOBAL REAL *from, const int stride, const int pitch,
                     const int lines, const int length, const int div, const int mod)
{
    const unsigned me = ME;
    const int w = WIDE;
    TURNS(i, BATCH_PER_BLOCK * lines * length / w / THREADS, 128) {
        if (HAS_CP_ASYNC) {
            cp_async(w, TO, FROM, 1);
        } else {
            STORE(WIDE, LOAD(WIDE, FROM), TO);
        }
    }
}

// Copies `across` lines of `along` elements of `count` tiles, and zeros for the others. Addresses
// and predicates must not be hoisted out of the loop over k, which blocks that never come here
// would pay for: little is unrolled, and `me` is ME plus a zero that depends on k.
INNER void load_predicated(LOCAL REAL *to, const GLOBAL REAL *from, const int stride,
                           const int pitch, const int lines, const int length, const int div,
                           const int mod, const int count, const int across, const int along,
                           const unsigned me, const int w)
{
    TURNS(i, BATCH_PER_BLOCK * lines * length / w / THREADS, 2) {
        if (HAS_CP_ASYNC) {
            cp_async(w, TO, FROM, IS_INSIDE);
        } else if (w == 1) {
            *TO = IS_INSIDE ? *FROM : 0;
        } else {
            STORE(WIDE, IS_INSIDE ? LOAD(WIDE, FROM) : ZERO_PACK(WIDE), TO);
        }
    }
}
