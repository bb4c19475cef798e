/* The functions of NVIDIA's driver that an export calls, found at run time: no CUDA headers and no library to link. */
#ifndef TILEWISE_DRIVER_H
#define TILEWISE_DRIVER_H
#include <stddef.h>
#include <stdint.h>
#ifdef _WIN32
#include <windows.h>
#define TW_DRIVER_CALL __stdcall
#else
#include <dlfcn.h>
#define TW_DRIVER_CALL
#endif

typedef uintptr_t tw_address; /* CUdeviceptr: as wide as the host's pointers */
enum { TW_MAX_DYNAMIC_SHARED = 8, TW_NO_BINARY = 209 };

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    void *kernel, *context;
} tw_node;

typedef struct {
    int(TW_DRIVER_CALL *cuInit)(unsigned);
    int(TW_DRIVER_CALL *cuDeviceGet)(int *, int);
    int(TW_DRIVER_CALL *cuDevicePrimaryCtxRetain)(void **, int);
    int(TW_DRIVER_CALL *cuDevicePrimaryCtxRelease)(int);
    int(TW_DRIVER_CALL *cuCtxGetCurrent)(void **);
    int(TW_DRIVER_CALL *cuCtxPushCurrent)(void *);
    int(TW_DRIVER_CALL *cuCtxPopCurrent)(void **);
    int(TW_DRIVER_CALL *cuCtxSynchronize)(void);
    int(TW_DRIVER_CALL *cuModuleLoadData)(void **, const void *);
    int(TW_DRIVER_CALL *cuModuleUnload)(void *);
    int(TW_DRIVER_CALL *cuModuleGetFunction)(void **, void *, const char *);
    int(TW_DRIVER_CALL *cuFuncSetAttribute)(void *, int, int);
    int(TW_DRIVER_CALL *cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        void *, void **, void **);
    int(TW_DRIVER_CALL *cuMemAlloc)(tw_address *, size_t);
    int(TW_DRIVER_CALL *cuMemFree)(tw_address);
    int(TW_DRIVER_CALL *cuMemcpyHtoD)(tw_address, const void *, size_t);
    int(TW_DRIVER_CALL *cuMemcpyDtoH)(void *, tw_address, size_t);
    int(TW_DRIVER_CALL *cuMemsetD8Async)(tw_address, unsigned char, size_t, void *);
    int(TW_DRIVER_CALL *cuStreamSynchronize)(void *);
    int(TW_DRIVER_CALL *cuGetErrorString)(int, const char **);
    int(TW_DRIVER_CALL *cuTensorMapEncodeTiled)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                                                const uint32_t *, const uint32_t *, int, int, int, int);
    int(TW_DRIVER_CALL *cuStreamIsCapturing)(void *, int *);
    int(TW_DRIVER_CALL *cuStreamGetPriority)(void *, int *);
    int(TW_DRIVER_CALL *cuThreadExchangeStreamCaptureMode)(int *);
    int(TW_DRIVER_CALL *cuGraphCreate)(void **, unsigned);
    int(TW_DRIVER_CALL *cuGraphAddKernelNode)(void **, void *, void *const *, size_t, const tw_node *);
    int(TW_DRIVER_CALL *cuGraphInstantiate)(void **, void *, unsigned long long);
    int(TW_DRIVER_CALL *cuGraphExecKernelNodeSetParams)(void *, void *, const tw_node *);
    int(TW_DRIVER_CALL *cuGraphLaunch)(void *, void *);
    int(TW_DRIVER_CALL *cuGraphExecDestroy)(void *);
    int(TW_DRIVER_CALL *cuGraphDestroy)(void *);
} tw_driver;

/* In the order of the members. */
static const char *const tw_driver_names[] = {
    "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxSynchronize", "cuModuleLoadData", "cuModuleUnload",
    "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2", "cuMemsetD8Async", "cuStreamSynchronize", "cuGetErrorString", "cuTensorMapEncodeTiled",
    "cuStreamIsCapturing", "cuStreamGetPriority", "cuThreadExchangeStreamCaptureMode", "cuGraphCreate",
    "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch",
    "cuGraphExecDestroy", "cuGraphDestroy"};

enum { TW_DRIVER_FUNCTIONS = sizeof tw_driver_names / sizeof *tw_driver_names, TW_DRIVER_MAPS = 20 };

typedef union {
    tw_driver functions;
    void *addresses[TW_DRIVER_FUNCTIONS];
} tw_driver_table;

static void *tw_open_driver(void)
{
#ifdef _WIN32
    return (void *)LoadLibraryA("nvcuda.dll");
#else
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
#endif
}

static void *tw_driver_function(void *library, const char *name)
{
#ifdef _WIN32
    union {
        FARPROC function;
        void *address;
    } found = {GetProcAddress((HMODULE)library, name)};
    return found.address;
#else
    return dlsym(library, name);
#endif
}

/* Fill the table; gives the name of what is missing, or NULL. Tensor maps and what graphs take are there from CUDA 12
 * on: the one may be left out where there are no `maps`, and the other ones always. */
static const char *tw_load_driver(tw_driver_table *table, int maps)
{
    void *const library = tw_open_driver();
    if (!library) {
        return "libcuda.so.1 (nvcuda.dll)";
    }
    for (int at = 0; at < TW_DRIVER_FUNCTIONS; at++) {
        table->addresses[at] = tw_driver_function(library, tw_driver_names[at]);
        if (!table->addresses[at] && at < TW_DRIVER_MAPS + !!maps) {
            return tw_driver_names[at];
        }
    }
    return NULL;
}

static int tw_has_graphs(const tw_driver_table *table)
{
    int has = 1;
    for (int at = TW_DRIVER_MAPS + 1; at < TW_DRIVER_FUNCTIONS; at++) {
        has &= table->addresses[at] != NULL;
    }
    return has;
}
#endif
