// Sums of products of a thread's elements of both operands, loaded from global memory straight into
// registers. The including file defines:
//
// SHORT, EACH_LONG       elements of either operand that a thread has at a step
// LONG_BY_K, SHORT_BY_K  1 if the operand is contiguous along k in global memory
// SLICE_IDX, SLICE_K     which of the steps are the thread's
// VECTOR, UNROLL         elements of a load, and steps that are in flight together
template <int w> struct __align__(w * sizeof(STORED)) Vector {
    STORED element[w];
};

// An operand from the first of its elements that are a block's: at a step along k, `pitch` apart
// where it is not contiguous along k, the thread has those at these offsets.
template <int count> struct Operand {
    const STORED *at;
    INDEX pitch;
    INDEX offset[count];
};

template <int w> INNER void keep_if(Vector<w> &vector, const int kept)
{
    EACH(e, w) {
        vector.element[e] = kept ? vector.element[e] : (STORED)0;
    }
}

// Adds UNROLL steps, `q` of k on from a block's first, of which `depth` are its own. Of an operand
// that is contiguous along k a step has w elements of k, else one. All are inside if `whole`.
template <int w, int whole>
INNER void add_steps(const Operand<EACH_LONG> &x, const Operand<SHORT> &y, const INDEX q,
                     const INDEX depth, REAL (&acc)[SHORT][EACH_LONG])
{
    constexpr int deep = LONG_BY_K ? w : 1, loads = LONG_BY_K ? EACH_LONG : EACH_LONG / w;
    Vector<w> of_x[UNROLL][loads];
    Vector<deep> of_y[UNROLL][SHORT];
    EACH(u, UNROLL) {
        // What is past the end is the first step again, and then zeros: no load waits for a branch.
        const int inside = whole || q + u * SLICE_K * deep < depth;
        const INDEX at = inside ? q + u * SLICE_K * deep : q;
        const STORED *const x_at = x.at + at * (LONG_BY_K ? 1 : x.pitch),
                           *y_at = y.at + at * (SHORT_BY_K ? 1 : y.pitch);
        EACH(i, loads) {
            of_x[u][i] = *(const Vector<w> *)(x_at + x.offset[i * (EACH_LONG / loads)]);
            keep_if<w>(of_x[u][i], inside);
        }
        EACH(s, SHORT) {
            if (CONTIGUOUS_SHORT) {
                of_y[u][s] = *(const Vector<deep> *)(y_at + y.offset[s]);
            } else {
                EACH(e, deep) {
                    of_y[u][s].element[e] = y_at[e * y.pitch + y.offset[s]];
                }
            }
            keep_if<deep>(of_y[u][s], inside);
        }
    }
    EACH(u, UNROLL) {
        EACH(e, deep) {
            EACH(s, SHORT) {
                EACH(i, EACH_LONG) {
                    const Vector<w> &from = of_x[u][LONG_BY_K ? i : i / w];
                    acc[s][i] = FMA(READ(from.element, LONG_BY_K ? e : i % w),
                                    READ(of_y[u][s].element, e), acc[s][i]);
                }
            }
        }
    }
}

template <int w>
INNER void add_all(const Operand<EACH_LONG> &x, const Operand<SHORT> &y, const INDEX depth,
                   REAL (&acc)[SHORT][EACH_LONG])
{
    constexpr int deep = LONG_BY_K ? w : 1, apart = SLICE_K * deep;
    INDEX q = SLICE_IDX * deep;
#pragma unroll 1
    for (; q + (UNROLL - 1) * apart < depth; q += UNROLL * apart) {
        add_steps<w, 1>(x, y, q, depth, acc);
    }
    if (q < depth) {
        add_steps<w, 0>(x, y, q, depth, acc);
    }
}
