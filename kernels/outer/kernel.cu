// C[m,n] = op(A)[m,k] x op(B)[k,n] where k is a few elements: outer products, whose time is C's
// storing. A thread has neighbouring elements of C as it lies in memory, across the ends of its
// rows, so that it stores 16 aligned bytes at once whatever n is. Operands are read through the
// caches.
//
// BK       all of k at most
// VECTOR   elements of C that a thread stores at once
// PACKS    such vectors of a thread
// THREADS  threads of a block
// TRANS_A  1 where A is stored k x m, else 0
// TRANS_B  1 where B is stored n x k, else 0
#if !defined(BK)
#error "BK must be defined"
#elif !defined(VECTOR)
#error "VECTOR must be defined"
#elif !defined(PACKS)
#error "PACKS must be defined"
#elif !defined(THREADS)
#error "THREADS must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#include "division.h"
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
#define HALVES
#include "cvt_pack.h"
#endif
#define BLOCK_ELEMENTS (THREADS * PACKS * VECTOR)

struct __align__(VECTOR * sizeof(STORED)) Vector {
    STORED element[VECTOR];
};

// Operands and sizes of one product of the batch.
struct Product {
    const STORED *a;
    const STORED *b;
    INDEX m, n, k;
};

// Where an element of a vector lies in C.
struct Place {
    INDEX row;
    int column;
};

// Past the end of k there are zeros.
INNER REAL element_of_a(const Product &of, const INDEX row, const int q)
{
    return q < of.k ? READ(of.a, TRANS_A ? q * of.m + row : row * of.k + q) : (REAL)0;
}

INNER REAL element_of_b(const Product &of, const int column, const int q)
{
    return q < of.k ? READ(of.b, TRANS_B ? column * of.k + q : q * of.n + column) : (REAL)0;
}

// Sums of a vector's elements, all of one row of C.
INNER void multiply_in_row(const Product &of, const Place at, REAL (&acc)[VECTOR])
{
    REAL of_a[BK], of_b[BK][VECTOR];
    EACH(q, BK) {
        of_a[q] = element_of_a(of, at.row, q);
        EACH(e, VECTOR) {
            of_b[q][e] = element_of_b(of, at.column + e, q);
        }
    }
    EACH(q, BK) {
        EACH(e, VECTOR) {
            acc[e] = FMA(of_a[q], of_b[q][e], acc[e]);
        }
    }
}

// The same of a vector whose element 0 lies at `at`, or would, where its column is negative, and
// that has parts of two rows, which are as long as it: what it needs of A is two elements. No load
// depends on what is inside, so that all are in flight together.
INNER void multiply_in_two_rows(const Product &of, const Place at, REAL (&acc)[VECTOR])
{
    const INDEX left = of.n - at.column;
    const int in_first = left < VECTOR ? (int)left : VECTOR; // elements of the first row
    const INDEX below = at.row + 1 < of.m ? at.row + 1 : at.row;
    int column[VECTOR];
    EACH(e, VECTOR) {
        const int to = at.column + e, wraps = e >= in_first;
        column[e] = to < 0 ? 0 : wraps ? e - in_first : to;
    }
    REAL upper[BK], lower[BK], of_b[BK][VECTOR];
    EACH(q, BK) {
        upper[q] = element_of_a(of, at.row, q);
        lower[q] = element_of_a(of, below, q);
        EACH(e, VECTOR) {
            of_b[q][e] = element_of_b(of, column[e], q);
        }
    }
    EACH(q, BK) {
        EACH(e, VECTOR) {
            acc[e] = FMA(e < in_first ? upper[q] : lower[q], of_b[q][e], acc[e]);
        }
    }
}

// The same of the elements from `first` to `last`, where rows are shorter.
INNER void multiply_in_rows(const Product &of, Place at, const int first, const int last,
                            REAL (&acc)[VECTOR])
{
    EACH(e, VECTOR) {
        EACH(q, BK) {
            if (e >= first && e < last) {
                acc[e] = FMA(element_of_a(of, at.row, q), element_of_b(of, at.column, q), acc[e]);
            }
        }
        at.column++;
        if (at.column == of.n) {
            at.column = 0;
            at.row++;
        }
    }
}

// Whole vectors are stored past the caches, since C is not read again.
INNER void store_vector(STORED *c, const int first, const int last, const REAL (&acc)[VECTOR])
{
    Vector out;
#ifdef HALVES
    EACH(e, VECTOR / 2) {
        ((unsigned *)out.element)[e] = pair_of(acc[2 * e], acc[2 * e + 1]);
    }
#else
    EACH(e, VECTOR) {
        out.element[e] = acc[e];
    }
#endif
    if (first == 0 && last == VECTOR) {
        if constexpr (sizeof(Vector) == 16) {
            __stcs((float4 *)c, *(const float4 *)&out);
        } else {
            *(Vector *)c = out;
        }
        return;
    }
    EACH(e, VECTOR) {
        if (e >= first && e < last) {
            c[e] = out.element[e];
        }
    }
}

KERNEL_MIN_BLOCKS(THREADS, 1, 1)
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k, const REAL *RESTRICT workspace, const INDEX by_row)
{
    const INDEX size = m * n, of_batch = (size + VECTOR - 1 + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
    // The loads wait for this arithmetic: no division in the first product.
    const unsigned batch = BLOCK < of_batch ? 0 : (unsigned)BLOCK / (unsigned)of_batch;
    STORED *const to = c + batch * size;
    // The first vector begins before C where C is not aligned.
    const INDEX lead = ADDRESS(to) % sizeof(Vector) / sizeof(STORED);
    const INDEX block = (INDEX)((unsigned)BLOCK - batch * (unsigned)of_batch) * BLOCK_ELEMENTS;
    const Product of = {a + batch * m * k, b + batch * k * n, m, n, k};
    EACH(i, PACKS) {
        const INDEX from = block + (i * THREADS + THREAD_X) * VECTOR - lead;
        const int first = from < 0 ? (int)-from : 0,
                  last = size - from < VECTOR ? (int)(size - from) : VECTOR;
        if (last <= first) {
            continue;
        }
        Place at = {0, (int)from};
        if (from >= n) {
            at.row = size >> 31 ? from / n : quotient((unsigned)from, by_row);
            at.column = (int)(from - at.row * n);
        }
        REAL acc[VECTOR] = {};
        const int is_in_row = at.column >= 0 && at.column + VECTOR <= n;
        // One way for a warp: of two the loads of one would wait for the other's.
        if (__all_sync(__activemask(), is_in_row)) {
            multiply_in_row(of, at, acc);
        } else if (n >= VECTOR) {
            multiply_in_two_rows(of, at, acc);
        } else {
            multiply_in_rows(of, at, first, last, acc);
        }
        store_vector(to + from, first, last, acc);
    }
}
