// mma.sync with fragments in registers: 16 x 8 accumulators and 32 bytes of k (PTX ISA, "mma"). The
// including file defines ACC, a thread's four accumulators, and ELEMENT_BYTES, bytes of an
// operand's element.
#if ELEMENT_BYTES == 4
#define TYPES "m16n8k8.row.col.f32.tf32.tf32.f32"
#elif defined(DTYPE_BFLOAT16)
#define TYPES "m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define TYPES "m16n8k16.row.col.f32.f16.f16.f32"
#endif
#define MMA(acc) "mma.sync.aligned." TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " acc ";"
#define FOUR(kind, v) kind((v)[0]), kind((v)[1]), kind((v)[2]), kind((v)[3])
#define OPERANDS FOUR("r", x), "r"(y[0]), "r"(y[1])
INNER void mma(ACC &sum, const unsigned *x, const unsigned *y)
{
    asm(MMA("{%0, %1, %2, %3}") : FOUR("+f", sum.element) : OPERANDS);
}

INNER ACC mma_zero(const unsigned *x, const unsigned *y)
{
    ACC sum;
    asm(MMA("{%10, %10, %10, %10}") : FOUR("=f", sum.element) : OPERANDS, "f"(0.f));
    return sum;
}
