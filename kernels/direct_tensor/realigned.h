// Words of rows that start anywhere: aligned words are moved, from the last aligned address before
// a row's first element on. What a lane has too early and lacks in the end, its neighbour in the
// group of four has.
INNER unsigned from_lane(const unsigned word, const int lane)
{
    return __shfl_sync(0xFFFFFFFF, word, lane);
}

// The words that begin `bytes` after the first of two neighbouring runs.
template <int COUNT> INNER void funnel(unsigned (&first)[COUNT], const unsigned (&second)[COUNT],
                                       const int bytes)
{
    unsigned all[2 * COUNT];
    EACH(e, COUNT) {
        all[e] = first[e];
        all[COUNT + e] = second[e];
    }
    if (COUNT == 4) {
        EACH(e, COUNT + 2) {
            all[e] = bytes & 8 ? all[e + 2] : all[e];
        }
    }
    if (COUNT >= 2) {
        EACH(e, COUNT + 1) {
            all[e] = bytes & 4 ? all[e + 1] : all[e];
        }
    }
    EACH(e, COUNT) {
        first[e] = PER_WORD == 2 ? __funnelshift_r(all[e], all[e + 1], bytes % 4 * 8) : all[e];
    }
}

#if ELEMENT_BYTES == 2
// More elements to an operand's end count as so many.
#define FAR 4096
// What of a tile is read: all of it where none is near the operand's end, else the words that are
// inside, and then those that are not.
#define INTERIOR 0
#define WHOLE 1
#define AT_EDGE 2

// Fragments of an operand of 2-byte elements. Past a line's k there is room in the tile for those
// that come before it; of an MN-major operand words past the tile are loaded.
template <int MMA_TILES, int K_MAJOR, int MOST_BESIDE>
struct RealignedFragments : WarpFragments<MMA_TILES, K_MAJOR, MOST_BESIDE> {
    typedef WarpFragments<MMA_TILES, K_MAJOR, MOST_BESIDE> Base;
    using Base::word;
    static constexpr int ALL = Base::GROUPS * 4 * Base::TAKEN; // elements of a run
    unsigned past[Base::RUNS]; // the words past a run: each lane has one of them
    int at_edge;               // whether words of this lane end outside of the operand

    // By the element where the operand itself is not aligned.
    __device__ __forceinline__ void load(const OperandTile &tile)
    {
        at_edge = 0;
        if (is_aligned(tile) && after_last_row(tile) >= extent(tile) + Base::TAKEN) {
            read_aligned<INTERIOR>(tile);
        } else if (is_aligned(tile)) {
            read_aligned<WHOLE>(tile);
        } else {
            Base::template read<0>(tile);
        }
    }

    // Words that end outside of the operand are loaded by the element, once all others are in
    // flight.
    __device__ __forceinline__ void load_edges(OperandTile tile)
    {
        if (at_edge) {
            forget(tile);
            read_aligned<AT_EDGE>(tile);
        }
    }

    __device__ __forceinline__ void arrange(OperandTile tile)
    {
        if (is_aligned(tile)) {
            forget(tile);
            realign(tile);
        }
        Base::arrange(tile);
    }

    static __device__ __forceinline__ int is_aligned(const OperandTile &tile)
    {
        return ADDRESS(tile.begin) % (4 * Base::WORDS) == 0;
    }

    // The element below `at` by the rows of a run: a product of 32 bits.
    static __device__ __forceinline__ const STORED *at_run(const STORED *at, const int run,
                                                           const OperandTile &tile)
    {
        const unsigned bytes = Base::row_of(run) * (int)sizeof(STORED);
        return (const STORED *)((const char *)at +
                                (unsigned long long)(unsigned)tile.pitch * bytes);
    }

    // Elements of a row of memory that the tile has.
    static __device__ __forceinline__ int extent(const OperandTile &tile)
    {
        return K_MAJOR ? tile.k : tile.lines;
    }

    // Elements from the tile's last row on to the operand's end.
    static __device__ __forceinline__ INDEX after_last_row(const OperandTile &tile)
    {
        const int rows = K_MAJOR ? tile.lines : tile.k;
        return tile.end - (tile.from + (rows - 1) * tile.pitch);
    }

    // Addresses are computed anew: there are no registers to keep them.
    static __device__ __forceinline__ void forget(OperandTile &tile)
    {
        INDEX nothing = 0;
        asm volatile("" : "+l"(nothing));
        tile.from += nothing;
    }

