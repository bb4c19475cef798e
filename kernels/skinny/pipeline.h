// Loads both operands into shared memory: a thread's elements of the long one into a ring of STAGES
// steps of its own, and k tiles of the short one, BK of k, for all threads. reduce.h comes before;
// the including file defines what that needs, and:
//
// LONG_BY_K, SHORT_BY_K  1 if the operand is contiguous along k in global memory
// STEP                   k of a step, for all SLICE_K; a thread has EACH_LONG packs of it
//
// Without cp.async there is no ring: a step's packs are loaded right before they are used. Neither
// is there one for elements of 16 bits, which are converted on their way.
#define SHORT_SIZE (SHORT * (BK + 4))
#define RING_SIZE (HAS_CP_ASYNC * STAGES * EACH_LONG * THREADS * WIDE)
#if IS_16_BIT && !defined(__OPENCL_VERSION__)
#define PREFETCHES 1
#define AHEAD STEP
struct __align__(8) StoredPack {
    STORED element[WIDE];
};
#define LONG_PACK StoredPack
#define LONG_ELEMENT(pack, e) READ((pack).element, e)
#else
#define PREFETCHES 0
#define AHEAD (HAS_CP_ASYNC * STAGES * STEP)
#define LONG_PACK ACC
#define LONG_ELEMENT(pack, e) ELEMENT(pack, e)
#endif

#if PREFETCHES
#define load_pack(from) (*(const StoredPack *)(from))
#define LOAD_ELEMENT(from) *(from)
#define ZERO_LONG StoredPack{}
#define LONG_BITS(pack, e) (pack).element[e]
#elif IS_16_BIT
INNER ACC load_pack(const GLOBAL STORED *from)
{
    ACC pack;
    EACH(e, WIDE) {
        ELEMENT(pack, e) = READ(from, e);
    }
    return pack;
}
#else
#define load_pack(from) LOAD(WIDE, from)
#endif
#if !PREFETCHES
#define LOAD_ELEMENT(from) READ(from, 0)
#define ZERO_LONG ZERO_PACK(WIDE)
#define LONG_BITS(pack, e) ELEMENT(pack, e)
#endif

// Aligned rows are loaded in packs (w is WIDE). Of other rows a pack's elements are LONG_THREADS or
// SLICE_K apart, so that a warp's loads are contiguous. From the thread's first element on there
// are `rows` and `remaining` of k; the rest are zeros.
INNER void load_step(LOCAL REAL *ring, LONG_PACK *x, const GLOBAL STORED *from, const INDEX pitch,
                     const int rows, const int remaining, const int w)
{
    TURNS(e, w == 1 ? WIDE : 1, HAS_CP_ASYNC ? 1 : 4) {
        TURNS(p, EACH_LONG, 8) {
            const int row = LONG_THREADS * (LONG_BY_K ? p
                                            : w == 1  ? p % PACKS * WIDE + e
                                                      : p % PACKS * WIDE);
            const int q = LONG_BY_K ? e * SLICE_K : p / PACKS, inside = row < rows && q < remaining;
            const GLOBAL STORED *const at = from + (LONG_BY_K ? row * pitch + q : q * pitch + row);
            if (HAS_CP_ASYNC) {
                cp_async(w, ring + p * THREADS * WIDE + e, (const GLOBAL REAL *)at, inside);
            } else if (w == 1) {
                LONG_BITS(x[p], e) = inside ? LOAD_ELEMENT(at) : 0;
            } else {
                x[p] = inside ? load_pack(at) : ZERO_LONG;
            }
        }
    }
}

// Copies a k tile of the short operand, with k along the banks; if `apart`, permuted as the steps
// need it. It moves `w` contiguous elements at once.
#define RUN_SHORT (SHORT_BY_K ? BK / w : SHORT == 24 ? 32 : SHORT)
#define LINE_THREADS MIN(RUN_SHORT, THREADS)
PART void load_short(LOCAL REAL *y, const GLOBAL STORED *from, INDEX pitch, int columns,
                     int remaining, int apart, const int w)
{
    const int lines = SHORT_BY_K ? SHORT : BK, at_once = THREADS / LINE_THREADS,
              turns = RUN_SHORT / LINE_THREADS;
    const int ragged = RUN_SHORT % SHORT != 0 ? 1 : lines % at_once;
    TURNS(i, (lines + at_once - 1) / at_once * turns, 4) {
        const int along = (THREAD_X % LINE_THREADS + i % turns * LINE_THREADS) * w,
                  line = THREAD_X / LINE_THREADS + i / turns * at_once;
        const int s = SHORT_BY_K ? line : along, q = SHORT_BY_K ? along : line;
        const int place = apart ? q / STEP * STEP + q % SLICE_K * WIDE + q / SLICE_K % WIDE : q;
        const int inside = s < columns && q < remaining;
        if (ragged && (s >= SHORT || q >= BK)) {
            continue;
        }
        if (HAS_CP_ASYNC) {
            cp_async(w, y + s * (BK + 4) + place,
                     (const GLOBAL REAL *)(from + (line * pitch + along)), inside);
        } else {
            y[s * (BK + 4) + place] = inside ? READ(from, line * pitch + along) : 0;
        }
    }
}
