// C[m,n] = op(A)[m,k] x op(B)[k,n] in float64 on tensor cores: a warp's instruction adds up 16 x 8 sums.
//
// BM       rows of C's tile
// BN       columns of C's tile
// BK       how much of k each phase brings into shared memory
// WM       rows of the tile that 32 threads, a warp, keep in registers
// WN       columns of the tile that a warp keeps in registers
// MMA_K    how much of k an instruction multiplies: 4; from sm_90 on also 8 and 16
// STAGES   phases in shared memory, of which all but one are being copied
// AHEAD    1 where a thread reads the next instructions' operands before it issues these ones, else 0
// HELD     blocks that an SM is to hold at once, at least
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(WM)
#error "WM must be defined"
#elif !defined(WN)
#error "WN must be defined"
#elif !defined(MMA_K)
#error "MMA_K must be defined"
#elif !defined(STAGES)
#error "STAGES must be defined"
#elif !defined(AHEAD)
#error "AHEAD must be defined"
#elif !defined(HELD)
#error "HELD must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#define THREADS (BM / WM * (BN / WN) * 32)
#define TOP (THREAD_X / 32 / (BN / WN) * WM)
#define LEFT (THREAD_X / 32 % (BN / WN) * WN)
#include "mma_f64.h"
#include "split_k.h"
#define SPAN_A ((TRANS_A ? BM : BK) / 2)
#define SPAN_B ((TRANS_B ? BK : BN) / 2)
#define STAGE ((BM + BN) * BK)

// Copy a tile past the registers, zeros where there is none: threads deal pairs of neighbours out among them in turns,
// line by line. `from` is the thread's own first pair and goes on by what is the same for all. Where pairs do not start
// at multiples of 16 bytes their elements are copied one by one.
INNER void copy_tile(REAL *to, const REAL *from, const INDEX pitch, const int lines, const int inside, const int span,
                     const int pairs, const int wide)
{
    int me = THREAD_X;
    asm volatile("" : "+r"(me)); // what follows from it is worked out each time: no registers are left to keep it
    const int line = me / span, x = me % span * 2;
    EACH(i, pairs / THREADS) {
        const int down = i * THREADS / span, on = i * THREADS % span * 2;
        REAL *const at = to + (line * span * 2 + SWAP(SWAP(x, line), down)) + (down * span * 2 + on);
        const int kept = line + down < lines ? inside - on - x : 0;
        if (wide) COPY(WIDE, at, from, kept > 0);
        else EACH(e, 2) COPY(1, at + e, from + e, kept > e);
        from += ((i + 1) * THREADS / span - down) * pitch + ((i + 1) * THREADS % span * 2 - on);
    }
}

INNER void store_tile(REAL *c, const INDEX n, const int rows, const int columns, const int wide, SUM *sums)
{
    const int x = LEFT + MEMBER * 2;
    EACH(r, STRIPS * 2) {
        const int y = TOP + r * 8 + QUAD;
        REAL *const to = c + (y * n + x);
        if (y < rows) EACH(j, BANDS) {
            const SUM sum = sums[(r / 2 * BANDS + j) * 2 + r % 2];
            if (wide && x + j * 8 < columns) STORE(2, sum, to + j * 8);
            else EACH(e, 2) if (x + j * 8 + e < columns) to[j * 8 + e] = ELEMENT(sum, e);
        }
    }
}

