// Stores a row of a warp's tile of C, which a group of four lanes has: in RUNS_OF_C runs, of which
// a lane has WORDS_OF_C words each.
#define OF_C (2 * FragmentsB::BESIDE) // elements of a lane in a run
#define WORDS_OF_C (OF_C / PER_WORD)
#define RUNS_OF_C (BN / 8 / FragmentsB::BESIDE)

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

INNER void write_element(STORED *to, const unsigned word, const int half)
{
#if ELEMENT_BYTES == 4
    *to = __uint_as_float(word);
#else
    *to = (STORED)(word >> half * 16);
#endif
}

// Neighbouring elements of a row, of one instruction's tile.
struct __align__(8) Pair {
    REAL first, second;
};

// Number `of` of a run's words: rounded once, to 16 bits or not at all.
INNER unsigned packed(const Pair *pairs, const int of)
{
#if ELEMENT_BYTES == 4
    const Pair &own = pairs[of % FragmentsB::BESIDE];
    return __float_as_uint(of < FragmentsB::BESIDE ? own.first : own.second);
#else
    return pair_of(pairs[of].first, pairs[of].second);
#endif
}

// The word of aligned words of the group's lane `owner` that this lane stores by the element.
INNER unsigned own_word(const unsigned (&words)[WORDS_OF_C], const int owner)
{
    unsigned own = 0;
    EACH(e, WORDS_OF_C) {
        const unsigned word = from_lane(words[e], LANE - THREAD_IN_GROUP + owner);
        own = e == THREAD_IN_GROUP ? word : own;
    }
    return own;
}

typedef unsigned RowOfC[RUNS_OF_C][WORDS_OF_C];

// Stores at once what a lane has side by side, if that is aligned. If not, elements are stored, and
// the fewer are side by side the nearer to each other are those stored together.
INNER void store_words(STORED *row, const RowOfC &run, const int left, const int wide)
{
    EACH(g, RUNS_OF_C) {
        const int x = g * 4 * OF_C;
        if (wide && x < left) {
            write_words(row + x, run[g]);
        }
        EACH(e, OF_C) {
            if (!wide && x + e < left) {
                write_element(row + x + e, run[g][e / PER_WORD], e % PER_WORD);
            }
        }
    }
}

// Stores aligned words, wherever the row starts: what is too late for a lane's words of the tile is
// in its neighbour's. All lanes take part, those too whose row `is_row` does not exist.
INNER void store_realigned(STORED *row, const RowOfC &run, const int columns, const int is_row)
{
    const int early = (int)((unsigned)ADDRESS(row) % (4 * WORDS_OF_C)) / ELEMENT_BYTES,
              first = THREAD_IN_GROUP * OF_C, least = early - first,
              most = is_row ? columns - OF_C + least : -1;
    STORED *const at = row - early, *const tile = at - first;
    const int bytes = (OF_C - early) % OF_C * ELEMENT_BYTES;
    const int before = early ? LANE - THREAD_IN_GROUP + (THREAD_IN_GROUP + 3) % 4 : LANE;
    // As bits: of a condition the compiler makes an index, and of an indexed array local memory.
    const unsigned is_last = early && THREAD_IN_GROUP == 3 ? ~0 : 0;
    unsigned moved[RUNS_OF_C][WORDS_OF_C];
    EACH(g, RUNS_OF_C) {
        EACH(e, WORDS_OF_C) {
            const unsigned last = run[(g + RUNS_OF_C - 1) % RUNS_OF_C][e];
            moved[g][e] = from_lane(run[g][e] & ~is_last | last & is_last, before);
        }
        funnel(moved[g], run[g], bytes);
        if (g * 4 * OF_C >= least && g * 4 * OF_C <= most) {
            write_words(at + g * 4 * OF_C, moved[g]);
        }
    }
    // The first words are the row's last elements in the tile and its first ones.
    const unsigned ends = own_word(moved[0], 0);
    const int of = THREAD_IN_GROUP * PER_WORD, is_own = is_row && of < OF_C;
    EACH(h, PER_WORD) {
        const int x = of + h + (of + h < early ? BN : 0);
        if (is_own && early && x < columns + early) {
            write_element(tile + x, ends, h);
        }
    }
    if (columns == BN) {
        return;
    }
    // Words that end past C, if they are no ends of the tile.
    const int cut = (columns + early) / OF_C,
              is_cut = is_own && cut < 4 * RUNS_OF_C && (cut > 0 || !early);
    unsigned words[WORDS_OF_C] = {};
    EACH(e, RUNS_OF_C * WORDS_OF_C) {
        const int g = e / WORDS_OF_C, i = e % WORDS_OF_C;
        words[i] |= moved[g][i] & (cut / 4 == g ? ~0 : 0);
    }
    const unsigned cut_word = own_word(words, cut % 4);
    EACH(h, PER_WORD) {
        const int x = cut * OF_C + of + h;
        if (is_cut && x < columns + early) {
            write_element(tile + x, cut_word, h);
        }
    }
}

// `row` is where the lane's first elements go; `columns` exist of the tile; `wide` if all rows are
// aligned to what a lane has.
INNER void store_row(STORED *row, const Pair *pairs, const int columns, const int is_row,
                     const int wide)
{
    RowOfC run;
    EACH(e, RUNS_OF_C * WORDS_OF_C) {
        run[e / WORDS_OF_C][e % WORDS_OF_C] =
            packed(pairs + e / WORDS_OF_C * FragmentsB::BESIDE, e % WORDS_OF_C);
    }
#if REALIGN & 4
    store_realigned(row, run, columns, is_row);
#else
    if (is_row) {
        store_words(row, run, columns - THREAD_IN_GROUP * OF_C, wide);
    }
#endif
}
