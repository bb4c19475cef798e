// All of k of a tile of A and one of B in shared memory. The including file defines:
//
// BM, BN, BK, TM, TN    the tile, and a thread's rows and columns of it
// THREADS               threads of a block
// K_MAJOR_A, K_MAJOR_B  1 where an operand's k lies along its rows in memory, else 0
// RUN_M, RUN_N          neighbouring rows and columns of C that a thread has
// ROW_AT(i), COLUMN_AT(j)  offsets of a thread's rows and columns from its first
//
// A K-major operand has a line of k for each row or column of C's tile: an odd number of packs, so
// that lanes which read a pack each of neighbouring lines find them on different banks. An MN-major
// one has lines of its side.
#define LD_K ((BK / WIDE | 1) * WIDE)
#define LD_A (K_MAJOR_A ? LD_K : BK)
#define LD_B (K_MAJOR_B ? LD_K : BK)
#define PADDED(depth) (((depth) + WIDE - 1) / WIDE * WIDE)
// The line of column x among K-major ones: columns that neighbouring lanes read are neighbours.
#define LINE_OF(x, side, run) ((x) % (run) * ((side) / (run)) + (x) / (run))

template <typename T, int n> struct __align__(n * sizeof(T)) Run {
    T element[n];
};

// Elements of 16 bits are converted on their way, AHEAD packs of them at once; others are copied by
// cp.async.
#ifdef HALVES
#define AHEAD 4
#else
#define AHEAD 1
#endif
template <int w> struct Packs {
    REAL *to[AHEAD];
    const STORED *from[AHEAD];
    int wanted[AHEAD]; // else there is none
    int inside[AHEAD]; // else zeros
};

template <int w> INNER void copy_packs(const Packs<w> &of)
{
#ifdef HALVES
    Run<STORED, w> in[AHEAD];
    EACH(u, AHEAD) {
        EACH(e, w) {
            in[u].element[e] = 0;
        }
        if (of.wanted[u] && of.inside[u]) {
            in[u] = *(const Run<STORED, w> *)of.from[u];
        }
    }
    EACH(u, AHEAD) {
        if (of.wanted[u]) {
            Run<REAL, w> out;
            EACH(e, w) {
                out.element[e] = READ(in[u].element, e);
            }
            *(Run<REAL, w> *)of.to[u] = out;
        }
    }
#else
    if (of.wanted[0]) {
        cp_async(w, of.to[0], of.from[0], of.inside[0]);
    }
#endif
}

// Copies w elements each to the lines of a K-major operand, with zeros past k up to the next pack.
// LINE_THREADS threads go along each line, so that only the line changes from one copy to the next.
#define LINE_THREADS 8
template <int side, int run, int w>
INNER void load_lines(REAL *to, const STORED *from, const int lines, const int depth)
{
    constexpr int apart = THREADS / LINE_THREADS;
    const int packs = w == 1 ? PADDED(depth) : depth / w; // of a line
#pragma unroll 1
    for (int x = THREAD_X % LINE_THREADS; x < packs; x += LINE_THREADS) {
#pragma unroll(8 / AHEAD)
        for (int first = THREAD_X / LINE_THREADS; first < lines; first += apart * AHEAD) {
            Packs<w> some;
            EACH(u, AHEAD) {
                const int line = first + u * apart;
                some.wanted[u] = line < lines;
                some.to[u] = to + (LINE_OF(line, side, run) * LD_K + x * w);
                some.from[u] = from + (line * depth + x * w);
                some.inside[u] = x * w < depth;
            }
            copy_packs(some);
        }
    }
}

// The same to the k lines of an MN-major one.
template <int side, int w>
INNER void load_rows(REAL *to, const STORED *from, const INDEX pitch, const int wanted,
                     const int depth)
{
    const int items = PADDED(depth) * (side / w);
#pragma unroll(4 / AHEAD)
    for (int item = THREAD_X; item < items; item += THREADS * AHEAD) {
        Packs<w> some;
        EACH(u, AHEAD) {
            const int at = item + u * THREADS, x = at % (side / w) * w, q = at / (side / w);
            some.wanted[u] = at < items && x < wanted;
            some.to[u] = to + (q * side + x);
            some.from[u] = from + (q * pitch + x);
            some.inside[u] = q < depth;
        }
        copy_packs(some);
    }
}