    // Elements from the aligned address before the lane's row of a run; `lane` are those of the
    // first run, and more.
    static __device__ __forceinline__ int early_of(const int run, const unsigned lane,
                                                   const OperandTile &tile)
    {
        return (int)((lane + (unsigned)Base::row_of(run) * (unsigned)tile.pitch) % Base::TAKEN);
    }

    static __device__ __forceinline__ unsigned lane_early(const OperandTile &tile)
    {
        return (unsigned)(ADDRESS(tile.from) / 2) +
               (unsigned)Base::lane_row() * (unsigned)tile.pitch;
    }

    template <int WHICH> __device__ __forceinline__ void read_aligned(const OperandTile &tile)
    {
        const int down = (K_MAJOR ? tile.lines : tile.k) - Base::lane_row(),
                  first = THREAD_IN_GROUP * Base::TAKEN, on = extent(tile) - first;
        const STORED *const at = tile.from + (Base::lane_row() * tile.pitch + first);
        // Elements from the lane's first one to the operand's end; more than a tile has count as
        // FAR.
        const INDEX after = after_last_row(tile);
        const int pitch = tile.pitch < FAR ? (int)tile.pitch : FAR,
                  room = (after < FAR ? (int)after : FAR) + (down - 1) * pitch - first;
        EACH(r, Base::RUNS) {
            const STORED *const run = at_run(at, r, tile);
            const unsigned bytes = (unsigned)ADDRESS(run) % (2 * Base::TAKEN);
            const int early = (int)bytes / 2,
                      needed = Base::row_of(r) < down ? on + early : 0,
                      inside = room - Base::row_of(r) * pitch + early;
            const STORED *const row = (const STORED *)((const char *)run - bytes);
            EACH(g, Base::GROUPS) {
                const int x = g * 4 * Base::TAKEN;
                unsigned found[Base::WORDS];
                EACH(e, Base::WORDS) {
                    found[e] = WHICH == AT_EDGE ? word(r, g, e) : 0;
                }
                read_run<WHICH>(found, row + x, x < needed, inside - x);
                EACH(e, Base::WORDS) {
                    word(r, g, e) = found[e];
                }
            }
            if (!K_MAJOR) {
                const int x = ALL - first + THREAD_IN_GROUP * 2;
                unsigned found[1] = {WHICH == AT_EDGE ? past[r] : 0};
                read_run<WHICH>(found, row + x, THREAD_IN_GROUP < Base::WORDS && x < needed,
                                  inside - x);
                past[r] = found[0];
            }
        }
    }

    // `inside` elements from there on are the operand's.
    template <int WHICH, int COUNT>
    __device__ __forceinline__ void read_run(unsigned (&to)[COUNT], const STORED *from,
                                             const int needed, const int inside)
    {
        const int is_whole = WHICH == INTERIOR || inside >= COUNT * 2;
        if (WHICH != AT_EDGE && needed && is_whole) {
            read_words(to, from);
        }
        if (WHICH == AT_EDGE && needed && !is_whole) {
            read_elements(to, from, [&](int e) { return e < inside; });
        }
        at_edge |= needed && !is_whole;
    }

    // Moves rows to where they begin; past k there are zeros.
    __device__ __forceinline__ void realign(const OperandTile &tile)
    {
        const int group = LANE - THREAD_IN_GROUP, next_lane = group + (THREAD_IN_GROUP + 1) % 4,
                  left = tile.k - THREAD_IN_GROUP * Base::TAKEN;
        const unsigned lane = lane_early(tile);
        EACH(r, Base::RUNS) {
            const int bytes = early_of(r, lane, tile) * 2;
            EACH(g, Base::GROUPS) {
                const int is_last = g == Base::GROUPS - 1;
                unsigned own[Base::WORDS], next[Base::WORDS];
                EACH(e, Base::WORDS) {
                    own[e] = word(r, g, e);
                    const unsigned after = is_last ? 0 : word(r, g + !is_last, e);
                    next[e] =
                        from_lane(!is_last && THREAD_IN_GROUP == 0 ? after : own[e], next_lane);
                    if (!K_MAJOR && is_last) {
                        const unsigned beyond = from_lane(past[r], group + e);
                        next[e] = THREAD_IN_GROUP == 3 ? beyond : next[e];
                    }
                }
                funnel(own, next, bytes);
                EACH(e, Base::WORDS) {
                    const int kept = left - g * 4 * Base::TAKEN - e * 2;
                    if (K_MAJOR && kept < 2) {
                        own[e] &= kept > 0 ? 0xFFFF : 0;
                    }
                    word(r, g, e) = own[e];
                }
            }
        }
    }
};
#endif
