/* The functions that VBA declares. Its arrays are column-major: what lies there is the transpose of a row-major matrix,
 * so C's is the product of B's and A's, with m and n exchanged, and nothing is copied. */
#include "tilewise_gemm.c"

static tw_gemm *tw_shared;

/* Multiply: C is m x n, A m x k, B k x n, each by its first element. Gives 0, or a number of tilewise_gemm.h. */
__declspec(dllexport) int32_t __stdcall matmul_cuda(const void *a, const void *b, void *c, int32_t m, int32_t n,
                                                    int32_t k)
{
    int32_t status = TW_OK;
    if (!tw_shared) {
        status = tw_open(0, &tw_shared);
    }
    return status == TW_OK ? tw_matmul_host(tw_shared, b, a, c, n, m, k, 1) : status;
}

/* Copy what went wrong last into a buffer of `room` bytes, and give its length. */
__declspec(dllexport) int32_t __stdcall matmul_cuda_error(char *buffer, int32_t room)
{
    const char *const words = tw_error();
    const size_t length = strlen(words);
    const size_t taken = room < 1 ? 0 : length < (size_t)room - 1 ? length : (size_t)room - 1;
    if (buffer && room > 0) {
        memcpy(buffer, words, taken);
        buffer[taken] = 0;
    }
    return (int32_t)taken;
}

/* Give the GPU back. */
__declspec(dllexport) void __stdcall matmul_cuda_close(void)
{
    tw_close(tw_shared);
    tw_shared = NULL;
}
