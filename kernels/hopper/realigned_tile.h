// Operands that TMA cannot load: rows that are no multiples of 16 bytes, and MN-major ones of which
// wgmma needs K-major 32-bit elements. A warpgroup of the producer copies the aligned pieces of 16
// bytes that hold a line into its stage, by cp.async; two others, which take k tiles in turn, shift
// or transpose them and put them where TMA would: in the swizzle that wgmma reads.
//
// A line is contiguous in global memory: a row of the tile along k, or a k along the tile's rows.
// It has one piece more in its stage than it fills.
#define SELF ((int)(THREAD_X % COPIERS))

// The 16 bytes that begin `place` bytes into the first of two pieces.
INNER uint4 shifted(const uint4 low, const uint4 high, const int place)
{
    const bool two = place & 8, one = place & 4;
    const unsigned a = two ? low.z : low.x, b = two ? low.w : low.y, c = two ? high.x : low.z,
                   d = two ? high.y : low.w, e = two ? high.z : high.x, f = two ? high.w : high.y;
    const unsigned v = one ? b : a, w = one ? c : b, x = one ? d : c, y = one ? e : d,
                   z = one ? f : e;
    const int bits = place % 4 * 8;
    return make_uint4(__funnelshift_r(v, w, bits), __funnelshift_r(w, x, bits),
                      __funnelshift_r(x, y, bits), __funnelshift_r(y, z, bits));
}

// TMA rounds to TF32 as it loads; wgmma would truncate.
INNER unsigned rounded_word(const unsigned word)
{
#ifdef PRECISION_TF32
    unsigned to;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(to) : "f"(__uint_as_float(word)));
    return to;
#else
    return word;
#endif
}

