/* Microseconds of the host for a call: the C ABI's, or by C++'s header where this is compiled as C++.
 *
 *     ./overhead CALLS ROUNDS
 *
 * A round queues CALLS products, fewer than a stream's queue takes, and waits for them outside the clock. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tilewise_gemm.h"
#ifdef __cplusplus
#include "tilewise_gemm.hpp"
#endif
#include "tilewise_driver.h"
#include "tilewise_problem.h"

static double now(void)
{
    struct timespec found;
    clock_gettime(CLOCK_MONOTONIC, &found);
    return 1e6 * (double)found.tv_sec + 1e-3 * (double)found.tv_nsec;
}

static int by_value(const void *one, const void *other)
{
    const double left = *(const double *)one, right = *(const double *)other;
    return (left > right) - (left < right);
}

#ifdef __cplusplus
typedef tilewise::Gemm gemm_type;
static int call(gemm_type *gemm, void **places)
{
    static const tilewise::Sizes sizes{TW_M, TW_N, TW_K, TW_BATCH};
    gemm->multiply(places[0], places[1], places[2], sizes);
    return 0;
}
static int finish(gemm_type *gemm) { return gemm->finish(), 0; }
static gemm_type *opened(void) { return new tilewise::Gemm(); }
#else
typedef tw_gemm gemm_type;
static int call(gemm_type *gemm, void **places)
{
    return tw_matmul(gemm, places[0], places[1], places[2], TW_M, TW_N, TW_K, TW_BATCH, NULL);
}
static int finish(gemm_type *gemm) { return tw_finish(gemm, NULL); }
static gemm_type *opened(void)
{
    gemm_type *gemm = NULL;
    return tw_open(0, &gemm) == TW_OK ? gemm : NULL;
}
#endif

/* Three operands in the memory of the GPU, whose context stays the thread's, as it is a program's that has one. */
static int allocated(void **places)
{
    tw_driver_table table;
    const size_t each = (size_t)TW_BATCH * TW_ELEMENT_BYTES;
    const size_t bytes[3] = {each * TW_M * TW_K, each * TW_K * TW_N, each * TW_M * TW_N};
    void *context = NULL;
    int device = 0;
    if (tw_load_driver(&table, 0) || table.functions.cuDeviceGet(&device, 0) ||
        table.functions.cuDevicePrimaryCtxRetain(&context, device) || table.functions.cuCtxPushCurrent(context)) {
        return 1;
    }
    for (int at = 0; at < 3; at++) {
        tw_address made = 0;
        if (table.functions.cuMemAlloc(&made, bytes[at]) ||
            table.functions.cuMemsetD8Async(made, 0, bytes[at], NULL)) {
            return 1;
        }
        places[at] = (void *)made;
    }
    return table.functions.cuStreamSynchronize(NULL);
}

int main(int count, char **words)
{
    const int calls = count > 1 ? atoi(words[1]) : 500, rounds = count > 2 ? atoi(words[2]) : 7;
    double *const took = (double *)calloc((size_t)rounds, sizeof(double));
    void *places[3];
    gemm_type *const gemm = opened();
    if (!gemm || allocated(places)) {
        fprintf(stderr, "cannot open: %s\n", tw_error());
        return 2;
    }
    for (int round = -1; round < rounds; round++) {
        const double began = now();
        for (int at = 0; at < calls; at++) {
            if (call(gemm, places)) {
                fprintf(stderr, "%s\n", tw_error());
                return 2;
            }
        }
        took[round < 0 ? 0 : round] = (now() - began) / calls;
        if (finish(gemm)) {
            fprintf(stderr, "%s\n", tw_error());
            return 2;
        }
    }
    qsort(took, (size_t)rounds, sizeof *took, by_value);
    printf("{\"us_a_call\": %.4f, \"least_us\": %.4f}\n", took[rounds / 2], took[0]);
    return 0;
}
