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
// A thread's operands, and what it does with a phase of them. The including file defines, beside what mainloop.h wants:
//
// TL, TS            how much of C's long and short side a thread has      RUN_L  neighbours of the long side
// MY_L, MY_S        where its part of both begins in the warp's           SUM    PACK(RUN(TS))
// AT_L(i), AT_S(j)  how far from there its elements are                   PACKS  of them in TS
//
// LAID packs along k are laid out one after the other: few, so that their text is soon here, and an even number of them
// where operands are read ahead, for what is ahead and what is used take turns.
#define STEPS (LAID * WIDE < BK ? LAID * WIDE : BK)
#define STRIDE (DEEP ? 1 : SPAN)
#define EDGE (STEPS - (DEEP ? WIDE : 1)) // from this step on what is read is the next phase's
typedef struct { PACK(WIDE) deep[2 * TL]; PACK(RUN(TL)) x[2 * TL / RUN(TL)]; SUM y[2 * PACKS]; } Operands;

INNER void read_small(Operands *o, const LOCAL REAL *small, const int s)
{
    EACH(j, PACKS) o->y[s % 2 * PACKS + j] = LOAD(RUN(TS), small + MY_S + AT_S(j * RUN(TS)));
}

// Along k WIDE steps are read at once, in `parts`, each between other steps' FMAs.
INNER void read_large(Operands *o, const LOCAL REAL *large, const int s, const int part, const int parts)
{
    EACH(i, DEEP * TL) if (i * parts / TL == part)
        o->deep[s / WIDE % 2 * TL + i] = LOAD(WIDE, large + PLACE(MY_L) + PLACE(AT_L(i)));
    EACH(i, !DEEP * TL / RUN(TL))
        o->x[s % 2 * (TL / RUN(TL)) + i] = LOAD(RUN(TL), large + MY_L + AT_L(i * RUN(TL)));
}

INNER void add_step(const Operands *o, const int s, SUM *sums)
{
#define X_OF(l) (DEEP ? ELEMENT(o->deep[s / WIDE % 2 * TL + (l)], s % WIDE) \
                      : ELEMENT(o->x[s % 2 * (TL / RUN(TL)) + (l) / RUN(TL)], (l) % RUN(TL)))
    EACH(l, TL) ADD(X_OF(l), o->y + s % 2 * PACKS, sums + l * PACKS, l % 2);
}

// One phase. Operands of the next step are read before this one's FMAs, past the end of the phase too.
PART void add_phase(const LOCAL REAL *small, LOCAL REAL *const phase, const LOCAL REAL *next_small,
                    const LOCAL REAL *next_phase, Stream *stream, Operands *o, SUM *sums)
{
    const LOCAL REAL *large = phase;
    TURNS(turn, BK / STEPS, 1) {
        const int over = turn == BK / STEPS - 1;
        const LOCAL REAL *then = large + STEPS * STRIDE;
        EACH(s, STEPS) {
            if (STAGES == 1) {
                if ((s % WIDE == 0) | !DEEP) read_large(o, large + s * STRIDE, s, 0, 1);
                read_small(o, small + s * LINE, s);
            }
            else {
                if (s == EDGE && over) {
                    COPIES_LEFT(STAGES - 2);
                    WARP_BARRIER(); // the next phase is whole, and this one's place free: all lanes have read it
                    send(stream, phase);
                    then = next_phase;
                }
                const int to = DEEP ? s / WIDE * WIDE + WIDE : s + 1;
                read_large(o, to < STEPS ? large + to * STRIDE : then, to % STEPS, s % WIDE, DEEP ? WIDE : 1);
                const LOCAL REAL *const after = over ? next_small : small + STEPS * LINE;
                read_small(o, s + 1 < STEPS ? small + (s + 1) * LINE : after, (s + 1) % STEPS);
                IN_ORDER();
            }
            add_step(o, s, sums);
        }
        small += STEPS * LINE, large = then;
    }
}
