// What a stage of kernel.cu holds, and how groups of four warps multiply it (PTX ISA, "wgmma.mma_async").
//
// A side is stored along k where its rows in shared memory are 128 bytes along k, one after the other, and across k
// where they are SPAN bytes along the side, BK of them, and what is further along the side follows in the next box.
// The registers of a wgmma instruction, whose names its text must spell out one by one: a thread has N / 2 sums.
//
// NAMES_n   what the text calls the sums    SUMS_n  the operands of an asm statement that are the sums
// NEXT_n    the numbers of the six operands after them
#define SUMS_OF_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_24 NAMES_16 ", %8, %9, %10, %11"
#define NAMES_32 NAMES_24 ", %12, %13, %14, %15"
#define NAMES_48 NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_64 NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_80 NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_96 NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_112 NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_128 NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_144 NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_160 NAMES_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_168 NAMES_160 ", %80, %81, %82, %83"
#define NAMES_176 NAMES_168 ", %84, %85, %86, %87"
#define NAMES_192 NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_208 NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_224 NAMES_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_240 NAMES_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define NAMES_256 NAMES_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8 SUMS_OF_4(0)
#define SUMS_16 SUMS_8, SUMS_OF_4(4)
#define SUMS_24 SUMS_16, SUMS_OF_4(8)
#define SUMS_32 SUMS_24, SUMS_OF_4(12)
#define SUMS_48 SUMS_32, SUMS_OF_4(16), SUMS_OF_4(20)
#define SUMS_64 SUMS_48, SUMS_OF_4(24), SUMS_OF_4(28)
#define SUMS_80 SUMS_64, SUMS_OF_4(32), SUMS_OF_4(36)
#define SUMS_96 SUMS_80, SUMS_OF_4(40), SUMS_OF_4(44)
#define SUMS_112 SUMS_96, SUMS_OF_4(48), SUMS_OF_4(52)
#define SUMS_128 SUMS_112, SUMS_OF_4(56), SUMS_OF_4(60)
#define SUMS_144 SUMS_128, SUMS_OF_4(64), SUMS_OF_4(68)
#define SUMS_160 SUMS_144, SUMS_OF_4(72), SUMS_OF_4(76)
#define SUMS_168 SUMS_160, SUMS_OF_4(80)
#define SUMS_176 SUMS_168, SUMS_OF_4(84)
#define SUMS_192 SUMS_176, SUMS_OF_4(88), SUMS_OF_4(92)
#define SUMS_208 SUMS_192, SUMS_OF_4(96), SUMS_OF_4(100)
#define SUMS_224 SUMS_208, SUMS_OF_4(104), SUMS_OF_4(108)
#define SUMS_240 SUMS_224, SUMS_OF_4(112), SUMS_OF_4(116)
#define SUMS_256 SUMS_240, SUMS_OF_4(120), SUMS_OF_4(124)
#define NEXT_8 4, 5, 6, 7, 8, 9
#define NEXT_16 8, 9, 10, 11, 12, 13
#define NEXT_24 12, 13, 14, 15, 16, 17
#define NEXT_32 16, 17, 18, 19, 20, 21
#define NEXT_48 24, 25, 26, 27, 28, 29
#define NEXT_64 32, 33, 34, 35, 36, 37
#define NEXT_80 40, 41, 42, 43, 44, 45
#define NEXT_96 48, 49, 50, 51, 52, 53
#define NEXT_112 56, 57, 58, 59, 60, 61
#define NEXT_128 64, 65, 66, 67, 68, 69
#define NEXT_144 72, 73, 74, 75, 76, 77
#define NEXT_160 80, 81, 82, 83, 84, 85
#define NEXT_168 84, 85, 86, 87, 88, 89
#define NEXT_176 88, 89, 90, 91, 92, 93
#define NEXT_192 96, 97, 98, 99, 100, 101
#define NEXT_208 104, 105, 106, 107, 108, 109
#define NEXT_224 112, 113, 114, 115, 116, 117
#define NEXT_240 120, 121, 122, 123, 124, 125
#define NEXT_256 128, 129, 130, 131, 132, 133
#ifdef PRECISION_TF32
#define TYPE ".tf32"
#define STEP_K 8
#elif defined(DTYPE_BFLOAT16)
#define TYPE ".bf16"
#define STEP_K 16
#else
#define TYPE ".f16"
#define STEP_K 16
#endif
#define STEPS (BK / STEP_K)
#define ELEMENT_BYTES (32 / STEP_K)
#define SPAN_L 128
#define WHOLE_R(span) (!CROSS_R || COLUMNS * ELEMENT_BYTES % (span) == 0)
#define SPAN_R (WHOLE_R(128) ? 128 : WHOLE_R(64) ? 64 : 32)
#define SIDE_L (ROWS * 128)
#define SIDE_R (COLUMNS * 128)
#define STAGE (PLANES * (SIDE_L + SIDE_R))
#define ROOM_AT (STAGES * STAGE)
#define HEIGHT (ROWS / 64 / CONSUMERS) // times 64 rows are one consumer's

