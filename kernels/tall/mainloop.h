// Streams the large operand through shared memory past the small one, which is kept there. The
// including file defines:
//
// KEEP_A, TRANS_A, TRANS_B  which operand is kept (1: A), and how both are stored
// BK, DEPTH                 depth of a k tile of the large operand, and k of the small one that is
//                           kept
// SHORT, WARP_LONG          the tile's short side, and a warp's part of the long one
// STAGES, WARPS, LANE       k tiles in shared memory (1: no cp.async), warps of a block, lane of a
//                           thread
//
// The large operand has the layout of global memory, so that it moves 16 bytes at a time. If that
// is K-major (K_MAJOR_LARGE), threads read WIDE k of a row at once, and neighbouring rows start on
// different banks.
#define K_MAJOR_LARGE (KEEP_A ? TRANS_B : !TRANS_A)
#define SMEM_ROW_AT(y) \
    (K_MAJOR_LARGE ? (y) * BK + (y) / (KEEP_A ? WIDE : 1) * WIDE : (y) * WARP_LONG)
#define STAGE_SIZE SMEM_ROW_AT(K_MAJOR_LARGE ? WARP_LONG : BK)
// The small operand is MN-major. If it is K-major in global memory it is transposed on its way,
// into lines padded by 4 elements: a sector (32 bytes) of k of each row falls on different banks.
#define TRANSPOSE_SMALL (KEEP_A ? !TRANS_A : TRANS_B)
#define LD_SMALL (SHORT + (TRANSPOSE_SMALL ? 4 : 0))

#ifdef __OPENCL_VERSION__
#define WARP_BARRIER() BARRIER()
#define IN_ORDER()
#define UNROLLED_PACKS 1
#define ADD(x, y, acc, back) \
    EACH(t, PACKS)           \
    (acc)[t] = FMA_PACK(RUN(TS), x, (y)[t], (acc)[t])
#define STORE_STREAMING(n, v, p) STORE(n, v, p)
#else
#define WARP_BARRIER() __syncwarp()
#define IN_ORDER() __syncwarp() // keeps program order: loads are issued ahead of FMAs
#define UNROLLED_PACKS (TL * TS * WIDE > 256 ? 2 : 512 / (TL * TS * WIDE))
// `back` alternates: an operand that was just used is used again and comes from the register reuse
// cache.
#define ADD(x, y, acc, back)                                       \
    EACH(t, TS) {                                                  \
        const int j = back ? TS - 1 - t : t;                       \
        REAL &sum = ELEMENT((acc)[j / RUN(TS)], j % RUN(TS));      \
        sum = FMA(x, ELEMENT((y)[j / RUN(TS)], j % RUN(TS)), sum); \
    }
#define STORE_STREAMING(n, v, p) \
    __stcs((float4 *)(p), *(float4 *)&(v)) // streaming store: C is not read again
#endif
#define IS_ALIGNED(p, pitch) ((pitch) % WIDE == 0 && ADDRESS(p) % 16 == 0)
#define REST(of, most) ((int)((of) < (most) ? (of) : (most)))

// The lanes of a warp, or for the kept operand the threads of a block, copy `w` contiguous elements
// each in rounds. The bits of an offset that depend on the thread and on the round do not overlap:
// they are added.
#define X_OF(item) ((int)((item) % (run / w) * w + (item) / (run / w * lines) * run))
#define Y_OF(item) ((int)((item) / (run / w) % lines))
#define TO(x, y) \
    (!kept ? SMEM_ROW_AT(y) + (x) : TRANSPOSE_SMALL ? (x) * LD_SMALL + (y) : (y) * LD_SMALL + (x))
#define SHARE_OUT(kept, w)                                                                       \
    const int k_major = kept ? TRANSPOSE_SMALL : K_MAJOR_LARGE, side = kept ? SHORT : WARP_LONG, \
              most = kept ? DEPTH : BK;                                                          \
    const int run = !k_major ? side                                                              \
                    : kept   ? 32 / (int)sizeof(REAL)                                            \
                             : most,                                                             \
              lines = k_major ? side : most;                                                     \
    const unsigned team = kept ? 32 * WARPS : 32, me = THREAD_X % team;
