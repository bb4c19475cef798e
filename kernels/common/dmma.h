// mma.sync in float64 ("DMMA"): 16 rows of A times 8 columns of B (PTX ISA, "Matrix Fragments for
// mma.m16n8k4, mma.m16n8k8 and mma.m16n8k16 with .f64"). The including file defines before:
//
// MMA_K  k of an instruction: 4; from sm_90 on also 8 and 16
// ACC    a row's two accumulators: a thread has those of two rows, eight apart
#define MMA_F64(shape) "mma.sync.aligned." shape ".row.col.f64.f64.f64.f64 "
#define ACC_OF(s) "+d"(ELEMENT(acc[s], 0)), "+d"(ELEMENT(acc[s], 1))
#define FOUR(v, i) "d"(v[i]), "d"(v[(i) + 1]), "d"(v[(i) + 2]), "d"(v[(i) + 3])
// Before sm_90 the instruction has half the rows.
INNER void mma(ACC *acc, const REAL *x, const REAL *y)
{
#if MMA_K == 16
    asm(MMA_F64("m16n8k16") "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
                            "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : ACC_OF(0), ACC_OF(1)
        : FOUR(x, 0), FOUR(x, 4), FOUR(y, 0));
#elif MMA_K == 8
    asm(MMA_F64("m16n8k8") "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : ACC_OF(0), ACC_OF(1)
        : FOUR(x, 0), "d"(y[0]), "d"(y[1]));
#elif __CUDA_ARCH__ >= 900
    asm(MMA_F64("m16n8k4") "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : ACC_OF(0), ACC_OF(1)
        : "d"(x[0]), "d"(x[1]), "d"(y[0]));
#else
    EACH(h, 2) {
        asm(MMA_F64("m8n8k4") "{%0, %1}, {%2}, {%3}, {%0, %1};" : ACC_OF(h) : "d"(x[h]), "d"(y[0]));
    }
#endif
}

// Where rows of C are not aligned to 16 bytes, threads 2 apart exchange an element of their pairs,
// those of `upper` ones: the four of a row then store four neighbours at once, and four more,
// instead of every other one.
INNER ACC neighbours_apart(const ACC sum, const bool upper)
{
    const REAL first = ELEMENT(sum, 0), second = ELEMENT(sum, 1);
    const REAL got = __shfl_xor_sync(0xffffffff, upper ? first : second, 2);
    return {upper ? got : first, upper ? second : got};
}
