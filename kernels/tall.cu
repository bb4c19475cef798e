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
#include "stream.h"

// As many FMAs as the instruction cache likes are laid out one after the other, so that reads run ahead of them.
PART void add_phase(const LOCAL REAL *small, const LOCAL REAL *large, SUM *sums)
{
    TURNS(q, BK / WIDE, TL * TS * BK <= 1024 ? BK / WIDE : 1024 / (TL * TS * WIDE)) {
        PACK(WIDE) deep[TL];
        EACH(i, DEEP * TL) deep[i] = LOAD(WIDE, large + PLACE(MY_L) + PLACE(AT_L(i)) + q * WIDE);
        EACH(e, WIDE) {
            PACK(RUN(TL)) x[TL / RUN(TL)];
            SUM y[PACKS];
            EACH(i, !DEEP * TL / RUN(TL))
                x[i] = LOAD(RUN(TL), large + MY_L + AT_L(i * RUN(TL)) + (q * WIDE + e) * SPAN);
            EACH(i, DEEP * TL) ELEMENT(x[i / RUN(TL)], i % RUN(TL)) = ELEMENT(deep[i], e);
            EACH(j, PACKS) y[j] = LOAD(RUN(TS), small + MY_S + (q * WIDE + e) * LINE + AT_S(j * RUN(TS)));
            EACH(t, TL * PACKS) sums[t] =
                SCALED(RUN(TS), ELEMENT(x[t / PACKS / RUN(TL)], t / PACKS % RUN(TL)), y[t % PACKS], sums[t]);
        }
    }
}

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
    const INDEX shorter = KEEP_A ? m : n, longer = KEEP_A ? n : m, step = SPAN * WARPS;
    const INDEX pieces = (shorter + SHORT - 1) / SHORT, runs = (longer + step * tiles - 1) / (step * tiles);
    const INDEX batch = BLOCK / pieces / runs, piece = BLOCK % pieces * SHORT, own = THREAD_X / 32 * SPAN;
    const INDEX first = BLOCK / pieces % runs * step * tiles + own, last = first + step * tiles, down = DEEP ? k : 1;
    const INDEX pitch = DEEP ? k : longer, pitch_small = CROSS ? k : shorter, along = DEEP ? 1 : longer;
    const int sides = REST(shorter - piece, SHORT);
    const GLOBAL REAL *const small = (KEEP_A ? a : b) + batch * shorter * k + piece * (CROSS ? k : 1);
    const GLOBAL REAL *from = (KEEP_A ? b : a) + batch * longer * k + first * down;
    LOCAL REAL *const mine = pool + DEPTH * LINE + THREAD_X / 32 * (STAGES * STAGE), *at = mine;
    const int wide = ALIGNED(from - first * down, pitch), wide_small = ALIGNED(small, pitch_small);
    SUM sums[TL * PACKS] = {0};
    INDEX now = first, q = 0, next = first, next_q = 0, have = -1, ahead = STAGES - 1;
#pragma unroll 1
    while (now < last && now - own < longer) { // the whole block alike
        if (STAGES > 1) COPIES_LEFT(STAGES - 2);
        WARP_BARRIER(); // this phase is whole, and the next one's place free: all lanes have read the phase before
        if (have != q / DEPTH * DEPTH) { // at first, and again only where k is deeper than DEPTH
            if (have >= 0) BARRIER();
            move(pool, small + q * (CROSS ? 1 : shorter), pitch_small, sides, REST(k - q, DEPTH), 1, wide_small);
            if (have >= 0) { ahead = 0; if (STAGES > 1) COPIES_LEFT(0); }
            have = q;
        }
        move(at, from, pitch, next < last ? REST(longer - next, SPAN) : 0, REST(k - next_q, BK), 0, wide);
        next_q += BK, from += BK * along;
        if (next_q >= k) from += step * down - next_q * along, next_q = 0, next += step;
        at = at < mine + (STAGES - 1) * STAGE ? at + STAGE : mine;
        if (ahead-- > 0) continue;
        if (ahead == -1) BARRIER(); // what is kept has come as well
        else if (STAGES == 1) WARP_BARRIER();
        add_phase(pool + (int)(q - have) * LINE, at, sums);
        if ((q += BK) < k) continue;
        const int rest = REST(longer - now, SPAN);
        store_tile(c + batch * m * n + (KEEP_A ? piece * n + now : now * n + piece), n, KEEP_A ? sides : rest,
                   KEEP_A ? rest : sides, ALIGNED(c, n) && (KEEP_A ? rest : sides) % RUN(TN) == 0, sums);
        EACH(t, TL * PACKS) sums[t] = NOTHING(RUN(TS));
        q = 0, now += step;
    }
}
