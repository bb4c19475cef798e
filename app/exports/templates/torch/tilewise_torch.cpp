// The operator of tilewise_torch.py in C++: the same checks and launches, without Python's time at each call.
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <utility>

#include "tilewise_gemm.h"

namespace
{

void check(int32_t status)
{
    TORCH_CHECK_VALUE(status != TW_ARGUMENT && status != TW_OUTSIDE_CLASS, tw_error());
    TORCH_CHECK(status == TW_OK, tw_error());
}

// The kernel on a GPU. Each stream has its own: products of one handle share a workspace.
tw_gemm *opened(int32_t device, void *stream)
{
    static std::mutex lock;
    static std::map<std::pair<int32_t, void *>, tw_gemm *> handles;
    const std::lock_guard<std::mutex> held(lock);
    tw_gemm *&handle = handles[{device, stream}];
    if (handle == nullptr) {
        check(tw_open(device, &handle));
    }
    return handle;
}

struct Product {
    at::Tensor a, b, c;
    int64_t m, n, k, batch;
};

// The operands as the kernel reads them, and room for C.
Product product(const at::Tensor &a, const at::Tensor &b)
{
    const int64_t rank = a.dim();
    TORCH_CHECK_VALUE((rank == 2 || rank == 3) && b.dim() == rank && a.device() == b.device() &&
                          a.scalar_type() == at::ScalarType::TW_DTYPE && b.scalar_type() == at::ScalarType::TW_DTYPE,
                      "A is ", a.scalar_type(), a.sizes(), " on ", a.device(), " and B ", b.scalar_type(), b.sizes(),
                      " on ", b.device(), ": two matrices of ", at::ScalarType::TW_DTYPE,
                      " on one device were expected, or two batches of them");
    const int64_t batch = rank == 3 ? a.size(0) : 1;
    const int64_t m = a.size(TW_TRANS_A ? -1 : -2), k = a.size(TW_TRANS_A ? -2 : -1);
    const int64_t n = b.size(TW_TRANS_B ? -2 : -1);
    TORCH_CHECK_VALUE(b.size(TW_TRANS_B ? -1 : -2) == k && (rank == 2 || b.size(0) == batch), "A is ", a.sizes(),
                      " and B is ", b.sizes(), ": they cannot be multiplied");
    at::Tensor c = rank == 3 ? at::empty({batch, m, n}, a.options()) : at::empty({m, n}, a.options());
    return {a.contiguous(), b.contiguous(), std::move(c), m, n, k, batch};
}

at::Tensor on_gpu(const at::Tensor &a, const at::Tensor &b)
{
    const Product made = product(a, b);
    const c10::impl::VirtualGuardImpl gpus(a.device().type());
    void *const stream = gpus.getStream(a.device()).native_handle();
    check(tw_matmul(opened(a.device().index(), stream), made.a.const_data_ptr(), made.b.const_data_ptr(),
                    made.c.mutable_data_ptr(), made.m, made.n, made.k, made.batch, stream));
    return made.c;
}

at::Tensor in_hosts_memory(const at::Tensor &a, const at::Tensor &b)
{
    const Product made = product(a, b);
    check(tw_matmul_host(opened(0, nullptr), made.a.const_data_ptr(), made.b.const_data_ptr(),
                         made.c.mutable_data_ptr(), made.m, made.n, made.k, made.batch));
    return made.c;
}

} // namespace

#define TW_LIBRARY(name, library) TORCH_LIBRARY(name, library)
#define TW_LIBRARY_IMPL(name, key, library) TORCH_LIBRARY_IMPL(name, key, library)

TW_LIBRARY(TW_NAMESPACE, library) { library.def("matmul(Tensor a, Tensor b) -> Tensor"); }
TW_LIBRARY_IMPL(TW_NAMESPACE, CUDA, library) { library.impl("matmul", on_gpu); }
TW_LIBRARY_IMPL(TW_NAMESPACE, CPU, library) { library.impl("matmul", in_hosts_memory); }
