// Epilogue: a consumer writes its accumulators to shared memory, EPI_COLUMNS columns at a time, and
// the TMA unit stores them to C while the next ones are written. If C's rows are not multiples of
// 16 bytes, the threads store them instead, and so they do with a tile's last columns if these are
// fewer than a box has.
//
// A TMA box has TMA_BOX_N columns of the accumulators and 64 rows; with SWAP_AB these are C's rows
// and columns. Tiles of no more than two boxes' columns have boxes that divide them: beside stores
// by threads the compiler kept their main loop's descriptors in registers of each thread.
#define C_BYTES ((int)sizeof(STORED))
#define C_LINE (128 / C_BYTES)
#define EPI_COLUMNS C_LINE
#define EPI_BYTES (64 * 128)
#define PIECES_N ((TILE_N + EPI_COLUMNS - 1) / EPI_COLUMNS)
#define PIECES (WGMMAS_M * PIECES_N)
#if C_IN_STAGES // which nothing reads any more: as many buffers as there are pieces, if they fit
#define EPI_ROOM (STAGES_BYTES / (CONSUMERS * EPI_BYTES))
#define EPI_BUFFERS (PIECES < EPI_ROOM ? PIECES : EPI_ROOM)
#define EPILOGUE_AT 0
#define RECEIVED_AT STAGES_BYTES
#else
#define EPI_BUFFERS (TILE_M * TILE_N > SHARERS * 128 * 128 ? 1 : 2) // large tiles' stages need room
#define EPILOGUE_AT STAGES_BYTES
#define RECEIVED_AT (EPILOGUE_AT + CONSUMERS * EPI_BUFFERS * EPI_BYTES)
#endif
#define BUFFERS_ALTERNATE (!C_IN_STAGES || EPI_BUFFERS < PIECES)
// Partial sums that a cluster's blocks send to one of them, with CLUSTER_K.
#define OWN_PIECES ((PIECES + CLUSTER_K - 1) / CLUSTER_K)
#define OF_PIECE (CONSUMERS * 64 * 4 * (TILE_N < EPI_COLUMNS ? TILE_N : EPI_COLUMNS))
#define RECEIVED_BYTES (OWN_PIECES * (CLUSTER_K - 1) * OF_PIECE)
#define BARRIERS_AT (RECEIVED_AT + RECEIVED_BYTES)
#define ARRIVALS_AT (BARRIERS_AT + STAGES * 8 * (REALIGN ? 3 : 2)) // of a tile's splits
#define WHOLE_BOXES (TILE_N > 2 * EPI_COLUMNS || TILE_N % EPI_COLUMNS == 0)
#define TMA_BOX_N \
    (WHOLE_BOXES ? EPI_COLUMNS : TILE_N % 32 == 0 ? 32 : TILE_N % 16 == 0 ? 16 : 8)
#define SWIZZLE_C (SWAP_AB ? 128 : TMA_BOX_N * C_BYTES)
#define TMA_BOXES (SWAP_AB ? 64 / C_LINE : 1) // for 64 rows
#define LANE (THREAD_X % 32)
#define WARP_ROW (THREAD_X / 32 % 4 * 16)

#if SWAP_AB
#define STMATRIX_TRANS ".trans"
#else
#define STMATRIX_TRANS ""
#endif

// Byte offset of an element in the epilogue tile.
INNER int epi_offset(const int row, const int column)
{
    const int piece = column / TMA_BOX_N * (64 * TMA_BOX_N * C_BYTES), within = column % TMA_BOX_N;
    if (!SWAP_AB) {
        return piece + SWIZZLED(row * SWIZZLE_C + within * C_BYTES, SWIZZLE_C);
    }
    return piece + row / C_LINE * (TMA_BOX_N * 128) +
           SWIZZLED(within * 128 + row % C_LINE * C_BYTES, 128);
}

// Writes a thread's four accumulators of 8 columns: two neighbours in each of its two rows.
INNER void store_acc_to_smem(unsigned char *epi_tile, const unsigned address, const int column,
                             const float *acc)
{
#if defined(DTYPE_FLOAT16) || defined(DTYPE_BFLOAT16)
    unsigned upper, lower;
#ifdef DTYPE_BFLOAT16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(upper) : "f"(acc[1]), "f"(acc[0]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(lower) : "f"(acc[3]), "f"(acc[2]));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(upper) : "f"(acc[1]), "f"(acc[0]));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(lower) : "f"(acc[3]), "f"(acc[2]));
#endif
    const int eighth = LANE % 8, row = WARP_ROW + LANE / 8 % 2 * 8;
    const unsigned to =
        address + epi_offset(SWAP_AB ? row : row + eighth, SWAP_AB ? column + eighth : column);
    asm volatile("stmatrix.sync.aligned.m8n8.x2" STMATRIX_TRANS
                 ".shared.b16 [%0], {%1, %2};" ::"r"(to),
                 "r"(upper), "r"(lower)
                 : "memory");
#else
    const int x = column + LANE % 4 * 2;
    EACH(i, 2) {
        if (!SWAP_AB) {
            *(float2 *)(epi_tile + epi_offset(acc_row(i), x)) =
                make_float2(acc[2 * i], acc[2 * i + 1]);
        } else if (LHS_IN_REGISTERS) {
            *(float2 *)(epi_tile + epi_offset(acc_row(0), x + i)) = make_float2(acc[i], acc[2 + i]);
        } else {
            EACH(e, 2) {
                *(float *)(epi_tile + epi_offset(acc_row(i), x + e)) = acc[2 * i + e];
            }
        }
    }
#endif
}

