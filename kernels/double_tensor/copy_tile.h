// Copies of an operand's k tiles to shared memory by cp.async. The including file defines before:
//
// THREADS         threads of a block, one-dimensional
// BK              depth of a k tile
// SWIZZLED(x, l)  where line `l` of a tile has its element `x`

// Copies a tile of `elements`, with zeros past the edges: the threads take runs of `w` of them in
// rounds, line by line. `from` is the thread's first run; its increments are the same for all
// threads. Neighbouring threads have neighbouring runs, of one element too: a warp's copy is whole
// sectors, and meets no bank twice.
template <int w> INNER void copy_tile(REAL *to, const REAL *from, const INDEX pitch,
                                      const int lines, const int inside, const int line_elements,
                                      const int elements)
{
    int me = THREAD_X;
    asm volatile("" : "+r"(me)); // recompute what depends on it: there are no registers to keep it
    const int runs = line_elements / w, line = me / runs, x = me % runs * w;
    EACH(i, elements / w / THREADS) {
        const int down = i * THREADS / runs, on = i * THREADS % runs * w;
        REAL *const at = to + (line * line_elements + SWIZZLED(SWIZZLED(x, line), down)) +
                         (down * line_elements + on);
        cp_async(w, at, from, line + down < lines && x + on < inside);
        from += ((i + 1) * THREADS / runs - down) * pitch + ((i + 1) * THREADS % runs * w - on);
    }
}

// Loads `side` rows of A or columns of B: `along_k` if a line of memory is one of them, else it is
// all of them for one k.
template <int side, int along_k> struct TileLoader {
    static constexpr int line_elements = along_k ? BK : side;
    const INDEX pitch;
    const int wide; // lines are aligned to 16 bytes
    const REAL *from;
    int sides; // inside C

    __device__ __forceinline__ TileLoader(const REAL *operand, const INDEX pitch)
        : pitch(pitch), wide(pitch % WIDE == 0 && ADDRESS(operand) % 16 == 0)
    {
    }

    // Goes to a tile's first k tile.
    __device__ __forceinline__ void begin(const REAL *start, const int sides)
    {
        this->sides = sides;
        const int w = wide ? WIDE : 1, runs = line_elements / w;
        from = start + (THREAD_X / runs * pitch + THREAD_X % runs * w);
    }

    // Copies the next k tile, of which `deep` of k are inside.
    __device__ __forceinline__ void copy(REAL *to, const int deep)
    {
        const int lines = along_k ? sides : deep, inside = along_k ? deep : sides;
        if (wide) {
            copy_tile<WIDE>(to, from, pitch, lines, inside, line_elements, side * BK);
        } else {
            copy_tile<1>(to, from, pitch, lines, inside, line_elements, side * BK);
        }
        from += along_k ? BK : BK * pitch;
    }
};