// `from` and `to` are the thread's first addresses.
INNER void copy_share(LOCAL REAL *to, const GLOBAL REAL *from, const INDEX pitch, const int sides,
                      const int depth, const int kept, const int w)
{
    SHARE_OUT(kept, w)
    const int xs = (k_major ? depth : sides) - X_OF(me), ys = (k_major ? sides : depth) - Y_OF(me);
    to += (INDEX)TO(X_OF(me), Y_OF(me));
    TURNS(i, (side * most / w + (int)team - 1) / (int)team, 8) {
        const int x = X_OF(i * team), y = Y_OF(i * team),
                  inside = x < xs && y < ys; // else zeros, which add nothing
        if (me + i * team >= side * most / w) {
            continue;
        }
        if (STAGES > 1) {
            cp_async(w, to + (INDEX)TO(x, y), from + (y * pitch + x), inside);
        } else {
            to[TO(x, y)] = inside ? from[y * pitch + x] : 0;
        }
    }
}

INNER INDEX begins(const INDEX pitch, const int kept, const int w)
{
    SHARE_OUT(kept, w)
    return Y_OF(me) * pitch + X_OF(me);
}

// Loads the kept operand: 16 bytes at a time if rows are aligned, by elements if it is transposed.
PART void load_small(LOCAL REAL *to, const GLOBAL REAL *from, const INDEX pitch, const int sides,
                     const int depth, const int wide)
{
    if (wide & (STAGES > 1) & !TRANSPOSE_SMALL) {
        copy_share(to, from + begins(pitch, 1, WIDE), pitch, sides, depth, 1, WIDE);
    } else {
        copy_share(to, from + begins(pitch, 1, 1), pitch, sides, depth, 1, 1);
    }
    if (STAGES > 1) {
        cp_async_commit_group();
    }
}

// The stream of the large operand: a thread's next address, and what remains of the long side and
// of k.
typedef struct {
    const GLOBAL REAL *from;
    INDEX pitch;
    int left, q, k, wide;
} Stream;

PART void start_stream(Stream *s, const GLOBAL REAL *from, const INDEX pitch, const int k,
                       const int all, const int own)
{
    s->wide = STAGES > 1 && IS_ALIGNED(from, pitch);
    s->from = from + own * (K_MAJOR_LARGE ? pitch : 1) +
              (s->wide ? begins(pitch, 0, WIDE) : begins(pitch, 0, 1));
    s->pitch = pitch;
    s->left = all - own;
    s->q = 0;
    s->k = k;
}

// Copies the next k tile, with zeros past the ends.
PART void copy_next(Stream *s, LOCAL REAL *to)
{
    if (s->wide) {
        copy_share(to, s->from, s->pitch, s->left, s->k - s->q, 0, WIDE);
    } else {
        copy_share(to, s->from, s->pitch, s->left, s->k - s->q, 0, 1);
    }
    if (STAGES > 1) {
        cp_async_commit_group();
    }
    s->from += K_MAJOR_LARGE ? BK : BK * s->pitch;
    s->q += BK;
    if (s->q < s->k) {
        return;
    }
    s->from +=
        K_MAJOR_LARGE ? WARP_LONG * WARPS * s->pitch - s->q : WARP_LONG * WARPS - s->q * s->pitch;
    s->q = 0;
    s->left -= WARP_LONG * WARPS;
}
// A thread's fragments and FMAs. The including file defines, beside what is needed above:
//
// TL, TS            elements of C's long and short side that a thread has
// RUN_L             contiguous elements of the long side
// MY_L, MY_S        first element of both within the warp's part
// AT_L(i), AT_S(j)  offsets of its elements from there
// ACC               PACK(RUN(TS))
// PACKS             packs in TS
//
// UNROLLED_PACKS packs along k are unrolled: few, for the instruction cache, and an even number if
// fragments are loaded ahead, as two buffers alternate.
#define UNROLLED_K (UNROLLED_PACKS * WIDE < BK ? UNROLLED_PACKS * WIDE : BK)
#define STRIDE (K_MAJOR_LARGE ? 1 : WARP_LONG)
#define EDGE \
    (UNROLLED_K - (K_MAJOR_LARGE ? WIDE : 1)) // from this step on loads are of the next k tile
