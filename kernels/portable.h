// The words that CUDA C++ and OpenCL C spell differently, so that one text is a kernel of both.
//
// KERNEL(x, y)  a function launched in blocks of x by y threads    THREAD_X, THREAD_Y  a thread's place in its block
// PART          a function that a kernel calls                     BLOCK               the block's place in the grid
// GLOBAL        points into the device's memory                    INDEX               a signed integer of 64 bits
// SHARED        an array that a block's threads share, 16-aligned  REAL                an element of A, B and C
// LOCAL         points into such an array                          FMA(a, b, c)        a * b + c, rounded once
// BARRIER()     all have come here, and see each other's writes    RESTRICT            nothing else points there
// IN_STEP()     all come here about the same time, or it is slow   IDLE(condition)     who meets it may leave the kernel
#if defined(DTYPE_FLOAT32)
#define REAL float
#elif defined(DTYPE_FLOAT64)
#define REAL double
#else
#error "DTYPE_FLOAT32 or DTYPE_FLOAT64 must be defined"
#endif
#define FMA(a, b, c) fma(a, b, c)

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
#endif
