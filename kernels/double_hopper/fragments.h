// A warp's WM x WN part of C in float64, 16 x 8 accumulators for each instruction, and their
// fragments, loaded from the boxes of a stage (PTX ISA, "Matrix Fragments for mma.m16n8k8
// and mma.m16n8k16 with .f64").
//
// An instruction has 16 rows of its left side and 8 columns of its right side: A and B, or for
// C^T = B^T A^T the other way round (SWAPPED). Of its registers those of the left side's two rows
// are neighbours, and those of the right side's k: 16 bytes are loaded at once from a left side
// whose lines in memory are along these rows, and from a right side whose lines are along k.
//
// A box has lines of 128 bytes, whose 16-byte chunks are swizzled by the line's number modulo 8.
// Which of k and which rows an instruction has is chosen so that threads that are served together,
// eight for 16 bytes and sixteen for 8, find all banks: of 16 of k, a thread has SLOT_K(0) to
// SLOT_K(3), and of 16 of the left side's rows two neighbours if its lines are along them.
//
// BY_RIGHT    instructions are in rounds of one of the right side's fragments with all of the left
//             side's, which take fewer registers, or the other way round
// ROUNDS      of them
// ROUND_MMAS  instructions of a round
#define SWAPPED (!TRANS_B)
#define LEFT_ALONG_K (!TRANS_A && TRANS_B)
#define RIGHT_ALONG_K (!TRANS_A || TRANS_B)
#define RIGHT_BY_TWOS (RIGHT_ALONG_K && !LEFT_ALONG_K)
#define GROUP_ID (THREAD_X % 32 / 4)
#define THREAD_IN_GROUP (THREAD_X % 4)
#define MMAS_LEFT ((SWAPPED ? WN : WM) / 16)
#define MMAS_RIGHT ((SWAPPED ? WM : WN) / 8)
#define SLOTS (MMA_K / 4) // k of a thread in an instruction
#define ACC PACK(2)
#define ACC_WIDTH 2
#define OUT_PACKS (2 * MMAS_LEFT * MMAS_RIGHT)
#define BY_RIGHT (MMAS_RIGHT > 2 * MMAS_LEFT)
#define ROUNDS (BY_RIGHT ? MMAS_RIGHT : MMAS_LEFT)
#define ROUND_MMAS (BY_RIGHT ? MMAS_LEFT : MMAS_RIGHT)

INNER int slot_k(const int slot)
{
    const int t = THREAD_IN_GROUP;
    return LEFT_ALONG_K ? (t >> 1) * 8 + slot * 2 + (t & 1) : t * 4 + ((t ^ t >> 1) & 1) * 2 ^ slot;
}

// Addresses of a thread's elements of a stage: of each of its four slots of k, and of the second
// eight rows of 16 if the right side's lines are along these.
struct FragmentAddresses {
    unsigned left[4], right[8];

    __device__ __forceinline__ void advance(const int bytes)
    {
        EACH(e, 4) {
            left[e] += bytes;
        }
        EACH(e, 8) {
            right[e] += bytes;
        }
    }
};

// `row` and `column` are the warp's first ones in the tile.
INNER FragmentAddresses fragment_addresses(const unsigned stages, const int row, const int column)
{
    FragmentAddresses at;
    const int g = GROUP_ID, left = SWAPPED ? column : row, right = SWAPPED ? row : column;
    EACH(e, 8) {
        const int k = slot_k(e % 4), along = g * 128 + (k / 2 ^ g) * 16 + k % 2 * 8;
        const int across = k * 128 + ((g / 2 + e / 4 * 4) ^ k % 8) * 16 + g % 2 * 8;
        at.right[e] = stages + (SWAPPED ? 0 : A_BYTES) +
                      (RIGHT_ALONG_K ? right * 128 + along : right * BK * 8 + across);
        if (e < 4) {
            at.left[e] = stages + (SWAPPED ? A_BYTES : 0) +
                         (LEFT_ALONG_K ? left * 128 + along
                                       : left * BK * 8 + k * 128 + (g ^ k % 8) * 16);
        }
    }
    return at;
}

INNER REAL load_one(const unsigned at)
{
    REAL one;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(one) : "r"(at));
    return one;
}

INNER void load_two(const unsigned at, REAL *two)
{
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(two[0]), "=d"(two[1]) : "r"(at));
}

// Loads the fragments of an instruction of the stage's step `q`: the `i`-th of the left side's, and
// the `j`-th of the right side's.
INNER void load_left(const FragmentAddresses &at, const int q, const int i, REAL *x)
{
    EACH(s, SLOTS) {
        const int slot = q * SLOTS + s, box = slot / 4, side = SWAPPED ? BN : BM;
        if (!LEFT_ALONG_K) {
            load_two(at.left[slot % 4] + (i * BK + box * 16) * 128, x + 2 * s);
        } else {
            x[2 * s] = load_one(at.left[slot % 4] + (box * side + i * 16) * 128);
            x[2 * s + 1] = load_one(at.left[slot % 4] + (box * side + i * 16 + 8) * 128);
        }
    }
}

INNER void load_right(const FragmentAddresses &at, const int q, const int j, REAL *y)
{
    EACH(s, SLOTS) {
        const int slot = q * SLOTS + s, box = slot / 4, side = SWAPPED ? BM : BN;
        if (!RIGHT_ALONG_K) {
            const unsigned from = at.right[j % 2 * 4 + slot % 4];
            y[s] = load_one(from + (j / 2 * BK + box * 16) * 128);
        } else if (!RIGHT_BY_TWOS) {
            y[s] = load_one(at.right[slot % 4] + (box * side + j * 8) * 128);
        } else if (s % 2 == 0) {
            load_two(at.right[slot % 4] + (box * side + j * 8) * 128, y + s);
        }
    }
}
