// C[m,n] = op(A)[m,k] x op(B)[k,n] where C's short side is a few elements: matrix-vector products
// and dot products. Both operands go from memory straight into registers; a block's threads share
// k, their sums meet by shuffles and in shared memory, those of a cluster's blocks in each other's.
//
// LONG_N     1 where C's long side is its rows' (n), else 0: the long operand is B, else A
// BM         rows of a block's tile of C
// BN         columns of it; the tile has its short side along C's
// EACH_LONG  elements of C's long side that a thread has, each with all of the tile's short side
// SLICE_K    threads that share the k of an element of C
// VECTOR     elements of the long operand that a thread loads at once, where rows are aligned
// UNROLL     steps along k that a thread loads before it adds the first
// CLUSTER_K  blocks of a cluster that share k (from sm_90)
// TRANS_A    1 where A is stored k x m, else 0
// TRANS_B    1 where B is stored n x k, else 0
#if !defined(LONG_N)
#error "LONG_N must be defined"
#elif !defined(BM)
#error "BM must be defined"
#elif !defined(BN)
#error "BN must be defined"
#elif !defined(EACH_LONG)
#error "EACH_LONG must be defined"
#elif !defined(SLICE_K)
#error "SLICE_K must be defined"
#elif !defined(VECTOR)
#error "VECTOR must be defined"
#elif !defined(UNROLL)
#error "UNROLL must be defined"
#elif !defined(CLUSTER_K)
#error "CLUSTER_K must be defined"
#elif !defined(TRANS_A)
#error "TRANS_A must be defined"
#elif !defined(TRANS_B)
#error "TRANS_B must be defined"
#endif
#include "dtype.h"
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))
#define SHORT (LONG_N ? BM : BN)
#define LONG (LONG_N ? BN : BM)
#define LONG_BY_K (LONG_N ? TRANS_B : !TRANS_A)
#define SHORT_BY_K (LONG_N ? !TRANS_A : TRANS_B)
#define LONG_THREADS (LONG / EACH_LONG)
#define THREADS (LONG_THREADS * SLICE_K)
// Neighbouring threads read what is contiguous: k, or C's long side.
#define SLICE_IDX (LONG_BY_K ? THREAD_X % SLICE_K : THREAD_X / LONG_THREADS)
#define LONG_THREAD (LONG_BY_K ? THREAD_X / SLICE_K : THREAD_X % LONG_THREADS)
// Where element e of a thread lies along the tile's long side.
#define LONG_AT(e)                                                               \
    (LONG_BY_K ? (e) * LONG_THREADS + LONG_THREAD                                \
               : ((e) / VECTOR * LONG_THREADS + LONG_THREAD) * VECTOR + (e) % VECTOR)
// Vectors of k can be loaded: of one row or column whatever is contiguous in the others' case.
#define CONTIGUOUS_SHORT (SHORT_BY_K || SHORT == 1)
#define CLUSTER_SIZE CLUSTER_K
#include "cluster.h"
#include "load_steps.h"
#include "reduce.h"

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(THREADS, 1) void
matmul(const STORED *RESTRICT a, const STORED *RESTRICT b, STORED *RESTRICT c, const INDEX m,
       const INDEX n, const INDEX k)
{
    DYNAMIC_SHARED(smem, SMEM_SIZE);
    if (THREAD_X == 0) {
        expect_elements(smem, (int)cta_rank_in_cluster());
    }
    cluster_arrive();
    const INDEX shorter = LONG_N ? m : n, longer = LONG_N ? n : m;
    // Blocks that read the same part of the long operand follow each other.
    const unsigned across = ((unsigned)shorter + SHORT - 1) / SHORT,
                   down = ((unsigned)longer + LONG - 1) / LONG;
    const unsigned tile = (unsigned)BLOCK / CLUSTER_K, line = tile / across, batch = line / down;
    const INDEX row = (INDEX)(line - batch * down) * LONG,
                column = (INDEX)(tile - line * across) * SHORT;
    const int rows = (int)MIN(longer - row, LONG), columns = (int)MIN(shorter - column, SHORT);
    // The blocks of a cluster have parts of k, in whole vectors.
    const INDEX part = ((unsigned)k + CLUSTER_K * VECTOR - 1) / (CLUSTER_K * VECTOR) * VECTOR,
                start = cta_rank_in_cluster() * part,
                depth = MIN(k - start, part);
    Operand<EACH_LONG> x;
    x.pitch = LONG_BY_K ? k : longer;
    x.at = (LONG_N ? b : a) + batch * longer * k + row * (LONG_BY_K ? k : 1) +
           start * (LONG_BY_K ? 1 : longer);
    EACH(e, EACH_LONG) {
        const int at = LONG_AT(e);
        x.offset[e] = (LONG_BY_K ? k : 1) * (INDEX)(at < rows ? at : 0);
    }
    Operand<SHORT> y;
    y.pitch = SHORT_BY_K ? k : shorter;
    y.at = (LONG_N ? a : b) + batch * shorter * k + column * (SHORT_BY_K ? k : 1) +
           start * (SHORT_BY_K ? 1 : shorter);
    EACH(s, SHORT) {
        y.offset[s] = (SHORT_BY_K ? k : 1) * (INDEX)(s < columns ? s : 0);
    }
    REAL acc[SHORT][EACH_LONG] = {};
    const int wide = x.pitch % VECTOR == 0 && ADDRESS(x.at) % sizeof(Vector<VECTOR>) == 0 &&
                     (!LONG_BY_K || !CONTIGUOUS_SHORT ||
                      ((SHORT_BY_K || shorter == 1) &&
                       ADDRESS(y.at) % sizeof(Vector<VECTOR>) == 0));
    if (VECTOR == 1 || !wide) {
        add_all<1>(x, y, depth, acc);
    } else {
        add_all<VECTOR>(x, y, depth, acc);
    }
    reduce_slices(smem, acc);
    store_sums(smem, c + batch * m * n + column * (LONG_N ? n : 1) + row * (LONG_N ? 1 : n),
               LONG_N ? n : 1, LONG_N ? 1 : n, columns, rows);
}
