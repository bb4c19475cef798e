// A warp's fragments of one operand, loaded straight from global memory: eight lines each of
// MMA_TILES tiles, and all of k.
//
// Rows, columns and k may be permuted as long as both operands and C agree. They are permuted so
// that a thread's elements are contiguous in memory: it loads up to 16 bytes at once.
#define RUN_K (BK == 16 ? 4 : 8) // of a line along k
#define CHUNK (4 * RUN_K)        // that a group of four threads reads
#define HALVES (BK / 8) // of k, two to an instruction, of which a thread has two elements each

// Loads `COUNT` words of two elements, of which `left` elements exist; `wide` if all or none exist
// and the words are aligned.
template <int COUNT> INNER void read_words(unsigned *to, const STORED *from, const INDEX left,
                                           const int wide)
{
    struct __align__(4 * COUNT) Words {
        unsigned word[COUNT];
    } read = {};
    if (wide) {
        if (left > 0) {
            read = *(const Words *)from;
        }
    } else {
        EACH(e, 2 * COUNT) {
            if (e < left) {
                read.word[e / 2] |= (unsigned)(unsigned short)from[e] << e % 2 * 16;
            }
        }
    }
    EACH(e, COUNT) {
        to[e] = read.word[e];
    }
}

// asm, because the compiler splits a vector store if the same addresses are also stored to by
// elements.
INNER void write_words(STORED *to, const unsigned (&word)[1])
{
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word[0]) : "memory");
}

INNER void write_words(STORED *to, const unsigned (&word)[2])
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1])
                 : "memory");
}

INNER void write_words(STORED *to, const unsigned (&word)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]),
                 "r"(word[2]), "r"(word[3])
                 : "memory");
}

// The lines of BESIDE tiles lie among each other.
template <int MMA_TILES, int K_MAJOR, int MOST_BESIDE> struct WarpFragments {
    static constexpr int BESIDE = MMA_TILES < MOST_BESIDE ? MMA_TILES : MOST_BESIDE;
    static constexpr int WORDS = K_MAJOR ? RUN_K / 2 : BESIDE; // that are read at once
    unsigned words[MMA_TILES][HALVES];

    // The line of the operand that is row `slot` of the instruction's tile `j`.
    static __device__ __forceinline__ int line(const int j, const int slot)
    {
        return (j / BESIDE * 4 + slot / 2) * 2 * BESIDE + j % BESIDE * 2 + slot % 2;
    }

    static __device__ __forceinline__ int is_wide(const STORED *from, const INDEX length)
    {
        return length % (2 * WORDS) == 0 && ADDRESS(from) % (4 * WORDS) == 0;
    }

    // A thread loads its own lines of a K-major operand; of an MN-major one the lines of k of its
    // group, which transpose() then exchanges.
    __device__ __forceinline__ void read(const STORED *from, const INDEX lines, const INDEX k,
                                         const INDEX pitch, const int wide)
    {
        if (K_MAJOR) {
            EACH(j, MMA_TILES) {
                EACH(i, BK / CHUNK) {
                    const int y = line(j, GROUP_ID), x = i * CHUNK + THREAD_IN_GROUP * RUN_K;
                    read_words<WORDS>(words[j] + i * WORDS, from + y * pitch + x,
                                      y < lines ? k - x : 0, wide);
                }
            }
        } else {
            EACH(i, HALVES) {
                EACH(g, MMA_TILES / BESIDE) {
                    const int y = i / (RUN_K / 2) * CHUNK + GROUP_ID / 2 * RUN_K +
                                  i % (RUN_K / 2) * 2 + GROUP_ID % 2;
                    const int x = line(g * BESIDE, 2 * THREAD_IN_GROUP);
                    unsigned found[BESIDE];
                    read_words<WORDS>(found, from + y * pitch + x, y < k ? lines - x : 0, wide);
                    EACH(e, BESIDE) {
                        words[g * BESIDE + e][i] = found[e];
                    }
                }
            }
        }
    }

    // Transposes each 8 x 8 elements within the warp (PTX ISA, "movmatrix").
    __device__ __forceinline__ void transpose()
    {
        if (!K_MAJOR) {
            EACH(e, MMA_TILES * HALVES) {
                unsigned &word = words[e / HALVES][e % HALVES];
                asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(word));
            }
        }
    }
};
