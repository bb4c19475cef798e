/* Calls an export as a program would, for tests: ./caller M N K BATCH. */
#include <stdio.h>
#include <stdlib.h>

#include "tilewise_gemm.h"

int main(int count, char **words)
{
    int64_t sizes[4] = {1, 1, 1, 1};
    tw_gemm *gemm = NULL;
    static _Alignas(256) char matrices[3][1 << 22];
    int32_t status;
    for (int at = 1; at < count && at < 5; at++) {
        sizes[at - 1] = strtoll(words[at], NULL, 10);
    }
    status = tw_open(0, &gemm);
    if (status != TW_OK) {
        printf("open %d %s\n", (int)status, tw_error());
        return 1;
    }
    printf("workspace %lld\n", (long long)tw_workspace(sizes[0], sizes[1], sizes[2], sizes[3]));
    status = tw_matmul(gemm, matrices[0], matrices[1], matrices[2], sizes[0], sizes[1], sizes[2], sizes[3], NULL);
    printf("matmul %d %s\n", (int)status, status == TW_OK ? "" : tw_error());
    status = tw_matmul(gemm, matrices[0], matrices[1] + 2, matrices[2], sizes[0], sizes[1], sizes[2], sizes[3], NULL);
    printf("misaligned %d %s\n", (int)status, tw_error());
    status = tw_matmul(NULL, matrices[0], matrices[1], matrices[2], 1, 1, 1, 1, NULL);
    printf("null %d %s\n", (int)status, tw_error());
    printf("finish %d\n", (int)tw_finish(gemm, NULL));
    status = tw_matmul_host(gemm, matrices[0], matrices[1], matrices[2], sizes[0], sizes[1], sizes[2], sizes[3]);
    printf("host %d\n", (int)status);
    tw_close(gemm);
    tw_close(NULL);
    return 0;
}
