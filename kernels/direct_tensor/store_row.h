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

#if REALIGN & 4
// Eight rows of the tile in shared memory, so long that a warp's stores fall on different banks.
typedef REAL StagedRows[8][BN + 8];

// The tile of a warp in C, and what there is of it.
struct TileOfC {
    STORED *at;
    INDEX n;
    int rows, columns;
};

// Stores `w` neighbours of a row, rounded once or not at all.
template <int w> INNER void write_neighbours(STORED *to, const REAL (&element)[w])
{
#if ELEMENT_BYTES == 4
    unsigned words[w];
    EACH(e, w) {
        words[e] = __float_as_uint(element[e]);
    }
    write_words(to, words);
#else
    if constexpr (w == 2) {
        const unsigned words[1] = {pair_of(element[0], element[1])};
        write_words(to, words);
    } else {
        *to = (STORED)pair_of(element[0], 0);
    }
#endif
}

// Stores the rows of number `band` of the instructions' tiles, neighbours by neighbouring lanes;
// `w` at once, of which rows are multiples. The bits of a row's number that depend on the lane and
// those that depend on the turn do not overlap, so that the turn's are constants.
template <int w, class ElementOf>
INNER void store_rows(const TileOfC &to, const int band, const ElementOf &element_of)
{
    const int own_y = LANE * w / BN, own_x = LANE * w % BN, own_down = FragmentsA::line(0, own_y),
              rows = to.rows - own_down, columns = to.columns - own_x;
    STORED *row = to.at + ((own_down + FragmentsA::line(band, 0)) * to.n + own_x);
    EACH(i, BN / 4 / w) {
        const int y = i * 32 * w / BN, x = i * 32 * w % BN, down = FragmentsA::line(band, y),
                  before = FragmentsA::line(band, i ? (i - 1) * 32 * w / BN : 0);
        row += (down - before) * to.n;
        if (down < rows && x < columns) {
            REAL element[w];
            EACH(e, w) {
                element[e] = element_of(own_y + y, own_x + x + e);
            }
            write_neighbours<w>(row + x, element);
        }
    }
}

template <class ElementOf>
INNER void store_band(const TileOfC &to, const int band, const ElementOf &element_of)
{
    if ((to.n | (INDEX)(ADDRESS(to.at) / sizeof(STORED))) % 2 == 0) {
        store_rows<2>(to, band, element_of);
    } else {
        store_rows<1>(to, band, element_of);
    }
}

// The same of what a warp's lanes have, through shared memory.
INNER void store_staged(const TileOfC &to, const int band, const Pair *pairs, StagedRows &staged)
{
    EACH(j, BN / 8) {
        const int of = j % FragmentsB::BESIDE;
        REAL *const own = staged[GROUP_ID] + (j / FragmentsB::BESIDE * 4 + THREAD_IN_GROUP) * OF_C;
        if (ELEMENT_BYTES == 4) {
            own[of] = pairs[j].first;
            own[of + FragmentsB::BESIDE] = pairs[j].second;
        } else {
            *(Pair *)(own + 2 * of) = pairs[j];
        }
    }
    __syncwarp();
    store_band(to, band, [&](const int y, const int x) { return staged[y][x]; });
    __syncwarp();
}

// Where lanes have the element of row `y` and column `x` of a band: which of their pairs, of which
// lane, and whether it is the second one of it.
struct PlaceInPairs {
    int pair, lane, second;
};

INNER PlaceInPairs place_in_pairs(const int y, const int x)
{
    const int run = x / (4 * OF_C) * FragmentsB::BESIDE, of = x % OF_C,
              lane = y * 4 + x % (4 * OF_C) / OF_C;
    if (ELEMENT_BYTES == 4) {
        return {run + of % FragmentsB::BESIDE, lane, of / FragmentsB::BESIDE};
    }
    return {run + of / 2, lane, of % 2};
}
#endif

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
    if (is_row) {
        store_words(row, run, columns - THREAD_IN_GROUP * OF_C, wide);
    }
}
