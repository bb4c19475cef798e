// C[m,n] = op(A)[m,k] x op(B)[k,n] of 16-bit elements by tiles of 16 x 16 x 16 that tensor cores multiply at once: a warp
// keeps one such tile of C, in float32. CUDA only.
//
// BM       rows of C's tile, that a block computes
// BN       columns of C's tile
// BK       how much of k each phase brings into shared memory
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(BK)
#error "BK must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#define SIDE 16
#define SIZE (SIDE * SIDE)
#define WARPS (BM / SIDE * (BN / SIDE)) // one for each 16 x 16 of the block's tile
#define THREADS (32 * WARPS)
#define WARP (THREAD_X / 32)
#define LANE (THREAD_X % 32)
#define TOP (WARP / (BN / SIDE) * SIDE)  // the first row of the warp's own,
#define LEFT (WARP % (BN / SIDE) * SIDE) // and its first column
// Tiles lie in shared memory as operands are stored: in lines along k, or along C's rows or columns. Lines are 16 bytes
// longer, so that neighbours start on banks of their own; tiles of 16 x 16 must start at multiples of 32 bytes, and all
// lines at multiples of 16 (PTX ISA, "wmma.load").
#define LINE_A ((TRANS_A ? BM : BK) + 8)
#define LINE_B ((TRANS_B ? BK : BN) + 8)
#define LINES_A (TRANS_A ? BK : BM)
#define LINES_B (TRANS_B ? BN : BK)
#define TILES __shared__ __align__(32)

// What a lane has of a tile is the hardware's business, but for how many registers that takes.
#ifdef DTYPE_FLOAT16
#define TYPE "f16"
#define TYPES "f32.f32" // of the sums after and before; other elements are named as well
#define HELD 8          // every element is there twice
#define PLACES_X "{%8, %9, %10, %11, %12, %13, %14, %15}"
#define PLACES_Y "{%16, %17, %18, %19, %20, %21, %22, %23}"
#define GIVEN(v) FOUR("r", v, 0), FOUR("r", v, 4)
#define LOADED "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
#define TAKEN(v) FOUR("=r", v, 0), FOUR("=r", v, 4)
#else
#define TYPE "bf16"
#define TYPES "f32.bf16.bf16.f32"
#define HELD 4 // pairs of elements, once
#define PLACES_X "{%8, %9, %10, %11}"
#define PLACES_Y "{%12, %13, %14, %15}"
#define GIVEN(v) FOUR("r", v, 0)
#define LOADED "{%0, %1, %2, %3}, [%4], %5;"
#define TAKEN(v) FOUR("=r", v, 0)
#endif
#define FOUR(kind, v, i) kind((v)[i]), kind((v)[(i) + 1]), kind((v)[(i) + 2]), kind((v)[(i) + 3])
#if TRANS_A
#define LAID_A "col"
#else
#define LAID_A "row"
#endif
#if TRANS_B
#define LAID_B "col"
#else
#define LAID_B "row"
#endif
#define PLACE(p) (unsigned)__cvta_generic_to_shared(p)

struct Tile { unsigned held[HELD]; }; // what a lane has of 16 x 16 of A or B

INNER Tile load_a(const STORED *tile)
{
    Tile x;
    asm volatile("wmma.load.a.sync.aligned." LAID_A ".m16n16k16.shared." TYPE " " LOADED
                 : TAKEN(x.held) : "r"(PLACE(tile)), "n"(LINE_A) : "memory");
    return x;
}

INNER Tile load_b(const STORED *tile)
{
    Tile y;
    asm volatile("wmma.load.b.sync.aligned." LAID_B ".m16n16k16.shared." TYPE " " LOADED
                 : TAKEN(y.held) : "r"(PLACE(tile)), "n"(LINE_B) : "memory");
    return y;
}

INNER void multiply(REAL *sums, const Tile x, const Tile y)
{
    asm volatile("wmma.mma.sync.aligned." LAID_A "." LAID_B ".m16n16k16." TYPES " {%0, %1, %2, %3, %4, %5, %6, %7}, "
                 PLACES_X ", " PLACES_Y ", {%0, %1, %2, %3, %4, %5, %6, %7};"
                 : FOUR("+f", sums, 0), FOUR("+f", sums, 4) : GIVEN(x.held), GIVEN(y.held));
}

INNER void store(REAL *tile, const REAL *sums)
{
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
                 ::"r"(PLACE(tile)), FOUR("f", sums, 0), FOUR("f", sums, 4), "n"(SIDE) : "memory");
}

// Bring the lines of a tile, `pitch` apart in memory, and zeros where the operand has no more: they add nothing. It has
// `down` lines from here on, of `on` elements; what passes the tile is no one's, and 32 bits hold the rest.
INNER void bring(STORED *to, const STORED *from, const INDEX pitch, const int line, const int lines,
                 const INDEX down, const INDEX on)
{
    const int length = line - 8, across = down < lines ? (int)down : lines, along = on < length ? (int)on : length;
    for (int i = THREAD_X; i < lines * length; i += THREADS) {
        const int y = i / length, x = i % length;
        to[y * line + x] = y < across && x < along ? from[y * pitch + x] : 0;
    }
}

KERNEL(THREADS, 1)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m, const INDEX n,
       const INDEX k)
{
    TILES STORED as[LINES_A * LINE_A]; // what the block multiplies in a phase, of A
    TILES STORED bs[LINES_B * LINE_B]; // and of B
    TILES REAL out[WARPS * SIZE];      // every warp's sums on their way to C
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM, column = BLOCK % across * BN, batch = BLOCK / across / down;
    const STORED *const a0 = a + batch * m * k + (TRANS_A ? row : row * k);
    const STORED *const b0 = b + batch * k * n + (TRANS_B ? column * k : column);
    REAL sums[8] = {}; // 256 among 32 lanes
#pragma unroll 1
    for (INDEX i = 0; i < k; i += BK) {
        bring(as, a0 + (TRANS_A ? i * m : i), TRANS_A ? m : k, LINE_A, LINES_A, TRANS_A ? k - i : m - row,
              TRANS_A ? m - row : k - i);
        bring(bs, b0 + (TRANS_B ? i : i * n), TRANS_B ? k : n, LINE_B, LINES_B, TRANS_B ? n - column : k - i,
              TRANS_B ? k - i : n - column);
        BARRIER(); // the tiles are whole
        EACH(q, BK / SIDE)
            multiply(sums, load_a(as + (TRANS_A ? q * SIDE * LINE_A + TOP : TOP * LINE_A + q * SIDE)),
                     load_b(bs + (TRANS_B ? LEFT * LINE_B + q * SIDE : q * SIDE * LINE_B + LEFT)));
        BARRIER(); // and free: all have read them
    }
    REAL *const tile = out + WARP * SIZE;
    store(tile, sums);
    __syncwarp(); // each lane reads what others have put there
    EACH(i, SIZE / 32) {
        const INDEX y = row + TOP + (i * 32 + LANE) / SIDE, x = column + LEFT + LANE % SIDE;
        if (y < m && x < n) WRITE(c, (batch * m + y) * n + x, tile[i * 32 + LANE]);
    }
}
