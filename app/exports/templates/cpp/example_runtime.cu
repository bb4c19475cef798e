// A product in the memory of CUDA's runtime, on a stream of its own:
//     cc -O2 -c tilewise_gemm.c && nvcc -std=c++17 -o example example_runtime.cu tilewise_gemm.o -ldl
#include <cstdio>
#include <cuda_runtime.h>

#include "tilewise_gemm.hpp"
#include "tilewise_problem.h"

int main()
{
    const tilewise::Sizes sizes{TW_M, TW_N, TW_K, TW_BATCH};
    const size_t each = static_cast<size_t>(sizes.batch * TW_ELEMENT_BYTES);
    void *a = nullptr, *b = nullptr, *c = nullptr;
    cudaStream_t stream = nullptr;
    if (cudaStreamCreate(&stream) != cudaSuccess || cudaMalloc(&a, each * sizes.m * sizes.k) != cudaSuccess ||
        cudaMalloc(&b, each * sizes.k * sizes.n) != cudaSuccess ||
        cudaMalloc(&c, each * sizes.m * sizes.n) != cudaSuccess ||
        cudaMemset(a, 0, each * sizes.m * sizes.k) != cudaSuccess ||
        cudaMemset(b, 0, each * sizes.k * sizes.n) != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    try {
        tilewise::Gemm gemm;
        gemm.multiply(a, b, c, sizes, stream);
        gemm.finish(stream);
    } catch (const tilewise::Error &error) {
        std::fprintf(stderr, "%d: %s\n", static_cast<int>(error.status()), error.what());
        return 1;
    }
    std::puts("done");
    return 0;
}
