/* C = op(A) x op(B) by the kernel of this export. Matrices are row-major and contiguous, batches follow each other.
 *
 * Every function gives 0, or one of the numbers below; tw_error() then says why, in the calling thread. A product that
 * is outside the class of the export is refused: nothing here computes it another way.
 *
 * An opened handle may be used by several threads. Where tw_workspace() of a product is not 0, a handle's products have
 * to be on one stream: they share that workspace. */
#ifndef TILEWISE_GEMM_H
#define TILEWISE_GEMM_H
#include <stdint.h>
#if defined(TW_STDCALL) && defined(_WIN32)
#define TW_CALL __stdcall
#else
#define TW_CALL
#endif
#if defined(TW_DLL) && defined(_WIN32)
#define TW_API __declspec(dllexport)
#else
#define TW_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

enum {
    TW_OK = 0,
    TW_ARGUMENT = 1,      /* a null or misaligned pointer */
    TW_OUTSIDE_CLASS = 2, /* sizes that this export is not for */
    TW_NO_DRIVER = 3,     /* no NVIDIA driver, or no such GPU */
    TW_CUDA = 4,          /* the driver refused */
    TW_NO_MEMORY = 5,
    TW_DECLINED = 6 /* operands that emulated arithmetic cannot multiply within its bound: C is undefined */
};

typedef struct tw_gemm tw_gemm;

/* Open a GPU by its number, load the kernel, and give a handle. */
TW_API int32_t TW_CALL tw_open(int32_t device, tw_gemm **gemm);

/* Queue a product of matrices in the GPU's memory on a CUstream (cudaStream_t); NULL is the default stream. */
TW_API int32_t TW_CALL tw_matmul(tw_gemm *gemm, const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                                 int64_t batch, void *stream);

/* Multiply matrices in the host's memory, and wait. */
TW_API int32_t TW_CALL tw_matmul_host(tw_gemm *gemm, const void *a, const void *b, void *c, int64_t m, int64_t n,
                                      int64_t k, int64_t batch);

/* Wait for the stream, and give TW_DECLINED if its last product was declined: only emulated arithmetic ever does. */
TW_API int32_t TW_CALL tw_finish(tw_gemm *gemm, void *stream);

/* Bytes of the GPU's memory that a product needs beside its operands; below 0 if it is outside the class. */
TW_API int64_t TW_CALL tw_workspace(int64_t m, int64_t n, int64_t k, int64_t batch);

/* Free what a handle holds; NULL is ignored. */
TW_API void TW_CALL tw_close(tw_gemm *gemm);

/* What went wrong in this thread last. */
TW_API const char *TW_CALL tw_error(void);

#ifdef __cplusplus
}
#endif
#endif
