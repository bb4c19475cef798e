// Two floats rounded to float16, the second in the upper half of the word.
static __device__ __forceinline__ unsigned half2_of(const float low, const float high)
{
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
