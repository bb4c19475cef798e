// The layout of a stage, and wgmma.mma_async on it (PTX ISA).
//
// A K-major operand has rows of 128 bytes along k in shared memory. An MN-major one has BK rows of
// SWIZZLE_LHS or SWIZZLE_RHS bytes along m or n; what is further along follows in the next TMA box.
//
// WGMMA_K        k of an instruction
// WGMMA_K_TYPES  that and the types, as the instruction's name ends
// WGMMA_MAJORS   its last two operands: 1 if the LHS, the RHS is MN-major; TF32 has none
//
// and from wgmma_registers.h, as an asm statement has to name every register of the accumulators:
//
// WGMMA_N        TILE_N in the instruction's name
// ACC_REGISTERS  numbers of the accumulators, of which a thread has TILE_N / 2
// ACC_OPERANDS   the accumulators as asm operands
// IN_0, ...      numbers of the operands after them
#include "wgmma_registers.h"
#define TEXT_(words) #words
#define TEXT(words) TEXT_(words)
#define WGMMA_MAJORS ", " TEXT(LHS_MN_MAJOR) ", " TEXT(RHS_MN_MAJOR)
#ifdef PRECISION_TF32
#define WGMMA_K 8
#define WGMMA_K_TYPES "k8.f32.tf32.tf32"
#undef WGMMA_MAJORS
#define WGMMA_MAJORS ""
#elif defined(DTYPE_BFLOAT16)
#define WGMMA_K 16
#define WGMMA_K_TYPES "k16.f32.bf16.bf16"
#else
#define WGMMA_K 16
#define WGMMA_K_TYPES "k16.f32.f16.f16"
#endif
#define K_STEPS (BK / WGMMA_K)
#define ELEMENT_BYTES (32 / WGMMA_K)
#define SWIZZLE_LHS 128
#define RHS_DIVIDES(swizzle) (!RHS_MN_MAJOR || TILE_N * ELEMENT_BYTES % (swizzle) == 0)
#define SWIZZLE_RHS (RHS_DIVIDES(128) ? 128 : RHS_DIVIDES(64) ? 64 : 32)
#define LHS_BYTES (TILE_M * 128)
#define RHS_BYTES (TILE_N * 128)
#define TMA_BYTES (PLANES * ((1 - REALIGN_LHS) * LHS_BYTES + (1 - REALIGN_RHS) * RHS_BYTES))
// A realigned operand has 16 bytes more for each of its lines until these are shifted; a tile
// begins at a multiple of 1024 bytes, after which the swizzle repeats.
#define MORE_BYTES(realign, tile, k_lines) \
    ((realign) * ((((k_lines) ? BK : (tile)) + 63) / 64) * 1024)
#define RHS_AT \
    (PLANES * LHS_BYTES + MORE_BYTES(REALIGN_LHS, TILE_M, LHS_MN_MAJOR || TURNED_LHS))
#define STAGE_BYTES \
    (RHS_AT + PLANES * RHS_BYTES + MORE_BYTES(REALIGN_RHS, TILE_N, RHS_MN_MAJOR || TURNED_RHS))
#define STAGES_BYTES (STAGES * STAGE_BYTES)
#define WGMMAS_M (TILE_M / 64 / SHARERS) // wgmmas of 64 rows that a consumer has

// wgmma.fence orders the warpgroup's accesses to registers before wgmma's.
#define wgmma_fence() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define wgmma_commit_group() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define wgmma_wait_group(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
typedef float Accumulators[TILE_N / 2];
INNER void warpgroup_fence_operand(Accumulators &acc)
{
    asm volatile("" : ACC_OPERANDS::"memory");
}

// Shared memory matrix descriptor (PTX ISA, "Matrix Descriptor Format"): address, leading dimension
// and stride byte offsets, swizzling mode.
INNER unsigned long long make_smem_desc(const unsigned address, const int swizzle,
                                        const int mn_major)
{
    const unsigned long long along = mn_major ? BK * swizzle / 16 : 1, lines = 8 * swizzle / 16;
    const unsigned long long how = swizzle == 128 ? 1 : swizzle == 64 ? 2 : 3;
    return how << 62 | lines << 32 | along << 16 | (address & 0x3FFFF) >> 4;
}
// What to add to a descriptor to advance it by WGMMA_K along k.
#define ADVANCE_DESC(swizzle, mn_major) ((mn_major) ? WGMMA_K * (swizzle) / 16 : 2)

// D = LHS x RHS + (scale_d ? D : 0), for 64 rows and TILE_N columns.
INNER void wgmma(Accumulators &acc, const unsigned long long lhs, const unsigned long long rhs,
                 const int scale_d)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, " IN_2 ", 0; "
                 "wgmma.mma_async.sync.aligned.m64" WGMMA_N WGMMA_K_TYPES
                 " {" ACC_REGISTERS "}, " IN_0 ", " IN_1 ", p, 1, 1" WGMMA_MAJORS ";}"
                 : ACC_OPERANDS
                 : "l"(lhs), "l"(rhs), "r"(scale_d)
                 : "memory");
}

// The two of 64 rows whose accumulators this thread has. With the LHS in registers wgmma's rows may
// be any of the operand's: they are permuted so that two are neighbours, which are loaded at once,
// and half a warp's loads, and stores to the epilogue tile, hit all banks.
INNER int acc_row(const int i)
{
    const int warp = THREAD_X / 32 % 4, group_id = THREAD_X % 32 / 4, far = group_id / 2 % 2;
    if (!LHS_IN_REGISTERS) {
        return warp * 16 + group_id + i * 8;
    }
    return warp / 2 * 32 + far * 16 + warp % 2 * 8 + (far ^ group_id / 4) * 4 + group_id % 2 * 2 +
           i;
}

#if LHS_IN_REGISTERS
// wgmma reads 32-bit elements from shared memory K-major only, so MN-major ones are loaded into
// registers: a thread's LHS fragment of one WGMMA_K.
struct LhsFragment {
    unsigned element[4];
};

INNER LhsFragment load_lhs_fragment(const unsigned char *side, const int row, const int step)
{
    LhsFragment lhs;
    const int r = row + acc_row(0);
    EACH(half, 2) {
        const int k = step * 8 + THREAD_X % 4 + half * 4;
        const uint2 two =
            *(const uint2 *)(side + r / 32 * (BK * 128) + SWIZZLED(k * 128 + r % 32 * 4, 128));
        lhs.element[2 * half] = two.x;
        lhs.element[2 * half + 1] = two.y;
    }
    return lhs;
}

INNER void wgmma(Accumulators &acc, const LhsFragment &lhs, const unsigned long long rhs,
                 const int scale_d)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, " IN_5 ", 0; "
                 "wgmma.mma_async.sync.aligned.m64" WGMMA_N WGMMA_K_TYPES
                 " {" ACC_REGISTERS "}, {" IN_0 ", " IN_1 ", " IN_2 ", " IN_3 "}, " IN_4
                 ", p, 1, 1;}"
                 : ACC_OPERANDS
                 : "r"(lhs.element[0]), "r"(lhs.element[1]), "r"(lhs.element[2]),
                   "r"(lhs.element[3]), "l"(rhs), "r"(scale_d)
                 : "memory");
}
#endif
