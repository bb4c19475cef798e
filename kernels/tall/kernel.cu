// C[m,n] = op(A)[m,k] x op(B)[k,n] where C is long one way and short the other, and k is small: the
// small operand stays in shared memory, and the large one is streamed past it once.
//
// BM          rows of a block's tile of C
// BN          columns of a block's tile of C
// BK          depth of a k tile of the large operand
// TM          rows of C that a thread keeps in registers
// TN          columns of C that a thread keeps in registers
// KEEP_A      1 if C is wide: A is kept and B streams; 0 if it is tall: B is kept and A streams
// DEPTH       k of the small operand that is kept at once, usually all of it
// STAGES      k tiles in shared memory: 1; from 2 on the next ones are copied by cp.async
// MIN_BLOCKS  minimum of blocks on an SM (__launch_bounds__)
// TRANS_A     1 where A is stored k x m, else 0
// TRANS_B     1 where B is stored n x k, else 0
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
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "division.h"
// S is C's short side and L its long one. A warp covers all of the tile's short side, so that no
// other warp reads its part of the large operand: each warp loads its own part and waits for no
// other; the block synchronises only when the kept operand changes.
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
#define WARP_LONG (LANES_L * TL)
#define WARPS (BM / TM * (BN / TN) / 32)
#define LANE (THREAD_X % 32)
// Lanes in pairs read the same of the small operand, pairs of pairs the same of the large one,
// which are broadcasts; the packs that lanes read are contiguous: no bank conflicts.
#define PAIR (LANES_L > 1 ? 2 : 1)
#define RUN_L (K_MAJOR_LARGE && !KEEP_A ? 1 : RUN(TL))
#define MY_L ((LANE % PAIR + LANE / (PAIR * LANES_S) * PAIR) * RUN_L)
#define MY_S (LANE / PAIR % LANES_S * RUN(TS))
#define AT_L(i) ((i) / RUN_L * LANES_L * RUN_L + (i) % RUN_L)
#define AT_S(j) ((j) / RUN(TS) * LANES_S * RUN(TS) + (j) % RUN(TS))
#define ACC PACK(RUN(TS))
#define PACKS (TS / RUN(TS))
#include "mainloop.h"

// `wide`: packs of C's rows are aligned, and none is cut by the edge.
PART void store_tile(GLOBAL REAL *c, const INDEX n, const int rows, const int columns,
                     const int wide, ACC *acc)
{
#define ACC_OF(l, s) ELEMENT(acc[(l) * PACKS + (s) / RUN(TS)], (s) % RUN(TS))
#define ACC_AT(i, j) (KEEP_A ? ACC_OF(j, i) : ACC_OF(i, j))
#define Y_AT(i) (KEEP_A ? AT_S(i) : AT_L(i))
#define X_AT(j) (KEEP_A ? AT_L(j) : AT_S(j))
    const int my_y = KEEP_A ? MY_S : MY_L, my_x = KEEP_A ? MY_L : MY_S;
    c += my_y * n + my_x;
    if (wide) {
        EACH(i, TM) {
            EACH(j, TN / RUN(TN)) {
                PACK(RUN(TN)) row;
                EACH(e, RUN(TN)) {
                    ELEMENT(row, e) = ACC_AT(i, j * RUN(TN) + e);
                }
                if (Y_AT(i) < rows - my_y && X_AT(j * RUN(TN)) < columns - my_x) {
                    STORE_STREAMING(RUN(TN), row, c + Y_AT(i) * n + X_AT(j * RUN(TN)));
                }
            }
        }
    } else {
        EACH(i, TM) {
            EACH(j, TN) {
                if (Y_AT(i) < rows - my_y && X_AT(j) < columns - my_x) {
                    c[Y_AT(i) * n + X_AT(j)] = ACC_AT(i, j);
                }
            }
        }
    }
}

