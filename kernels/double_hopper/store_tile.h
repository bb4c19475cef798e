// Stores a warp's accumulators, where its fragments' rows and columns are (fragments.h).

// Two accumulators of neighbouring columns, or of columns four apart. With B along k, an
// instruction's columns are C's: where rows of C are not aligned to 16 bytes, threads 2 apart
// exchange an element of their pairs, and the four of a row store four neighbours at once.
INNER ACC neighbours(const ACC *acc, const int e, const int wide)
{
    if (!TRANS_B) {
        return {ELEMENT(acc[0], e), ELEMENT(acc[2], e)};
    }
    const ACC sum = acc[2 * e];
    if (wide) {
        return sum;
    }
    const bool upper = THREAD_IN_GROUP >= 2;
    const REAL got =
        __shfl_xor_sync(0xffffffff, upper ? ELEMENT(sum, 0) : ELEMENT(sum, 1), 2);
    return {upper ? got : ELEMENT(sum, 0), upper ? ELEMENT(sum, 1) : got};
}

// The first of the two, of the `e`-th instruction of a pair's 16 columns, or of the pair's `e`-th.
INNER int first_column(const int e, const int wide)
{
    const int t = THREAD_IN_GROUP;
    if (!TRANS_B) {
        return 2 * n_chunk(2 * t + e);
    }
    return e * 8 + (wide ? t * 2 : t % 2 * 2 + t / 2);
}

// `row` and `column` are the warp's first ones in C.
INNER void store_tile(REAL *c, const INDEX m, const INDEX n, const int row, const int column,
                      const ACC *acc)
{
    const int wide = n % WIDE == 0 && ADDRESS(c) % 16 == 0, apart = TRANS_B ? 4 : 1;
    EACH(r, MMAS_M * 2) {
        const INDEX y = row + r / 2 * 16 + (TRANS_A ? GROUP_ID * 2 + r % 2 : GROUP_ID + r % 2 * 8);
        REAL *const to = c + (y * n + column);
        EACH(j, MMAS_N) {
            const int x = j / 2 * 16 + first_column(j % 2, wide);
            const ACC sums = neighbours(acc + (r / 2 * MMAS_N + j / 2 * 2) * 2 + r % 2, j % 2, wide);
            if (wide) {
                if (y < m && column + x < n) {
                    STORE(2, sums, to + x);
                }
                continue;
            }
            EACH(e, 2) {
                if (y < m && column + x + e * apart < n) {
                    to[x + e * apart] = ELEMENT(sums, e);
                }
            }
        }
    }
}
