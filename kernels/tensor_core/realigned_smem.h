// Tiles whose rows start anywhere: lines lie in shared memory as in global memory, and fragments
// are loaded by words, which 2-byte elements are put in pairs for. The including file defines
// before what swizzled_smem.h says, and of mma.h GROUP_ID, THREAD_IN_GROUP and FIRST_K_STEP.
//
// A line is a row of a K-major tile, or a k of an MN-major one. The aligned pieces of 16 bytes that
// hold it are copied, one more than it fills; it begins at its place in the first of them, which is
// the same for lines PIECE apart. Lines are so long that those a load reads fall on different
// banks: an odd number of pieces, or two more where lanes have four lines and eight words of each.
#define REALIGNED_LINE(elements, k_major) \
    ((elements) * ELEMENT_BYTES + (ELEMENT_BYTES == 4 && !(k_major) ? 32 : 16))

// Loads BM rows of A or BN columns of B, `from` the tile's first element on. A thread has a piece
// of every line that is `apart` further on, and the last piece of other lines. `at` and `at_last`
// are their aligned addresses, `to` and `to_last` where they go; `reach` and `reach_last` what an
// MN-major line has from there on, or a K-major one without its k; `kept` is a mask of the pieces
// that have elements of C's rows or columns.
template <int side, int k_major> struct TileLoader<side, k_major, 1, 16> {
    static constexpr int lines = k_major ? side : BK, elements = k_major ? BK : side,
                         line = REALIGNED_LINE(elements, k_major), across = elements / PIECE,
                         beside = POWER_OF_TWO(across); // threads, of which some have no piece
    static constexpr int turns = (lines * beside + THREADS - 1) / THREADS,
                         all_turns = turns + (lines + THREADS - 1) / THREADS;
    static constexpr int apart = THREADS / beside;
    static_assert(apart % PIECE == 0, "a thread's pieces begin at one place in 16 bytes");
    const INDEX pitch; // bytes from line to line
    const char *at, *at_last, *first;
    unsigned to, to_last, kept;
    int reach, reach_last;

    __device__ __forceinline__ TileLoader(const unsigned to, const char *from, const INDEX pitch,
                                          const int sides, const STORED *operand)
        : pitch(pitch), first((const char *)operand), kept(0)
    {
        const int y = THREAD_X / beside, piece = THREAD_X % beside,
                  own = k_major ? 0 : sides * ELEMENT_BYTES;
        at = from + y * pitch;
        at_last = from + THREAD_X * pitch;
        const int place = (int)ADDRESS(at) & 15, place_last = (int)ADDRESS(at_last) & 15;
        at += piece * 16 - place;
        at_last += across * 16 - place_last;
        this->to = to + (y * line + piece * 16);
        to_last = to + (THREAD_X * line + across * 16);
        reach = own + place - piece * 16;
        reach_last = own + place_last - across * 16;
        EACH(i, all_turns) {
            const int which = (i < turns ? y : THREAD_X) + down(i);
            const int inside = k_major ? which < sides : (i < turns ? reach : reach_last) > 0;
            const int is_there = across == beside || i >= turns || piece < across;
            kept |= (unsigned)(inside && which < lines && is_there) << i;
        }
    }

    // Lines from a thread's first piece, or last piece, to that of turn `i`.
    static __device__ __forceinline__ constexpr int down(const int i)
    {
        return i < turns ? i * apart : (i - turns) * THREADS;
    }

    __device__ __forceinline__ void advance(const int step)
    {
        const INDEX along = k_major ? BK * ELEMENT_BYTES : BK * pitch;
        to += step;
        to_last += step;
        at += along;
        at_last += along;
    }

    // Issues one of `bursts` parts of a thread's copies if `copies`, of a k tile that a piece of k
    // follows: all of every piece is in the operand.
    __device__ __forceinline__ void copy(const int burst, const int bursts, const int copies)
    {
        const unsigned now = copies ? kept : 0;
        const INDEX step = (int)pitch; // fits in 32 bits
        EACH(i, all_turns) {
            if (i * bursts / all_turns == burst) {
                cp_async_if<16>((i < turns ? to : to_last) + down(i) * line,
                                (i < turns ? at : at_last) + down(i) * step, now, 1u << i);
            }
        }
    }

    // Loads a k tile of depth `deep`, with zeros past it.
    __device__ __forceinline__ void copy_predicated(const int deep, const int)
    {
        const int along = k_major ? deep * ELEMENT_BYTES : 0;
        const int bytes = up_to_piece(along + reach), bytes_last = up_to_piece(along + reach_last);
        EACH(i, all_turns) {
            const int y = (i < turns ? THREAD_X / beside : THREAD_X) + down(i),
                      held = i < turns ? bytes : bytes_last;
            if (kept >> i & 1 && (i > 0 || at >= first)) {
                cp_async_zfill<16>((i < turns ? to : to_last) + down(i) * line,
                                   (i < turns ? at : at_last) + down(i) * pitch,
                                   k_major || y < deep ? held : 0);
            }
        }
        if (at < first) {
            copy_first(along + reach);
        }
    }

    static __device__ __forceinline__ int up_to_piece(const int bytes)
    {
        return bytes < 0 ? 0 : bytes < 16 ? bytes : 16;
    }

    // The elements of the piece that begins before the operand, and zeros past `bytes`.
    __device__ __forceinline__ void copy_first(const int bytes) const
    {
#pragma unroll 1
        for (int e = (int)(first - at); e < 16; e += ELEMENT_BYTES) {
            const STORED element = e < bytes ? *(const STORED *)(at + e) : (STORED)0;
#if ELEMENT_BYTES == 2
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(to + e), "h"(element) : "memory");
#else
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + e), "f"(element) : "memory");
#endif
        }
    }
};

