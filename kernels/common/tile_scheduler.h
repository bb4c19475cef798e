// Which tile of C, which slice of k and which product of the batch a number stands for.
typedef struct { unsigned whole, rest; } Parts;
typedef struct { unsigned row, column, slice, batch; } Place; // rows and columns of tiles

// How many times `of` goes into a number, and what is left. A division takes some hundred cycles, and a block's first
// bytes wait for four of them: where there is nothing to divide there is none. A block that finds `many` places while it
// multiplies has no registers for such questions, and one to divide as a rule.
INNER Parts parts_of(const unsigned number, const unsigned of, const int many)
{
    Parts found = {0, number};
    if (many) found.whole = number / of, found.rest = number % of;
    else if (of == 1) found.whole = number, found.rest = 0;
    else if (number >= of) found.whole = number / of, found.rest = number % of;
    return found;
}

// `group` rows of tiles go through C's columns together: blocks that run at one time share what the cache has.
INNER Place place_of(const unsigned number, const unsigned down, const unsigned across, const unsigned slices,
                     const unsigned group, const int many)
{
    const unsigned high = group < down ? group : down;
    const Parts tile = parts_of(number, down * across, many), slice = parts_of(tile.whole, slices, many);
    const Parts wave = parts_of(tile.rest, high * across, many);
    const unsigned top = wave.whole * high, height = down - top < high ? down - top : high;
    const Parts column = parts_of(wave.rest, height, many);
    const Place found = {top + column.rest, column.whole, slice.rest, slice.whole};
    return found;
}
