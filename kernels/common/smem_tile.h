// Copies a tile from global to shared memory. The including file defines before:
//
// THREADS  threads of a block, one-dimensional
// BK       depth of a k tile
// STAGES   k tiles in shared memory; from 3 on they are copied by cp.async
//
// Tiles are MN-major: C's rows or columns lie along the banks. A K-major operand is transposed on
// its way, into lines padded by 4 elements, so that a sector of k of each row that a warp copies
// falls on banks of its own.
#define LD(side, transpose) ((side) + ((transpose) ? 4 : 0))
#define LOADS_PER_THREAD(side) ((side) * BK / THREADS)
// The threads copy a tile in rounds, `w` contiguous elements each: MN-major operands line by line,
// K-major ones a sector (32 bytes) of each line at a time, so that no sector is fetched twice and
// transposed writes do not conflict. The bits of an offset that depend on the thread and those that
// depend on the round do not overlap: they are added, and the round's are constants.
#define ME ((unsigned)THREAD_X)
#define LINE_PACKS ((transpose ? 32 / (int)sizeof(REAL) : side) / w)
#define X_OF(item) \
    ((int)((item) % LINE_PACKS + (item) / (LINE_PACKS * (transpose ? side : BK)) * LINE_PACKS) * w)
#define Y_OF(item) ((int)((item) / LINE_PACKS % (transpose ? side : BK)))
#define SMEM_AT(item)                                              \
    ((transpose ? X_OF(item) : Y_OF(item)) * LD(side, transpose) + \
     (transpose ? Y_OF(item) : X_OF(item)))
#define FROM \
    (from + (Y_OF(ME) * pitch + X_OF(ME)) + (Y_OF(i * THREADS) * pitch + X_OF(i * THREADS)))
#define TO (to + SMEM_AT(ME) + SMEM_AT(i * THREADS))

// Loads a thread's elements of a tile into registers (`writes` 0), with zeros past the edges, and
// stores them to shared memory (`writes` 1); with STAGES > 2 copies them by cp.async instead.
INNER void load_tile(LOCAL REAL *to, REAL *in, const GLOBAL REAL *from, const INDEX pitch,
                     const int sides, const int depth, const int writes, const int side,
                     const int transpose, const int w)
{
    TURNS(i, LOADS_PER_THREAD(side) / w, 256) {
        const int x = X_OF(ME) + X_OF(i * THREADS), y = Y_OF(ME) + Y_OF(i * THREADS);
        const int inside = x < (transpose ? depth : sides) && y < (transpose ? sides : depth);
        if (STAGES > 2) {
            cp_async(w, TO, FROM, inside);
        } else if (!writes && w == 1) {
            in[i] = inside ? *FROM : 0;
        } else if (!writes) {
            STORE(WIDE, inside ? LOAD(WIDE, FROM) : ZERO_PACK(WIDE), in + i * w);
        } else if (!transpose && w > 1) {
            STORE(WIDE, LOAD(WIDE, in + i * w), TO);
        } else {
            EACH(e, w) {
                TO[e * LD(side, transpose)] = in[i * w + e];
            }
        }
    }
}
