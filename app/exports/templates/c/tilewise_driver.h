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
} tw_driver;

/* In the order of the members. */
static const char *const tw_driver_names[] = {
    "cuInit",           "cuDeviceGet",          "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",  "cuCtxPushCurrent_v2",  "cuCtxPopCurrent_v2",       "cuCtxSynchronize",
    "cuModuleLoadData", "cuModuleUnload",       "cuModuleGetFunction",      "cuFuncSetAttribute",
    "cuLaunchKernel",   "cuMemAlloc_v2",        "cuMemFree_v2",             "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",  "cuMemsetD8Async",      "cuStreamSynchronize",      "cuGetErrorString",
    "cuTensorMapEncodeTiled"};

enum { TW_DRIVER_FUNCTIONS = sizeof tw_driver_names / sizeof *tw_driver_names };

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

/* Fill the table; gives the name of what is missing, or NULL. Tensor maps are only there from CUDA 12 on. */
static const char *tw_load_driver(tw_driver_table *table, int maps)
{
    void *const library = tw_open_driver();
    if (!library) {
        return "libcuda.so.1 (nvcuda.dll)";
    }
    for (int at = 0; at < TW_DRIVER_FUNCTIONS; at++) {
        table->addresses[at] = tw_driver_function(library, tw_driver_names[at]);
        if (!table->addresses[at] && (maps || at + 1 < TW_DRIVER_FUNCTIONS)) {
            return tw_driver_names[at];
        }
    }
    return NULL;
}
#endif