HELD_KERNEL(THREADS, 1, HELD)
matmul(const REAL *RESTRICT a, const REAL *RESTRICT b, REAL *RESTRICT c, const INDEX m, const INDEX n, const INDEX k,
       REAL *scratch, const INDEX group, const INDEX slices, const INDEX fan, const INDEX share)
{
    POOL(pool, STAGES * STAGE);
    // `group` rows of tiles go through C's columns together: blocks that run at one time share what the cache has.
    const unsigned across = (n + BN - 1) / BN, down = (m + BM - 1) / BM, tiles = across * down;
    const unsigned tile = (unsigned)BLOCK % tiles, slice = (unsigned)BLOCK / tiles % (unsigned)slices;
    const unsigned batch = (unsigned)BLOCK / tiles / (unsigned)slices;
    const unsigned high = group, wave = high * across, top = tile / wave * high;
    const unsigned height = down - top < high ? down - top : high;
    const INDEX row = (INDEX)(top + tile % wave % height) * BM, column = (INDEX)(tile % wave / height) * BN;
    const int rows = m - row < BM ? (int)(m - row) : BM, columns = n - column < BN ? (int)(n - column) : BN;
    const INDEX pitch_a = TRANS_A ? m : k, pitch_b = TRANS_B ? k : n, start = slice * share;
    INDEX left = k - start < share ? k - start : share; // of k, to be copied
    const REAL *a0 = a + (batch * m * k + (TRANS_A ? row + start * m : row * k + start)) +
                     (THREAD_X / SPAN_A * pitch_a + THREAD_X % SPAN_A * 2);
    const REAL *b0 = b + (batch * k * n + (TRANS_B ? column * k + start : column + start * n)) +
                     (THREAD_X / SPAN_B * pitch_b + THREAD_X % SPAN_B * 2);
    const int wide_a = pitch_a % WIDE == 0 && ADDRESS(a) % 16 == 0;
    const int wide_b = pitch_b % WIDE == 0 && ADDRESS(b) % 16 == 0;
    REAL x[1 + AHEAD][STRIPS][2 * FOURS], y[1 + AHEAD][BANDS][FOURS], *now = pool, *free = pool;
    SUM sums[SUMS] = {}; // stay in registers: C is written once
#define AFTER(stage) (stage == pool + (STAGES - 1) * STAGE ? pool : stage + STAGE)
#define COPY_NEXT()                                                                                                  \
    const int deep = left < BK ? (int)left : BK;                                                                     \
    copy_tile(free, a0, pitch_a, TRANS_A ? deep : rows, TRANS_A ? rows : deep, SPAN_A, BM * BK / 2, wide_a);         \
    copy_tile(free + BM * BK, b0, pitch_b, TRANS_B ? columns : deep, TRANS_B ? deep : columns, SPAN_B, BN * BK / 2,  \
              wide_b);                                                                                               \
    COPIES_SENT();                                                                                                   \
    left -= BK, a0 += TRANS_A ? BK * m : BK, b0 += TRANS_B ? BK : BK * n, free = AFTER(free)
// The next tiles are whole, and the place of those before them is free: all have read these.
#define AWAIT() COPIES_LEFT(STAGES - 2); BARRIER()
    int phases = (int)((left + BK - 1) / BK);
#pragma unroll 1
    for (int stage = 1; stage < STAGES; stage++) { COPY_NEXT(); }
    if (AHEAD) { AWAIT(); read_step(now, 0, x[0], y[0]); }
#pragma unroll 1
    for (; phases > 0; phases--) {
        if (!AHEAD) { AWAIT(); }
        COPY_NEXT();
        EACH(q, BK / MMA_K) {
            const int last = q == BK / MMA_K - 1, one = AHEAD & q, other = AHEAD & ~q;
            if (AHEAD && last) { AWAIT(); now = AFTER(now); }
            read_step(now, (q + AHEAD) * MMA_K % BK, x[other], y[other]);
            EACH(e, STRIPS * BANDS) multiply(sums + 2 * e, x[one][e / BANDS], y[one][e % BANDS]);
        }
        if (!AHEAD) now = AFTER(now);
    }
    COPIES_LEFT(0); // zeros past k may still be on their way into what the slices use
    if (slices > 1 && !sum_slices(scratch, batch * tiles + tile, slice, slices, fan, (int *)pool, sums)) return;
    store_tile(c + (batch * m + row) * n + column, n, rows, columns, n % WIDE == 0 && ADDRESS(c) % 16 == 0, sums);
}