#define JOINED__(a, b) a##b
#define OF_(name, n) JOINED__(name, n)
#define TEXT_(words) #words
#define TEXT(words) TEXT_(words)
#define OPERANDS_(how, ...) how(__VA_ARGS__)
#define ALL_SUMS OF_(SUMS_, COLUMNS)
#define WGMMA(how) "wgmma.mma_async.sync.aligned.m64n" TEXT(COLUMNS) "k" TEXT(STEP_K) ".f32" TYPE TYPE \
    " {" OF_(NAMES_, COLUMNS) "}, " OPERANDS_(how, OF_(NEXT_, COLUMNS)) "}"
#ifdef PRECISION_TF32
#define ORDERS ""
#else
#define ORDERS ", " TEXT(CROSS_L) ", " TEXT(CROSS_R)
#endif
#define IF_KEPT(n) "{.reg .pred kept; setp.ne.b32 kept, %" #n ", 0; "
#define KEPT_THIRD(l, r, kept, ...) IF_KEPT(kept)
#define KEPT_LAST(a, b, c, d, r, kept) IF_KEPT(kept)
#define BOTH_SHARED(l, r, kept, ...) "%" #l ", %" #r ", kept, 1, 1" ORDERS ";"
#define LEFT_HELD(a, b, c, d, r, kept) "{%" #a ", %" #b ", %" #c ", %" #d "}, %" #r ", kept, 1, 1;"

// Registers are whose they were: before the first product that uses them, and after the last.
#define TAKE_REGISTERS() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define PRODUCTS_SENT() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define PRODUCTS_LEFT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
typedef float Sums[COLUMNS / 2];
INNER void settle(Sums &sums) { asm volatile("" : ALL_SUMS::"memory"); }

// A matrix in shared memory: its address, from box to box along the side, from 8 lines to the next, and the span.
INNER unsigned long long matrix(const unsigned at, const int span, const int cross)
{
    const unsigned long long along = cross ? BK * span / 16 : 1, lines = 8 * span / 16;
    const unsigned long long how = span == 128 ? 1 : span == 64 ? 2 : 3;
    return how << 62 | lines << 32 | along << 16 | (at & 0x3FFFF) >> 4;
}
// What STEP_K further along k adds to it.
#define ONWARD(span, cross) ((cross) ? STEP_K * (span) / 16 : 2)

// Adds a product of 64 rows and all columns to the sums, or puts it there where these are not kept.
INNER void multiply(Sums &sums, const unsigned long long left, const unsigned long long right, const int kept)
{
    asm volatile(OPERANDS_(KEPT_THIRD, OF_(NEXT_, COLUMNS)) WGMMA(BOTH_SHARED)
                 : ALL_SUMS : "l"(left), "l"(right), "r"(kept) : "memory");
}

// Which of 64 rows of the left side are the two of a thread's sums. From registers the instruction's rows may be any of
// the side's: neighbours, which are read at once, and so that half a warp reads, and writes to C's strips, in all banks.
INNER int row_of(const int i)
{
    const int warp = THREAD_X / 32 % 4, group = THREAD_X % 32 / 4, far = group / 2 % 2;
    if (!HELD_L) return warp * 16 + group + i * 8;
    return warp / 2 * 32 + far * 16 + warp % 2 * 8 + (far ^ group / 4) * 4 + group % 2 * 2 + i;
}

#if HELD_L
// 32-bit elements are read along k alone, but from registers in any order: a thread's, for one step.
struct Left { unsigned element[4]; };

INNER Left gather(const unsigned char *side, const int row, const int step)
{
    Left left;
    const int r = row + row_of(0);
    EACH(half, 2) {
        const int k = step * 8 + THREAD_X % 4 + half * 4;
        const uint2 two = *(const uint2 *)(side + r / 32 * (BK * 128) + SWIZZLED(k * 128 + r % 32 * 4, 128));
        left.element[2 * half] = two.x, left.element[2 * half + 1] = two.y;
    }
    return left;
}

INNER void multiply(Sums &sums, const Left &left, const unsigned long long right, const int kept)
{
    asm volatile(OPERANDS_(KEPT_LAST, OF_(NEXT_, COLUMNS)) WGMMA(LEFT_HELD)
                 : ALL_SUMS
                 : "r"(left.element[0]), "r"(left.element[1]), "r"(left.element[2]), "r"(left.element[3]), "l"(right),
                   "r"(kept) : "memory");
}
#endif
