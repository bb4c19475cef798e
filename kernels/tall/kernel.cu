// C[m,n] = op(A)[m,k] x op(B)[k,n] where C is long one way and short the other, and k is small: the small operand is
// kept in shared memory, the large one streams past it once.
//
// BM       rows of a block's tile of C
// BN       columns of a block's tile of C
// BK       how much of k each phase of the large operand brings into shared memory
// TM       rows of C that a thread keeps in registers
// TN       columns of C that a thread keeps in registers
// KEEP_A   1 where C is wide: A is kept and B streams; 0 where it is tall: B is kept and A streams
// DEPTH    how much of k is kept at once, all of it as a rule
// STAGES   phases in shared memory: 1; 2 and more, the next ones copied meanwhile
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
#elif !defined(KEEP_A)
#error "KEEP_A must be defined"
#elif !defined(DEPTH)
#error "DEPTH must be defined"
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
// What follows speaks of C's short side (S) and its long one (L), of a small operand and a large one. A warp covers all
// of the tile's short side: what it reads of the large operand no other warp wants. So each brings its own share at its
// own pace; the block meets only where what is kept changes.
#if KEEP_A
#define SHORT BM
#define TS TM
#define TL TN
#else
#define SHORT BN
#define TS TN
#define TL TM
#endif
#define LANES_S (SHORT / TS)
#define LANES_L (32 / LANES_S)
#define SPAN (LANES_L * TL)
#define WARPS (BM / TM * (BN / TN) / 32)
#define LANE (THREAD_X % 32)
// Lanes in pairs want the same of the small operand, pairs of pairs the same of the large one, which shared memory
// serves together; and the packs that lanes want follow each other, so that no bank is asked twice.
#define PAIR (LANES_L > 1 ? 2 : 1)
#define RUN_L (DEEP && !KEEP_A ? 1 : RUN(TL))
#define MY_L ((LANE % PAIR + LANE / (PAIR * LANES_S) * PAIR) * RUN_L)
#define MY_S (LANE / PAIR % LANES_S * RUN(TS))
#define AT_L(i) ((i) / RUN_L * LANES_L * RUN_L + (i) % RUN_L)
#define AT_S(j) ((j) / RUN(TS) * LANES_S * RUN(TS) + (j) % RUN(TS))
#define SUM PACK(RUN(TS))
#define PACKS (TS / RUN(TS))
#include "mainloop.h"

// `wide`: packs of C's row start at multiples of their size, and none is cut by the edge.
PART void store_tile(GLOBAL REAL *c, const INDEX n, const int rows, const int columns, const int wide, SUM *sums)
{
#define SUM_OF(l, s) ELEMENT(sums[(l) * PACKS + (s) / RUN(TS)], (s) % RUN(TS))
#define SUM_AT(i, j) (KEEP_A ? SUM_OF(j, i) : SUM_OF(i, j))
#define Y_AT(i) (KEEP_A ? AT_S(i) : AT_L(i))
#define X_AT(j) (KEEP_A ? AT_L(j) : AT_S(j))
    const int my_y = KEEP_A ? MY_S : MY_L, my_x = KEEP_A ? MY_L : MY_S;
    c += my_y * n + my_x;
    if (wide) EACH(i, TM) EACH(j, TN / RUN(TN)) {
        PACK(RUN(TN)) row;
        EACH(e, RUN(TN)) ELEMENT(row, e) = SUM_AT(i, j * RUN(TN) + e);
        if (Y_AT(i) < rows - my_y && X_AT(j * RUN(TN)) < columns - my_x)
            STREAM(RUN(TN), row, c + Y_AT(i) * n + X_AT(j * RUN(TN)));
    }
    else EACH(i, TM) EACH(j, TN)
        if (Y_AT(i) < rows - my_y && X_AT(j) < columns - my_x) c[Y_AT(i) * n + X_AT(j)] = SUM_AT(i, j);
}

HELD_KERNEL(32 * WARPS, 1, HELD)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, GLOBAL REAL *scratch, const INDEX tiles)
{
    POOL(pool, DEPTH * LINE + WARPS * STAGES * STAGE);
    // A block takes `tiles` tiles one after the other; blocks that stream the same past other pieces follow each other.
    const INDEX shorter = KEEP_A ? m : n, longer = KEEP_A ? n : m, run = SPAN * WARPS * tiles;
    const unsigned pieces = (unsigned)((shorter + SHORT - 1) / SHORT), block = (unsigned)BLOCK / pieces;
    const unsigned runs = (unsigned)((longer + run - 1) / run);
    const INDEX batch = block / runs, piece = (unsigned)BLOCK % pieces * SHORT, first = block % runs * run;
    const INDEX pitch_small = CROSS ? k : shorter;
    const int sides = REST(shorter - piece, SHORT), all = REST(longer - first, run), own = THREAD_X / 32 * SPAN;
    const GLOBAL REAL *const small = (KEEP_A ? a : b) + batch * shorter * k + piece * (CROSS ? k : 1);
    LOCAL REAL *const mine = pool + DEPTH * LINE + THREAD_X / 32 * (STAGES * STAGE), *at = mine;
    const int wide_small = ALIGNED(small, pitch_small);
    Stream stream;
    start(&stream, (KEEP_A ? b : a) + (batch * longer * k + first * (DEEP ? k : 1)), DEEP ? k : longer, (int)k, all,
          own);
    SUM sums[TL * PACKS] = {0};
    Operands operands;
    int now = 0, q = 0, have = -1;
#pragma unroll 1
    while (now < all) {
        if (have != q / DEPTH * DEPTH) { // at first, and again only where k is deeper than DEPTH
            BARRIER();
            move(pool, small + q * (CROSS ? 1 : shorter), pitch_small, sides, REST(k - q, DEPTH), wide_small);
            if (STAGES > 1) {
                if (have < 0) {
#pragma unroll 1
                    for (int s = 0; s < STAGES; s++) send(&stream, mine + s * STAGE);
                    COPIES_LEFT(STAGES - 1); // what is kept and the first phase are here
                }
                else COPIES_LEFT(0);
            }
            have = q;
            BARRIER();
            if (STAGES > 1) read_large(&operands, at, 0, 0, 1), read_small(&operands, pool, 0); // step 0 is read here
        }
        if (STAGES == 1) {
            WARP_BARRIER(); // all lanes have read the phase before
            send(&stream, at);
            WARP_BARRIER();
        }
        LOCAL REAL *const phase = at;
        const LOCAL REAL *const kept = pool + (q - have) * LINE;
        const int ends = q + BK >= (int)k;
        at = at < mine + (STAGES - 1) * STAGE ? at + STAGE : mine;
        add_phase(kept, phase, ends || q + BK == have + DEPTH ? pool : kept + BK * LINE, at, &stream, &operands, sums);
        q += BK;
        if (!ends) continue;
        const int rest = REST(all - now - own, SPAN);
        const INDEX along = first + now + own;
        store_tile(c + batch * m * n + (KEEP_A ? piece * n + along : along * n + piece), n, KEEP_A ? sides : rest,
                   KEEP_A ? rest : sides, ALIGNED(c, n) && (KEEP_A ? rest : sides) % RUN(TN) == 0, sums);
        EACH(t, TL * PACKS) sums[t] = NOTHING(RUN(TS));
        q = 0, now += SPAN * WARPS;
    }
}
