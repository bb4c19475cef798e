// How row_absmax.cu and split_fp16.cu divide float32 operands among blocks: a block takes 64 lines
// (rows of op(A) or columns of op(B)), A's first, over a part of k. Include portable.h first.
#define SIDE 64
#define THREADS 256
#define ROWS_AT_ONCE (THREADS / SIDE)
#define LD (SIDE + 1) // padded against bank conflicts
#define LINES(length) (((length) + SIDE - 1) / SIDE)
#define STEP_PARAMETERS                                                                       \
    const float *RESTRICT a, const float *RESTRICT b, const float *RESTRICT c, const INDEX m, \
        const INDEX n, const INDEX k, int *workspace, const INDEX at_a, const INDEX at_b,       \
        const INDEX at_e, const INDEX at_f, const INDEX at_maxima, const INDEX slab

// A block's lines, over part `part` of `parts` of k.
struct BlockRows {
    INDEX batch, length, first, part, pitch;
    int is_a, transpose, lines;
    const float *from;
};
INNER BlockRows block_rows(const float *a, const float *b, const INDEX m, const INDEX n,
                           const INDEX k, const INDEX parts)
{
    BlockRows s;
    const INDEX of_a = LINES(m) * parts, all = of_a + LINES(n) * parts, at = BLOCK % all;
    s.batch = BLOCK / all;
    s.is_a = at < of_a;
    s.transpose = s.is_a ? TRANS_A : !TRANS_B;
    s.length = s.is_a ? m : n;
    const INDEX piece = s.is_a ? at : at - of_a;
    s.first = piece / parts * SIDE;
    s.part = piece % parts;
    s.pitch = s.transpose ? s.length : k;
    s.lines = (int)min(s.length - s.first, (INDEX)SIDE);
    s.from = (s.is_a ? a : b) + s.batch * k * s.length + s.first * (s.transpose ? 1 : k);
    return s;
}

// Where the maximum magnitudes of a block's lines begin, as bits, which are ordered as magnitudes
// are, NaN above all.
INNER unsigned *maxima(int *workspace, const INDEX at, const BlockRows &s, const INDEX both,
                       const INDEX slabs, const INDEX m)
{
    const INDEX before = s.batch * both * slabs + (s.is_a ? 0 : m * slabs);
    return (unsigned *)workspace + at * 32 + before + s.first;
}