// Stores the partial sums of a split to the workspace: rows of the LHS, columns padded to a
// multiple of 8, so that each 8 are a whole sector.
INNER void store_partial_rows(float *to, const INDEX rows, const INDEX pitch, const int row,
                              const int column, const Accumulators &acc)
{
    EACH(i, 2) {
        const int r = row + acc_row(i);
        float *const line = to + r * pitch + column + LANE % 4 * 2;
        EACH(j, TILE_N / 8) {
            if (r < rows && column + j * 8 < pitch) {
                *(float2 *)(line + j * 8) = make_float2(acc[4 * j + 2 * i], acc[4 * j + 2 * i + 1]);
            }
        }
    }
}

// Stores an epilogue tile of 64 rows by plain stores: neighbouring threads have neighbouring runs
// of `w` elements of C's rows, and each goes down a column of them.
template <int w> struct __align__(w * C_BYTES) Run {
    STORED element[w];
};
template <int w>
INNER void store_epi_tile(STORED *c, const INDEX m, const INDEX n, const int row, const int column,
                          const int columns, const unsigned char *epi_tile)
{
    const int wide = (SWAP_AB ? 64 : EPI_COLUMNS) / w, high = SWAP_AB ? columns : 64,
              top = SWAP_AB ? column : row;
    const int x = THREAD_X % 128 % wide * w, first = THREAD_X % 128 / wide, apart = 128 / wide;
    const INDEX across = (SWAP_AB ? row : column) + x;
    if (across >= n || (!SWAP_AB && x >= columns)) {
        return;
    }
    const int end = m - top < high ? (int)(m - top) : high;
    STORED *to = c + (top + first) * n + across;
    const int at_once = CONSUMERS > 2 ? 2 : 4; // as registers allow
#pragma unroll at_once
    for (int y = first; y < end; y += apart, to += apart * n) {
        const int at = SWAP_AB ? epi_offset(x, y) : epi_offset(y, x);
        *(Run<w> *)to = *(const Run<w> *)(epi_tile + at);
    }
}

// Where C goes through the stages, the wgmmas of all consumers have read them.
INNER void meet_consumers()
{
    if (C_IN_STAGES) {
        named_barrier_sync(4, 128 * CONSUMERS);
    }
}

// Stores a piece of 64 rows of accumulators from `row` on: EPI_COLUMNS columns, the s-th of them.
// Buffers alternate, unless each piece has its own: one is written while TMA reads the others.
INNER void epilogue_tma_store(const TensorMap &map, STORED *c, const INDEX m, const INDEX n,
                              const WorkTile &tile, const int row, unsigned char *staging,
                              int &buffer, const int consumer, const int s, const float *acc)
{
    unsigned char *const epi_tile = staging + buffer * EPI_BYTES;
    if (EPI_BUFFERS > 2) {
        buffer = buffer == EPI_BUFFERS - 1 ? 0 : buffer + 1;
    } else {
        buffer ^= EPI_BUFFERS - 1;
    }
    const unsigned address = SMEM_ADDRESS(epi_tile);
    const int columns =
        TILE_N - s * EPI_COLUMNS < EPI_COLUMNS ? TILE_N - s * EPI_COLUMNS : EPI_COLUMNS;
    if (BUFFERS_ALTERNATE) {
        if (THREAD_X % 128 == 0) {
            tma_store_wait_group_read(EPI_BUFFERS - 1);
        }
        named_barrier_sync(CONSUMERS > 1 ? 1 + consumer : 1, 128);
    }
    EACH(j, EPI_COLUMNS / 8) {
        if (j * 8 < columns) {
            store_acc_to_smem(epi_tile, address, j * 8, acc + j * 4);
        }
    }
    fence_proxy_async();
    named_barrier_sync(CONSUMERS > 1 ? 1 + consumer : 1, 128);
    const int narrow = TMA_STORE && columns % TMA_BOX_N != 0;
    if (narrow) {
        store_epi_tile<16 / C_BYTES>(c, m, n, row, tile.column + s * EPI_COLUMNS, columns,
                                     epi_tile);
    } else if (!TMA_STORE) {
        if ((ADDRESS(c) | n * C_BYTES) % (2 * C_BYTES) == 0) {
            store_epi_tile<2>(c, m, n, row, tile.column + s * EPI_COLUMNS, columns, epi_tile);
        } else {
            store_epi_tile<1>(c, m, n, row, tile.column + s * EPI_COLUMNS, columns, epi_tile);
        }
    }
    if (TMA_STORE && THREAD_X % 128 == 0) {
        EACH(p, EPI_COLUMNS / TMA_BOX_N * TMA_BOXES) {
            if (!narrow && p / TMA_BOXES * TMA_BOX_N < columns) {
                const int across = tile.column + s * EPI_COLUMNS + p / TMA_BOXES * TMA_BOX_N,
                          down = row + p % TMA_BOXES * C_LINE;
                const unsigned box = address + p * (64 * TMA_BOX_N * C_BYTES / TMA_BOXES);
                tma_store(map, SWAP_AB ? down : across, SWAP_AB ? across : down, tile.batch, box);
            }
        }
        tma_store_commit_group(); // of nothing, where threads have stored: buffers are in turn
    }
}
