// A warp's fragments of one operand, loaded straight from global memory: eight lines each of
// MMA_TILES tiles, and all of k.
//
// Rows, columns and k may be permuted as long as both operands and C agree. They are permuted so
// that a lane's elements are contiguous in memory: it loads up to 16 bytes at once.
#define RUN_K (ELEMENT_BYTES == 4 || BK % 32 ? 4 : 8) // of a line along k that are contiguous
#define CHUNK (4 * RUN_K)                             // that a group of four lanes loads
#define PER_WORD (4 / ELEMENT_BYTES)
#define HALVES (BK / 4 / PER_WORD) // of k, two to an instruction, of which a lane has a word each

// A warp's tile of an operand: lines and k that there are of it, elements from a row of memory to
// the next, and all matrices of the operand, outside of which nothing is read.
struct OperandTile {
    const STORED *from;
    int lines, k;
    INDEX pitch;
    const STORED *begin, *end;
};

template <int COUNT> struct __align__(4 * COUNT) Words {
    unsigned word[COUNT];
};

// The words at `from`, all of them aligned.
template <int COUNT> INNER void read_words(unsigned (&to)[COUNT], const STORED *from)
{
    const Words<COUNT> found = *(const Words<COUNT> *)from;
    EACH(e, COUNT) {
        to[e] = found.word[e];
    }
}

// Those of the words' elements that are `inside`; the others are zero.
template <int COUNT, class Inside>
INNER void read_elements(unsigned (&to)[COUNT], const STORED *from, const Inside &inside)
{
    EACH(e, COUNT) {
        to[e] = 0;
    }
    EACH(e, COUNT * PER_WORD) {
        if (inside(e)) {
#if ELEMENT_BYTES == 4
            to[e] = __float_as_uint(from[e]);
#else
            to[e / 2] |= (unsigned)from[e] << e % 2 * 16;
#endif
        }
    }
}

// The lines of BESIDE tiles lie among each other. RUNS are parts of rows of memory, of which
// POSITIONS lanes side by side have WORDS words each, in GROUPS.
template <int MMA_TILES, int K_MAJOR, int MOST_BESIDE> struct WarpFragments {
    static constexpr int BESIDE = MMA_TILES < MOST_BESIDE ? MMA_TILES : MOST_BESIDE;
    static constexpr int WORDS = K_MAJOR ? RUN_K / PER_WORD : BESIDE, TAKEN = WORDS * PER_WORD;
    static constexpr int RUNS = K_MAJOR ? MMA_TILES : HALVES;
    static constexpr int GROUPS = K_MAJOR ? BK / CHUNK : MMA_TILES / BESIDE;
    static constexpr int IN_QUADS = K_MAJOR || PER_WORD == 2, POSITIONS = IN_QUADS ? 4 : 8;
    unsigned words[MMA_TILES][HALVES];

    // The line of the operand that is row `slot` of the instruction's tile `j`.
    static __device__ __forceinline__ constexpr int line(const int j, const int slot)
    {
        return PER_WORD == 1 ? (j / BESIDE * 8 + slot) * BESIDE + j % BESIDE
                             : (j / BESIDE * 4 + slot / 2) * 2 * BESIDE + j % BESIDE * 2 + slot % 2;
    }

    static __device__ __forceinline__ int position()
    {
        return IN_QUADS ? THREAD_IN_GROUP : GROUP_ID;
    }

    // The row of memory that a run is part of, a line or one of k: that of the first lane, and of
    // each lane from there on.
    static __device__ __forceinline__ constexpr int row_of(const int run)
    {
        return K_MAJOR ? line(run, 0)
                       : run / (RUN_K / PER_WORD) * CHUNK + run % (RUN_K / PER_WORD) * PER_WORD;
    }

    static __device__ __forceinline__ int lane_row()
    {
        return K_MAJOR         ? line(0, GROUP_ID)
               : PER_WORD == 1 ? THREAD_IN_GROUP * RUN_K
                               : GROUP_ID / 2 * RUN_K + GROUP_ID % 2;
    }

    __device__ __forceinline__ unsigned &word(const int run, const int group, const int e)
    {
        return K_MAJOR ? words[run][group * WORDS + e] : words[group * BESIDE + e][run];
    }

    // A lane loads its own lines of a K-major operand; of an MN-major one of 2-byte elements the
    // lines of k of its group, which arrange() then exchanges. Words are loaded by the element if
    // not all rows are aligned to them.
    __device__ __forceinline__ void load(const OperandTile &tile)
    {
        if (tile.pitch % TAKEN == 0 && ADDRESS(tile.begin) % (4 * WORDS) == 0) {
            read<1>(tile);
        } else {
            read<0>(tile);
        }
    }

    template <int WIDE_ROWS> __device__ __forceinline__ void read(const OperandTile &tile)
    {
        const int down = (K_MAJOR ? tile.lines : tile.k) - lane_row(),
                  on = (K_MAJOR ? tile.k : tile.lines) - position() * TAKEN;
        const STORED *const at = tile.from + (lane_row() * tile.pitch + position() * TAKEN);
        EACH(r, RUNS) {
            const STORED *const row = at + row_of(r) * tile.pitch;
            const int left = row_of(r) < down ? on : 0;
            EACH(g, GROUPS) {
                const int x = g * POSITIONS * TAKEN;
                unsigned found[WORDS] = {};
                if (!WIDE_ROWS) {
                    read_elements(found, row + x, [&](int e) { return x + e < left; });
                } else if (x < left) {
                    read_words(found, row + x);
                }
                EACH(e, WORDS) {
                    word(r, g, e) = found[e];
                }
            }
        }
    }

    __device__ __forceinline__ void load_edges(const OperandTile &) {}

    // What the instruction takes. 2-byte elements: each 8 x 8 of an MN-major operand is transposed
    // within the warp (PTX ISA, "movmatrix"). TF32 has a 10-bit mantissa: round to nearest, ties
    // away from zero (PTX ISA, "cvt.rna.tf32").
    __device__ __forceinline__ void arrange(const OperandTile &)
    {
        EACH(e, MMA_TILES * HALVES) {
            unsigned &word = words[e / HALVES][e % HALVES];
            if (PER_WORD == 1) {
                asm("cvt.rna.tf32.f32 %0, %0;" : "+r"(word));
            } else if (!K_MAJOR) {
                asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(word));
            }
        }
    }
};
