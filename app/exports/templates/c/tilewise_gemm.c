/* The C ABI of an export: compile this file. */
#include "tilewise_product.h"

static int32_t tw_declined(tw_gemm *gemm)
{
    const tw_driver *const driver = &gemm->driver.functions;
    uint32_t verdict = 0;
    int32_t failed;
    if (tw_the_recipe.verdict_at < 0 || !gemm->workspace) {
        return TW_OK;
    }
    failed = tw_check(driver,
                      driver->cuMemcpyDtoH(&verdict, gemm->workspace + (tw_address)tw_the_recipe.verdict_at,
                                           sizeof verdict),
                      "the verdict cannot be read");
    if (failed == TW_OK && verdict) {
        return tw_fail(TW_DECLINED, "the operands are not such that emulated arithmetic keeps its bound (%u)", verdict);
    }
    return failed;
}

int32_t TW_CALL tw_finish(tw_gemm *gemm, void *stream)
{
    int pushed = 0;
    int32_t failed;
    if (!gemm) {
        return tw_fail(TW_ARGUMENT, "a pointer is null");
    }
    if ((failed = tw_enter(gemm, &pushed)) == TW_OK) {
        const tw_driver *const driver = &gemm->driver.functions;
        failed = tw_check(driver, driver->cuStreamSynchronize(stream), "the product failed");
        failed = failed == TW_OK ? tw_declined(gemm) : failed;
        tw_leave(gemm, pushed);
    }
    return failed;
}

/* Copy A and B to the GPU, multiply, and copy C back; the three buffers are freed by the caller. */
static int32_t tw_by_way_of_gpu(tw_gemm *gemm, const void *a, const void *b, void *c, const int64_t *sizes,
                                tw_address *buffers)
{
    const tw_driver *const driver = &gemm->driver.functions;
    const size_t each = (size_t)sizes[0] * (size_t)tw_the_recipe.element_bytes;
    const size_t bytes[3] = {each * (size_t)(sizes[1] * sizes[3]), each * (size_t)(sizes[3] * sizes[2]),
                             each * (size_t)(sizes[1] * sizes[2])};
    uint64_t pointers[3] = {0};
    int32_t failed = TW_OK;
    for (int at = 0; failed == TW_OK && at < 3; at++) {
        failed = tw_check(driver, driver->cuMemAlloc(&buffers[at], bytes[at]), "there is no memory for a matrix");
        pointers[at] = buffers[at];
    }
    if (failed == TW_OK) {
        failed = tw_check(driver, driver->cuMemcpyHtoD(buffers[0], a, bytes[0]), "A cannot be copied");
    }
    if (failed == TW_OK) {
        failed = tw_check(driver, driver->cuMemcpyHtoD(buffers[1], b, bytes[1]), "B cannot be copied");
    }
    if (failed == TW_OK && (failed = tw_queue_all(gemm, pointers, sizes, NULL)) == TW_OK &&
        (failed = tw_check(driver, driver->cuStreamSynchronize(NULL), "the product failed")) == TW_OK &&
        (failed = tw_declined(gemm)) == TW_OK) {
        failed = tw_check(driver, driver->cuMemcpyDtoH(c, buffers[2], bytes[2]), "C cannot be copied");
    }
    return failed;
}

int32_t TW_CALL tw_matmul_host(tw_gemm *gemm, const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                               int64_t batch)
{
    const int64_t sizes[4] = {batch, m, n, k};
    tw_address buffers[3] = {0};
    int pushed = 0;
    int32_t failed;
    if (!gemm || !a || !b || !c) {
        return tw_fail(TW_ARGUMENT, "a pointer is null");
    }
    if ((failed = tw_in_class(&tw_the_recipe, &gemm->read, sizes)) != TW_OK ||
        (failed = tw_enter(gemm, &pushed)) != TW_OK) {
        return failed;
    }
    failed = tw_by_way_of_gpu(gemm, a, b, c, sizes, buffers);
    for (int at = 0; at < 3; at++) {
        if (buffers[at]) {
            gemm->driver.functions.cuMemFree(buffers[at]);
        }
    }
    tw_leave(gemm, pushed);
    return failed;
}

int64_t TW_CALL tw_workspace(int64_t m, int64_t n, int64_t k, int64_t batch)
{
    const int64_t sizes[4] = {batch, m, n, k};
    tw_read_recipe *const read = calloc(1, sizeof *read);
    int64_t bytes = -1;
    if (!read) {
        tw_fail(TW_NO_MEMORY, "there is no memory");
        return -1;
    }
    if (!tw_read_all(&tw_the_recipe, read) || tw_in_class(&tw_the_recipe, read, sizes) != TW_OK ||
        !tw_value(&read->workspace, sizes, &bytes)) {
        bytes = -1;
    }
    tw_free_recipe(read);
    free(read);
    return bytes;
}

void TW_CALL tw_close(tw_gemm *gemm)
{
    int pushed = 0;
    if (!gemm) {
        return;
    }
    if (gemm->context && tw_enter(gemm, &pushed) == TW_OK) {
        const tw_driver *const driver = &gemm->driver.functions;
        driver->cuCtxSynchronize();
        for (int at = 0; at < TW_MOST_GRAPHS; at++) {
            tw_free_graph(driver, &gemm->graphs[at]);
        }
        if (gemm->workspace) {
            driver->cuMemFree(gemm->workspace);
        }
        for (int at = 0; at < TW_MOST_LAUNCHES; at++) {
            if (gemm->read.launches[at].module) {
                driver->cuModuleUnload(gemm->read.launches[at].module);
            }
        }
        tw_leave(gemm, pushed);
    }
    if (gemm->context) {
        gemm->driver.functions.cuDevicePrimaryCtxRelease(gemm->device);
    }
    tw_free_recipe(&gemm->read);
    free(gemm);
}

const char *TW_CALL tw_error(void)
{
    return tw_message;
}
