// C[m,n] = op(A)[m,k] x op(B)[k,n] where k is short: a block brings all of k of its tiles of A and
// B into shared memory at once, multiplies, and stores its tile of C. There is no pipeline: the
// other blocks of an SM compute and store while one loads.
//
// BM          rows of a block's tile of C
// BN          columns of it
// BK          the most of k that there is room for
// TM          rows of C that a thread keeps in registers
// TN          columns of C that a thread keeps in registers
// LANES_N     threads of a warp along C's rows, the others down its columns
// RUN_N       neighbouring columns of C that a thread has, and stores at once if they are aligned
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
#elif !defined(LANES_N)
#error "LANES_N must be defined"
#elif !defined(RUN_N)
#error "RUN_N must be defined"
#elif !defined(MIN_BLOCKS)
#error "MIN_BLOCKS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#include "division.h"
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
#define HALVES
#include "cvt_pack.h"
#endif
#define THREADS (BM / TM * (BN / TN))
#define LANES_M (32 / LANES_N)
#define WARPS_N (BN / (LANES_N * TN))
#define LANE (THREAD_X % 32)
#define WARP (THREAD_X / 32)
// An operand that is K-major in memory is K-major in shared memory too: a thread reads WIDE of k at
// once. MN-major ones are read by the pack along C's rows or columns.
#define K_MAJOR_A (!TRANS_A)
#define K_MAJOR_B TRANS_B
#define RUN_M (K_MAJOR_A || TM < WIDE ? 1 : WIDE)
#define ROW_AT(i) (((i) / RUN_M * LANES_M) * RUN_M + (i) % RUN_M)
#define COLUMN_AT(j) (((j) / RUN_N * LANES_N) * RUN_N + (j) % RUN_N)
#include "whole_k.h"

// Lanes that are neighbours along a row store neighbouring elements, whole packs or one each, so
// that a warp's stores fill sectors whatever C's alignment. If the tile is whole, nothing is asked.
template <int whole, int run>
INNER void store_tile(STORED *c, const INDEX n, const int rows, const int columns,
                      const REAL (&acc)[TM][TN])
{
    EACH(i, TM) {
        EACH(j, TN / run) {
            const int at = j * run, x = COLUMN_AT(at);
            if (whole || (ROW_AT(i) < rows && x < columns)) {
                store_run<run>(c + ROW_AT(i) * n + x, acc[i] + at);
            }
        }
    }
}

KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, const REAL *RESTRICT workspace, const INDEX by_across,
       const INDEX by_down)
{
    DYNAMIC_SHARED(smem, BM * LD_A + BN * LD_B);
    const unsigned across = (unsigned)((n + BN - 1) / BN), down = (unsigned)((m + BM - 1) / BM);
    const unsigned tile = (unsigned)BLOCK, high = quotient_or_zero(tile, across, by_across),
                   batch = quotient_or_zero(high, down, by_down);
    const INDEX row = (INDEX)(high - batch * down) * BM,
                column = (INDEX)(tile - high * across) * BN;
    const int rows = (int)(m - row < BM ? m - row : BM),
              columns = (int)(n - column < BN ? n - column : BN);
    const int depth = (int)k;
    REAL *const As = smem, *const Bs = smem + BM * LD_A;
    load_operand<BM, K_MAJOR_A, 1>(As, a + batch * m * k + (K_MAJOR_A ? row * k : row),
                                   K_MAJOR_A ? k : m, rows, depth);
    load_operand<BN, K_MAJOR_B, RUN_N>(Bs, b + batch * k * n + (K_MAJOR_B ? column * k : column),
                                       K_MAJOR_B ? k : n, columns, depth);
    cp_async_commit_group();
    const int my_row = WARP / WARPS_N * LANES_M * TM + LANE / LANES_N * RUN_M,
              my_column = WARP % WARPS_N * LANES_N * TN + LANE % LANES_N * RUN_N;
    REAL acc[TM][TN] = {};
    cp_async_wait_group(0);
    BARRIER();
    multiply(As, Bs, depth, my_row, my_column, acc);
    const int wide = n % RUN_N == 0 && ADDRESS(c) % (RUN_N * sizeof(STORED)) == 0;
    STORED *const to = c + (batch * m + row + my_row) * n + column + my_column;
    const int my_rows = rows - my_row, my_columns = columns - my_column;
    if (wide && rows == BM && columns == BN) {
        store_tile<1, RUN_N>(to, n, my_rows, my_columns, acc);
    } else if (RUN_N == 1 || !wide) {
        store_tile<0, 1>(to, n, my_rows, my_columns, acc);
    } else {
        store_tile<0, RUN_N>(to, n, my_rows, my_columns, acc);
    }
}
