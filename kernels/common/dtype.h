// The storage type and the compute type of an element. For float16 and bfloat16 they differ:
// elements are stored in 16 bits and computed with in float32. Includes portable.h.
//
// STORED          storage type of A, B and C
// REAL            compute type: float for the 16-bit dtypes, else STORED
// READ(p, i)      element i, converted exactly to REAL
// WRITE(p, i, v)  stores v, rounded once to nearest even
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
#define DTYPE_FLOAT32
#elif !defined(DTYPE_FLOAT32) && !defined(DTYPE_FLOAT64)
#error "DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_FLOAT16 or DTYPE_BFLOAT16 must be defined"
#endif
#include "portable.h"

#if !defined(DTYPE_FLOAT16) && !defined(DTYPE_BFLOAT16)
#define STORED REAL
#define READ(p, i) (p)[i]
#define WRITE(p, i, v) ((p)[i] = (v))
#else
#ifdef __OPENCL_VERSION__
#define BITS_OF(v) as_uint(v)
#define REAL_OF(bits) as_float(bits)
#else
#define BITS_OF(v) __float_as_uint(v)
#define REAL_OF(bits) __uint_as_float(bits)
#endif

#ifdef DTYPE_BFLOAT16
// bfloat16 is the upper half of a float32. To round to nearest even, add half a unit in the last
// place, less one bit if the tie is already even.
#define STORED unsigned short
#define READ(p, i) REAL_OF((unsigned)(p)[i] << 16)
#define WRITE(p, i, v) ((p)[i] = rounded(v))
INNER STORED rounded(const REAL v)
{
    const unsigned bits = BITS_OF(v);
    return v != v ? 0x7FC0 : (STORED)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
#elif defined(__OPENCL_VERSION__)
#define STORED half
#define READ(p, i) vload_half(0, (p) + (i))
#define WRITE(p, i, v) vstore_half_rte(v, 0, (p) + (i))
#else
#define STORED unsigned short
#define READ(p, i) widened((p)[i])
#define WRITE(p, i, v) ((p)[i] = rounded(v))
INNER REAL widened(const STORED bits)
{
    REAL v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}
INNER STORED rounded(const REAL v)
{
    STORED bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
#endif
#endif
