// The layout of a stage, and wgmma.mma_async on it (PTX ISA).
//
// A K-major operand has rows of 128 bytes along k in shared memory. An MN-major one has BK rows of
// SWIZZLE_LHS or SWIZZLE_RHS bytes along m or n; what is further along follows in the next TMA box.
//
// An asm statement has to name each register of wgmma's accumulators: a thread has N / 2 of them.
//
// ACC_REGS_n    names of the accumulators in the asm text
// ACC_n         the accumulators as asm operands
// REGS_AFTER_n  numbers of the six operands after them
#define ACC_OF_4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define ACC_REGS_8 "%0, %1, %2, %3"
#define ACC_REGS_16 ACC_REGS_8 ", %4, %5, %6, %7"
#define ACC_REGS_24 ACC_REGS_16 ", %8, %9, %10, %11"
#define ACC_REGS_32 ACC_REGS_24 ", %12, %13, %14, %15"
#define ACC_REGS_48 ACC_REGS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define ACC_REGS_64 ACC_REGS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define ACC_REGS_80 ACC_REGS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ACC_REGS_96 ACC_REGS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ACC_REGS_112 ACC_REGS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define ACC_REGS_128 ACC_REGS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define ACC_REGS_144 ACC_REGS_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define ACC_REGS_160 ACC_REGS_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define ACC_REGS_168 ACC_REGS_160 ", %80, %81, %82, %83"
#define ACC_REGS_176 ACC_REGS_168 ", %84, %85, %86, %87"
#define ACC_REGS_192 ACC_REGS_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ACC_REGS_208 ACC_REGS_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define ACC_REGS_224 ACC_REGS_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define ACC_REGS_240 ACC_REGS_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define ACC_REGS_256 ACC_REGS_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define ACC_8 ACC_OF_4(0)
#define ACC_16 ACC_8, ACC_OF_4(4)
#define ACC_24 ACC_16, ACC_OF_4(8)
#define ACC_32 ACC_24, ACC_OF_4(12)
#define ACC_48 ACC_32, ACC_OF_4(16), ACC_OF_4(20)
#define ACC_64 ACC_48, ACC_OF_4(24), ACC_OF_4(28)
#define ACC_80 ACC_64, ACC_OF_4(32), ACC_OF_4(36)
#define ACC_96 ACC_80, ACC_OF_4(40), ACC_OF_4(44)
#define ACC_112 ACC_96, ACC_OF_4(48), ACC_OF_4(52)
#define ACC_128 ACC_112, ACC_OF_4(56), ACC_OF_4(60)
#define ACC_144 ACC_128, ACC_OF_4(64), ACC_OF_4(68)
#define ACC_160 ACC_144, ACC_OF_4(72), ACC_OF_4(76)
#define ACC_168 ACC_160, ACC_OF_4(80)
#define ACC_176 ACC_168, ACC_OF_4(84)
#define ACC_192 ACC_176, ACC_OF_4(88), ACC_OF_4(92)
#define ACC_208 ACC_192, ACC_OF_4(96), ACC_OF_4(100)
#define ACC_224 ACC_208, ACC_OF_4(104), ACC_OF_4(108)
#define ACC_240 ACC_224, ACC_OF_4(112), ACC_OF_4(116)
#define ACC_256 ACC_240, ACC_OF_4(120), ACC_OF_4(124)
#define REGS_AFTER_8 4, 5, 6, 7, 8, 9
#define REGS_AFTER_16 8, 9, 10, 11, 12, 13
#define REGS_AFTER_24 12, 13, 14, 15, 16, 17
#define REGS_AFTER_32 16, 17, 18, 19, 20, 21
#define REGS_AFTER_48 24, 25, 26, 27, 28, 29
#define REGS_AFTER_64 32, 33, 34, 35, 36, 37
#define REGS_AFTER_80 40, 41, 42, 43, 44, 45
#define REGS_AFTER_96 48, 49, 50, 51, 52, 53
#define REGS_AFTER_112 56, 57, 58, 59, 60, 61
#define REGS_AFTER_128 64, 65, 66, 67, 68, 69
#define REGS_AFTER_144 72, 73, 74, 75, 76, 77
#define REGS_AFTER_160 80, 81, 82, 83, 84, 85
#define REGS_AFTER_168 84, 85, 86, 87, 88, 89
#define REGS_AFTER_176 88, 89, 90, 91, 92, 93
#define REGS_AFTER_192 96, 97, 98, 99, 100, 101
#define REGS_AFTER_208 104, 105, 106, 107, 108, 109
#define REGS_AFTER_224 112, 113, 114, 115, 116, 117
#define REGS_AFTER_240 120, 121, 122, 123, 124, 125
#define REGS_AFTER_256 128, 129, 130, 131, 132, 133
#ifdef PRECISION_TF32
#define INPUT_TYPE ".tf32"
#define WGMMA_K 8
#elif defined(DTYPE_BFLOAT16)
#define INPUT_TYPE ".bf16"
#define WGMMA_K 16
#else
#define INPUT_TYPE ".f16"
#define WGMMA_K 16
#endif
#define K_STEPS (BK / WGMMA_K)
#define ELEMENT_BYTES (32 / WGMMA_K)
#define SWIZZLE_LHS 128
#define RHS_DIVIDES(swizzle) (!RHS_MN_MAJOR || TILE_N * ELEMENT_BYTES % (swizzle) == 0)
#define SWIZZLE_RHS (RHS_DIVIDES(128) ? 128 : RHS_DIVIDES(64) ? 64 : 32)
#define LHS_BYTES (TILE_M * 128)
#define RHS_BYTES (TILE_N * 128)
#define STAGE_BYTES (PLANES * (LHS_BYTES + RHS_BYTES))
#define EPILOGUE_AT (STAGES * STAGE_BYTES)
#define WGMMAS_M (TILE_M / 64 / CONSUMERS) // wgmmas of 64 rows that a consumer has