// Where a lane finds its words. Pairs of 2-byte elements of a K-major line are in two words of it,
// an MN-major one's in two lines, `next` bytes apart.
struct Pairs {
    unsigned at, next, halves;
};

INNER Pairs lane_pairs(const int first, const int line, const int k_major, const char *from,
                       const INDEX pitch)
{
    const int y = k_major              ? first + GROUP_ID
                  : ELEMENT_BYTES == 2 ? FIRST_K_STEP * 16 + 2 * THREAD_IN_GROUP
                                       : FIRST_K_STEP * 8 + THREAD_IN_GROUP;
    const unsigned place = ((unsigned)ADDRESS(from) + y * (unsigned)pitch) % 16,
                   other = (place + (unsigned)pitch) % 16;
    if (k_major) {
        const unsigned at = y * line + FIRST_K_STEP * 32 + THREAD_IN_GROUP * 4 + place / 4 * 4;
        return {at, 4, place % 4 ? 0x5432u : 0x3210u};
    }
    return {y * line + (first + GROUP_ID) * ELEMENT_BYTES + place, line + other - place, 0};
}

// Loads a word: an element of 4 bytes, or a pair. A pair of a K-major line that begins at a word is
// in one word: where all of a warp do, the other one is not loaded.
INNER unsigned load_word(const unsigned at, const Pairs &pairs, const int k_major)
{
    unsigned pair;
    if (ELEMENT_BYTES == 4) {
        pair = load_shared(at);
    } else if (k_major) {
        asm volatile("{.reg .pred p; .reg .b32 low, high; setp.ne.u32 p, %2, 0x3210; "
                     "mov.b32 high, 0; ld.shared.b32 low, [%1]; @p ld.shared.b32 high, [%1 + 4]; "
                     "prmt.b32 %0, low, high, %2;}"
                     : "=r"(pair)
                     : "r"(at), "r"(pairs.halves)
                     : "memory");
    } else {
        asm volatile("{.reg .b16 low, high; ld.shared.b16 low, [%1]; ld.shared.b16 high, [%2]; "
                     "mov.b32 %0, {low, high};}"
                     : "=r"(pair)
                     : "r"(at), "r"(at + pairs.next)
                     : "memory");
    }
    return pair;
}
