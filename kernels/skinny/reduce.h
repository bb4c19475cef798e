// Reduces the slices of a block through shared memory in a fixed order: each thread stores its own
// accumulators and then sums some elements of all slices. The including file defines before:
//
// SHORT                      elements of the tile's short side: a thread has all of them
// EACH_LONG                  elements of a thread along the long side, a multiple of WIDE
// LONG_THREAD, LONG_THREADS  which EACH_LONG the thread has
// SLICE_IDX, SLICE_K         which part of k the thread has
//
// ROUND of the tile's SHORT elements go through shared memory at a time, in lines of SLICE_K + 1,
// which is odd if SLICE_K is even: neither loads nor stores have bank conflicts.
#define THREADS (LONG_THREADS * SLICE_K)
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) < (y) ? (y) : (x))
#define PACKS (EACH_LONG / WIDE)
#define ROUND MIN(SHORT, MAX(1, 2048 * WIDE / (THREADS * EACH_LONG)))
#define PACKS_PER_ROUND ((ROUND * PACKS * LONG_THREADS + THREADS - 1) / THREADS)
#define ACC PACK(WIDE)
#define ACC_WIDTH WIDE
#define OUT_PACKS ((SHORT + ROUND - 1) / ROUND * PACKS_PER_ROUND)

#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
#define IS_16_BIT 1
#else
#define IS_16_BIT 0
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !IS_16_BIT
#define HAS_CP_ASYNC 1 // cp.async
#else
#define HAS_CP_ASYNC 0
#endif

// Keeps the compiler from hoisting loads above this point: loads far ahead of their use take the
// accumulators' registers.
#ifdef __OPENCL_VERSION__
#define KEEP_ORDER()
#else
#define KEEP_ORDER() __syncwarp()
#endif

// The elements that a thread has after the reduction: of pack u, if there is one, WIDE elements
// LONG_THREADS apart, which LONG_THREAD had before.
#define OUT_IDX(u) ((u) % PACKS_PER_ROUND * THREADS + THREAD_X)
#define HAS_OUT(u) \
    (OUT_IDX(u) < MIN(ROUND, SHORT - (u) / PACKS_PER_ROUND * ROUND) * PACKS * LONG_THREADS)
#define OUT_SHORT(u) ((u) / PACKS_PER_ROUND * ROUND + OUT_IDX(u) / (PACKS * LONG_THREADS))
#define OUT_PACK(u) (OUT_IDX(u) / LONG_THREADS % PACKS)
#define OUT_THREAD(u) (OUT_IDX(u) % LONG_THREADS)

INNER void store_slice(LOCAL REAL *smem, const REAL *acc, const int round)
{
    TURNS(s, SHORT, 32) {
        TURNS(j, EACH_LONG, 8) {
            if (s / ROUND == round) {
                smem[((s % ROUND * EACH_LONG + j) * LONG_THREADS + LONG_THREAD) * (SLICE_K + 1) +
                     SLICE_IDX] = acc[s * EACH_LONG + j];
            }
        }
    }
}

INNER void sum_slices(const LOCAL REAL *smem, ACC *totals, const int round)
{
    EACH(i, PACKS_PER_ROUND) {
        const int u = round * PACKS_PER_ROUND + i,
                  first = OUT_IDX(u) / LONG_THREADS * WIDE * LONG_THREADS + OUT_THREAD(u);
        totals[u] = ZERO_PACK(WIDE);
        if (HAS_OUT(u)) {
            TURNS(t, SLICE_K, 8) {
                EACH(e, WIDE) {
                    ELEMENT(totals[u], e) += smem[(first + e * LONG_THREADS) * (SLICE_K + 1) + t];
                }
            }
        }
    }
}

INNER void reduce_slices(LOCAL REAL *smem, const REAL *acc, ACC *totals)
{
    EACH_ROLLED(round, OUT_PACKS / PACKS_PER_ROUND) {
        BARRIER(); // the last contents have been read
        store_slice(smem, acc, round);
        BARRIER();
        sum_slices(smem, totals, round);
    }
}

// C's elements are `down` apart along the tile's short side and `along` apart along its long side.
// A pack's elements are contiguous if the thread had them so (`packed`), else LONG_THREADS apart.
PART void store_tile(GLOBAL STORED *c, const INDEX down, const INDEX along, const int shorts,
                     const int longs, const int packed, ACC *totals)
{
    EACH_ROLLED(u, OUT_PACKS) {
        const int s = OUT_SHORT(u), pack = OUT_PACK(u), lane = OUT_THREAD(u);
        if (HAS_OUT(u) && s < shorts) {
            EACH_ROLLED(e, WIDE) {
                const int at = packed ? (pack * LONG_THREADS + lane) * WIDE + e
                                      : (pack * WIDE + e) * LONG_THREADS + lane;
                if (at < longs) {
                    WRITE(c, s * down + at * along, ELEMENT(totals[u], e));
                }
            }
        }
    }
}
