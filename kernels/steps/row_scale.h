// How the steps that split float32 operands share them out: a line is a row of op(A) or a column of op(B), along k, and a
// block takes 64 of an operand's, A's first, over a part of k. With portable.h.
#define SIDE 64
#define THREADS 256
#define TURN (THREADS / SIDE)
#define EDGE (SIDE + 1) // so that neither a row nor a column of a square meets itself on a bank
#define LINES(length) (((length) + SIDE - 1) / SIDE)
#define NAMES \
    const float *RESTRICT a, const float *RESTRICT b, const float *RESTRICT c, const INDEX m, const INDEX n, \
    const INDEX k, int *scratch, const INDEX at_a, const INDEX at_b, const INDEX at_e, const INDEX at_f, \
    const INDEX at_maxima, const INDEX slab

// What a block takes: the part of k is number `part` of `parts`.
struct Share {
    INDEX batch, length, first, part, pitch;
    int is_a, cross, lines;
    const float *from;
};
INNER Share share_of(const float *a, const float *b, const INDEX m, const INDEX n, const INDEX k, const INDEX parts)
{
    Share s;
    const INDEX of_a = LINES(m) * parts, all = of_a + LINES(n) * parts, at = BLOCK % all;
    s.batch = BLOCK / all, s.is_a = at < of_a, s.cross = s.is_a ? TRANS_A : !TRANS_B, s.length = s.is_a ? m : n;
    const INDEX piece = s.is_a ? at : at - of_a;
    s.first = piece / parts * SIDE, s.part = piece % parts, s.pitch = s.cross ? s.length : k;
    s.lines = (int)min(s.length - s.first, (INDEX)SIDE);
    s.from = (s.is_a ? a : b) + s.batch * k * s.length + s.first * (s.cross ? 1 : k);
    return s;
}

// Where a share's greatest magnitudes of a slab begin; as bits, which are ordered as these are, NaN above all.
INNER unsigned *maxima(int *scratch, const INDEX at, const Share &s, const INDEX both, const INDEX slabs, const INDEX m)
{
    const INDEX before = s.batch * both * slabs + (s.is_a ? 0 : m * slabs);
    return (unsigned *)scratch + at * 32 + before + s.first;
}

