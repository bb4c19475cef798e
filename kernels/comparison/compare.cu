// What C is off by: a block's sums and largest values over its ROWS x THREADS elements of C,
// against the float64 reference and the norms of op(A)'s rows and op(B)'s columns. C and the
// reference are read once, coalesced along the rows; a column's norm stays in a register.
//
// THREADS  threads of a block: columns of C, one each
// ROWS     rows of C that a block compares
#if !defined(THREADS)
#error "THREADS must be defined"
#elif !defined(ROWS)
#error "ROWS must be defined"
#endif
#include "dtype.h"
#if defined(DTYPE_FLOAT16)
#define UNIT 0x1p-11  // its unit roundoff
#define LEAST 0x1p-24 // its smallest denormal
#elif defined(DTYPE_BFLOAT16)
#define UNIT 0x1p-8
#define LEAST 0x1p-133
#endif
#if defined(UNIT)
#define BITS unsigned short
#elif defined(DTYPE_FLOAT32)
#define BITS unsigned
#else
#define BITS unsigned INDEX
#endif
#ifdef __OPENCL_VERSION__
#define BITS_OF_DOUBLE(x) as_long(x)
#define DOUBLE_OF(bits) as_double(bits)
#else
#define BITS_OF_DOUBLE(x) __double_as_longlong(x)
#define DOUBLE_OF(bits) __longlong_as_double(bits)
#endif
#define EXPONENT 0x7FF0000000000000 // the bits of a double's exponent
// What is found, in the order in which it is stored: sums, then the largest of two ratios.
#define SQUARES 0   // squared errors
#define REFERENCE 1 // squared elements of the reference
#define SCALES 2    // squared scales: norms of a row of op(A) times those of a column of op(B)
#define NANS 3      // elements of C that are NaN
#define UNWRITTEN 4 // elements of C whose every bit is set, as before the launch
#define SUMS 5
#define WORST 5 // error over scale
#define EARLY 6 // the same of what is beyond the rounding into a 16-bit C
#define FINDINGS 7
// What all threads find of a kind, and one more: those that store it read different banks.
#define LD (THREADS + 1)
#define MIN(x, y) ((x) < (y) ? (x) : (y))

// An error over its scale, where an error of nothing is nothing even over a scale of nothing.
INNER double ratio(const double error, const double scale)
{
    return scale > 0 ? error / scale : error > 0 ? DOUBLE_OF(EXPONENT) : 0;
}

// An error less half a unit in the last place of C's dtype, at `value`.
INNER double beyond(const double error, const double value)
{
#if defined(UNIT)
    return fmax(error - fmax(DOUBLE_OF(BITS_OF_DOUBLE(value) & EXPONENT) * UNIT, LEAST / 2), 0.0);
#else
    return 0;
#endif
}

INNER void add_element(double *found, const double c, const int is_unwritten, const double known,
                       const double scale)
{
    const double error = fabs(c - known);
    found[SQUARES] = fma(error, error, found[SQUARES]);
    found[REFERENCE] = fma(known, known, found[REFERENCE]);
    found[SCALES] = fma(scale, scale, found[SCALES]);
    found[NANS] += c != c;
    found[UNWRITTEN] += is_unwritten;
    found[WORST] = fmax(found[WORST], ratio(error, scale));
    found[EARLY] = fmax(found[EARLY], ratio(beyond(error, fmax(fabs(c), fabs(known))), scale));
}

// The reference [batches, m, n] is followed by the norms of rows [batches, m] and of columns
// [batches, n]. A block stores FINDINGS doubles.
KERNEL(THREADS, 1)
compare(const GLOBAL STORED *RESTRICT c, const GLOBAL double *RESTRICT expected,
        GLOBAL double *RESTRICT out, const INDEX m, const INDEX n, const INDEX k,
        const GLOBAL double *workspace, const INDEX batches)
{
    SHARED double shares[FINDINGS * LD];
    const INDEX across = (n + THREADS - 1) / THREADS, down = (m + ROWS - 1) / ROWS,
                batch = BLOCK / across / down, top = BLOCK / across % down * ROWS,
                column = BLOCK % across * THREADS + THREAD_X,
                first = (batch * m + top) * n + column;
    const int rows = column < n ? (int)MIN(m - top, ROWS) : 0;
    const GLOBAL double *const of_rows = expected + batches * m * n + batch * m + top,
                               *const of_columns = expected + batches * m * (n + 1) + batch * n;
    const double norm = column < n ? of_columns[column] : 0;
    double found[FINDINGS] = {0};
    TURNS(i, ROWS, 8) {
        if (i < rows) {
            const INDEX at = first + i * n;
            const int is_unwritten = ((const GLOBAL BITS *)c)[at] == (BITS)-1;
            add_element(found, READ(c, at), is_unwritten, expected[at], of_rows[i] * norm);
        }
    }
    EACH(f, FINDINGS) {
        shares[f * LD + THREAD_X] = found[f];
    }
    for (int pairs = THREADS / 2; pairs > 0; pairs /= 2) {
        BARRIER(); // what twice as many threads found is there
        EACH(f, FINDINGS) {
            LOCAL double *const own = shares + f * LD + THREAD_X;
            if (THREAD_X < pairs) {
                own[0] = f < SUMS ? own[0] + own[pairs] : fmax(own[0], own[pairs]);
            }
        }
    }
    BARRIER();
    if (THREAD_X < FINDINGS) {
        out[BLOCK * FINDINGS + THREAD_X] = shares[THREAD_X * LD];
    }
}
