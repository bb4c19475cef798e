// How a consumer's sums become a part of C: through shared memory in strips of columns, each as boxes that the TMA unit
// stores, while the next strip is written; or from there by the threads, where C's rows are not whole 16 bytes.
//
// A box has PIECE columns of the sums and 64 rows, which are C's rows and columns, or with SWAP C's columns and rows.
#define C_BYTES ((int)sizeof(STORED))
#define LINE_OF_C (128 / C_BYTES)
#define STRIP LINE_OF_C
#define STRIP_BYTES (64 * 128)
#define BARRIERS_AT (ROOM_AT + CONSUMERS * 2 * STRIP_BYTES)
#define PIECE (COLUMNS % 64 == 0 && C_BYTES == 2 ? 64 : COLUMNS % 32 == 0 ? 32 : COLUMNS % 16 == 0 ? 16 : 8)
#define SPAN_C (SWAP ? 128 : PIECE * C_BYTES)
#define BOXES (SWAP ? 64 / LINE_OF_C : 1) // that 64 rows of a piece are
#define LANE (THREAD_X % 32)
#define WARP_ROW (THREAD_X / 32 % 4 * 16)

#if SWAP
#define TURNED ".trans"
#else
#define TURNED ""
#endif

// Where an element of a strip is in shared memory.
INNER int place(const int row, const int column)
{
    const int piece = column / PIECE * (64 * PIECE * C_BYTES), within = column % PIECE;
    if (!SWAP) return piece + SWIZZLED(row * SPAN_C + within * C_BYTES, SPAN_C);
    return piece + row / LINE_OF_C * (PIECE * 128) + SWIZZLED(within * 128 + row % LINE_OF_C * C_BYTES, 128);
}

// A thread's four sums of 8 columns: two neighbours of a row, and two of its other row.
INNER void stage_sums(unsigned char *strip, const unsigned at, const int column, const float *sums)
{
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
    unsigned upper, lower;
#ifdef DTYPE_BFLOAT16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(upper) : "f"(sums[1]), "f"(sums[0]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(lower) : "f"(sums[3]), "f"(sums[2]));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(upper) : "f"(sums[1]), "f"(sums[0]));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(lower) : "f"(sums[3]), "f"(sums[2]));
#endif
    const int eighth = LANE % 8, row = WARP_ROW + LANE / 8 % 2 * 8;
    const unsigned to = at + place(SWAP ? row : row + eighth, SWAP ? column + eighth : column);
    asm volatile("stmatrix.sync.aligned.m8n8.x2" TURNED ".shared.b16 [%0], {%1, %2};"
                 ::"r"(to), "r"(upper), "r"(lower) : "memory");
#else
    const int x = column + LANE % 4 * 2;
    EACH(i, 2) {
        if (!SWAP) *(float2 *)(strip + place(row_of(i), x)) = make_float2(sums[2 * i], sums[2 * i + 1]);
        else if (HELD_L) *(float2 *)(strip + place(row_of(0), x + i)) = make_float2(sums[i], sums[2 + i]);
        else EACH(e, 2) *(float *)(strip + place(row_of(i), x + e)) = sums[2 * i + e];
    }
#endif
}

// What a slice leaves, from registers: rows of the left side, of whole eights of columns, so that each of those is a
// whole sector.
INNER void leave_sums(float *to, const INDEX rows, const INDEX pitch, const int row, const int column, const Sums &sums)
{
    EACH(i, 2) {
        const int r = row + row_of(i);
        float *const line = to + r * pitch + column + LANE % 4 * 2;
        EACH(j, COLUMNS / 8) if (r < rows && column + j * 8 < pitch)
            *(float2 *)(line + j * 8) = make_float2(sums[4 * j + 2 * i], sums[4 * j + 2 * i + 1]);
    }
}

// One strip of 64 rows from shared memory to C: neighbouring threads have neighbouring elements of its rows, and each
// goes down a column.
INNER void store_strip(STORED *c, const INDEX m, const INDEX n, const int row, const int column, const int columns,
                       const unsigned char *strip)
{
    const int wide = SWAP ? 64 : STRIP, high = SWAP ? columns : 64, top = SWAP ? column : row;
    const int x = THREAD_X % 128 % wide, first = THREAD_X % 128 / wide, apart = 128 / wide;
    const INDEX across = (SWAP ? row : column) + x;
    if (across >= n || (!SWAP && x >= columns)) return;
    const int end = m - top < high ? (int)(m - top) : high;
    STORED *to = c + (top + first) * n + across;
    const int at_once = CONSUMERS > 2 ? 2 : 4; // as registers allow
#pragma unroll at_once
    for (int y = first; y < end; y += apart, to += apart * n)
        *to = *(const STORED *)(strip + (SWAP ? place(x, y) : place(y, x)));
}

// 64 rows of sums from `row` on. Two strips have room, in turn: one is written while the other is being read.
INNER void store_boxes(const Map &map, STORED *c, const INDEX m, const INDEX n, const Work &now, const int row,
                       unsigned char *room, int &turn, const int consumer, const Sums &sums)
{
    EACH(s, (COLUMNS + STRIP - 1) / STRIP) {
        unsigned char *const strip = room + turn * STRIP_BYTES;
        turn ^= 1;
        const unsigned at = SHARED_AT(strip);
        const int columns = COLUMNS - s * STRIP < STRIP ? COLUMNS - s * STRIP : STRIP;
        if (THREAD_X % 128 == 0) STORES_READ(1);
        MEET(CONSUMERS > 1 ? 1 + consumer : 1, 128);
        EACH(j, STRIP / 8) if (j * 8 < columns) stage_sums(strip, at, j * 8, sums + s * (STRIP / 2) + j * 4);
        SHOW_UNITS();
        MEET(CONSUMERS > 1 ? 1 + consumer : 1, 128);
        if (!BOXED) store_strip(c, m, n, row, now.column + s * STRIP, columns, strip);
        else if (THREAD_X % 128 == 0) {
            EACH(p, STRIP / PIECE * BOXES) if (p / BOXES * PIECE < columns) {
                const int across = now.column + s * STRIP + p / BOXES * PIECE, down = row + p % BOXES * LINE_OF_C;
                const unsigned box = at + p * (64 * PIECE * C_BYTES / BOXES);
                store_box(map, SWAP ? down : across, SWAP ? across : down, now.batch, box);
            }
            STORES_SENT();
        }
    }
}
