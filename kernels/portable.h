// The words that CUDA C++ and OpenCL C spell differently, so that one text is a kernel of both.
//
// KERNEL(x, y)  a function of blocks of x by y threads, x fastest      THREAD_X, THREAD_Y  a thread's place in its block
// GLOBAL        points into the device's memory                       BLOCK               the block's place in the grid
// SHARED        an array that the threads of a block share            INDEX               a signed integer of 64 bits
// BARRIER()     every thread's shared writes are seen by all          FMA(a, b, c)        a * b + c, rounded once
// RESTRICT      nothing else points there                             REAL                an element of A, B and C
#if defined(DTYPE_FLOAT32)
#define REAL float
#elif defined(DTYPE_FLOAT64)
#define REAL double
#else
#error "DTYPE_FLOAT32 or DTYPE_FLOAT64 must be defined"
#endif

#ifdef __OPENCL_VERSION__
#ifdef DTYPE_FLOAT64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define KERNEL(x, y) __kernel __attribute__((reqd_work_group_size(x, y, 1))) void
#define GLOBAL __global
#define SHARED __local
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define RESTRICT restrict
#define THREAD_X ((int)get_local_id(0))
#define THREAD_Y ((int)get_local_id(1))
#define BLOCK ((long)get_group_id(0))
#define INDEX long
#define FMA(a, b, c) fma(a, b, c)
#else
#define KERNEL(x, y) extern "C" __global__ __launch_bounds__((x) * (y)) void
#define GLOBAL
#define SHARED __shared__
#define BARRIER() __syncthreads()
#define RESTRICT __restrict__
#define THREAD_X ((int)threadIdx.x)
#define THREAD_Y ((int)threadIdx.y)
#define BLOCK ((long long)blockIdx.x)
#define INDEX long long
#define FMA(a, b, c) fma(a, b, c)
#endif
