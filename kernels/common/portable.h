// Macros for what CUDA C++ and OpenCL C spell differently, so that one text is a kernel of both.
//
// KERNEL(x, y)        __global__ function with blocks of x by y threads
// PART                device function: inlined on CUDA, not inlined on OpenCL
// GLOBAL              address space of device memory
// SHARED              __shared__ array, 16-byte aligned
// LOCAL               address space of shared memory, for pointers
// BARRIER()           __syncthreads()
// IN_STEP()           PoCL: a barrier that keeps work-items in lockstep (performance only); CUDA:
//                     nothing
// IDLE(condition)     CUDA: returns if the condition holds; PoCL: nothing, as all must reach the
//                     barriers
// THREAD_X, THREAD_Y  threadIdx.x, threadIdx.y
// BLOCK               blockIdx.x
// INDEX               signed 64-bit integer
// REAL                compute type of an element
// FMA(a, b, c)        a * b + c, rounded once
// RESTRICT            __restrict__
//
// For threads that compute several elements of C:
//
// KERNEL_MIN_BLOCKS(x, y, s)     KERNEL with __launch_bounds__(x * y, s): at least s blocks fit on
//                                an SM
// INNER                          always-inlined device function
// DYNAMIC_SHARED(name, size)     dynamic shared memory
// PACK(n)                        vector of n elements
// ZERO_PACK(n)                   PACK of zeros
// LOAD(n, p)                     aligned vector load
// STORE(n, v, p)                 aligned vector store
// ELEMENT(v, i)                  element i of a PACK
// FMA_PACK(n, x, v, s)           x * v + s for each element, rounded once
// RUN(n)                         how many of a thread's n neighbouring elements are contiguous
// WIDE                           elements in 16 bytes
// EACH(i, n)                     fully unrolled loop
// EACH_ROLLED(i, n)              fully unrolled loop for CUDA, a loop for OpenCL
// TURNS(i, n, u)                 loop unrolled u times
// LOW_BITS(n)                    an unsigned whose n lowest bits, 1 to 32, are set
// ADDRESS(p)                     pointer as an INDEX
// cp_async(w, to, from, inside)  cp.async of w elements into shared memory, zeros if not inside
//                                (from sm_80)
// cp_async_commit_group()        cp.async.commit_group
// cp_async_wait_group(n)         cp.async.wait_group n
#if defined(DTYPE_FLOAT32)
#define REAL float
#define WIDE 4
#elif defined(DTYPE_FLOAT64)
#define REAL double
#define WIDE 2
#else
#error "DTYPE_FLOAT32 or DTYPE_FLOAT64 must be defined"
#endif
#define FMA(a, b, c) fma(a, b, c)
#define PRAGMA(words) _Pragma(#words)
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#define LOW_BITS(n) (~0u >> (32 - (n)))

#ifdef __OPENCL_VERSION__
// PoCL turns each stretch between barriers into a loop over work-items and vectorises it where it
// can see addresses that rise by one with THREAD_X. If a PART is inlined early, its addresses are
// hoisted out of the loop over k, kept for each work-item and gathered: thirty times slower. Not
// inlined, it stays whole until PoCL has made its loops. It is not static, or the compiler would
// substitute the shared arrays for its arguments and PoCL would not find them.
#define PART __attribute__((noinline))
#define KERNEL(x, y) __kernel __attribute__((reqd_work_group_size(x, y, 1))) void
#define GLOBAL __global
#define SHARED __local __attribute__((aligned(16)))
#define LOCAL __local
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define RESTRICT restrict
// Without a barrier PoCL runs all of k for one work-item before the next: down a column of B, one
// cache line for each element.
#define IN_STEP() BARRIER()
#define IDLE(condition) // all must reach the barrier
#define THREAD_X ((int)get_local_id(0))
#define THREAD_Y ((int)get_local_id(1))
#define BLOCK ((long)get_group_id(0))
#define INDEX long
// A thread's columns are one vector of the processor; its width and alignment are left to the
// compiler.
#define KERNEL_MIN_BLOCKS(x, y, s) KERNEL(x, y)
#define INNER static __attribute__((always_inline))
// What a thread does once a tile is a loop: unrolled, it takes PoCL seconds to compile.
#define EACH_ROLLED(i, n) _Pragma("unroll 1") for (int i = 0; i < (n); i++)
#define DYNAMIC_SHARED(name, size) SHARED REAL name[size]
#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define PACK(n) CONCAT(REAL, n)
#define LOAD(n, p) CONCAT(vload, n)(0, p)
#define STORE(n, v, p) CONCAT(vstore, n)(v, 0, p)
#define ZERO_PACK(n) ((PACK(n))(0))
#define ELEMENT(pack, i) ((REAL *)&(pack))[i]
#define FMA_PACK(n, x, v, s) fma((PACK(n))(x), v, s)
#define RUN(n) n
// If the trip count is the same for all work-items, PoCL runs the loop once for all of them and
// spills each one's accumulators in every iteration. With a count that it cannot prove uniform, it
// runs one work-item after the other.
#define TURNS(i, n, u) \
    _Pragma("unroll 1") for (int i = 0; i < (n) + (int)(get_local_id(0) >> 30); i++)
