// Rounds two accumulators to nearest even and packs them into 32 bits (PTX ISA, "cvt").
INNER unsigned pair_of(const REAL first, const REAL second)
{
    unsigned pair;
#ifdef DTYPE_FLOAT16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#endif
    return pair;
}
