// What the kernels of Freivalds' check share. A row's factors are VECTORS elements of the vectors,
// its weight, and one double that is not read; a column's are the sums that a projection makes of
// it, with the weight 1, and its squared norm: they are the factors of the next projection's row.
#define THREADS 128
#define VECTORS 16
#define SUMS (VECTORS + 1)
#define WEIGHT VECTORS
#define WIDTH (VECTORS + 2)
#define FIRST 8192 // doubles of the workspace before the chunks' sums: its counters lie there
#define MIN(x, y) ((x) < (y) ? (x) : (y))
