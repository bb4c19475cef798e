// C = op(A) x op(B) for C++17, over the C ABI of tilewise_gemm.h: compile tilewise_gemm.c beside it.
#ifndef TILEWISE_GEMM_HPP
#define TILEWISE_GEMM_HPP
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "tilewise_gemm.h"

namespace tilewise
{

// What the C ABI refused: its status, and its sentence.
class Error : public std::runtime_error
{
  public:
    explicit Error(std::int32_t status) : std::runtime_error(tw_error()), status_(status) {}
    std::int32_t status() const noexcept { return status_; }

  private:
    std::int32_t status_;
};

struct Sizes {
    std::int64_t m, n, k, batch = 1;
};

// The kernel on one GPU. Movable; every method throws Error.
class Gemm
{
  public:
    explicit Gemm(std::int32_t device = 0) { check(tw_open(device, &gemm_)); }
    ~Gemm() { tw_close(gemm_); }
    Gemm(const Gemm &) = delete;
    Gemm &operator=(const Gemm &) = delete;
    Gemm(Gemm &&other) noexcept : gemm_(std::exchange(other.gemm_, nullptr)) {}
    Gemm &operator=(Gemm &&other) noexcept
    {
        std::swap(gemm_, other.gemm_);
        return *this;
    }

    // Queue a product of matrices in the GPU's memory on a cudaStream_t or CUstream.
    void multiply(const void *a, const void *b, void *c, const Sizes &sizes, void *stream = nullptr)
    {
        check(tw_matmul(gemm_, a, b, c, sizes.m, sizes.n, sizes.k, sizes.batch, stream));
    }

    // Multiply matrices in the host's memory, and wait.
    void multiply_host(const void *a, const void *b, void *c, const Sizes &sizes)
    {
        check(tw_matmul_host(gemm_, a, b, c, sizes.m, sizes.n, sizes.k, sizes.batch));
    }

    // Wait for the stream; throws Error with TW_DECLINED if emulated arithmetic declined its last product.
    void finish(void *stream = nullptr) { check(tw_finish(gemm_, stream)); }

    // Bytes of the GPU's memory that a product needs beside its operands.
    static std::int64_t workspace(const Sizes &sizes)
    {
        const std::int64_t bytes = tw_workspace(sizes.m, sizes.n, sizes.k, sizes.batch);
        if (bytes < 0) {
            throw Error(TW_OUTSIDE_CLASS);
        }
        return bytes;
    }

  private:
    static void check(std::int32_t status)
    {
        if (status != TW_OK) {
            throw Error(status);
        }
    }

    tw_gemm *gemm_ = nullptr;
};

} // namespace tilewise
#endif
