// One side of a warp's tile in its registers, as kernel.cu reads it: eight lines each of TILES tiles, and all of k.
//
// Which of k, and which of the lines, is which to an instruction does not matter, as long as both sides and C agree. They
// are spread so that what a thread has of them lies together in memory: it moves up to 16 bytes at once.
#define RUN_K (BK == 16 ? 4 : 8) // of a line along k
#define CHUNK (4 * RUN_K)        // that a quad of threads reads
#define HALVES (BK / 8)          // of k, two to an instruction, of which a thread has two elements each

// `COUNT` words of two elements, of which `left` are there; `wide` says that all are or none, and where they begin.
template <int COUNT> INNER void read_words(unsigned *to, const STORED *from, const INDEX left, const int wide)
{
    struct __align__(4 * COUNT) Words { unsigned word[COUNT]; } read = {};
    if (wide) {
        if (left > 0) read = *(const Words *)from;
    } else EACH(e, 2 * COUNT) if (e < left) read.word[e / 2] |= (unsigned)(unsigned short)from[e] << e % 2 * 16;
    EACH(e, COUNT) to[e] = read.word[e];
}

// The compiler parts a store of several words where the same places are also stored to one by one.
INNER void write_words(STORED *to, const unsigned (&word)[1])
{
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word[0]) : "memory");
}

INNER void write_words(STORED *to, const unsigned (&word)[2])
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1]) : "memory");
}

INNER void write_words(STORED *to, const unsigned (&word)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]) : "memory");
}

template <int TILES, int ALONG> struct Side {
    static constexpr int BESIDE = TILES < 4 ? TILES : 4; // tiles whose lines lie among each other
    static constexpr int WORDS = ALONG ? RUN_K / 2 : BESIDE; // that are read at once
    unsigned words[TILES][HALVES];

    // The line that is an instruction's `slot`th of tile `j`.
    static __device__ __forceinline__ int line(const int j, const int slot)
    {
        return (j / BESIDE * 4 + slot / 2) * 2 * BESIDE + j % BESIDE * 2 + slot % 2;
    }

    static __device__ __forceinline__ int is_wide(const STORED *from, const INDEX length)
    {
        return length % (2 * WORDS) == 0 && ADDRESS(from) % (4 * WORDS) == 0;
    }

    // A thread reads its own lines along k; or of k its quad's place, as that is before it is turned.
    __device__ __forceinline__ void read(const STORED *from, const INDEX lines, const INDEX k, const INDEX pitch,
                                         const int wide)
    {
        if (ALONG) EACH(j, TILES) EACH(i, BK / CHUNK) {
            const int y = line(j, QUAD), x = i * CHUNK + MEMBER * RUN_K;
            read_words<WORDS>(words[j] + i * WORDS, from + y * pitch + x, y < lines ? k - x : 0, wide);
        } else EACH(i, HALVES) EACH(g, TILES / BESIDE) {
            const int y = i / (RUN_K / 2) * CHUNK + QUAD / 2 * RUN_K + i % (RUN_K / 2) * 2 + QUAD % 2;
            const int x = line(g * BESIDE, 2 * MEMBER);
            unsigned found[BESIDE];
            read_words<WORDS>(found, from + y * pitch + x, y < k ? lines - x : 0, wide);
            EACH(e, BESIDE) words[g * BESIDE + e][i] = found[e];
        }
    }

    // Each 8 x 8 elements are turned among the warp's threads (PTX ISA, "movmatrix").
    __device__ __forceinline__ void turn()
    {
        if (!ALONG) EACH(e, TILES * HALVES) {
            unsigned &word = words[e / HALVES][e % HALVES];
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(word));
        }
    }
};