#define ADDRESS(p) ((long)(p))
#define cp_async(w, to, from, kept)
#define cp_async_commit_group()
#define cp_async_wait_group(n)
#else
#define PART static __device__ __forceinline__
#define KERNEL(x, y) extern "C" __global__ __launch_bounds__((x) * (y)) void
#define GLOBAL
#define SHARED __shared__ __align__(16)
#define LOCAL
#define BARRIER() __syncthreads()
#define RESTRICT __restrict__
#define IN_STEP() // warps run in lockstep
#define IDLE(condition) \
    if (condition)      \
    return
#define THREAD_X ((int)threadIdx.x)
#define THREAD_Y ((int)threadIdx.y)
#define BLOCK ((long long)blockIdx.x)
#define INDEX long long
// A thread moves 16 bytes at once. A quarter of a warp reads from all banks if its packs are
// contiguous, so a thread's neighbouring elements are split into runs of WIDE.
#define KERNEL_MIN_BLOCKS(x, y, s) extern "C" __global__ __launch_bounds__((x) * (y), s) void
#define INNER static __device__ __forceinline__
#define EACH_ROLLED(i, n) EACH(i, n)
#define DYNAMIC_SHARED(name, size) extern __shared__ __align__(16) REAL name[]
template <int n> struct __align__(16) Pack {
    REAL element[n];
};
template <int n> static __device__ __forceinline__ Pack<n> fma_pack(const REAL x, const Pack<n> v,
                                                                    Pack<n> s)
{
#pragma unroll
    for (int i = 0; i < n; i++) {
        s.element[i] = fma(x, v.element[i], s.element[i]);
    }
    return s;
}
#define PACK(n) Pack<n>
#define LOAD(n, p) (*(const Pack<n> *)(p))
#define STORE(n, v, p) (*(Pack<n> *)(p) = (v))
#define ZERO_PACK(n) (Pack<n>{})
#define ELEMENT(pack, i) (pack).element[i]
#define FMA_PACK(n, x, v, s) fma_pack<n>(x, v, s)
#define RUN(n) WIDE
#define TURNS(i, n, u) PRAGMA(unroll u) for (int i = 0; i < (n); i++)
#define ADDRESS(p) ((long long)(p))
template <int bytes> static __device__ __forceinline__ void
cp_async_bytes(REAL *to, const REAL *from, const bool kept)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const int taken = kept ? bytes : 0; // the rest is filled with zeros
    if (bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                     "r"(taken)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from),
                     "n"(bytes), "r"(taken)
                     : "memory");
    }
}
#define cp_async(w, to, from, kept) \
    w == WIDE ? cp_async_bytes<16>(to, from, kept) : cp_async_bytes<sizeof(REAL)>(to, from, kept)
#define cp_async_commit_group() asm volatile("cp.async.commit_group;" ::: "memory")
#define cp_async_wait_group(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#endif
