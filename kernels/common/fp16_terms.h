// What a kernel reads of float32 operands that steps/row_absmax.cu and steps/split_fp16.cu split
// into two float16 terms. Include portable.h first.
//
// DECLINED(workspace)      true if the operands leave the proven range: the kernel returns at once
//                          and C is undefined
// SCALED_BACK(h, x, e, f)  element of C from h (sum of high x high), x (sum of high x low and low x
//                          high) and the exponents of its row and column
//
// Low terms are stored scaled by 2^11. The last factor is a normal number and its product is exact:
// operands for which it would underflow or overflow are declined.
#define VERDICT 16384 // in words of 32 bits, behind the counters
#define DECLINED(workspace) (((const int *)(workspace))[VERDICT] != 0)
#define SCALED_BACK(h, x, e, f) (fmaf(x, 1.f / 2048, h) * __int_as_float(((e) + (f) + 127) << 23))
