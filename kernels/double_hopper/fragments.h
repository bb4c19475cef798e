// A warp's WM x WN part of C in float64, 16 x 8 accumulators for each instruction, and their
// fragments, loaded from the boxes of a stage by 16 bytes (PTX ISA, "Matrix Fragments for
// mma.m16n8k4, mma.m16n8k8 and mma.m16n8k16 with .f64").
//
// A box has rows of 128 bytes, whose 16-byte chunks are swizzled by the row's number modulo 8. Its
// rows are A's rows (B's columns) if memory has lines along k, else k's. Which of k, and which rows
// or columns, an instruction's are is chosen so that the eight threads that are served together
// find all banks, either way:
//
// - Of 16 of k, thread_in_group has those of chunks c and c ^ 1, where c is 0, 3, 5 or 6: two in a
//   load along k.
// - Along m, groupID's two rows are neighbours: a load has both.
// - Along n, groupID's columns of two instructions are neighbours; pairs are in the order of
//   n_chunk, so that two threads have 32 bytes of a row of C between them.
#define GROUP_ID (THREAD_X % 32 / 4)
#define THREAD_IN_GROUP (THREAD_X % 4)
#define MMAS_M (WM / 16)
#define MMAS_N (WN / 8)
#define SLOTS (STEP_K / 4) // k of a thread in a step
#define ACC PACK(2)

INNER int n_chunk(const int column)
{
    return (column & 4) | ((column >> 1 & 1) ^ (column & 1) * 3);
}

// Byte offsets of a thread's first chunks in a stage: along k of its two chunks, else of its four
// lines of k.
struct FragmentOffsets {
    int a[4], b[4];
};

INNER FragmentOffsets fragment_offsets(const int row, const int column)
{
    FragmentOffsets at;
    const int t = THREAD_IN_GROUP, chunk = 2 * t + ((t ^ t >> 1) & 1);
    EACH(e, 4) {
        const int line = 2 * chunk ^ e, along = (GROUP_ID ^ chunk ^ e) * 16 + GROUP_ID * LINE_BYTES;
        at.a[e] = TRANS_A ? row * BK * 8 + line * LINE_BYTES + (GROUP_ID ^ line % 8) * 16
                          : row * LINE_BYTES + along;
        at.b[e] = A_BYTES +
                  (TRANS_B ? column * LINE_BYTES + along
                           : column * BK * 8 + line * LINE_BYTES + (n_chunk(GROUP_ID) ^ line % 8) * 16);
    }
    return at;
}

// Loads the fragments of the stage's step `q` for all of the warp's instructions.
INNER void load_fragments(const unsigned char *stage, const FragmentOffsets &at, const int q,
                          REAL x[MMAS_M][2 * SLOTS], REAL y[MMAS_N][SLOTS])
{
#define CHUNK(offset) LOAD(2, stage + (offset))
    EACH(s, SLOTS) {
        const int slot = q * SLOTS + s, box = slot / 4, e = slot % 4;
        EACH(j, MMAS_N) {
            if (TRANS_B && s % 2 == 0) {
                const ACC two = CHUNK(at.b[e / 2] + (box * BN + j * 8) * LINE_BYTES);
                y[j][s] = ELEMENT(two, 0);
                y[j][s + 1] = ELEMENT(two, 1);
            } else if (!TRANS_B && j % 2 == 0) {
                const ACC two = CHUNK(at.b[e] + (j / 2 * BK + box * LINE) * LINE_BYTES);
                y[j][s] = ELEMENT(two, 0);
                y[j + 1][s] = ELEMENT(two, 1);
            }
        }
        EACH(i, MMAS_M) {
            if (TRANS_A) {
                const ACC two = CHUNK(at.a[e] + (i * BK + box * LINE) * LINE_BYTES);
                x[i][2 * s] = ELEMENT(two, 0);
                x[i][2 * s + 1] = ELEMENT(two, 1);
                continue;
            }
            EACH(h, 2) {
                if (s % 2 == 0) {
                    const ACC two = CHUNK(at.a[e / 2] + (box * BM + i * 16 + h * 8) * LINE_BYTES);
                    x[i][2 * s + h] = ELEMENT(two, 0);
                    x[i][2 * s + 2 + h] = ELEMENT(two, 1);
                }
            }
        }
    }
}
