// Sums of products of a thread's elements of both operands, loaded from global memory straight into
// registers. The including file defines:
//
// SHORT, EACH_LONG       elements of either operand that a thread has at a step
// LONG_BY_K, SHORT_BY_K  1 if the operand is contiguous along k in global memory
// CONTIGUOUS_SHORT       1 if the short one is loaded in vectors along k
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

// The vector at `from` if the step at `q` is before `left`, else zeros. Loads are predicated, not
// branched around: a launch of some microseconds runs its instructions once, so that few of them
// and one trip to memory for all loads are what counts.
template <int w> INNER Vector<w> load_before(const STORED *from, const int q, const int left)
{
    Vector<w> vector;
    if constexpr (sizeof(vector) == 2) {
        unsigned short bits;
        asm("{.reg .pred inside; setp.lt.s32 inside, %2, %3; mov.u16 %0, 0;"
            "@inside ld.global.nc.u16 %0, [%1];}"
            : "=&h"(bits)
            : "l"(from), "r"(q), "r"(left));
        *(unsigned short *)&vector = bits;
    } else if constexpr (sizeof(vector) == 4) {
        unsigned bits;
        asm("{.reg .pred inside; setp.lt.s32 inside, %2, %3; mov.u32 %0, 0;"
            "@inside ld.global.nc.u32 %0, [%1];}"
            : "=&r"(bits)
            : "l"(from), "r"(q), "r"(left));
        *(unsigned *)&vector = bits;
    } else if constexpr (sizeof(vector) == 8) {
        uint2 bits;
        asm("{.reg .pred inside; setp.lt.s32 inside, %3, %4; mov.u32 %0, 0; mov.u32 %1, 0;"
            "@inside ld.global.nc.v2.u32 {%0, %1}, [%2];}"
            : "=&r"(bits.x), "=&r"(bits.y)
            : "l"(from), "r"(q), "r"(left));
        *(uint2 *)&vector = bits;
    } else {
        uint4 bits;
        asm("{.reg .pred inside; setp.lt.s32 inside, %5, %6; mov.u32 %0, 0; mov.u32 %1, 0;"
            "mov.u32 %2, 0; mov.u32 %3, 0;"
            "@inside ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
            : "=&r"(bits.x), "=&r"(bits.y), "=&r"(bits.z), "=&r"(bits.w)
            : "l"(from), "r"(q), "r"(left));
        *(uint4 *)&vector = bits;
    }
    return vector;
}

// Adds UNROLL steps from the operands' first on, of which those before `left` of k are inside. Of
// an operand that is contiguous along k a step has w elements of k, else one.
template <int w>
INNER void add_steps(const Operand<EACH_LONG> &x, const Operand<SHORT> &y, const int left,
                     REAL (&acc)[SHORT][EACH_LONG])
{
    constexpr int deep = LONG_BY_K ? w : 1, loads = LONG_BY_K ? EACH_LONG : EACH_LONG / w;
    Vector<w> of_x[UNROLL][loads];
    Vector<deep> of_y[UNROLL][SHORT];
    EACH(u, UNROLL) {
        const int q = u * SLICE_K * deep;
        const STORED *const x_at = x.at + q * (LONG_BY_K ? 1 : x.pitch),
                           *y_at = y.at + q * (SHORT_BY_K ? 1 : y.pitch);
        EACH(i, loads) {
            of_x[u][i] = load_before<w>(x_at + x.offset[i * (EACH_LONG / loads)], q, left);
        }
        EACH(s, SHORT) {
            if (CONTIGUOUS_SHORT) {
                of_y[u][s] = load_before<deep>(y_at + y.offset[s], q, left);
                continue;
            }
            EACH(e, deep) {
                of_y[u][s].element[e] =
                    load_before<1>(y_at + e * y.pitch + y.offset[s], q, left).element[0];
            }
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

// All threads take as many turns: those of a warp would wait for each other's.
template <int w>
INNER void add_all(Operand<EACH_LONG> x, Operand<SHORT> y, const INDEX depth,
                   REAL (&acc)[SHORT][EACH_LONG])
{
    constexpr int deep = LONG_BY_K ? w : 1, turn = UNROLL * SLICE_K * deep;
    x.at += SLICE_IDX * deep * (LONG_BY_K ? 1 : x.pitch);
    y.at += SLICE_IDX * deep * (SHORT_BY_K ? 1 : y.pitch);
#pragma unroll 1
    for (INDEX left = depth; left > 0; left -= turn) {
        add_steps<w>(x, y, (int)MIN(left, turn) - SLICE_IDX * deep, acc);
        x.at += turn * (LONG_BY_K ? 1 : x.pitch);
        y.at += turn * (SHORT_BY_K ? 1 : y.pitch);
    }
}
