// C[m,n] = op(A)[m,k] x op(B)[k,n] of 16-bit elements by wmma's 16 x 16 x 16: a warp has one such
// tile of C in float32 accumulators. CUDA only.
//
// BM       rows of a block's tile of C
// BN       columns of C's tile
// BK       depth of a k tile in shared memory
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
#define WMMA_TILE 16
#define WMMA_SIZE (WMMA_TILE * WMMA_TILE)
#define WARPS (BM / WMMA_TILE * (BN / WMMA_TILE)) // one for each 16 x 16 of the block's tile
#define THREADS (32 * WARPS)
#define WARP_IDX (THREAD_X / 32)
#define LANE (THREAD_X % 32)
#define WARP_ROW (WARP_IDX / (BN / WMMA_TILE) * WMMA_TILE) // the first row of the warp's own,
#define WARP_COL (WARP_IDX % (BN / WMMA_TILE) * WMMA_TILE) // and its first column
// Tiles have the layout of global memory. Lines are padded by 16 bytes against bank conflicts;
// wmma's tiles must be aligned to 32 bytes and its lines to 16 (PTX ISA, "wmma.load").
#define LD_A ((TRANS_A ? BM : BK) + 8)
#define LD_B ((TRANS_B ? BK : BN) + 8)
#define LINES_A (TRANS_A ? BK : BM)
#define LINES_B (TRANS_B ? BN : BK)
#define TILES __shared__ __align__(32)

// The layout of a fragment is opaque, but for its number of registers.
#ifdef DTYPE_FLOAT16
#define TYPE "f16"
#define TYPES "f32.f32"      // of the sums after and before; other elements are named as well
#define FRAGMENT_REGISTERS 8 // every element is there twice
#define REGISTERS_X "{%8, %9, %10, %11, %12, %13, %14, %15}"
#define REGISTERS_Y "{%16, %17, %18, %19, %20, %21, %22, %23}"
#define INPUTS(v) FOUR("r", v, 0), FOUR("r", v, 4)
#define LOAD_OPERANDS "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
#define OUTPUTS(v) FOUR("=r", v, 0), FOUR("=r", v, 4)
#else
#define TYPE "bf16"
#define TYPES "f32.bf16.bf16.f32"
#define FRAGMENT_REGISTERS 4 // pairs of elements, once
#define REGISTERS_X "{%8, %9, %10, %11}"
#define REGISTERS_Y "{%12, %13, %14, %15}"
#define INPUTS(v) FOUR("r", v, 0)
#define LOAD_OPERANDS "{%0, %1, %2, %3}, [%4], %5;"
#define OUTPUTS(v) FOUR("=r", v, 0)
#endif
#define FOUR(kind, v, i) kind((v)[i]), kind((v)[(i) + 1]), kind((v)[(i) + 2]), kind((v)[(i) + 3])
#if TRANS_A
#define LAYOUT_A "col"
#else
#define LAYOUT_A "row"
#endif
#if TRANS_B
#define LAYOUT_B "col"
#else
#define LAYOUT_B "row"
#endif
#define SMEM_ADDRESS(p) (unsigned)__cvta_generic_to_shared(p)

struct Fragment {
    unsigned registers[FRAGMENT_REGISTERS];
}; // a lane's part of 16 x 16 of A or B

// Loads 16 x 16 of A from shared memory, in the layout in which it is stored.
INNER Fragment wmma_load_a(const STORED *tile)
{
    Fragment x;
    asm volatile("wmma.load.a.sync.aligned." LAYOUT_A ".m16n16k16.shared." TYPE " " LOAD_OPERANDS
                 : OUTPUTS(x.registers)
                 : "r"(SMEM_ADDRESS(tile)), "n"(LD_A)
                 : "memory");
    return x;
}

INNER Fragment wmma_load_b(const STORED *tile)
{
    Fragment y;
    asm volatile("wmma.load.b.sync.aligned." LAYOUT_B ".m16n16k16.shared." TYPE " " LOAD_OPERANDS
                 : OUTPUTS(y.registers)
                 : "r"(SMEM_ADDRESS(tile)), "n"(LD_B)
                 : "memory");
    return y;
}

