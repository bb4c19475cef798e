// A warp's WM x WN part of C: 16 x 8 accumulators for each mma.sync, and the fragments of their
// operands, loaded from shared memory. The including file defines before:
//
// WARP_ROW, WARP_COL                                    first row and column of the warp's part
// STRIDE_M, STRIDE_N                                    from 16 rows or columns of it to the next
// FIRST_K_STEP                                          the warp's first mma step in a k tile, of
//                                                       32 bytes of k
// MMAS_M, MMAS_N                                        mma instructions each way; ACC_PACKS in all
// PLANES                                                matrices of an operand
// ELEMENT_BYTES                                         bytes of an operand's element
// K_MAJOR_A, K_MAJOR_B                                  1 if the tile is K-major
// ROW_BYTES_A, ROW_BYTES_B, TILE_BYTES_A, TILE_BYTES_B  bytes of a line and of a tile
//
// A thread's fragments: groupID's row of A and of C and the one eight below, groupID's column of B;
// along k 4 bytes and 4 that are 16 bytes further; two columns of C (PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type" and "mma.m16n8k8").
#define LANE (THREAD_X % 32)
#define GROUP_ID (LANE / 4)
#define THREAD_IN_GROUP (LANE % 4)
// MN-major 4-byte elements are loaded one by one: ldmatrix transposes 2-byte elements only.
#define SINGLE_A (ELEMENT_BYTES == 4 && !K_MAJOR_A)
#define SINGLE_B (ELEMENT_BYTES == 4 && !K_MAJOR_B)

// ldmatrix: four 8 x 8 matrices of 2-byte elements, whose rows start at the lanes' addresses,
// optionally transposed.
INNER void ldmatrix_x4(unsigned *to, const unsigned at, const int turned)
{
#define LDMATRIX_X4(words)                                                                   \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" words ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])                        \
                 : "r"(at)                                                                   \
                 : "memory")
    if (turned) {
        LDMATRIX_X4(".trans");
    } else {
        LDMATRIX_X4("");
    }
}

INNER unsigned load_shared(const unsigned at)
{
    unsigned word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}

#include "realigned_smem.h"

// The address of the lane's first row (or column) of sixteen. `far` matrices are 16 bytes further
// along k, `low` ones eight rows below.
INNER unsigned lane_address(const int first, const int line, const int k_major, const int single,
                            const int far, const int low)
{
    if (single) {
        return SWIZZLED_AT(FIRST_K_STEP * 8 + THREAD_IN_GROUP, (first + GROUP_ID) / 4, line, 1) +
               GROUP_ID % 4 * 4;
    }
    if (k_major) {
        return SWIZZLED_AT(first + low * 8 + LANE % 8, FIRST_K_STEP * 2 + far, line, 0);
    }
    return SWIZZLED_AT(FIRST_K_STEP * 16 + far * 8 + LANE % 8, first / 8 + low, line, 0);
}

// Loads the fragment of 16 rows (or columns) number `i` and mma step `q`. Within 128 bytes, offsets
// are applied by exclusive or, as the swizzle is. Matrices are ordered `low` first, or `far` first.
INNER void load_fragment(unsigned *to, const unsigned at, const int i, const int q, const int line,
                         const int stride, const int k_major, const int single,
                         const int low_first, const int realign, const Pairs &pairs)
{
    if (realign) {
        EACH(e, 4) {
            const int low = low_first ? e % 2 : e / 2, far = low_first ? e / 2 : e % 2,
                      along = i * stride + low * 8, deep = (q * 2 + far) * PIECE;
            const int x = (k_major ? deep : along) * ELEMENT_BYTES, y = k_major ? along : deep;
            to[e] = load_word(at + (y * line + x), pairs, k_major);
        }
    } else if (single) {
        EACH(e, 4) {
            const int low = low_first ? e % 2 : e / 2, far = low_first ? e / 2 : e % 2,
                      on = i * (stride / 4) + low * 2;
            to[e] = load_shared((at ^ on % 8 * 16) + on / 8 * 128 + (q * 8 + far * 4) * line);
        }
    } else {
        const int on = k_major ? q * 2 : i * (stride / 8), down = k_major ? i * stride : q * 16;
        ldmatrix_x4(to, (at ^ on % 8 * 16) + on / 8 * 128 + down * line, !k_major);
    }
}

#define LOW_A (LANE / 8 % 2)
#define FAR_A (LANE / 16)
#define LANE_ADDRESS_A lane_address(WARP_ROW, ROW_BYTES_A, K_MAJOR_A, SINGLE_A, FAR_A, LOW_A)
#define LANE_ADDRESS_B lane_address(WARP_COL, ROW_BYTES_B, K_MAJOR_B, SINGLE_B, LOW_A, FAR_A)

#include "mma_ptx.h"

// A warp's fragments of one mma step.
struct Fragments {
    unsigned x[PLANES][MMAS_M][4], y[PLANES][MMAS_N / 2][4];

    __device__ __forceinline__ void read(const unsigned a, const unsigned b, const int q,
                                         const Pairs &pairs_a, const Pairs &pairs_b)
    {
        EACH(plane, PLANES) {
            EACH(i, MMAS_M) {
                load_fragment(x[plane][i], a + plane * TILE_BYTES_A, i, q, ROW_BYTES_A, STRIDE_M,
                              K_MAJOR_A, SINGLE_A, 1, REALIGNED_A, pairs_a);
            }
            EACH(j, MMAS_N / 2) {
                load_fragment(y[plane][j], b + plane * TILE_BYTES_B, j, q, ROW_BYTES_B, STRIDE_N,
                              K_MAJOR_B, SINGLE_B, 0, REALIGNED_B, pairs_b);
            }
        }
    }

    // TF32 has a 10-bit mantissa: round to nearest, ties away from zero (PTX ISA, "cvt.rna.tf32").
    __device__ __forceinline__ void round_to_tf32()
    {
#if ELEMENT_BYTES == 4
        EACH(e, MMAS_M * 4) {
            to_tf32(x[0][e / 4][e % 4]);
        }
        EACH(e, MMAS_N * 2) {
            to_tf32(y[0][e / 4][e % 4]);
        }
#endif
    }

    static __device__ __forceinline__ void to_tf32(unsigned &word)
    {
        asm("cvt.rna.tf32.f32 %0, %0;" : "+r"(word));
    }

#define OF_X(plane, e) x[plane][(e) / MMAS_N]
#define OF_Y(plane, e) y[plane][(e) % MMAS_N / 2] + (e) % 2 * 2
    // Tensor cores truncate when they accumulate: products of high terms are added outside of them.
    // Products with a low term are small enough to stay.
    __device__ __forceinline__ void add(ACC *acc, ACC *crossed) const
    {
        if (PLANES == 1) {
            EACH(e, ACC_PACKS) {
                mma(acc[e], OF_X(0, e), OF_Y(0, e));
            }
        } else {
            EACH(e, ACC_PACKS) {
                mma(crossed[e], OF_X(0, e), OF_Y(PLANES - 1, e));
            }
            EACH(e, ACC_PACKS) {
                acc[e] = FMA_PACK(4, 1, mma_zero(OF_X(0, e), OF_Y(0, e)), acc[e]);
            }
            EACH(e, ACC_PACKS) {
                mma(crossed[e], OF_X(PLANES - 1, e), OF_Y(0, e));
            }
        }
    }
};
