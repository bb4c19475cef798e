// Splits float32 operands into float16 terms for tensor cores: scales each row of op(A) and column
// of op(B) by a power of two, writes high and low terms K-major into the workspace, and decides if
// the product is within the proven bound. The step after row_absmax.cu.
//
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "portable.h"
#include "fp16_terms.h"
#include "row_scale.h"
#define PART_K 256
// Words among the counters, zero before and after; maxima of the exponents, and of the negated
// exponents, both biased.
enum { ARRIVED, FOUND, HIGHEST_A, LOWEST_A, HIGHEST_B, LOWEST_B, WORDS, BIAS = 1024 };
enum { NOT_FINITE = 1, LOSSY = 2, SOME_A = 4, MOST_A = 8, SOME_B = 16, MOST_B = 32 };
#define INFINITE 0x7F800000u
#define TOO_SMALL 65536 // more than a count of elements

// The exponent by which a line is scaled: its maximum magnitude is then in [2^14, 2^15).
INNER int exponent_of(const unsigned bits)
{
    const float top = __uint_as_float(bits);
    const int low = bits < 0x800000;
    return bits ? (int)(__float_as_uint(low ? top * 0x1p64f : top) >> 23) - 127 - 64 * low - 14 : 0;
}

INNER unsigned short half_of(const float v)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
INNER float float_of(const unsigned short bits)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}

// Reports a block's findings: if an element of its lines is not finite, or no normal float16; if
// some or most are small; the extremes of its exponents.
INNER void report(int *words, const int *arrivals, const int *exponents, const BlockRows &s)
{
    int found = 0, highest = 0, lowest = 0;
    EACH(i, SIDE) {
        found |= arrivals[i];
        highest = max(highest, i < s.lines ? BIAS + exponents[i] : 0);
        lowest = max(lowest, i < s.lines ? BIAS - exponents[i] : 0);
    }
    if (found) {
        atomicOr(words + FOUND, found);
    }
    if (s.part > 0) {
        return;
    }
    atomicMax(words + (s.is_a ? HIGHEST_A : HIGHEST_B), highest);
    atomicMax(words + (s.is_a ? LOWEST_A : LOWEST_B), lowest);
}

// The last block decides (kernels.fp32_emulation says why this is enough).
INNER void verdict(volatile int *words, const INDEX k)
{
    const int found = words[FOUND],
              lossy = (found & LOSSY) && (found & (SOME_A | MOST_B)) && (found & (MOST_A | SOME_B));
    const int highest = words[HIGHEST_A] + words[HIGHEST_B] - 2 * BIAS;
    const int lowest = 2 * BIAS - words[LOWEST_A] - words[LOWEST_B];
    const int outside = lowest < -90 || highest + 30 + (64 - __clzll(k)) > 127;
    words[VERDICT] = (found & NOT_FINITE) | outside << 1 | lossy << 2;
    EACH(i, WORDS) {
        words[i] = 0;
    }
}

// Scales eight elements of a line and writes both terms, 16 bytes each. Returns how many are not
// small, plus TOO_SMALL if one is no normal float16.
INNER int split_eight(const float *from, const float less, const float rest, unsigned short *to,
                      const INDEX low, const int kept)
{
    unsigned high_bits[4] = {}, low_bits[4] = {};
    int big = 0, lossy = 0;
    EACH(j, 8) {
        const float x = from[j] * less * rest;
        const unsigned short high = half_of(x), residue = half_of((x - float_of(high)) * 2048);
        high_bits[j / 2] |= (unsigned)high << j % 2 * 16;
        low_bits[j / 2] |= (unsigned)residue << j % 2 * 16;
        big += fabsf(x) >= 4;
        lossy |= fabsf(x) < 0x1p-14f && from[j] != 0;
    }
    if (kept) {
        *(uint4 *)to = make_uint4(high_bits[0], high_bits[1], high_bits[2], high_bits[3]);
    }
    if (kept) {
        *(uint4 *)(to + low) = make_uint4(low_bits[0], low_bits[1], low_bits[2], low_bits[3]);
    }
    return big + lossy * TOO_SMALL;
}

