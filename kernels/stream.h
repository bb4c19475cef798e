// How a large operand streams through shared memory past a small one that is kept there. The including file defines:
//
// KEEP_A, TRANS_A, TRANS_B  which operand is kept (1: A), and how both are stored in the device's memory
// BK, DEPTH                 how much of k a phase of the large operand has, and how much of k is kept
// SHORT, SPAN               C's short side as the block has it, and how much of the long one is a warp's own
// STAGES, WARPS, LANE       phases at once (1: nothing is copied meanwhile), warps of a block, a thread's place in one
//
// The large operand lies in shared memory as it does in the device's, so that it moves 16 bytes at a time: where that
// is along k (DEEP) threads read WIDE k of a row at once, and rows that neighbours read start on banks of their own.
#define DEEP (KEEP_A ? TRANS_B : !TRANS_A)
#define PLACE(y) (DEEP ? (y) * BK + (y) / (KEEP_A ? WIDE : 1) * WIDE : (y) * SPAN)
#define STAGE PLACE(DEEP ? SPAN : BK)
// The small one lies with its short side along the banks. Where memory has it along k it is written crosswise: in lines
// that are 4 elements longer, a sector (32 bytes) of k of each row falls on banks of its own.
#define CROSS (KEEP_A ? !TRANS_A : TRANS_B)
#define LINE (SHORT + (CROSS ? 4 : 0))

#ifdef __OPENCL_VERSION__
#define WARP_BARRIER() BARRIER()
#define IN_ORDER()
#define LAID 1
#define ADD(x, y, sums, back) EACH(t, PACKS) (sums)[t] = SCALED(RUN(TS), x, (y)[t], (sums)[t])
#define STREAM(n, v, p) STORE(n, v, p)
#else
#define WARP_BARRIER() __syncwarp()
#define IN_ORDER() __syncwarp() // what stands before is issued before what stands after: reads run ahead of FMAs
#define LAID (TL * TS * WIDE > 256 ? 2 : 512 / (TL * TS * WIDE))
// `back` each other time: an operand that was just used is used again, and comes from the FMA units' own cache.
#define ADD(x, y, sums, back)                                            \
    EACH(t, TS) {                                                        \
        const int j = back ? TS - 1 - t : t;                             \
        REAL &sum = ELEMENT((sums)[j / RUN(TS)], j % RUN(TS));           \
        sum = FMA(x, ELEMENT((y)[j / RUN(TS)], j % RUN(TS)), sum);       \
    }
#define STREAM(n, v, p) __stcs((float4 *)(p), *(float4 *)&(v)) // C is not read again: what is, stays in the cache
#endif
#define ALIGNED(p, pitch) ((pitch) % WIDE == 0 && ADDRESS(p) % 16 == 0)
#define REST(of, most) ((int)((of) < (most) ? (of) : (most)))

// A warp deals out its share of a phase among its lanes, or a block what is kept among its threads, `w` neighbours in
// memory at a time. The thread's bits of a place and the turn's do not overlap: they add up.
#define X(item) ((int)((item) % (run / w) * w + (item) / (run / w * lines) * run))
#define Y(item) ((int)((item) / (run / w) % lines))
#define TO(x, y) (!kept ? PLACE(y) + (x) : CROSS ? (x) * LINE + (y) : (y) * LINE + (x))
#define DEALT(kept, w) \
    const int deep = kept ? CROSS : DEEP, side = kept ? SHORT : SPAN, most = kept ? DEPTH : BK; \
    const int run = !deep ? side : kept ? 32 / (int)sizeof(REAL) : most, lines = deep ? side : most; \
    const unsigned team = kept ? 32 * WARPS : 32, me = THREAD_X % team;
// `from` and `to` are where the thread begins.
INNER void bring(LOCAL REAL *to, const GLOBAL REAL *from, const INDEX pitch, const int sides, const int depth,
                 const int kept, const int w)
{
    DEALT(kept, w)
    const int xs = (deep ? depth : sides) - X(me), ys = (deep ? sides : depth) - Y(me);
    to += (INDEX)TO(X(me), Y(me));
    TURNS(i, (side * most / w + (int)team - 1) / (int)team, 8) {
        const int x = X(i * team), y = Y(i * team), inside = x < xs && y < ys; // else zeros, which add nothing
        if (me + i * team >= side * most / w) continue;
        if (STAGES > 1) COPY(w, to + (INDEX)TO(x, y), from + (y * pitch + x), inside);
        else to[TO(x, y)] = inside ? from[y * pitch + x] : 0;
    }
}

INNER INDEX begins(const INDEX pitch, const int kept, const int w)
{
    DEALT(kept, w)
    return Y(me) * pitch + X(me);
}

// What is kept: 16 bytes at a time where all stored rows start at multiples of 16; crosswise, element by element.
PART void move(LOCAL REAL *to, const GLOBAL REAL *from, const INDEX pitch, const int sides, const int depth,
               const int wide)
{
    if (wide & (STAGES > 1) & !CROSS) bring(to, from + begins(pitch, 1, WIDE), pitch, sides, depth, 1, WIDE);
    else bring(to, from + begins(pitch, 1, 1), pitch, sides, depth, 1, 1);
    if (STAGES > 1) COPIES_SENT();
}

// The large operand on its way: where this thread's next copy begins, what is left of the long side, and of k.
typedef struct {
    const GLOBAL REAL *from;
    INDEX pitch;
    int left, q, k, wide;
} Stream;

PART void start(Stream *s, const GLOBAL REAL *from, const INDEX pitch, const int k, const int all, const int own)
{
    s->wide = STAGES > 1 && ALIGNED(from, pitch);
    s->from = from + own * (DEEP ? pitch : 1) + (s->wide ? begins(pitch, 0, WIDE) : begins(pitch, 0, 1));
    s->pitch = pitch, s->left = all - own, s->q = 0, s->k = k;
}

// The next phase, with zeros past the ends.
PART void send(Stream *s, LOCAL REAL *to)
{
    if (s->wide) bring(to, s->from, s->pitch, s->left, s->k - s->q, 0, WIDE);
    else bring(to, s->from, s->pitch, s->left, s->k - s->q, 0, 1);
    if (STAGES > 1) COPIES_SENT();
    s->from += DEEP ? BK : BK * s->pitch, s->q += BK;
    if (s->q < s->k) return;
    s->from += DEEP ? SPAN * WARPS * s->pitch - s->q : SPAN * WARPS - s->q * s->pitch;
    s->q = 0, s->left -= SPAN * WARPS;
}
