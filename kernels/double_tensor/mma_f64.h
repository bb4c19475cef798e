// A warp's part of C in float64, WM x WN: 16 x 8 sums of each of its instructions, and their operands in shared memory.
// The including file defines before:
//
// TOP, LEFT  the first row and column of the warp's part    BM, BN, BK        the block's tile
// MMA_K      how much of k an instruction multiplies        TRANS_A, TRANS_B  1 where stored k x m, n x k
//
// A (16 x MMA_K), B (MMA_K x 8) and C (16 x 8) of an instruction are dealt out over the warp: each of eight quads of
// threads has a row of A and of C, the one eight below it, and a column of B. MEMBER is a thread's place along k, and
// its pair of C's columns (PTX ISA, "Matrix Fragments for mma.m16n8k4, mma.m16n8k8 and mma.m16n8k16 with .f64").
#define QUAD (THREAD_X % 32 / 4)
#define MEMBER (THREAD_X % 4)
#define STRIPS (WM / 16)
#define BANDS (WN / 8)
#define FOURS (MMA_K / 4)
#define SUM PACK(2)
#define SUM_RUN 2
#define SUMS (STRIPS * BANDS * 2)

// Both tiles lie as they are stored: in lines along k, or along C's rows or columns, of whole turns of the banks. Half
// a warp reads four neighbours (32 bytes) of each of four lines. Each line's runs of four are exchanged by its number,
// so that these are on banks of their own; 16 bytes that are copied as one stay together.
#define SWAP(x, line) ((x) ^ ((line) & 3) << 2)

// A thread's element of a fragment: `r` rows (columns, of B) and `q` of k past the warp's first ones. These are the
// same for all threads: what differs between threads is worked out once, for few places.
INNER REAL element(const REAL *tile, const int first, const int r, const int q, const int side, const int along_k)
{
    if (along_k) return (tile + ((first + QUAD) * BK + MEMBER + SWAP(q & 12, QUAD)))[r * BK + (q & ~12)];
    return (tile + (MEMBER * side + first + SWAP((r & 8) + QUAD, MEMBER)))[q * side + (r & ~8)];
}

// The operands of one step along k, of all of the warp's instructions.
INNER void read_step(const REAL *tiles, const int q, REAL x[STRIPS][2 * FOURS], REAL y[BANDS][FOURS])
{
    EACH(i, STRIPS) EACH(e, 2 * FOURS)
        x[i][e] = element(tiles, TOP, i * 16 + e % 2 * 8, q + e / 2 * 4, BM, !TRANS_A);
    EACH(j, BANDS) EACH(e, FOURS)
        y[j][e] = element(tiles + BM * BK, LEFT, j * 8, q + e * 4, BN, TRANS_B);
}

#define MMA(shape, words) asm("mma.sync.aligned." shape ".row.col.f64.f64.f64.f64 " words
#define SUMS_OF(s) "+d"(ELEMENT(sums[s], 0)), "+d"(ELEMENT(sums[s], 1))
#define FOUR(v, i) "d"(v[i]), "d"(v[(i) + 1]), "d"(v[(i) + 2]), "d"(v[(i) + 3])
// Before sm_90 the instruction has half the rows.
INNER void multiply(SUM *sums, const REAL *x, const REAL *y)
{
#if MMA_K == 16
    MMA("m16n8k16", "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};")
        : SUMS_OF(0), SUMS_OF(1) : FOUR(x, 0), FOUR(x, 4), FOUR(y, 0));
#elif MMA_K == 8
    MMA("m16n8k8", "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};")
        : SUMS_OF(0), SUMS_OF(1) : FOUR(x, 0), "d"(y[0]), "d"(y[1]));
#elif __CUDA_ARCH__ >= 900
    MMA("m16n8k4", "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};")
        : SUMS_OF(0), SUMS_OF(1) : "d"(x[0]), "d"(x[1]), "d"(y[0]));
#else
    EACH(h, 2) MMA("m8n8k4", "{%0, %1}, {%2}, {%3}, {%0, %1};") : SUMS_OF(h) : "d"(x[h]), "d"(y[0]));
#endif
}
