/* Products one after another, of matrices and sizes that come again, by two handles of which one takes the other's
 * place: `./repeats M N K TURNS`. The matrices are addresses alone. */
#include <stdio.h>
#include <stdlib.h>

#include "tilewise_gemm.h"

#define STREAM ((void *)(uintptr_t)64)

static int multiplied(tw_gemm *gemm, uintptr_t c, int64_t m, int64_t n, int64_t k)
{
    return tw_matmul(gemm, (void *)(uintptr_t)(1 << 20), (void *)(uintptr_t)(2 << 20), (void *)c, m, n, k, 1, STREAM);
}

int main(int count, char **words)
{
    const int64_t m = atoll(words[1]), n = atoll(words[2]), k = atoll(words[3]);
    int failed = count != 5;
    for (int handle = 0; handle < 2; handle++) {
        tw_gemm *gemm = NULL;
        failed |= tw_open(0, &gemm);
        for (int turn = 0; turn < atoi(words[4]); turn++) {
            for (uintptr_t c = 3; c < 12; c++) {
                failed |= multiplied(gemm, c << 20, m, n, k);
            }
            failed |= multiplied(gemm, 3 << 20, m, n, k / 2);
            failed |= multiplied(gemm, 3 << 20, m, n, -1) != TW_OUTSIDE_CLASS;
        }
        tw_close(gemm);
    }
    printf("failed %d\n", failed);
    return 0;
}
