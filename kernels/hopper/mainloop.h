// What a consumer adds up, step after step along k. Products of one step are under way while those of the next are
// sent; a stage is free again once each warp that read it says so to all blocks that fill it.
//
// Of high and low halves the products of high ones leave the tensor cores every PROMOTE of k: these cut off, and what
// is added here is rounded to nearest. Products with a low half weigh so little that theirs need not.
struct Products {
    Sums sums[HEIGHT];
#if PLANES == 2
    Sums high, cross;
#endif

    __device__ __forceinline__ void add_up(const int count, Ring &ring, const unsigned char *pool, const unsigned full,
                                           const unsigned empty, const int consumer)
    {
        unsigned before = 0;
        if (PLANES == 2) EACH(e, COLUMNS / 2) sums[0][e] = 0;
        for (int p = 0; p < count; p++, ring.next()) {
            const int offset = ring.at * STAGE + consumer * (HEIGHT * 64 * 128);
            const unsigned right = SHARED_AT(pool) + ring.at * STAGE + PLANES * SIDE_L;
            await(full + 8 * ring.at, ring.parity);
            if (HELD_L) { // the last products still read this thread's registers
                PRODUCTS_LEFT(0);
                if (p > 0) release(empty + 8 * before);
            }
            send(p, p + 1 == count, pool + offset, matrix(right, SPAN_R, CROSS_R));
            if (!HELD_L && p > 0) release(empty + 8 * before);
            before = ring.at;
        }
        PRODUCTS_LEFT(0);
        release(empty + 8 * before);
        EACH(h, HEIGHT) settle(sums[h]);
#if PLANES == 2
        settle(cross);
#endif
    }

    __device__ __forceinline__ static void release(const unsigned barrier)
    {
        if (HELD_L) __syncwarp(); // what its threads read themselves, they all have read
        if (LANE < CLUSTER) arrive(barrier, LANE);
    }

#if HELD_L
    __device__ __forceinline__ void send(const int p, const int, const unsigned char *side,
                                         const unsigned long long right)
    {
        Left left[HEIGHT][STEPS];
        const int mine = THREAD_X / 128 * HEIGHT * 64;
        EACH(h, HEIGHT) EACH(s, STEPS) left[h][s] = gather(side - mine * 128, mine + h * 64, s);
        TAKE_REGISTERS();
        EACH(s, STEPS) EACH(h, HEIGHT) multiply(sums[h], left[h][s], right + s * ONWARD(SPAN_R, CROSS_R), p + s > 0);
        PRODUCTS_SENT();
    }
#elif PLANES == 2
    __device__ __forceinline__ void send(const int p, const int last, const unsigned char *side,
                                         const unsigned long long right)
    {
        const unsigned long long left = matrix(SHARED_AT(side), SPAN_L, CROSS_L);
        const int at = p % (PROMOTE / BK);
        TAKE_REGISTERS();
        EACH(s, STEPS) multiply(high, left + s * 2, right + s * 2, at + s > 0);
        PRODUCTS_SENT();
        EACH(s, STEPS) {
            multiply(cross, left + s * 2, right + SIDE_R / 16 + s * 2, p + s > 0);
            multiply(cross, left + SIDE_L / 16 + s * 2, right + s * 2, 1);
        }
        PRODUCTS_SENT();
        PRODUCTS_LEFT(1); // these are added here while the tensor cores have the others
        settle(high);
        if (at + 1 == PROMOTE / BK || last) EACH(e, COLUMNS / 2) sums[0][e] += high[e];
        settle(sums[0]);
    }
#else
    __device__ __forceinline__ void send(const int p, const int, const unsigned char *side,
                                         const unsigned long long right)
    {
        const unsigned long long left = matrix(SHARED_AT(side), SPAN_L, CROSS_L);
        TAKE_REGISTERS();
        EACH(s, STEPS) EACH(h, HEIGHT)
            multiply(sums[h], left + h * (64 * 128 / 16) + s * ONWARD(SPAN_L, CROSS_L),
                     right + s * ONWARD(SPAN_R, CROSS_R), p + s > 0);
        PRODUCTS_SENT();
        PRODUCTS_LEFT(1);
    }
#endif

    // What the sums of 64 rows stand for, with the exponents of the left side's rows and the right one's columns.
    __device__ __forceinline__ void scale_back(const int *left, const int *right, const Work &now, const int row,
                                               const int rows, const int columns)
    {
#if PLANES == 2
        left += (INDEX)now.batch * rows, right += (INDEX)now.batch * columns;
        EACH(e, COLUMNS / 2) {
            const int r = row + row_of(e / 2 % 2), x = now.column + e / 4 * 8 + LANE % 4 * 2 + e % 2;
            sums[0][e] = r < rows && x < columns ? SCALED_BACK(sums[0][e], cross[e], left[r], right[x]) : 0;
        }
#endif
    }
};
