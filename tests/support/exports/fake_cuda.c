/* A driver without a GPU, for tests: device memory is the host's, and each launch becomes a line of FAKE_CUDA_LOG.
 *
 * FAKE_CUDA_ARGUMENTS says what a function takes, as "matmul=8,8,128;split_k_reduce=8": bytes of each argument. A module
 * is what its first bytes say: a cubin (ELF) is refused with error 209 if FAKE_CUDA_ARCHITECTURE is "other". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#define CALL __declspec(dllexport) int __stdcall
#else
#define CALL int
#endif

typedef uintptr_t address_type; /* CUdeviceptr: as wide as the host's pointers */
static const char *entries[64];
static int count, context, contexts;

static FILE *opened(void)
{
    const char *const path = getenv("FAKE_CUDA_LOG");
    return path ? fopen(path, "a") : NULL;
}

CALL cuInit(unsigned flags) { return flags ? 1 : 0; }
CALL cuDeviceGet(int *device, int number) { return *device = number, number < 0 || number > 1 ? 101 : 0; }
CALL cuDevicePrimaryCtxRetain(void **made, int device) { return *made = &context, contexts++, device < 0; }
CALL cuDevicePrimaryCtxRelease_v2(int device)
{
    FILE *const log = opened();
    if (log) {
        fprintf(log, "release %d\n", --contexts), fclose(log);
    }
    return device < 0;
}
static void *current;
CALL cuCtxGetCurrent(void **found) { return *found = current, 0; }
CALL cuCtxPushCurrent_v2(void *pushed) { return current = pushed, 0; }
CALL cuCtxPopCurrent_v2(void **popped) { return *popped = current, current = NULL, 0; }
CALL cuCtxSynchronize(void) { return current ? 0 : 201; }
CALL cuStreamSynchronize(void *stream) { return (void)stream, current ? 0 : 201; }
CALL cuModuleLoadData(void **module, const void *image)
{
    const char *const other = getenv("FAKE_CUDA_ARCHITECTURE");
    FILE *const log = opened();
    const int elf = memcmp(image, "\177ELF", 4) == 0;
    if (log) {
        fprintf(log, "load %s\n", elf ? "cubin" : "ptx"), fclose(log);
    }
    *module = (void *)image;
    return elf && other ? 209 : 0;
}
CALL cuModuleUnload(void *module) { return !module; }
CALL cuModuleGetFunction(void **function, void *module, const char *entry)
{
    (void)module;
    entries[++count] = strdup(entry);
    return *function = (void *)(intptr_t)count, 0;
}
CALL cuFuncSetAttribute(void *function, int attribute, int value)
{
    FILE *const log = opened();
    if (log) {
        fprintf(log, "attribute %s %d %d\n", entries[(intptr_t)function], attribute, value), fclose(log);
    }
    return 0;
}
CALL cuMemAlloc_v2(address_type *address, size_t bytes)
{
    void *made = NULL;
#ifdef _WIN32
    made = _aligned_malloc(bytes, 256);
    return *address = (uintptr_t)made, made ? 0 : 2;
#else
    return posix_memalign(&made, 256, bytes) ? 2 : (*address = (uintptr_t)made, 0);
#endif
}
#ifdef _WIN32
CALL cuMemFree_v2(address_type address) { return _aligned_free((void *)(uintptr_t)address), 0; }
#else
CALL cuMemFree_v2(address_type address) { return free((void *)(uintptr_t)address), 0; }
#endif
CALL cuMemcpyHtoD_v2(address_type to, const void *from, size_t bytes)
{
    return memcpy((void *)(uintptr_t)to, from, bytes), 0;
}
CALL cuMemcpyDtoH_v2(void *to, address_type from, size_t bytes) { return memcpy(to, (void *)(uintptr_t)from, bytes), 0; }
CALL cuMemsetD8Async(address_type to, unsigned char byte, size_t bytes, void *stream)
{
    FILE *const log = opened();
    if (log) {
        fprintf(log, "zero %llu\n", (unsigned long long)bytes), fclose(log);
    }
    return (void)stream, memset((void *)(uintptr_t)to, byte, bytes), 0;
}
CALL cuGetErrorString(int status, const char **words) { return *words = status == 2 ? "out of memory" : "refused", 0; }

static const char *const sizes_of(const char *entry)
{
    const char *at = getenv("FAKE_CUDA_ARGUMENTS");
    const size_t length = strlen(entry);
    while (at && !(strncmp(at, entry, length) == 0 && at[length] == '=')) {
        at = strchr(at, ';');
        at = at ? at + 1 : NULL;
    }
    return at ? at + length + 1 : "";
}

/* A product of floats, where FAKE_CUDA_MULTIPLIES is set: what the kernels of such winners compute. */
static void multiply(void **arguments)
{
    const float *const a = *(const float **)arguments[0], *const b = *(const float **)arguments[1];
    float *const c = *(float **)arguments[2];
    const long long m = *(long long *)arguments[3], n = *(long long *)arguments[4], k = *(long long *)arguments[5];
    for (long long at = 0; at < m * n; at++) {
        c[at] = 0;
        for (long long q = 0; q < k; q++) {
            c[at] += a[at / n * k + q] * b[q * n + at % n];
        }
    }
}

