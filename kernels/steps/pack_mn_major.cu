// Packs A, B or both MN-major into the workspace: each k becomes a row along C's rows or columns
// that starts at a multiple of 128 bytes and is padded with zeros, so that a kernel can copy 16
// bytes at a time whatever the sizes and transpositions.
//
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "tile_scheduler.h"
#define SIDE 64
#define THREADS 256
#define ROWS_AT_ONCE (THREADS / SIDE)
#define TILES(length) (((length) + SIDE - 1) / SIDE)
#define LINES_TO_ELEMENTS(lines) ((lines) * (128 / (int)sizeof(REAL)))

// The arguments are those of the launch that follows. A block transposes a square through shared
// memory, A's blocks before B's. Loads and stores are coalesced, and all loads of a thread are in
// flight before the first is waited for. Lines of SIDE + 1 avoid bank conflicts.
KERNEL(THREADS, 1)
pack_mn_major(const GLOBAL REAL *RESTRICT a, const GLOBAL REAL *RESTRICT b, GLOBAL REAL *RESTRICT c,
              const INDEX m, const INDEX n, const INDEX k, GLOBAL REAL *workspace,
              const INDEX split_k, const INDEX fan, const INDEX share, const INDEX group_m,
              const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b,
              TILE_ORDER_ARGUMENTS)
{
    SHARED REAL square[SIDE * (SIDE + 1)];
    const INDEX of_a = lines_a ? TILES(m) * TILES(k) : 0, of_b = lines_b ? TILES(n) * TILES(k) : 0;
    const INDEX batch = BLOCK / (of_a + of_b), at = BLOCK % (of_a + of_b);
    const int is_a = at < of_a, transpose = is_a ? !TRANS_A : TRANS_B;
    const INDEX length = is_a ? m : n, pitch = LINES_TO_ELEMENTS(is_a ? lines_a : lines_b),
                tile = is_a ? at : at - of_a;
    const INDEX along = tile / TILES(k) * SIDE, depth = tile % TILES(k) * SIDE; // along C, and in k
    const INDEX corner = transpose ? along * k + depth : depth * length + along;
    const GLOBAL REAL *const from = (is_a ? a : b) + batch * k * length + corner;
    GLOBAL REAL *const to =
        workspace + LINES_TO_ELEMENTS(is_a ? at_a : at_b) + (batch * k + depth) * pitch + along;
    const int x = THREAD_X % SIDE, y = THREAD_X / SIDE;
    const INDEX line = transpose ? k : length;
    REAL in[SIDE / ROWS_AT_ONCE];
    EACH(i, SIDE / ROWS_AT_ONCE) {
        const int row = y + i * ROWS_AT_ONCE;
        const int inside = transpose ? depth + x < k && along + row < length
                                     : along + x < length && depth + row < k;
        in[i] = inside ? from[row * line + x] : 0;
    }
    EACH(i, SIDE / ROWS_AT_ONCE) {
        square[transpose ? x * (SIDE + 1) + y + i * ROWS_AT_ONCE
                         : (y + i * ROWS_AT_ONCE) * (SIDE + 1) + x] = in[i];
    }
    BARRIER();
    EACH(i, SIDE / ROWS_AT_ONCE) {
        const int row = y + i * ROWS_AT_ONCE;
        if (along + x < pitch && depth + row < k) {
            to[row * pitch + x] = square[row * (SIDE + 1) + x];
        }
    }
}
