// Stores a warp's accumulators, where its fragments' rows and columns are (fragments.h).

// Rows of C's tile are in the order of A's lines in a stage, and columns in that of B's.
#define ROW_OF(r) (SPLIT_A && !TRANS_A ? (r) % (BM / 2) * 2 + (r) / (BM / 2) : (r))
#define COLUMN_OF(x) (SPLIT_B && TRANS_B ? (x) % (BN / 2) * 2 + (x) / (BN / 2) : (x))

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
    const int g = thread % 32 / 4, t = thread % 4, row = WARP_ROW(thread / 32),
              column = WARP_COL(thread / 32);
    const int wide = n % WIDE == 0 && ADDRESS(c) % 16 == 0;
    EACH(i, MMAS_LEFT) {
        EACH(j, MMAS_RIGHT) {
            const ACC *const two = acc + (i * MMAS_RIGHT + j) * 2;
            EACH(e, 2) {
                if (SWAPPED) {
                    const ACC sums = {ELEMENT(two[0], e), ELEMENT(two[1], e)};
                    store_two(c, m, n, top + ROW_OF(row + j * 8 + t * 2 + e),
                              left + column + i * 16 + g * 2, 1, wide, sums);
                    continue;
                }
                const int to = top + ROW_OF(row + i * 16 + (TRANS_A ? g * 2 + e : g + e * 8));
                if (SPLIT_B) {
                    store_two(c, m, n, to, left + COLUMN_OF(column + j * 8 + t * 2), 2, 0, two[e]);
                } else {
                    store_two(c, m, n, to,
                              left + column + j * 8 + (wide ? t * 2 : t % 2 * 2 + t / 2), 4, wide,
                              wide ? two[e] : neighbours_apart(two[e], t >= 2));
                }
            }
        }
    }
}