CALL cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                    unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra)
{
    const char *const entry = entries[(intptr_t)function], *at = sizes_of(entry);
    FILE *const log = opened();
    if (strcmp(entry, "read_sweep") == 0) { /* what keeps a GPU busy: no launch of the product */
        return log ? fclose(log) : 0;
    }
    if (getenv("FAKE_CUDA_MULTIPLIES")) {
        multiply(arguments);
    }
    if (!log) {
        return 0;
    }
    fprintf(log, "launch %s %u %u %u %u", entry, x, block_x, block_y, shared);
    for (int number = 0; *at && *at != ';'; number++) {
        char *next;
        const long bytes = strtol(at, &next, 10);
        if (bytes == 8) {
            fprintf(log, " %lld", *(long long *)arguments[number]);
        } else {
            fprintf(log, " map%s", (uintptr_t)arguments[number] % 64 ? "-misaligned" : "");
        }
        at = *next == ',' ? next + 1 : next;
    }
    fprintf(log, "%s\n", y != 1 || z != 1 || block_z != 1 || extra ? " wrong" : "");
    return fclose(log), (void)stream, 0;
}

/* Graphs of kernels, whose arguments are copied as they are added. FAKE_CUDA_NO_GRAPHS says that the driver refuses
 * them, FAKE_CUDA_CAPTURING that streams other than the default are captured, and FAKE_CUDA_PRIORITY that
 * theirs is not the default. */
struct node {
    void *function;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra, *kernel, *context;
};
struct graph {
    int count;
    struct node nodes[8];
};
static int capturing;
static int captured(const void *stream)
{
    return capturing || ((uintptr_t)stream > 1 && getenv("FAKE_CUDA_CAPTURING"));
}

static struct node copied(const struct node *node)
{
    struct node own = *node;
    const char *at = sizes_of(entries[(intptr_t)node->function]);
    own.arguments = calloc(64, sizeof(void *));
    for (int number = 0; *at && *at != ';'; number++) {
        char *next;
        const size_t bytes = (size_t)strtol(at, &next, 10);
        cuMemAlloc_v2((address_type *)&own.arguments[number], bytes);
        memcpy(own.arguments[number], node->arguments[number], bytes);
        at = *next == ',' ? next + 1 : next;
    }
    return own;
}
CALL cuStreamIsCapturing(void *stream, int *found) { return *found = captured(stream), 0; }
CALL cuStreamGetPriority(void *stream, int *found) { return *found = getenv("FAKE_CUDA_PRIORITY") ? -1 : 0, (void)stream, 0; }
CALL cuThreadExchangeStreamCaptureMode(int *mode)
{
    static int own;
    const int given = *mode;
    return *mode = own, own = given, 0;
}
CALL cuGraphCreate(void **graph, unsigned flags)
{
    return *graph = calloc(1, sizeof(struct graph)), flags || !!getenv("FAKE_CUDA_NO_GRAPHS");
}
CALL cuGraphAddKernelNode_v2(void **node, void *graph, void *const *after, size_t count, const struct node *added)
{
    struct graph *const own = graph;
    if (count != (own->count > 0) || (count && *after != (void *)(intptr_t)own->count) || added->extra) {
        return 1;
    }
    own->nodes[own->count] = copied(added);
    return *node = (void *)(intptr_t)++own->count, 0;
}
CALL cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags)
{
    FILE *const log = opened();
    if (log) {
        fprintf(log, "graph\n"), fclose(log);
    }
    *made = malloc(sizeof(struct graph));
    return memcpy(*made, graph, sizeof(struct graph)), flags != 0;
}
CALL cuGraphExecKernelNodeSetParams_v2(void *graph, void *node, const struct node *now)
{
    struct graph *const own = graph;
    if (own->nodes[(intptr_t)node - 1].function != now->function) {
        return 1;
    }
    return own->nodes[(intptr_t)node - 1] = copied(now), 0;
}
CALL cuGraphLaunch(void *graph, void *stream)
{
    const struct graph *const own = graph;
    for (int at = 0; at < own->count; at++) {
        const struct node *const one = &own->nodes[at];
        cuLaunchKernel(one->function, one->grid[0], one->grid[1], one->grid[2], one->block[0], one->block[1],
                       one->block[2], one->shared, stream, one->arguments, one->extra);
    }
    return captured(stream) ? 900 : 0;
}
CALL cuGraphExecDestroy(void *graph)
{
    FILE *const log = opened();
    if (log) {
        fprintf(log, "destroy\n"), fclose(log);
    }
    return free(graph), 0;
}
CALL cuGraphDestroy(void *graph) { return free(graph), 0; }

CALL cuTensorMapEncodeTiled(void *map, int element, uint32_t rank, void *address, const uint64_t *sizes,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                            int swizzle, int promotion, int fill)
{
    FILE *const log = opened();
    if (log) {
        fprintf(log, "encode %d %u %llu %llu %u %u %d %d %d %d\n", element, rank, (unsigned long long)sizes[0],
                (unsigned long long)strides[0], box[0], steps[rank - 1], interleave, swizzle, promotion, fill);
        fclose(log);
    }
    return memset(map, 0, 128), (uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0;
}
