// Where a lane's elements of a warp's tile of C are, and stores of them. An element is counted by
// eight of the instructions' rows, by the band of eight of their columns, and by which of a lane's
// two of those it is.
#define ELEMENTS (STRIPS * 2 * BANDS * 2)
// From one element to its neighbour in a row of C, where the axis has pairs.
#define NEXT_IN_ROW (SWAP_AB ? 2 * BANDS : 2)

// From the lane's first element on: rows and columns that there are, and how far the next eight
// are in each two eights.
struct TileOfC {
    REAL *to;
    INDEX n;
    int rows, columns, row_step, column_step, rows_paired, columns_paired;
};

INNER TileOfC tile_of_c(REAL *c, const INDEX n, const int rows, const int columns, const Axis &m,
                        const Axis &along)
{
    const int y = (SWAP_AB ? THREAD_IN_GROUP : GROUP_ID) << m.paired,
              x = (SWAP_AB ? GROUP_ID : THREAD_IN_GROUP) << along.paired;
    return {c + (y * n + x), n,        rows - y,     columns - x,
            m.step(),        along.step(), m.paired, along.paired};
}

// Of an element's place what depends on its number: along the instructions' rows, and columns.
INNER int strip_place(const int element, const int step)
{
    const int eight = element / (2 * BANDS);
    return eight / 2 * 16 + (eight % 2 ? step : 0);
}

INNER int band_place(const int element, const int step, const int paired)
{
    const int band = element / 2 % BANDS;
    return band / 2 * 16 + (band % 2 ? step : 0) + (element % 2 * 4 << paired);
}

struct Place {
    REAL *at;
    int is_inside;
};

INNER Place place_of(const TileOfC &tile, const int e)
{
    const int y = SWAP_AB ? band_place(e, tile.row_step, tile.rows_paired)
                         : strip_place(e, tile.row_step),
              x = SWAP_AB ? strip_place(e, tile.column_step)
                         : band_place(e, tile.column_step, tile.columns_paired);
    return {tile.to + (y * tile.n + x), y < tile.rows && x < tile.columns};
}

INNER void store_element(const TileOfC &tile, const int element, const REAL sum)
{
    const Place place = place_of(tile, element);
    if (place.is_inside) {
        *place.at = sum;
    }
}

INNER REAL element_of(const ACC *acc, const int element)
{
    const int eight = element / (2 * BANDS), band = element / 2 % BANDS;
    return ELEMENT(acc[(eight / 2 * BANDS + band) * 2 + eight % 2], element % 2);
}

#if SLICES == 1
// asm, because the compiler splits a vector store if the same addresses are also stored to by
// elements.
INNER void write_pair(REAL *to, const REAL first, const REAL second)
{
    asm volatile("st.global.v2.f64 [%0], {%1, %2};" ::"l"(to), "d"(first), "d"(second) : "memory");
}

// Lanes side by side store what lies side by side, by pairs or elements.
INNER void store_tile(const TileOfC &tile, const ACC *acc)
{
    if (BN == 8 || !tile.columns_paired) {
        EACH(e, ELEMENTS) {
            store_element(tile, e, element_of(acc, e));
        }
        return;
    }
    EACH(e, ELEMENTS) {
        const Place place = place_of(tile, e);
        if (e / NEXT_IN_ROW % 2 == 0 && place.is_inside) {
            write_pair(place.at, element_of(acc, e), element_of(acc, (e + NEXT_IN_ROW) % ELEMENTS));
        }
    }
}
#endif