typedef struct {
    PACK(WIDE) k_major[2 * TL];
    PACK(RUN(TL)) x[2 * TL / RUN(TL)];
    ACC y[2 * PACKS];
} Fragments;

INNER void read_small(Fragments *o, const LOCAL REAL *small, const int s)
{
    EACH(j, PACKS) {
        o->y[s % 2 * PACKS + j] = LOAD(RUN(TS), small + MY_S + AT_S(j * RUN(TS)));
    }
}

// Of a K-major operand WIDE steps are loaded at once, in `parts` between other steps' FMAs.
INNER void read_large(Fragments *o, const LOCAL REAL *large, const int s, const int part,
                      const int parts)
{
    EACH(i, K_MAJOR_LARGE * TL) {
        if (i * parts / TL == part) {
            o->k_major[s / WIDE % 2 * TL + i] =
                LOAD(WIDE, large + SMEM_ROW_AT(MY_L) + SMEM_ROW_AT(AT_L(i)));
        }
    }
    EACH(i, !K_MAJOR_LARGE * TL / RUN(TL)) {
        o->x[s % 2 * (TL / RUN(TL)) + i] = LOAD(RUN(TL), large + MY_L + AT_L(i * RUN(TL)));
    }
}

INNER void add_step(const Fragments *o, const int s, ACC *acc)
{
#define LARGE_ELEMENT(l)                                                    \
    (K_MAJOR_LARGE ? ELEMENT(o->k_major[s / WIDE % 2 * TL + (l)], s % WIDE) \
                   : ELEMENT(o->x[s % 2 * (TL / RUN(TL)) + (l) / RUN(TL)], (l) % RUN(TL)))
    EACH(l, TL) {
        ADD(LARGE_ELEMENT(l), o->y + s % 2 * PACKS, acc + l * PACKS, l % 2);
    }
}

// One k tile. The next step's fragments are loaded before this one's FMAs, past the end of the k
// tile too.
PART void add_phase(const LOCAL REAL *small, LOCAL REAL *const phase, const LOCAL REAL *next_small,
                    const LOCAL REAL *next_phase, Stream *stream, Fragments *o, ACC *acc)
{
    const LOCAL REAL *large = phase;
    TURNS(turn, BK / UNROLLED_K, 1) {
        const int over = turn == BK / UNROLLED_K - 1;
        const LOCAL REAL *then = large + UNROLLED_K * STRIDE;
        EACH(s, UNROLLED_K) {
            if (STAGES == 1) {
                if ((s % WIDE == 0) | !K_MAJOR_LARGE) {
                    read_large(o, large + s * STRIDE, s, 0, 1);
                }
                read_small(o, small + s * LD_SMALL, s);
            } else {
                if (s == EDGE && over) {
                    cp_async_wait_group(STAGES - 2);
                    // the next k tile is complete, and this stage is free: all lanes have read it
                    WARP_BARRIER();
                    copy_next(stream, phase);
                    then = next_phase;
                }
                const int to = K_MAJOR_LARGE ? s / WIDE * WIDE + WIDE : s + 1;
                read_large(o, to < UNROLLED_K ? large + to * STRIDE : then, to % UNROLLED_K,
                           s % WIDE, K_MAJOR_LARGE ? WIDE : 1);
                const LOCAL REAL *const after = over ? next_small : small + UNROLLED_K * LD_SMALL;
                read_small(o, s + 1 < UNROLLED_K ? small + (s + 1) * LD_SMALL : after,
                           (s + 1) % UNROLLED_K);
                IN_ORDER();
            }
            add_step(o, s, acc);
        }
        small += UNROLLED_K * LD_SMALL;
        large = then;
    }
}
