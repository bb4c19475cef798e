// CUDA's words for OpenCL, so that lessons without instructions of one architecture run on both.
//
// MATMUL(x, y)             an entry function of blocks of x by y threads, with arguments OPERANDS
// UNROLLED(i, n)           for each i below n, unrolled
// COPY4(to, from)          copies four neighbouring floats, both addresses aligned to them
// LOAD4(to, inside, from)  the same, or zeros if not inside
#ifdef __OPENCL_VERSION__
#define MATMUL(x, y) __kernel __attribute__((reqd_work_group_size(x, y, 1))) void
#define GLOBAL __global
#define LONG long
#define __shared__ __local
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads() barrier(CLK_LOCAL_MEM_FENCE)
#define threadIdx ((int3)(get_local_id(0), get_local_id(1), 0))
#define blockIdx ((int3)(get_group_id(0), 0, 0))
#define COPY4(to, from) vstore4(vload4(0, from), 0, to)
#else
#define MATMUL(x, y) extern "C" __global__ __launch_bounds__((x) * (y)) void
#define GLOBAL
#define LONG long long
#define COPY4(to, from) (*(float4 *)(to) = *(const float4 *)(from))
#endif
#ifdef DTYPE_FLOAT16
#define ELEMENT unsigned short
#else
#define ELEMENT float
#endif
#define POINTER GLOBAL ELEMENT *
#define OPERANDS const POINTER A, const POINTER B, POINTER C, LONG m, LONG n, LONG k
#define UNROLLED(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#define LOAD4(to, inside, from)                      \
    if (inside) {                                    \
        COPY4(to, from);                             \
    } else {                                         \
        (to)[0] = (to)[1] = (to)[2] = (to)[3] = 0.f; \
    }
