// Two floats rounded to float16, the second in the upper half of the word.
static __device__ __forceinline__ unsigned half2_of(const float low, const float high)
{
    unsigned both;
    asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
        : "=r"(both)
        : "f"(low), "f"(high));
    return both;
}
