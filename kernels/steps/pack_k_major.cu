// Copies A, B or both once into scratch, K-major: each row of op(A) and each column of op(B) as a row along k that starts
// at a multiple of 128 bytes and is filled up with zeros to one. Elements move as bits.
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
#define TURN (THREADS / SIDE)
#define TILES(length) (((length) + SIDE - 1) / SIDE)
#define IN_SCRATCH(lines) ((lines) * (128 / (INDEX)sizeof(STORED)))
// In lines that are a bank longer neither a row nor a column meets itself on a bank.
#define PAIR (4 / (int)sizeof(STORED))
#define LINE (SIDE + PAIR)
#define PAIRS (SIDE / PAIR)

// The arguments are the first ones of the launch that comes after; an operand of no lines is not copied. A block takes a
// square through shared memory, A's blocks before B's. All reads of a thread are under way before the first is waited
// for; what a warp reads are neighbours in memory, and so is what it writes, 4 bytes a thread.
KERNEL(THREADS, 1)
align(const STORED *RESTRICT a, const STORED *RESTRICT b, const STORED *RESTRICT c, const INDEX m, const INDEX n,
      const INDEX k, STORED *scratch, const INDEX at_a, const INDEX lines_a, const INDEX at_b, const INDEX lines_b)
{
    SHARED STORED square[SIDE * LINE];
    const INDEX of_a = lines_a ? TILES(m) * TILES(k) : 0, of_b = lines_b ? TILES(n) * TILES(k) : 0;
    const INDEX batch = BLOCK / (of_a + of_b), at = BLOCK % (of_a + of_b);
    const int is_a = at < of_a, cross = is_a ? TRANS_A : !TRANS_B;
    const INDEX length = is_a ? m : n, pitch = IN_SCRATCH(is_a ? lines_a : lines_b), tile = is_a ? at : at - of_a;
    const INDEX along = tile / TILES(k) * SIDE, depth = tile % TILES(k) * SIDE; // along C, and in k
    const STORED *const from = (is_a ? a : b) + batch * k * length + (cross ? depth * length + along : along * k + depth);
    STORED *const to = scratch + IN_SCRATCH(is_a ? at_a : at_b) + (batch * length + along) * pitch + depth;
    const INDEX line = cross ? length : k;
    const INDEX across = cross ? length - along : k - depth, down = cross ? k - depth : length - along;
    const int x = THREAD_X % SIDE, y = THREAD_X / SIDE;
    STORED in[SIDE / TURN];
    EACH(i, SIDE / TURN) in[i] = x < across && y + i * TURN < down ? from[(y + i * TURN) * line + x] : 0;
    EACH(i, SIDE / TURN) square[cross ? x * LINE + y + i * TURN : (y + i * TURN) * LINE + x] = in[i];
    BARRIER();
    EACH(i, SIDE * PAIRS / THREADS) {
        const int row = (THREAD_X + i * THREADS) / PAIRS, first = THREAD_X % PAIRS * PAIR;
        if (along + row < length && depth + first < pitch)
            *(unsigned *)(to + row * pitch + first) = *(const unsigned *)(square + row * LINE + first);
    }
}
