// The projection of a matrix: in float64, VECTORS vectors on the left times it, and the squared
// norms of its columns, by chunks of CHUNK rows, which add_chunks.cu adds up. Each element is read
// once.
//
// CHUNK   rows whose products one thread adds up, one after the other
// TURNED  1 where the matrix is stored columns x rows, else 0
#if !defined(CHUNK)
#error "CHUNK must be defined"
#elif !defined(TURNED)
#error "TURNED must be defined"
#endif
#include "dtype.h"
#include "sketch.h"
#define EACH_COLUMNS 2
#define COLUMNS (THREADS * EACH_COLUMNS)
// Rows at once, those of a turned matrix through shared memory.
#define STEP (TURNED ? 128 / (int)sizeof(REAL) : 32)
#define UNROLL_ROWS (TURNED ? 1 : sizeof(REAL) < 8 ? 8 : 4)
#define MIN_BLOCKS 4
// Lines in shared memory are padded by one bank: a warp reads a column of them without conflicts.
#define LD (STEP + 1)

// The factors of rows `first` to `first + STEP`, zeros past `end`: what is read there adds nothing.
INNER void load_factors(LOCAL double *factors, const GLOBAL double *left, const INDEX first,
                        const INDEX end)
{
    for (int i = THREAD_X; i < STEP * WIDTH; i += THREADS) {
        factors[i] = first + i / WIDTH < end ? left[first * WIDTH + i] : 0;
    }
}

// The step's elements of a turned matrix, by columns, coalesced along the rows.
INNER void load_lines(LOCAL REAL *lines, const GLOBAL STORED *from, const INDEX pitch,
                      const int columns, const int rows)
{
    TURNS(i, COLUMNS * STEP / THREADS, 4) {
        const int at = i * THREADS + THREAD_X, column = at / STEP, row = at % STEP;
        if (column < columns && row < rows) {
            lines[column * LD + row] = READ(from, column * pitch + row);
        }
    }
}

// Adds UNROLL_ROWS rows of the step; all their elements are loaded before the first is used.
INNER void add_rows(const LOCAL double *factors, const LOCAL REAL *lines,
                    const GLOBAL STORED *from, const INDEX pitch, const int columns,
                    const int first, const int rows, double *sums)
{
    REAL x[UNROLL_ROWS * EACH_COLUMNS];
    EACH(u, UNROLL_ROWS) {
        EACH(j, EACH_COLUMNS) {
            const int row = first + u, own = THREAD_X + j * THREADS,
                      column = own < columns ? own : columns - 1;
            x[u * EACH_COLUMNS + j] = row >= rows ? 0
                                      : TURNED    ? lines[column * LD + row]
                                                  : READ(from, row * pitch + column);
        }
    }
    EACH(u, UNROLL_ROWS) {
        const LOCAL double *const factor = factors + (first + u) * WIDTH;
        EACH(j, EACH_COLUMNS) {
            const double value = x[u * EACH_COLUMNS + j], weighed = value * factor[WEIGHT];
            double *const own = sums + j * SUMS;
            EACH(v, VECTORS) {
                own[v] = fma(factor[v], value, own[v]);
            }
            own[VECTORS] = fma(weighed, weighed, own[VECTORS]);
        }
    }
}

KERNEL_MIN_BLOCKS(THREADS, 1, MIN_BLOCKS)
project(const GLOBAL double *RESTRICT left, const GLOBAL STORED *RESTRICT matrix,
        GLOBAL double *RESTRICT out, const INDEX m, const INDEX n, const INDEX k,
        GLOBAL double *workspace, const INDEX batches)
{
    SHARED double factors[STEP * WIDTH];
    SHARED REAL lines[TURNED ? COLUMNS * LD : 1];
    const INDEX across = (n + COLUMNS - 1) / COLUMNS, down = (k + CHUNK - 1) / CHUNK,
                chunk = BLOCK / across % down, batch = BLOCK / across / down,
                column = BLOCK % across * COLUMNS, end = MIN(k, (chunk + 1) * CHUNK);
    const int columns = (int)MIN(n - column, COLUMNS);
    const INDEX pitch = TURNED ? k : n;
    const GLOBAL STORED *const from = matrix + batch * n * k + column * (TURNED ? k : 1);
    double sums[EACH_COLUMNS * SUMS] = {0};
#pragma unroll 1
    for (INDEX first = chunk * CHUNK; first < end; first += STEP) {
        const int rows = (int)MIN(end - first, STEP);
        const GLOBAL STORED *const at = from + first * (TURNED ? 1 : n);
        BARRIER(); // all have used the step before
        load_factors(factors, left + batch * k * WIDTH, first, end);
        if (TURNED) {
            load_lines(lines, at, pitch, columns, rows);
        }
        BARRIER();
#pragma unroll 1
        for (int row = 0; row < rows; row += UNROLL_ROWS) {
            add_rows(factors, lines, at, pitch, columns, row, rows, sums);
        }
    }
    GLOBAL double *const to = workspace + FIRST + (chunk * batches + batch) * SUMS * n + column;
    EACH(j, EACH_COLUMNS) {
        if (THREAD_X + j * THREADS < columns) {
            EACH(v, SUMS) {
                to[v * n + THREAD_X + j * THREADS] = sums[j * SUMS + v];
            }
        }
    }
}
