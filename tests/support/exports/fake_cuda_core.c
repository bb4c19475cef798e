/* fake_cuda.c with what cuda.core asks of a driver beside what the C ABI does. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "fake_cuda.c"

CALL cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    char second[128];
    Dl_info self;
    dladdr((void *)(uintptr_t)cuInit, &self);
    void *const own = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    snprintf(second, sizeof second, "%s_v2", name);
    *found = dlsym(own, second);
    *found = *found ? *found : dlsym(own, name);
    if (status) {
        *status = !*found;
    }
    return (void)version, (void)flags, *found ? 0 : 500;
}
CALL cuDriverGetVersion(int *version) { return *version = 13000, 0; }
CALL cuDeviceGetCount(int *devices) { return *devices = 1, 0; }
/* Compute capability 9.0, and no pools of memory. */
CALL cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return *value = attribute == 75 ? 9 : attribute != 76 && attribute != 115, device;
}
CALL cuCtxSetCurrent(void *made) { return current = made, 0; }
CALL cuCtxGetDevice(int *device) { return *device = 0, 0; }
CALL cuStreamGetCtx_v2(void *stream, void **found, void **green)
{
    return *found = &context, *green = NULL, (void)stream, 0;
}
CALL cuGetErrorName(int status, const char **name) { return *name = status ? "CUDA_ERROR" : "CUDA_SUCCESS", 0; }
CALL cuLibraryLoadData(void **library, const void *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f)
{
    return (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, cuModuleLoadData(library, image);
}
CALL cuLibraryUnload(void *library) { return !library; }
CALL cuLibraryGetKernel(void **kernel, void *library, const char *entry)
{
    return cuModuleGetFunction(kernel, library, entry);
}
CALL cuKernelGetFunction(void **function, void *kernel) { return *function = kernel, 0; }

struct config {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
};
CALL cuLaunchKernelEx(const struct config *config, void *function, void **arguments, void **extra)
{
    const unsigned *const grid = config->grid, *const block = config->block;
    return config->count ? 1
                         : cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                          config->shared, config->stream, arguments, extra);
}
CALL cuCtxGetStreamPriorityRange(int *least, int *most) { return *least = 0, *most = 0, 0; }
CALL cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return *stream = &contexts, (void)flags, priority;
}
CALL cuStreamDestroy_v2(void *stream) { return !stream; }
CALL cuEventCreate(void **event, unsigned flags) { return *event = &count, (void)flags, 0; }
CALL cuEventDestroy_v2(void *event) { return !event; }
CALL cuEventRecord(void *event, void *stream) { return !event || !stream; }
CALL cuEventSynchronize(void *event) { return !event; }
/* Two microseconds. */
CALL cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
    return *milliseconds = 2e-3F, !start || !end;
}
CALL cuStreamBeginCapture_v2(void *stream, int mode) { return capturing = 1, !stream || mode != 2; }
/* A graph that launches nothing: what was captured is in the log already. */
CALL cuStreamEndCapture(void *stream, void **graph) { return capturing = 0, cuGraphCreate(graph, 0) || !stream; }
