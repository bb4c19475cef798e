// A thread's elements of both operands, read from shared memory a step ahead of their FMAs. The
// including file defines before:
//
// TM, TN            elements of a thread, PACKS_M and PACKS_N packs
// SLICE_BK          k of a k tile that a thread multiplies
// LD_A, LD_B, LD_K  distances of lines of MN-major tiles, and of K-major ones
// LANES_M, LANES_N  threads of a warp that read different elements of A, and of B
#if !K_MAJOR
#define STEPS SLICE_BK

// Tiles are MN-major, and a step is one k: TM + TN elements for TM * TN FMAs. These go back and
// forth along the shorter side, so that an operand is used twice in a row and comes from the
// register reuse cache.
struct Fragments {
    PACK(WIDE) x[2][PACKS_M], y[2][PACKS_N];

    __device__ __forceinline__ void first(const REAL *As, const REAL *Bs)
    {
        read(As, Bs, 0);
    }

    __device__ __forceinline__ void read(const REAL *As, const REAL *Bs, const int step)
    {
        EACH(i, PACKS_M) {
            x[step % 2][i] = LOAD(WIDE, As + step * LD_A + i * LANES_M * WIDE);
        }
        EACH(j, PACKS_N) {
            y[step % 2][j] = LOAD(WIDE, Bs + step * LD_B + j * LANES_N * WIDE);
        }
    }

    __device__ __forceinline__ void add(ACC *acc, const REAL *, const REAL *, const int step) const
    {
        constexpr int outer = TN >= TM ? TN : TM, inner = TN >= TM ? TM : TN;
        EACH(o, outer) {
            EACH(n, inner) {
                const int back = o % 2 ? inner - 1 - n : n, i = TN >= TM ? back : o,
                          j = TN >= TM ? o : back;
                REAL &sum = acc[i * PACKS_N + j / WIDE].element[j % WIDE];
                sum = FMA(x[step % 2][i / WIDE].element[i % WIDE],
                          y[step % 2][j / WIDE].element[j % WIDE], sum);
            }
        }
    }
};
#else
// Tiles are K-major, and read four k of a line at a time: a step is one line of the longer side. Of
// the other one a thread holds all its elements of these four k. In a group's last step what is
// held is read anew once its FMAs are issued, into the same registers if NVRTC keeps to it.
#define BY_ROWS (TM >= TN) // a step is a row of C, else a column
#define LINES (BY_ROWS ? TM : TN)
#define HELD (BY_ROWS ? TN : TM)
#define GROUPS (SLICE_BK / WIDE)
#define STEPS (GROUPS * LINES)

struct Fragments {
    PACK(WIDE) line[2], held[HELD];

    __device__ __forceinline__ void first(const REAL *As, const REAL *Bs)
    {
        read(As, Bs, 0);
        EACH(e, HELD) {
            hold(As, Bs, 0, e);
        }
    }

    __device__ __forceinline__ void read(const REAL *As, const REAL *Bs, const int step)
    {
        constexpr int apart = (BY_ROWS ? LANES_M : LANES_N) * LD_K;
        const REAL *const from = (BY_ROWS ? As : Bs) + step / LINES * WIDE;
        line[step % 2] = LOAD(WIDE, from + step % LINES * apart);
    }

    __device__ __forceinline__ void hold(const REAL *As, const REAL *Bs, const int group,
                                         const int e)
    {
        constexpr int apart = (BY_ROWS ? LANES_N : LANES_M) * LD_K;
        held[e] = LOAD(WIDE, (BY_ROWS ? Bs : As) + group * WIDE + e * apart);
    }

    __device__ __forceinline__ void add(ACC *acc, const REAL *As, const REAL *Bs, const int step)
    {
        EACH(i, HELD * WIDE) { // for four of those held in turn, their products of each k
            const int at = step % LINES, other = i / (WIDE * WIDE) * WIDE + i % WIDE,
                      k = i / WIDE % WIDE, row = BY_ROWS ? at : other, col = BY_ROWS ? other : at;
            REAL &sum = acc[row * PACKS_N + col / WIDE].element[col % WIDE];
            sum = FMA(line[step % 2].element[k], held[other].element[k], sum);
            if (at == LINES - 1 && k == WIDE - 1) {
                hold(As, Bs, (step / LINES + 1) % GROUPS, other);
            }
        }
    }
};
#endif
