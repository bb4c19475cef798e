// The words that CUDA C++ and OpenCL C spell differently, so that one text is a kernel of both.
//
// KERNEL(x, y)  a function launched in blocks of x by y threads    THREAD_X, THREAD_Y  a thread's place in its block
// PART          a function that a kernel calls                     BLOCK               the block's place in the grid
// GLOBAL        points into the device's memory                    INDEX               a signed integer of 64 bits
// SHARED        an array that a block's threads share, 16-aligned  REAL                an element of A, B and C
// LOCAL         points into such an array                          FMA(a, b, c)        a * b + c, rounded once
// BARRIER()     all have come here, and see each other's writes    RESTRICT            nothing else points there
// IN_STEP()     all come here about the same time, or it is slow   IDLE(condition)     who meets it may leave the kernel
//
// For threads that have more than one element of C:
//
// HELD_KERNEL(x, y, s)  a KERNEL of which an SM is to hold s blocks at once, which bounds a thread's registers
// INNER         a function that a PART calls, and part of it       POOL(name, size)    SHARED, room given at the launch
// PACK(n)       n elements that move as one                        NOTHING(n)          a PACK of zeros
// LOAD(n, p)    a PACK from a multiple of its bytes                STORE(n, v, p)      puts one there
// ELEMENT(v, i) one element of a PACK                              SCALED(n, x, v, s)  x * v + s, each rounded once
// RUN(n)        how many of a thread's n neighbours are together   WIDE                elements in 16 bytes
// EACH(i, n)    a loop laid out in full                            TURNS(i, n, u)      a loop laid out u turns at a time
// ADDRESS(p)    a pointer as an INDEX                              COPY(w, to, from, kept)  w elements, or zeros, into
//                                                                  SHARED while the thread goes on; CUDA from sm_80
// COPIES_SENT() ends a group of copies                             COPIES_LEFT(n)      waits until n groups are under way
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

#ifdef __OPENCL_VERSION__
// PoCL turns each stretch between barriers into a loop over threads, and runs it in vectors where it can see addresses
// that rise by one with THREAD_X. A PART that is inlined early has its addresses moved out of the loop over k, kept for
// each thread and gathered back: thirty times slower. Not inlined, it stays whole until PoCL has made its own loops. It
// is not static, or the compiler would put the shared arrays in place of its arguments, where PoCL does not find them.
#define PART __attribute__((noinline))
#define KERNEL(x, y) __kernel __attribute__((reqd_work_group_size(x, y, 1))) void
#define GLOBAL __global
#define SHARED __local __attribute__((aligned(16)))
#define LOCAL __local
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define RESTRICT restrict
// Without a barrier PoCL runs all of k for one thread before the next: down a column of B, a cache line for each element.
#define IN_STEP() BARRIER()
#define IDLE(condition) // all must come to that barrier
#define THREAD_X ((int)get_local_id(0))
#define THREAD_Y ((int)get_local_id(1))
#define BLOCK ((long)get_group_id(0))
#define INDEX long
// A thread's columns are one vector of the processor, whose width and alignment are the compiler's business.
#define HELD_KERNEL(x, y, s) KERNEL(x, y)
#define INNER static __attribute__((always_inline))
#define POOL(name, size) SHARED REAL name[size]
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
#define PACK(n) JOINED(REAL, n)
#define LOAD(n, p) JOINED(vload, n)(0, p)
#define STORE(n, v, p) JOINED(vstore, n)(v, 0, p)
#define NOTHING(n) ((PACK(n))(0))
#define ELEMENT(pack, i) ((REAL *)&(pack))[i]
#define SCALED(n, x, v, s) fma((PACK(n))(x), v, s)
#define RUN(n) n
// Where all threads turn a loop equally often PoCL turns it once for all of them, and puts down each one's sums at
// every turn. A count that it cannot prove equal has one thread after the other run through.
#define TURNS(i, n, u) _Pragma("unroll 1") for (int i = 0; i < (n) + (int)(get_local_id(0) >> 30); i++)
#define ADDRESS(p) ((long)(p))
#define COPY(w, to, from, kept)
#define COPIES_SENT()
#define COPIES_LEFT(n)
#else
#define PART static __device__ __forceinline__
#define KERNEL(x, y) extern "C" __global__ __launch_bounds__((x) * (y)) void
#define GLOBAL
#define SHARED __shared__ __align__(16)
#define LOCAL
#define BARRIER() __syncthreads()
#define RESTRICT __restrict__
#define IN_STEP() // a warp is in step as it is
#define IDLE(condition) if (condition) return
#define THREAD_X ((int)threadIdx.x)
#define THREAD_Y ((int)threadIdx.y)
#define BLOCK ((long long)blockIdx.x)
#define INDEX long long
// 16 bytes are what a thread moves at once. A quarter of a warp reads its packs from all banks where they follow each
// other, so a thread's neighbours are split into such runs.
#define HELD_KERNEL(x, y, s) extern "C" __global__ __launch_bounds__((x) * (y), s) void
#define INNER static __device__ __forceinline__
#define POOL(name, size) extern __shared__ __align__(16) REAL name[]
template <int n> struct __align__(16) Pack { REAL element[n]; };
template <int n> static __device__ __forceinline__ Pack<n> scaled(const REAL x, const Pack<n> v, Pack<n> s)
{
#pragma unroll
    for (int i = 0; i < n; i++) s.element[i] = fma(x, v.element[i], s.element[i]);
    return s;
}
#define PACK(n) Pack<n>
#define LOAD(n, p) (*(const Pack<n> *)(p))
#define STORE(n, v, p) (*(Pack<n> *)(p) = (v))
#define NOTHING(n) (Pack<n>{})
#define ELEMENT(pack, i) (pack).element[i]
#define SCALED(n, x, v, s) scaled<n>(x, v, s)
#define RUN(n) WIDE
#define TURNS(i, n, u) PRAGMA(unroll u) for (int i = 0; i < (n); i++)
#define ADDRESS(p) ((long long)(p))
template <int bytes> static __device__ __forceinline__ void copied(REAL *to, const REAL *from, const bool kept)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const int taken = kept ? bytes : 0; // the rest is filled with zeros
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(taken) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(at), "l"(from), "n"(bytes), "r"(taken) : "memory");
}
#define COPY(w, to, from, kept) \
    w == WIDE ? copied<16>(to, from, kept) : copied<sizeof(REAL)>(to, from, kept)
#define COPIES_SENT() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_LEFT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#endif