KERNEL_MIN_BLOCKS(32 * WARPS, 1, MIN_BLOCKS)
matmul(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
       const INDEX m, const INDEX n, const INDEX k, GLOBAL REAL *workspace, const INDEX tiles,
       const INDEX runs, const INDEX by_pieces, const INDEX by_runs)
{
    DYNAMIC_SHARED(smem, DEPTH * LD_SMALL + WARPS * STAGES * STAGE_SIZE);
    // A block computes `tiles` tiles one after the other, of which `runs` blocks cover the longer
    // side; blocks that stream the same part of the large operand follow each other.
    const INDEX shorter = KEEP_A ? m : n, longer = KEEP_A ? n : m, run = WARP_LONG * WARPS * tiles;
    const unsigned pieces = (unsigned)((shorter + SHORT - 1) / SHORT),
                   block = quotient_or_zero((unsigned)BLOCK, pieces, by_pieces),
                   product = quotient_or_zero(block, (unsigned)runs, by_runs);
    const INDEX batch = product, piece = ((unsigned)BLOCK - block * pieces) * SHORT,
                first = (block - product * (unsigned)runs) * run;
    const INDEX pitch_small = TRANSPOSE_SMALL ? k : shorter;
    const int sides = REST(shorter - piece, SHORT), all = REST(longer - first, run),
              own = THREAD_X / 32 * WARP_LONG;
    const GLOBAL REAL *const small =
        (KEEP_A ? a : b) + batch * shorter * k + piece * (TRANSPOSE_SMALL ? k : 1);
    LOCAL REAL *const mine = smem + DEPTH * LD_SMALL + THREAD_X / 32 * (STAGES * STAGE_SIZE),
                      *at = mine;
    const int wide_small = IS_ALIGNED(small, pitch_small);
    Stream stream;
    start_stream(&stream, (KEEP_A ? b : a) + (batch * longer * k + first * (K_MAJOR_LARGE ? k : 1)),
                 K_MAJOR_LARGE ? k : longer, (int)k, all, own);
    ACC acc[TL * PACKS] = {0};
    Fragments operands;
    int now = 0, q = 0, have = -1;
#pragma unroll 1
    while (now < all) {
        if (have != q / DEPTH * DEPTH) { // at first, and again only if k is deeper than DEPTH
            BARRIER();
            load_small(smem, small + q * (TRANSPOSE_SMALL ? 1 : shorter), pitch_small, sides,
                       REST(k - q, DEPTH), wide_small);
            if (STAGES > 1) {
                if (have < 0) {
#pragma unroll 1
                    for (int s = 0; s < STAGES; s++) {
                        copy_next(&stream, mine + s * STAGE_SIZE);
                    }
                    cp_async_wait_group(STAGES -
                                        1); // the kept operand and the first k tile are complete
                } else {
                    cp_async_wait_group(0);
                }
            }
            have = q;
            BARRIER();
            if (STAGES > 1) {
                read_large(&operands, at, 0, 0, 1);
                read_small(&operands, smem, 0); // step 0
            }
        }
        if (STAGES == 1) {
            WARP_BARRIER(); // all lanes have read the k tile before
            copy_next(&stream, at);
            WARP_BARRIER();
        }
        LOCAL REAL *const phase = at;
        const LOCAL REAL *const kept = smem + (q - have) * LD_SMALL;
        const int ends = q + BK >= (int)k;
        at = at < mine + (STAGES - 1) * STAGE_SIZE ? at + STAGE_SIZE : mine;
        add_phase(kept, phase, ends || q + BK == have + DEPTH ? smem : kept + BK * LD_SMALL, at,
                  &stream, &operands, acc);
        q += BK;
        if (!ends) {
            continue;
        }
        const int rest = REST(all - now - own, WARP_LONG);
        const INDEX along = first + now + own;
        store_tile(c + batch * m * n + (KEEP_A ? piece * n + along : along * n + piece), n,
                   KEEP_A ? sides : rest, KEEP_A ? rest : sides,
                   IS_ALIGNED(c, n) && (KEEP_A ? rest : sides) % RUN(TN) == 0, acc);
        EACH(t, TL * PACKS) {
            acc[t] = ZERO_PACK(RUN(TS));
        }
        q = 0;
        now += WARP_LONG * WARPS;
    }
}