INNER void wmma_mma(REAL *acc, const Fragment x, const Fragment y)
{
    asm volatile("wmma.mma.sync.aligned." LAYOUT_A "." LAYOUT_B ".m16n16k16." TYPES
                 " {%0, %1, %2, %3, %4, %5, %6, %7}, " REGISTERS_X ", " REGISTERS_Y
                 ", {%0, %1, %2, %3, %4, %5, %6, %7};"
                 : FOUR("+f", acc, 0), FOUR("+f", acc, 4)
                 : INPUTS(x.registers), INPUTS(y.registers));
}

INNER void wmma_store(REAL *tile, const REAL *acc)
{
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, "
                 "%6, %7, %8}, %9;" ::"r"(SMEM_ADDRESS(tile)),
                 FOUR("f", acc, 0), FOUR("f", acc, 4), "n"(WMMA_TILE)
                 : "memory");
}

// Loads a tile, lines `pitch` apart in memory, with zeros past the operand's edges: it has `down`
// lines from here on, of `on` elements. Offsets within a tile fit in 32 bits.
INNER void load_tile(STORED *to, const STORED *from, const INDEX pitch, const int line,
                     const int lines, const INDEX down, const INDEX on)
{
    const int length = line - 8, across = down < lines ? (int)down : lines,
              along = on < length ? (int)on : length;
    for (int i = THREAD_X; i < lines * length; i += THREADS) {
        const int y = i / length, x = i % length;
        to[y * line + x] = y < across && x < along ? from[y * pitch + x] : 0;
    }
}

KERNEL(THREADS, 1)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k)
{
    TILES STORED As[LINES_A * LD_A];   // A's k tile
    TILES STORED Bs[LINES_B * LD_B];   // B's k tile
    TILES REAL out[WARPS * WMMA_SIZE]; // every warp's accumulators on their way to C
    const INDEX across = (n + BN - 1) / BN, down = (m + BM - 1) / BM;
    const INDEX row = BLOCK / across % down * BM, column = BLOCK % across * BN,
                batch = BLOCK / across / down;
    const STORED *const a0 = a + batch * m * k + (TRANS_A ? row : row * k);
    const STORED *const b0 = b + batch * k * n + (TRANS_B ? column * k : column);
    REAL acc[8] = {}; // 256 among 32 lanes
#pragma unroll 1
    for (INDEX i = 0; i < k; i += BK) {
        load_tile(As, a0 + (TRANS_A ? i * m : i), TRANS_A ? m : k, LD_A, LINES_A,
                  TRANS_A ? k - i : m - row, TRANS_A ? m - row : k - i);
        load_tile(Bs, b0 + (TRANS_B ? i : i * n), TRANS_B ? k : n, LD_B, LINES_B,
                  TRANS_B ? n - column : k - i, TRANS_B ? k - i : n - column);
        BARRIER(); // the tiles are whole
        EACH(q, BK / WMMA_TILE) {
            wmma_mma(acc,
                     wmma_load_a(As + (TRANS_A ? q * WMMA_TILE * LD_A + WARP_ROW
                                               : WARP_ROW * LD_A + q * WMMA_TILE)),
                     wmma_load_b(Bs + (TRANS_B ? WARP_COL * LD_B + q * WMMA_TILE
                                               : q * WMMA_TILE * LD_B + WARP_COL)));
        }
        BARRIER(); // and free: all have read them
    }
    REAL *const tile = out + WARP_IDX * WMMA_SIZE;
    wmma_store(tile, acc);
    __syncwarp(); // each lane reads what others have put there
    EACH(i, WMMA_SIZE / 32) {
        const INDEX y = row + WARP_ROW + (i * 32 + LANE) / WMMA_TILE,
                    x = column + WARP_COL + LANE % WMMA_TILE;
        if (y < m && x < n) {
            WRITE(c, (batch * m + y) * n + x, tile[i * 32 + LANE]);
        }
    }
}
