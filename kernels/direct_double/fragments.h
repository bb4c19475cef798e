// A warp's fragments of one operand, loaded straight from global memory: eight lines, rows of A or
// columns of B, for each of TILES tiles, and BK of k. A lane has an element of each tile for each
// four of k (see dmma.h).
//
// Rows, columns and k may be permuted as long as both operands and C agree. An axis is permuted by
// pairs where memory has it along rows that are all aligned to 16 bytes: a lane loads two
// neighbours at once, of two tiles or two fours of k. Else it is left as it is. Either way a
// warp's load is of whole sectors.
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define FOURS_OF_K (BK / 4)

struct Axis {
    int paired, lane, apart;

    // The lane's first position on the axis, and how far the next one of its two is.
    __device__ __forceinline__ int first() const
    {
        return lane << paired;
    }

    __device__ __forceinline__ int step() const
    {
        return paired ? 1 : apart;
    }
};

// Which of eight lines a slot of an instruction's columns has. A lane of a group of four has sums
// of two neighbouring slots; with lines given to slots like this the group's lie side by side.
#define BAND_LINE(slot) ((slot) / 2 + (slot) % 2 * 4)

// A warp's tile of an operand: lines and k that there are of it, and elements from a row of memory
// to the next.
template <int K_MAJOR> struct OperandTile {
    const REAL *from;
    int lines, k;
    INDEX pitch;

    // Goes to the next pass.
    __device__ __forceinline__ void next()
    {
        from += K_MAJOR ? BK : BK * pitch;
        k -= BK;
    }
};

struct __align__(16) Pair {
    REAL first, second;
};

template <int TILES, int K_MAJOR> struct Fragments {
    // Rows of memory, and what a lane has of each.
    static constexpr int RUNS = K_MAJOR ? TILES : FOURS_OF_K, OWN = K_MAJOR ? FOURS_OF_K : TILES,
                         RUNS_APART = K_MAJOR ? 8 : 4, OWN_APART = K_MAJOR ? 4 : 8;
    REAL element[TILES][FOURS_OF_K];

    __device__ __forceinline__ REAL &at(const int run, const int i)
    {
        return K_MAJOR ? element[run][i] : element[i][run];
    }

    __device__ __forceinline__ void load(const OperandTile<K_MAJOR> &tile, const Axis &lines,
                                         const Axis &k)
    {
        const Axis &along = K_MAJOR ? k : lines, &down = K_MAJOR ? lines : k;
        if (along.paired) {
            read<OWN % 2 == 0>(tile, along, down);
        } else {
            read<0>(tile, along, down);
        }
    }

    // Past an edge of the tile there are zeros, and nothing is read. Addresses are of bytes, and go
    // from row to row: half the instructions of a product for each.
    template <int PAIRED>
    __device__ __forceinline__ void read(const OperandTile<K_MAJOR> &tile, const Axis &along,
                                         const Axis &down)
    {
        const int x = along.lane << PAIRED, y = down.first(), step = down.step(),
                  on = (K_MAJOR ? tile.k : tile.lines) - x,
                  under = (K_MAJOR ? tile.lines : tile.k) - y, under_second = under - step;
        const INDEX row_bytes = tile.pitch * (int)sizeof(REAL), skip = row_bytes * 2 * RUNS_APART;
        const char *row = (const char *)(tile.from + x) + y * row_bytes,
                   *second = row + step * row_bytes;
        EACH(r, RUNS) {
            const int is_row = r / 2 * 2 * RUNS_APART < (r % 2 ? under_second : under);
            const REAL *const from = (const REAL *)(r % 2 ? second : row);
            EACH(i, OWN / (1 + PAIRED)) {
                const int ahead = i * OWN_APART << PAIRED, is_inside = is_row && ahead < on;
                if (PAIRED) {
                    Pair found = {};
                    if (is_inside) {
                        found = *(const Pair *)(from + ahead);
                    }
                    at(r, 2 * i) = found.first;
                    at(r, 2 * i + 1) = found.second;
                } else {
                    at(r, i) = is_inside ? from[ahead] : (REAL)0;
                }
            }
            if (r % 2) {
                row += skip;
                second += skip;
            }
        }
    }
};
