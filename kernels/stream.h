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
#define STREAM(n, v, p) STORE(n, v, p)
#else
#define WARP_BARRIER() __syncwarp()
#define STREAM(n, v, p) __stcs((float4 *)(p), *(float4 *)&(v)) // C is not read again: what is, stays in the cache
#endif
#define ALIGNED(p, pitch) ((pitch) % WIDE == 0 && ADDRESS(p) % 16 == 0)
#define REST(of, most) ((int)((of) < (most) ? (of) : (most)))

// A warp deals out its share of a phase among its lanes, or a block what is kept among its threads, `w` neighbours in
// memory at a time. The thread's bits of a place and the turn's do not overlap: they add up.
#define X(item) ((int)((item) % (run / w) * w + (item) / (run / w * lines) * run))
#define Y(item) ((int)((item) / (run / w) % lines))
#define TO(x, y) (!kept ? PLACE(y) + (x) : CROSS ? (x) * LINE + (y) : (y) * LINE + (x))
INNER void bring(LOCAL REAL *to, const GLOBAL REAL *from, const INDEX pitch, const int sides, const int depth,
                 const int kept, const int w)
{
    const int deep = kept ? CROSS : DEEP, side = kept ? SHORT : SPAN, most = kept ? DEPTH : BK;
    const int run = !deep ? side : kept ? 32 / (int)sizeof(REAL) : most, lines = deep ? side : most;
    const unsigned team = kept ? 32 * WARPS : 32, me = THREAD_X % team;
    const int xs = (deep ? depth : sides) - X(me), ys = (deep ? sides : depth) - Y(me);
    from += Y(me) * pitch + X(me), to += (INDEX)TO(X(me), Y(me));
    TURNS(i, (side * most / w + (int)team - 1) / (int)team, 16) {
        const int x = X(i * team), y = Y(i * team), inside = x < xs && y < ys; // else zeros, which add nothing
        if (me + i * team >= side * most / w) continue;
        if (STAGES > 1) COPY(w, to + (INDEX)TO(x, y), from + (y * pitch + x), inside);
        else to[TO(x, y)] = inside ? from[y * pitch + x] : 0;
    }
}

// 16 bytes at a time where all stored rows start at multiples of 16 (`wide`); crosswise, element by element.
PART void move(LOCAL REAL *to, const GLOBAL REAL *from, const INDEX pitch, const int sides, const int depth,
               const int kept, const int wide)
{
    if (kept & wide & (STAGES > 1) & !CROSS) bring(to, from, pitch, sides, depth, 1, WIDE);
    else if (kept) bring(to, from, pitch, sides, depth, 1, 1);
    else if (wide & (STAGES > 1)) bring(to, from, pitch, sides, depth, 0, WIDE);
    else bring(to, from, pitch, sides, depth, 0, 1);
    if (STAGES > 1) COPIES_SENT();
}
