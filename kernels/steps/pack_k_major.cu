// Packs A, B or both K-major into the workspace: each row of op(A) and each column of op(B) becomes
// a row along k that starts at a multiple of 128 bytes and is padded with zeros to one. Elements
// move as bits.
//
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#define SIDE 64
#define THREADS 256
#define ROWS_AT_ONCE (THREADS / SIDE)
#define TILES(length) (((length) + SIDE - 1) / SIDE)
#define LINES_TO_ELEMENTS(lines) ((lines) * (128 / (INDEX)sizeof(STORED)))
// Lines are padded by one bank: neither rows nor columns have bank conflicts.
#define PAIR (4 / (int)sizeof(STORED))
#define LD (SIDE + PAIR)
#define PAIRS (SIDE / PAIR)

// The arguments are the first ones of the launch that follows; an operand with no lines is not
// packed. A block transposes a square through shared memory, A's blocks before B's. All loads of a
// thread are in flight before the first is waited for; loads and stores are coalesced, 4 bytes a
// thread.
KERNEL(THREADS, 1)
pack_k_major(const STORED *RESTRICT a, const STORED *RESTRICT b, const STORED *RESTRICT c,
             const INDEX m, const INDEX n, const INDEX k, STORED *workspace, const INDEX at_a,
             const INDEX lines_a, const INDEX at_b, const INDEX lines_b)
{
    SHARED STORED square[SIDE * LD];
    const INDEX of_a = lines_a ? TILES(m) * TILES(k) : 0, of_b = lines_b ? TILES(n) * TILES(k) : 0;
    const INDEX batch = BLOCK / (of_a + of_b), at = BLOCK % (of_a + of_b);
    const int is_a = at < of_a, transpose = is_a ? TRANS_A : !TRANS_B;
    const INDEX length = is_a ? m : n, pitch = LINES_TO_ELEMENTS(is_a ? lines_a : lines_b),
                tile = is_a ? at : at - of_a;
    const INDEX along = tile / TILES(k) * SIDE, depth = tile % TILES(k) * SIDE; // along C, and in k
    const STORED *const from = (is_a ? a : b) + batch * k * length +
                               (transpose ? depth * length + along : along * k + depth);
    STORED *const to = workspace + LINES_TO_ELEMENTS(is_a ? at_a : at_b) +
                       (batch * length + along) * pitch + depth;
    const INDEX line = transpose ? length : k;
    const INDEX across = transpose ? length - along : k - depth,
                down = transpose ? k - depth : length - along;
    const int x = THREAD_X % SIDE, y = THREAD_X / SIDE;
    STORED in[SIDE / ROWS_AT_ONCE];
    EACH(i, SIDE / ROWS_AT_ONCE) {
        in[i] =
            x < across && y + i * ROWS_AT_ONCE < down ? from[(y + i * ROWS_AT_ONCE) * line + x] : 0;
    }
    EACH(i, SIDE / ROWS_AT_ONCE) {
        square[transpose ? x * LD + y + i * ROWS_AT_ONCE : (y + i * ROWS_AT_ONCE) * LD + x] = in[i];
    }
    BARRIER();
    EACH(i, SIDE * PAIRS / THREADS) {
        const int row = (THREAD_X + i * THREADS) / PAIRS, first = THREAD_X % PAIRS * PAIR;
        if (along + row < length && depth + first < pitch) {
            *(unsigned *)(to + row * pitch + first) =
                *(const unsigned *)(square + row * LD + first);
        }
    }
}
