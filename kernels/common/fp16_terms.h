// What a kernel needs of float32 operands that steps/row_absmax.cu and steps/split_fp16.cu have split into float16 halves; with portable.h.
//
// DECLINED(scratch)          whether the operands leave the proven range: then the kernel returns at once, and C is no one's
// SCALED_BACK(h, x, e, f)    an element of C from the sum h of products of high halves, the sum x of products of a high
//                            and a low half, and the exponents of its row and column
//
// Low halves are too large by 2^11. The last factor is a normal number and its product exact: what would be less, or too
// large, has been declined.
#define VERDICT 16384 // in words of 32 bits, behind the counters
#define DECLINED(scratch) (((const int *)(scratch))[VERDICT] != 0)
#define SCALED_BACK(h, x, e, f) (fmaf(x, 1.f / 2048, h) * __int_as_float(((e) + (f) + 127) << 23))