#define CONCAT2_(a, b) a##b
#define CONCAT2(name, n) CONCAT2_(name, n)
#define TEXT_(words) #words
#define TEXT(words) TEXT_(words)
#define OPERANDS_(how, ...) how(__VA_ARGS__)
#define ALL_ACC CONCAT2(ACC_, TILE_N)
#define WGMMA_TEXT(how)                                               \
    "wgmma.mma_async.sync.aligned.m64n" TEXT(TILE_N) "k" TEXT(        \
        WGMMA_K) ".f32" INPUT_TYPE INPUT_TYPE                         \
                 " {" CONCAT2(ACC_REGS_, TILE_N) "}, " OPERANDS_(how, \
                                                                 CONCAT2(REGS_AFTER_, TILE_N)) "}"
#ifdef PRECISION_TF32
#define MAJORS ""
#else
#define MAJORS ", " TEXT(LHS_MN_MAJOR) ", " TEXT(RHS_MN_MAJOR)
#endif
#define SCALE_D(n) "{.reg .pred kept; setp.ne.b32 kept, %" #n ", 0; "
#define SCALE_D_SS(l, r, scale_d, ...) SCALE_D(scale_d)
#define SCALE_D_RS(a, b, c, d, r, scale_d) SCALE_D(scale_d)
#define SS(l, r, scale_d, ...) "%" #l ", %" #r ", kept, 1, 1" MAJORS ";"
#define RS(a, b, c, d, r, scale_d) "{%" #a ", %" #b ", %" #c ", %" #d "}, %" #r ", kept, 1, 1;"

// wgmma.fence orders the warpgroup's accesses to registers before wgmma's.
#define wgmma_fence() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define wgmma_commit_group() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define wgmma_wait_group(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
typedef float Accumulators[TILE_N / 2];
INNER void warpgroup_fence_operand(Accumulators &acc)
{
    asm volatile("" : ALL_ACC::"memory");
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
    asm volatile(OPERANDS_(SCALE_D_SS, CONCAT2(REGS_AFTER_, TILE_N)) WGMMA_TEXT(SS)
                 : ALL_ACC
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
    asm volatile(OPERANDS_(SCALE_D_RS, CONCAT2(REGS_AFTER_, TILE_N)) WGMMA_TEXT(RS)
                 : ALL_ACC
                 : "r"(lhs.element[0]), "r"(lhs.element[1]), "r"(lhs.element[2]),
                   "r"(lhs.element[3]), "l"(rhs), "r"(scale_d)
                 : "memory");
}
#endif
