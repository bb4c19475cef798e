// One product on tensor cores of operands that are in a warp's registers: 16 x 8 sums and 32 bytes of k (PTX ISA, "mma").
// The including file defines SUM, a thread's four of them, and ITEM, the bytes of an operand's element.
#if ITEM == 4
#define TYPES "m16n8k8.row.col.f32.tf32.tf32.f32"
#elif defined(DTYPE_BFLOAT16)
#define TYPES "m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define TYPES "m16n8k16.row.col.f32.f16.f16.f32"
#endif
#define MMA(sums) "mma.sync.aligned." TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " sums ";"
#define FOUR(kind, v) kind((v)[0]), kind((v)[1]), kind((v)[2]), kind((v)[3])
#define OPERANDS FOUR("r", x), "r"(y[0]), "r"(y[1])
INNER void multiply(SUM &sum, const unsigned *x, const unsigned *y)
{
    asm(MMA("{%0, %1, %2, %3}") : FOUR("+f", sum.element) : OPERANDS);
}

INNER SUM product(const unsigned *x, const unsigned *y)
{
    SUM sum;
    asm(MMA("{%10, %10, %10, %10}") : FOUR("=f", sum.element) : OPERANDS, "f"(0.f));
    return sum;
}