template <int side, int k_major, int run>
INNER void load_operand(REAL *to, const STORED *from, const INDEX pitch, const int wanted,
                        const int depth)
{
    const int wide = pitch % WIDE == 0 && ADDRESS(from) % (WIDE * sizeof(STORED)) == 0;
    if (k_major && wide) {
        load_lines<side, run, WIDE>(to, from, wanted, depth);
    } else if (k_major) {
        load_lines<side, run, 1>(to, from, wanted, depth);
    } else if (wide) {
        load_rows<side, WIDE>(to, from, pitch, wanted, depth);
    } else {
        load_rows<side, 1>(to, from, pitch, wanted, depth);
    }
}

template <int n> INNER void read_run(REAL *to, const REAL *from)
{
    const Run<REAL, n> run = *(const Run<REAL, n> *)from;
    EACH(e, n) {
        to[e] = run.element[e];
    }
}

// Packs of 16 bytes are stored past the caches, since C is not read again. What is less is not:
// sectors that two warps share are put together in L2.
template <int n> INNER void store_run(STORED *to, const REAL *from)
{
    if constexpr (n == 1) {
        WRITE(to, 0, *from);
    } else {
#ifdef HALVES
        Run<unsigned, n / 2> out;
        EACH(e, n / 2) {
            out.element[e] = pair_of(from[2 * e], from[2 * e + 1]);
        }
        *(Run<unsigned, n / 2> *)to = out;
#else
        Run<REAL, n> out;
        EACH(e, n) {
            out.element[e] = from[e];
        }
        if constexpr (sizeof(out) == 16) {
            __stcs((float4 *)to, *(float4 *)&out);
        } else {
            *(Run<REAL, n> *)to = out;
        }
#endif
    }
}

// Adds up WIDE steps of k at a time: a thread reads (TM + TN) WIDE elements for TM TN WIDE FMAs.
INNER void multiply(const REAL *As, const REAL *Bs, const int depth, const int my_row,
                    const int my_column, REAL (&acc)[TM][TN])
{
    const REAL *x_at = As + (K_MAJOR_A ? my_row * LD_K : my_row);
    const REAL *y_at = Bs + (K_MAJOR_B ? LINE_OF(my_column, BN, RUN_N) * LD_K : my_column);
#pragma unroll 1
    for (int q = 0; q < depth; q += WIDE) {
        REAL x[K_MAJOR_A ? TM : WIDE][K_MAJOR_A ? WIDE : TM];
        REAL y[K_MAJOR_B ? TN : WIDE][K_MAJOR_B ? WIDE : TN];
        EACH(i, K_MAJOR_A ? TM : 0) {
            read_run<WIDE>(x[i], x_at + ROW_AT(i) * LD_K);
        }
        EACH(j, K_MAJOR_B ? TN : 0) {
            read_run<WIDE>(y[j], y_at + LINE_OF(COLUMN_AT(j), BN, RUN_N) * LD_K);
        }
        EACH(s, WIDE) {
            EACH(i, K_MAJOR_A ? 0 : TM / RUN_M) {
                read_run<RUN_M>(&x[s][i * RUN_M], x_at + s * BM + ROW_AT(i * RUN_M));
            }
            EACH(j, K_MAJOR_B ? 0 : TN / RUN_N) {
                read_run<RUN_N>(&y[s][j * RUN_N], y_at + s * BN + COLUMN_AT(j * RUN_N));
            }
            EACH(i, TM) {
                EACH(j, TN) {
                    acc[i][j] = FMA(K_MAJOR_A ? x[i][s] : x[s][i], K_MAJOR_B ? y[j][s] : y[s][j],
                                    acc[i][j]);
                }
            }
        }
        x_at += K_MAJOR_A ? WIDE : WIDE * BM;
        y_at += K_MAJOR_B ? WIDE : WIDE * BN;
    }
}
