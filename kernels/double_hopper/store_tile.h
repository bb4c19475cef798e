// Stores a warp's accumulators, where its fragments' rows and columns are (fragments.h).

// Stores two elements `apart` columns apart, those that are in C.
INNER void store_two(REAL *c, const INDEX m, const INDEX n, const int row, const int column,
                     const int apart, const int wide, const ACC sums)
{
    REAL *const to = c + (row * n + column);
    if (wide && row < m && column < n) {
        STORE(2, sums, to);
    }
    EACH(e, 2) {
        if (!wide && row < m && column + e * apart < n) {
            to[e * apart] = ELEMENT(sums, e);
        }
    }
}

// `top` and `left` are the tile's first row and column.
INNER void store_tile(REAL *c, const INDEX m, const INDEX n, const int top, const int left,
                      const int thread, const ACC *acc)
{
    const int g = thread % 32 / 4, t = thread % 4, row = top + WARP_ROW(thread / 32),
              column = left + WARP_COL(thread / 32);
    const int wide = n % WIDE == 0 && ADDRESS(c) % 16 == 0;
    EACH(i, MMAS_LEFT) {
        EACH(j, MMAS_RIGHT) {
            const ACC *const two = acc + (i * MMAS_RIGHT + j) * 2;
            EACH(e, 2) {
                if (SWAPPED) {
                    const ACC sums = {ELEMENT(two[0], e), ELEMENT(two[1], e)};
                    store_two(c, m, n, row + j * 8 + t * 2 + e, column + i * 16 + g * 2, 1, wide,
                              sums);
                } else {
                    store_two(c, m, n, row + i * 16 + (TRANS_A ? g * 2 + e : g + e * 8),
                              column + j * 8 + (wide ? t * 2 : t % 2 * 2 + t / 2), 4, wide,
                              wide ? two[e] : neighbours_apart(two[e], t >= 2));
                }
            }
        }
    }
}
