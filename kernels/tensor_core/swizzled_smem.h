// Swizzled tiles in shared memory, in pieces of 16 bytes, and the loader of one operand's tile. The
// including file defines before:
//
// THREADS        threads of a block, a power of two
// BK             depth of a k tile
// ELEMENT_BYTES  bytes of an operand's element
// PLANES         matrices of an operand
// PADDED         1 if all k tiles are whole, in pieces of 16 bytes
//
// A line is a row of a K-major tile, or a k of an MN-major one. SWIZZLE of a line is what its
// pieces' indices are XORed with, so that the same piece of eight consecutive lines (which ldmatrix
// reads) falls on different banks; in MN-major lines of 4-byte elements, pairs of pieces of four
// lines.
#define PIECE (16 / ELEMENT_BYTES)
#define SWIZZLE_BYTES(line) ((line) < 128 ? (line) : 128)
#define SWIZZLE(y, line, single)                                                      \
    (single ? (y) / (128 / SWIZZLE_BYTES(line)) % (4 * SWIZZLE_BYTES(line) / 128) * 2 \
            : (y) / (128 / SWIZZLE_BYTES(line)) % (SWIZZLE_BYTES(line) / 16))
#define SWIZZLED_AT(y, piece, line, single) \
    ((y) * (line) + ((piece) ^ SWIZZLE(y, line, single)) * 16)
#define SMEM_ADDRESS(p) (unsigned)__cvta_generic_to_shared(p)

INNER void cp_async_piece(const unsigned to, const char *from, const int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

// Copies a piece if `now` has `bit`.
INNER void cp_async_piece_if(const unsigned to, const char *from, const unsigned now,
                             const unsigned bit)
{
    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.b32 p, t, 0; "
                 "@p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(to),
                 "l"(from), "r"(now), "r"(bit)
                 : "memory");
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
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pairs[0]), "r"(pairs[1]),
                 "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
#else
    EACH(i, 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 4 * i),
                     "l"(from + 4 * i), "r"(i < count ? 4 : 0)
                     : "memory");
    }
#endif
}

// Loads BM rows of A or BN columns of B. The threads copy the pieces in rounds, line by line; the
// bits of an offset that depend on the thread and those that depend on the round do not overlap, so
// that the round's are constants. `to` and `from` are the addresses of the thread's first piece,
// and `kept` is a mask of its pieces inside C.
template <int side, int k_major, int realign> struct TileLoader {
    static constexpr int line = (k_major ? BK : side) * ELEMENT_BYTES, lines = k_major ? side : BK,
                         across = line / 16;
    static constexpr int single = ELEMENT_BYTES == 4 && !k_major, size = lines * line,
                         pieces = size / 16;
    static constexpr int turns = (pieces + THREADS - 1) / THREADS;
    const INDEX pitch; // bytes from line to line, of all planes
    const int sides;
    const char *from;
    unsigned to, kept;

    __device__ __forceinline__ TileLoader(const unsigned to, const char *from, const INDEX pitch,
                                          const int sides, const STORED *)
        : pitch(pitch), sides(sides), kept(0)
    {
        const int y = THREAD_X / across, piece = THREAD_X % across;
        this->from = from + y * pitch + piece * 16;
        this->to = to + SWIZZLED_AT(y, piece, line, single);
        EACH(i, turns) {
            const int inside = k_major ? y + i * THREADS / across < sides
                                       : (piece + i * THREADS % across) * PIECE < sides;
            kept |= (unsigned)(inside && THREAD_X + i * THREADS < pieces) << i;
        }
    }

    __device__ __forceinline__ unsigned swizzled(const int i) const
    {
        const int down = i * THREADS / across, on = i * THREADS % across;
        return (to ^ SWIZZLE(down, line, single) * 16) + (down * line + on * 16);
    }

    __device__ __forceinline__ void advance(const int step)
    {
        to += step;
        from += k_major ? BK * ELEMENT_BYTES : BK * pitch;
    }

    // Issues one of `bursts` parts of a thread's copies of a whole k tile if `copies`.
    __device__ __forceinline__ void copy(const int burst, const int bursts, const int copies)
    {
        const unsigned now = copies ? kept : 0;
        EACH(i, turns) {
            if (i * bursts / turns == burst) {
                EACH(plane, PLANES) {
                    const int down = i * THREADS / across, on = i * THREADS % across;
                    const INDEX step =
                        PADDED ? pitch : (int)pitch; // that of a full k tile fits in 32 bits
                    const char *const at = from + (step * down + on * 16) + plane * (step / PLANES);
                    cp_async_piece_if(swizzled(i) + plane * size, at, now, 1u << i);
                }
            }
        }
    }

    // Loads a k tile of depth `deep`, with zeros past it; by pieces of 16 bytes if all are aligned.
    __device__ __forceinline__ void copy_predicated(const int deep, const int wide)
    {
#pragma unroll 1
        for (int i = 0; i < turns; i++) {
            const int y = THREAD_X / across + i * THREADS / across,
                      x = (THREAD_X % across + i * THREADS % across) * PIECE;
            const int rest = k_major ? deep - x : y < deep ? sides - x : 0;
            const char *const at =
                from + (i * THREADS / across * pitch + i * THREADS % across * 16);
            if (kept >> i & 1) {
                if (!wide) {
                    copy_elements(swizzled(i), at, rest);
                } else {
                    EACH(plane, PLANES) {
                        cp_async_piece(swizzled(i) + plane * size, at + plane * (pitch / PLANES),
                                       rest > 0 ? 16 : 0);
                    }
                }
            }
        }
    }
};
