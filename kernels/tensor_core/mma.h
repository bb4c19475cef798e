// A warp's part of C on tensor cores, WM x WN: 16 x 8 sums of each of its instructions, and their operands as they lie in
// shared memory. The including file defines before:
//
// TOP, LEFT         the first row and column of the warp's part    PLANES  how many matrices an operand is
// SHARE_AT          its first step along k, of 32 bytes each       ITEM    bytes of an operand's element
// STRIPS, BANDS     how many instructions that is, each way        OWN_SUMS  and in all: each has a SUM in a thread
// ALONG_A, ALONG_B  1 where lines of the tile are along k          LINE_A, LINE_B, SIZE_A, SIZE_B  bytes of lines, tiles
//
// Of an instruction a thread has, of A's rows and C's, one and the one eight below it, of B's columns one, 4 bytes of them
// along k and 4 that are 16 bytes further, and two of C's columns: a quad of threads shares a row (PTX ISA, "Matrix
// Fragments for mma.m16n8k16 with floating point type" and "mma.m16n8k8").
#define LANE (THREAD_X % 32)
#define QUAD (LANE / 4)
#define MEMBER (LANE % 4)
// How 4-byte elements are read that do not lie along k: ldmatrix turns pairs of bytes alone.
#define SINGLE_A (ITEM == 4 && !ALONG_A)
#define SINGLE_B (ITEM == 4 && !ALONG_B)

// Four matrices of eight lines of 16 bytes, where each lane says where one begins: of a line, a thread gets the 4 bytes
// of its place in its quad, or turned, from each of two lines a 2-byte element of its quad's place.
INNER void read_four(unsigned *to, const unsigned at, const int turned)
{
#define READ_FOUR(words) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" words ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory")
    if (turned) READ_FOUR(".trans");
    else READ_FOUR("");
}

INNER unsigned read_one(const unsigned at)
{
    unsigned word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}

// The lane's first place in a tile of lines: of sixteen rows (or columns) the one it reads, or begins a matrix at.
// `far` matrices of four are 16 bytes further along k, `low` ones eight rows below.
INNER unsigned lane_place(const int first, const int line, const int along, const int single, const int far,
                          const int low)
{
    if (single) return PLACE(SHARE_AT * 8 + MEMBER, (first + QUAD) / 4, line, 1) + QUAD % 4 * 4;
    if (along) return PLACE(first + low * 8 + LANE % 8, SHARE_AT * 2 + far, line, 0);
    return PLACE(SHARE_AT * 16 + far * 8 + LANE % 8, first / 8 + low, line, 0);
}

// 16 rows (or columns) and one step of k, the `i`th and `q`th from the lane's first place on: pieces that are further are
// an exclusive or away within 128 bytes. In order of the matrices: `low` first, or `far`.
INNER void read_sixteen(unsigned *to, const unsigned at, const int i, const int q, const int line, const int along,
                        const int single, const int low_first)
{
    if (single) {
        EACH(e, 4) {
            const int low = low_first ? e % 2 : e / 2, far = low_first ? e / 2 : e % 2, on = i * 4 + low * 2;
            to[e] = read_one((at ^ on % 8 * 16) + on / 8 * 128 + (q * 8 + far * 4) * line);
        }
    } else {
        const int on = (along ? q : i) * 2;
        read_four(to, (at ^ on % 8 * 16) + on / 8 * 128 + (along ? i : q) * 16 * line, !along);
    }
}

#define LOW_A (LANE / 8 % 2)
#define FAR_A (LANE / 16)
#define PLACE_A lane_place(TOP, LINE_A, ALONG_A, SINGLE_A, FAR_A, LOW_A)
#define PLACE_B lane_place(LEFT, LINE_B, ALONG_B, SINGLE_B, LOW_A, FAR_A)

#include "mma_ptx.h"

// All that a warp multiplies in one step.
struct Operands {
    unsigned x[PLANES][STRIPS][4], y[PLANES][BANDS / 2][4];

    __device__ __forceinline__ void read(const unsigned a, const unsigned b, const int q)
    {
        EACH(plane, PLANES) {
            EACH(i, STRIPS) read_sixteen(x[plane][i], a + plane * SIZE_A, i, q, LINE_A, ALONG_A, SINGLE_A, 1);
            EACH(j, BANDS / 2) read_sixteen(y[plane][j], b + plane * SIZE_B, j, q, LINE_B, ALONG_B, SINGLE_B, 0);
        }
    }

    // tf32 has 10 bits after the point: the nearest such number, the larger one of two (PTX ISA, "cvt.rna.tf32").
    __device__ __forceinline__ void round()
    {
#if ITEM == 4
        EACH(e, STRIPS * 4) rounded(x[0][e / 4][e % 4]);
        EACH(e, BANDS * 2) rounded(y[0][e / 4][e % 4]);
#endif
    }

    static __device__ __forceinline__ void rounded(unsigned &word) { asm("cvt.rna.tf32.f32 %0, %0;" : "+r"(word)); }

#define OF_X(plane, e) x[plane][(e) / BANDS]
#define OF_Y(plane, e) y[plane][(e) % BANDS / 2] + (e) % 2 * 2
    // What tensor cores add is cut off: of split operands, products of high halves are added up outside of them. Those of
    // a high and a low half weigh little.
    __device__ __forceinline__ void add(SUM *sums, SUM *crossed) const
    {
        if (PLANES == 1) EACH(e, OWN_SUMS) multiply(sums[e], OF_X(0, e), OF_Y(0, e));
        else {
            EACH(e, OWN_SUMS) multiply(crossed[e], OF_X(0, e), OF_Y(PLANES - 1, e));
            EACH(e, OWN_SUMS) sums[e] = SCALED(4, 1, product(OF_X(0, e), OF_Y(0, e)), sums[e]);
            EACH(e, OWN_SUMS) multiply(crossed[e], OF_X(PLANES - 1, e), OF_Y(0, e));
        }
    }
};