KERNEL_MIN_BLOCKS(THREADS, 1, 3)
split_fp16(STEP_PARAMETERS)
{
    SHARED float square[SIDE * LD];
    SHARED int exponents[SIDE], arrivals[SIDE], many[THREADS];
    const INDEX slabs = (k + slab - 1) / slab, parts = max(k / PART_K, (INDEX)1),
                low = (k + SIDE - 1) / SIDE * SIDE;
    const BlockRows s = block_rows(a, b, m, n, k, parts);
    const INDEX begin = s.part * PART_K, end = s.part == parts - 1 ? k : begin + PART_K;
    const int x = THREAD_X % SIDE, y = THREAD_X / SIDE, line = THREAD_X / ROWS_AT_ONCE,
              chunk = THREAD_X % ROWS_AT_ONCE * 8;
    const unsigned *const maxima_ = maxima(workspace, at_maxima, s, m + n, slabs, m);
    unsigned top = 0;
    for (INDEX i = y; i < slabs; i += ROWS_AT_ONCE) {
        top = max(top, x < s.lines ? maxima_[i * s.length + x] : 0);
    }
    many[THREAD_X] = (int)top;
    BARRIER();
    if (y == 0) {
        EACH(i, ROWS_AT_ONCE) {
            top = max(top, (unsigned)many[i * SIDE + x]);
        }
        exponents[x] = top < INFINITE ? exponent_of(top) : 0;
        if (x < s.lines && !s.part) {
            workspace[(s.is_a ? at_e : at_f) * 32 + s.batch * s.length + s.first + x] =
                exponents[x];
        }
    }
    BARRIER();
    const int down = -exponents[line], half = down / 2;
    const float less = __int_as_float((half + 127) << 23),
                rest = __int_as_float((down - half + 127) << 23);
    unsigned short *const to = (unsigned short *)(workspace + (s.is_a ? at_a : at_b) * 32) +
                               (s.batch * s.length + s.first + line) * 2 * low + chunk;
    int big = 0;
    for (INDEX depth = begin; depth < end; depth += SIDE) {
        float in[SIDE / ROWS_AT_ONCE];
        const int deep = (int)min(end - depth, (INDEX)SIDE), wide = s.transpose ? s.lines : deep;
        const int high = x < wide ? (s.transpose ? deep : s.lines) - y : 0;
        const float *const from = s.from + depth * (s.transpose ? s.length : 1) + y * s.pitch + x;
        EACH(i, SIDE / ROWS_AT_ONCE) {
            in[i] = i * ROWS_AT_ONCE < high ? from[i * ROWS_AT_ONCE * s.pitch] : 0;
        }
        EACH(i, SIDE / ROWS_AT_ONCE) {
            square[s.transpose ? x * LD + y + i * ROWS_AT_ONCE : (y + i * ROWS_AT_ONCE) * LD + x] =
                in[i];
        }
        BARRIER();
#pragma unroll 1
        for (int g = 0; g < 2; g++) {
            big += split_eight(square + line * LD + g * 32 + chunk, less, rest, to + depth + g * 32,
                               low, line < s.lines);
        }
        BARRIER();
    }
    many[THREAD_X] = big;
    BARRIER();
    if (THREAD_X < SIDE) {
        EACH(i, ROWS_AT_ONCE) {
            big = (i ? big : 0) + many[THREAD_X * ROWS_AT_ONCE + i];
        }
        const INDEX sixteenths = big % TOO_SMALL * 16, length = end - begin;
        const int found = (top >= INFINITE) * NOT_FINITE | (big >= TOO_SMALL) * LOSSY |
                          (sixteenths < 15 * length) * (s.is_a ? SOME_A : SOME_B) |
                          (sixteenths < 5 * length) * (s.is_a ? MOST_A : MOST_B);
        arrivals[THREAD_X] = THREAD_X < s.lines ? found : 0;
    }
    BARRIER();
    if (THREAD_X > 0) {
        return;
    }
    report(workspace, arrivals, exponents, s);
    __threadfence(); // this block's report is visible before it arrives
    if (atomicAdd(workspace + ARRIVED, 1) == (int)gridDim.x - 1) {
        verdict(workspace, k);
    }
}
