// mma.sync (sm_80 and later): 16 x 8 sums of a warp += 16 x 16 of A times 16 x 8 of B, in float16.
// Thread t has two neighbouring sums of row t / 4, and two of the row eight below, from column
// t % 4 * 2 on. ldmatrix hands out four matrices of 8 x 8 whose rows start at the lanes' addresses.
#define LDMATRIX(words, v, from)                                                               \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" words ".shared.b16 {%0, %1, %2, %3}, [%4];"   \
                 : "=r"((v)[0]), "=r"((v)[1]), "=r"((v)[2]), "=r"((v)[3])                      \
                 : "r"((unsigned)__cvta_generic_to_shared(from))                               \
                 : "memory")
static __device__ __forceinline__ void mma(float *sum, const unsigned *a, const unsigned *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