INNER uint4 load_piece(const unsigned at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

// An operand's tile. Its lines are shifted, or `turned` if the stage has the other order. A thread
// has a piece of every `apart`-th line, which begins at one place in 16 bytes in all of them.
template <int tile, int mn_major, int turned, int swizzle> struct RealignedTile {
    static constexpr int along_k = !mn_major && !turned, lines = along_k ? tile : BK,
                         across = (along_k ? BK : tile) * ELEMENT_BYTES / 16,
                         line_bytes = across * 16 + 16;
    static constexpr int period = 16 / ELEMENT_BYTES, // of the places where lines begin
        apart = COPIERS / across / period * period, turns = (lines + apart - 1) / apart;
    // Of a turned tile a thread has 4 of k of one row: pieces of 16 bytes along k.
    static constexpr int deep_pieces = BK * ELEMENT_BYTES / 16, at_once = COPIERS / tile,
                         words = turned ? (deep_pieces + at_once - 1) / at_once : turns;
    static_assert(apart > 0 && at_once > 0, "a group has threads for lines of every place");
    const char *from; // the tile's first element
    INDEX step;       // bytes from k tile to k tile
    int pitch, tall, first; // `first`: the operand's beginning, from there on
    int own, place_own;     // the thread's first line, and the place of its pieces

    __device__ __forceinline__ RealignedTile(const STORED *operand, const INDEX batch,
                                             const INDEX size, const INDEX k, const int along,
                                             const INDEX deep)
    {
        const INDEX at = batch * size * k + (along_k ? along * k + deep : deep * size + along);
        from = (const char *)(operand + at);
        pitch = (int)(along_k ? k : size) * ELEMENT_BYTES;
        step = along_k ? BK * ELEMENT_BYTES : BK * (INDEX)pitch;
        tall = size - along < tile ? (int)(size - along) : tile;
        first = at < 1 << 20 ? -(int)at * ELEMENT_BYTES : -(1 << 20);
        own = SELF / across < apart ? SELF / across : lines;
        place_own = place(own);
    }

    // Where in 16 bytes a line begins: lines a `period` apart, and all k tiles, begin at the same.
    __device__ __forceinline__ int place(const int line) const
    {
        return (int)ADDRESS(from) + line * pitch & 15;
    }

    // Issues a thread's copies of k tile `p`, of which k has `left`, with zeros past them. The
    // piece that begins before the operand is left out.
    __device__ __forceinline__ void copy(const int p, const int left, const unsigned to) const
    {
        const int inside = along_k ? tall : left,
                  bytes = (along_k ? left : tall) * ELEMENT_BYTES;
        const int x = SELF % across * 16 - place_own, last = across * 16 - place(SELF);
        const char *const at = from + p * step;
        const char *const mine = at + ((INDEX)own * pitch + x);
        const int before = p == 0 && mine < from + first;
        EACH(i, turns) {
            const int kept = own + i * apart < inside && !(i == 0 && before) ? bytes - x : 0;
            if (own + i * apart < lines) {
                copy_piece(to + (own + i * apart) * line_bytes + SELF % across * 16,
                           mine + (INDEX)(i * apart) * pitch, kept);
            }
        }
        if (SELF < lines) {
            copy_piece(to + SELF * line_bytes + across * 16, at + ((INDEX)SELF * pitch + last),
                       SELF < inside ? bytes - last : 0);
        }
    }

    static __device__ __forceinline__ void copy_piece(const unsigned to, const char *at,
                                                      const int rest)
    {
        const int bytes = rest < 0 ? 0 : rest < 16 ? rest : 16;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(at), "r"(bytes)
                     : "memory");
    }

    // Loads a thread's shifted or turned pieces.
    __device__ __forceinline__ void load(const unsigned stage, uint4 piece[words]) const
    {
        if (turned) {
            unsigned at[4];
            EACH(j, 4) {
                at[j] = stage + j * line_bytes + place(j) + SELF % tile * 4;
            }
            EACH(i, words) {
                const int deep = SELF / tile + i * at_once;
                unsigned element[4] = {};
                EACH(j, 4) {
                    if (deep < deep_pieces) {
                        asm volatile("ld.shared.b32 %0, [%1];"
                                     : "=r"(element[j])
                                     : "r"(at[j] + deep * (4 * line_bytes))
                                     : "memory");
                    }
                }
                piece[i] = make_uint4(element[0], element[1], element[2], element[3]);
            }
            return;
        }
        const unsigned at = stage + own * line_bytes + SELF % across * 16;
        EACH(i, words) {
            if (own + i * apart < lines) {
                piece[i] = shifted(load_piece(at + i * apart * line_bytes),
                                   load_piece(at + i * apart * line_bytes + 16), place_own);
            }
        }
    }

    __device__ __forceinline__ void store(const unsigned stage, const uint4 piece[words],
                                          const int p, const int left) const
    {
        EACH(i, words) {
            const int deep = SELF / tile + i * at_once, line = own + i * apart;
            if (turned ? deep < deep_pieces && SELF / tile < at_once : line < lines) {
                const unsigned to =
                    stage + (turned ? offset(SELF % tile, deep) : offset(line, SELF % across));
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to),
                             "r"(rounded_word(piece[i].x)), "r"(rounded_word(piece[i].y)),
                             "r"(rounded_word(piece[i].z)), "r"(rounded_word(piece[i].w))
                             : "memory");
            }
        }
        if (p == 0) {
            store_first(stage, left);
        }
    }

    // Where in the stage a piece of a line of wgmma's lies.
    static __device__ __forceinline__ int offset(const int line, const int piece)
    {
        const int x = piece * 16;
        return x / swizzle * (BK * swizzle) + SWIZZLED(line * swizzle + x % swizzle, swizzle);
    }

    // The elements of the operand's first piece, which begins before it and was left out: they lie
    // within `before` bytes of the tile's first. If lines are short, several have some of them. A
    // thread stores those within the pieces that it has stored.
    __device__ __forceinline__ void store_first(const unsigned stage, const int left) const
    {
        const int begins = (int)ADDRESS(from + first) & 15,
                  before = begins ? 16 - begins + first : 0, between = pitch < 16 ? pitch : 16;
        const int count = turned ? (left < 4 ? left : 4) : along_k ? left : tall;
        const int start = turned ? SELF * ELEMENT_BYTES : own * between;
        const bool mine =
            turned ? SELF < tall : SELF % across == 0 && own < (along_k ? tall : left);
#pragma unroll 1
        for (int e = 0; mine && e < count; e++) {
            const int at = start + e * (turned ? between : ELEMENT_BYTES);
            if (at >= before) {
                return;
            }
            store_element(stage + offset(turned ? SELF : own, 0) + e * ELEMENT_BYTES, from + at);
        }
    }

    static __device__ __forceinline__ void store_element(const unsigned to, const char *const at)
    {
#ifdef PRECISION_TF32
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(rounded_word(*(const unsigned *)at))
                     : "memory");
#else
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(*(const STORED *)at) : "memory");
#endif
    }
};
