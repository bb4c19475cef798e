// wmma (sm_70 and later): a warp multiplies tiles of 16 x 16 in float16 and adds them up in
// float32. Which thread has which element is the architecture's own affair.
#define ADDRESS(pointer) ((unsigned)__cvta_generic_to_shared(pointer))
#define EIGHT(kind, v) \
    kind(v[0]), kind(v[1]), kind(v[2]), kind(v[3]), kind(v[4]), kind(v[5]), kind(v[6]), kind(v[7])
#define WMMA_LOAD(which, v, from, line)                                           \
    asm volatile("wmma.load." which ".sync.aligned.row.m16n16k16.shared.f16"      \
                 " {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                   \
                 : EIGHT("=r", v)                                                 \
                 : "r"(ADDRESS(from)), "n"(line)                                  \
                 : "memory")
static __device__ __forceinline__ void wmma_mma(float *sum, const unsigned *a, const unsigned *b)
{
    asm volatile("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32"
                 " {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15},"
                 " {%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"
                 : EIGHT("+f", sum)
                 : EIGHT("r", a), EIGHT("r", b));
}
static __device__ __forceinline__ void wmma_store(float *to, const float *sum)
{
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32"
                 " [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, 16;" ::"r"(ADDRESS(to)),
                 EIGHT("f", sum)
                 : "memory");
}
