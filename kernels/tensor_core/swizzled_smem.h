// Tiles in shared memory as lines of 16-byte pieces, and one side of a block's tile on its way there. The including file
// defines before:
//
// THREADS  threads of a block, a power of two     BK      how much of k a tile holds
// ITEM     bytes of an operand's element          PLANES  how many matrices of one shape an operand is
// PADDED   1 where all phases are whole along k, in pieces of 16 bytes
//
// A line is a row along k, or along C's rows or columns as it is stored. 128 bytes are all banks: TURN of a line is what
// its pieces change places by (exclusive or), so that pieces of one number of eight lines that follow each other fall on
// banks of their own (ldmatrix reads such), and in lines of 4-byte elements not along k pairs of pieces of four lines.
#define PIECE (16 / ITEM)
#define SPAN(line) ((line) < 128 ? (line) : 128)
#define TURN(y, line, single)                                             \
    (single ? (y) / (128 / SPAN(line)) % (4 * SPAN(line) / 128) * 2 : (y) / (128 / SPAN(line)) % (SPAN(line) / 16))
#define PLACE(y, piece, line, single) ((y) * (line) + ((piece) ^ TURN(y, line, single)) * 16)
#define SHARED_AT(p) (unsigned)__cvta_generic_to_shared(p)

INNER void copy_piece(const unsigned to, const char *from, const int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The first `count` elements of a piece, one by one, and zeros for the others.
INNER void copy_elements(const unsigned to, const char *from, const int count)
{
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
    unsigned pairs[4];
    EACH(i, 4) {
        const unsigned low = 2 * i < count ? ((const STORED *)from)[2 * i] : 0;
        pairs[i] = 2 * i + 1 < count ? ((const STORED *)from)[2 * i + 1] << 16 | low : low;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]) : "memory");
#else
    EACH(i, 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     ::"r"(to + 4 * i), "l"(from + 4 * i), "r"(i < count ? 4 : 0) : "memory");
#endif
}

// BM rows of A or BN columns of B. Threads deal the pieces out among them in turns, line by line; a place's bits that are
// the thread's and those that are the turn's do not overlap, so that the turn's are constants. `to` and `from` are where
// the thread's first piece goes and comes from, and `kept` has a bit for each of its pieces that is inside C.
template <int side, int along> struct Side {
    static constexpr int line = (along ? BK : side) * ITEM, lines = along ? side : BK, across = line / 16;
    static constexpr int single = ITEM == 4 && !along, size = lines * line, pieces = size / 16;
    static constexpr int turns = (pieces + THREADS - 1) / THREADS;
    const INDEX pitch; // bytes from line to line; planes share it
    const int sides;
    const char *from;
    unsigned to, kept;

    __device__ __forceinline__ Side(const unsigned to, const char *from, const INDEX pitch, const int sides)
        : pitch(pitch), sides(sides), kept(0)
    {
        const int y = THREAD_X / across, piece = THREAD_X % across;
        this->from = from + y * pitch + piece * 16, this->to = to + PLACE(y, piece, line, single);
        EACH(i, turns) {
            const int inside = along ? y + i * THREADS / across < sides : (piece + i * THREADS % across) * PIECE < sides;
            kept |= (unsigned)(inside && THREAD_X + i * THREADS < pieces) << i;
        }
    }

    __device__ __forceinline__ unsigned place(const int i) const
    {
        const int down = i * THREADS / across, on = i * THREADS % across;
        return (to ^ TURN(down, line, single) * 16) + (down * line + on * 16);
    }

    __device__ __forceinline__ void next(const int step) { to += step, from += along ? BK * ITEM : BK * pitch; }

    // One of `bursts` parts of this thread's pieces of a phase that is whole along k, where it is to copy at all.
    __device__ __forceinline__ void bring(const int burst, const int bursts, const int copies)
    {
        const unsigned now = copies ? kept : 0;
        EACH(i, turns) if (i * bursts / turns == burst) EACH(plane, PLANES) {
            const int down = i * THREADS / across, on = i * THREADS % across;
            const INDEX step = PADDED ? pitch : (int)pitch; // else a quick side's pitch is short
            const char *const at = from + (step * down + on * 16) + plane * (step / PLANES);
            asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.b32 p, t, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
                         ::"r"(place(i) + plane * size), "l"(at), "r"(now), "r"(1u << i) : "memory");
        }
    }

    // A phase with `deep` of k, with zeros past it; piece by piece where all start at multiples of 16 bytes.
    __device__ __forceinline__ void bring_slowly(const int deep, const int wide)
    {
#pragma unroll 1
        for (int i = 0; i < turns; i++) {
            const int y = THREAD_X / across + i * THREADS / across, x = (THREAD_X % across + i * THREADS % across) * PIECE;
            const int rest = along ? deep - x : y < deep ? sides - x : 0;
            const char *const at = from + (i * THREADS / across * pitch + i * THREADS % across * 16);
            if (kept >> i & 1) {
                if (!wide) copy_elements(place(i), at, rest);
                else EACH(plane, PLANES) copy_piece(place(i) + plane * size, at + plane * (pitch / PLANES), rest > 0 ? 16 : 0);
            }
        }
    }
};
