// What a stage of hopper.cu holds, and how groups of four warps multiply it (PTX ISA, "wgmma.mma_async").
//
// A side is stored along k where its rows in shared memory are 128 bytes along k, one after the other, and across k
// where they are SPAN bytes along the side, BK of them, and what is further along the side follows in the next box.
#include "hopper_sums.h"
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
