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
// Lines of three times a power of two have room to whole 128 bytes, in which pieces are swizzled.
#define WHOLE_LINE(nbytes) ((nbytes) % 3 ? (nbytes) : ((nbytes) + 127) / 128 * 128)
#define SWIZZLED_LINE(elements) WHOLE_LINE((elements) * ELEMENT_BYTES)
// The next power of two of what is three times one.
#define POWER_OF_TWO(count) ((count) % 3 ? (count) : (count) / 3 * 4)
#define SWIZZLE_BYTES(line) ((line) < 128 ? (line) : 128)
#define SWIZZLE(y, line, single)                                                      \
    (single ? (y) / (128 / SWIZZLE_BYTES(line)) % (4 * SWIZZLE_BYTES(line) / 128) * 2 \
            : (y) / (128 / SWIZZLE_BYTES(line)) % (SWIZZLE_BYTES(line) / 16))
#define SWIZZLED_AT(y, piece, line, single) \
    ((y) * (line) + ((piece) ^ SWIZZLE(y, line, single)) * 16)
// Copies of a thread that are laid out one by one where a k tile is not full.
#define FEW_TURNS 8
#define SMEM_ADDRESS(p) (unsigned)__cvta_generic_to_shared(p)

// Copies `src_size` bytes and zeros up to `size`, of which both addresses are multiples. The L1
// cache is passed by if that is 16; else it has what neighbouring threads copy of a sector.
template <int size>
INNER void cp_async_zfill(const unsigned to, const char *from, const int src_size)
{
    if constexpr (size == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(src_size)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from),
                     "n"(size), "r"(src_size)
                     : "memory");
    }
}

// Copies `size` bytes if `now` has `bit`.
template <int size>
INNER void cp_async_if(const unsigned to, const char *from, const unsigned now, const unsigned bit)
{
#define CP_ASYNC_IF(cache)                                                                \
    asm volatile("{.reg .pred p; .reg .b32 t; and.b32 t, %2, %3; setp.ne.b32 p, t, 0; "   \
                 "@p cp.async." cache ".shared.global [%0], [%1], %4;}" ::"r"(to),        \
                 "l"(from), "r"(now), "r"(bit), "n"(size)                                 \
                 : "memory")
    if constexpr (size == 16) {
        CP_ASYNC_IF("cg");
    } else {
        CP_ASYNC_IF("ca");
    }
}

// The first `count` elements of `size` bytes, one by one, and zeros for the others.
template <int size>
INNER void copy_elements(const unsigned to, const char *from, const int count)
{
    EACH(i, size / 4) {
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
        const unsigned low = 2 * i < count ? ((const STORED *)from)[2 * i] : 0,
                       high = 2 * i + 1 < count ? ((const STORED *)from)[2 * i + 1] : 0;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + 4 * i), "r"(high << 16 | low) : "memory");
#else
        cp_async_zfill<4>(to + 4 * i, from + 4 * i, i < count ? 4 : 0);
#endif
    }
}

// Loads BM rows of A or BN columns of B. The threads copy `size` bytes each in rounds, line by
// line; the bits of an offset that depend on the thread and those that depend on the round do not
// overlap, so that the round's are constants. `to` and `from` are the addresses of what the thread
// copies first, and `kept` is a mask of its copies inside C. A line has a power of two of threads,
// some of which may have no copy.
template <int side, int k_major, int realign, int size> struct TileLoader {
    static constexpr int held = k_major ? BK : side, line = SWIZZLED_LINE(held),
                         lines = k_major ? side : BK, elements = size / ELEMENT_BYTES,
                         across = POWER_OF_TWO(held / elements);
    static constexpr int single = ELEMENT_BYTES == 4 && !k_major, plane_bytes = lines * line,
                         copies = lines * across;
    static constexpr int turns = (copies + THREADS - 1) / THREADS;
    const INDEX pitch; // bytes from line to line, of all planes
    const int sides;
    const char *from;
    unsigned to, kept;

    __device__ __forceinline__ TileLoader(const unsigned to, const char *from, const INDEX pitch,
                                          const int sides, const STORED *)
        : pitch(pitch), sides(sides), kept(0)
    {
        const int y = THREAD_X / across, x = THREAD_X % across * size;
        this->from = from + y * pitch + x;
        this->to = to + (SWIZZLED_AT(y, x / 16, line, single) + x % 16);
        if (THREADS % across > 0) { // rounds lie along a line
            EACH(i, turns) {
                const int along = x / ELEMENT_BYTES + i * THREADS % across * elements,
                          inside = (k_major ? y + i * THREADS / across : along) < sides;
                kept |= (unsigned)(inside && THREAD_X + i * THREADS < copies) << i;
            }
        } else if (THREAD_X < copies) {
            constexpr int apart = THREADS / across > 0 ? THREADS / across : 1; // rounds, in lines
            const int left = k_major ? (sides - y + apart - 1) / apart
                                     : x / ELEMENT_BYTES < sides ? turns : 0;
            kept = left >= turns ? LOW_BITS(turns) : left > 0 ? (1u << left) - 1 : 0;
        }
    }

    __device__ __forceinline__ unsigned swizzled(const int i) const
    {
        const int down = i * THREADS / across, on = i * THREADS % across;
        return (to ^ SWIZZLE(down, line, single) * 16) + (down * line + on * size);
    }

    __device__ __forceinline__ void advance(const int step)
    {
        to += step;
        from += k_major ? BK * ELEMENT_BYTES : BK * pitch;
    }

    // Issues one of `bursts` parts of a thread's copies of a whole k tile if `now_copied`.
    __device__ __forceinline__ void copy(const int burst, const int bursts, const int now_copied)
    {
        const unsigned now = now_copied ? kept : 0;
        EACH(i, turns) {
            if (i * bursts / turns == burst) {
                EACH(plane, PLANES) {
                    const int down = i * THREADS / across, on = i * THREADS % across;
                    const INDEX step =
                        PADDED ? pitch : (int)pitch; // that of a full k tile fits in 32 bits
                    const char *const at =
                        from + (step * down + on * size) + plane * (step / PLANES);
                    cp_async_if<size>(swizzled(i) + plane * plane_bytes, at, now, 1u << i);
                }
            }
        }
    }

    // Loads a k tile of depth `deep`, with zeros past it; by `size` bytes if all are aligned.
    __device__ __forceinline__ void copy_predicated(const int deep, const int wide)
    {
#pragma unroll(turns <= FEW_TURNS ? turns : 1)
        for (int i = 0; i < turns; i++) {
            const int y = THREAD_X / across + i * THREADS / across,
                      x = (THREAD_X % across + i * THREADS % across) * elements;
            const int rest = k_major ? deep - x : y < deep ? sides - x : 0;
            const char *const at =
                from + (i * THREADS / across * pitch + i * THREADS % across * size);
            if (kept >> i & 1) {
                if (!wide) {
                    copy_elements<size>(swizzled(i), at, rest);
                } else {
                    EACH(plane, PLANES) {
                        cp_async_zfill<size>(swizzled(i) + plane * plane_bytes,
                                             at + plane * (pitch / PLANES), rest > 0 ? size : 0);
                    }
                }
            }
        }
    }
};
