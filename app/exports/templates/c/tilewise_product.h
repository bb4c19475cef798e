/* How a product is checked and queued: a part of tilewise_gemm.c. The recipe and its binaries are in tilewise_recipe.h,
 * which is written for a winner. */
#ifndef TILEWISE_PRODUCT_H
#define TILEWISE_PRODUCT_H
#include "tilewise_gemm.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "tilewise_driver.h"
#include "tilewise_graph.h"
#include "tilewise_launch.h"
#include "tilewise_recipe.h"

#define TW_MOST_NEEDS 64
#define TW_KEPT 4 /* products of a thread whose launches stay ready: a power of two */
#define TW_REPEATED 16 /* products of a place in a thread, after which it has a graph: to make one takes 10 us */
#define TW_MOST_GRAPHS 64 /* of a handle, in all threads */
#define TW_UNASKED 49152 /* bytes of shared memory that every launch may have */
#define TW_ALIGNMENT 16
#define TW_L2_128 2 /* CU_TENSOR_MAP_L2_PROMOTION_L2_128B */
#if defined(_MSC_VER)
#define TW_THREAD __declspec(thread)
#else
#define TW_THREAD __thread
#endif

static TW_THREAD char tw_message[512];

typedef struct {
    tw_expression dims[5], strides[4], offset;
} tw_read_map;

typedef struct {
    tw_expression grid, arguments[TW_MOST_ARGUMENTS];
    tw_read_map maps[TW_MOST_MAPS];
    void *module, *function;
} tw_read_launch;

typedef struct {
    tw_expression needs[TW_MOST_NEEDS], workspace;
    tw_read_launch launches[TW_MOST_LAUNCHES];
} tw_read_recipe;

struct tw_gemm {
    tw_driver_table driver;
    tw_read_recipe read;
    unsigned serial; /* of all that this thread's launches may have been made ready for, one alone has it */
    int device;
    void *context;
    atomic_flag busy; /* whose workspace is grown, and whose launches are queued, one product at a time */
    tw_address workspace;
    int64_t workspace_bytes;
    int has_graphs; /* else every launch is one of a kernel */
    atomic_uint graph_count;
    tw_graph graphs[TW_MOST_GRAPHS]; /* each launched by one thread alone */
};

/* What cuLaunchKernel takes for a launch; parameters point to the values, the maps and the product's pointers. */
typedef struct {
    _Alignas(64) unsigned char maps[TW_MOST_MAPS][128];
    int64_t grid, values[TW_MOST_ARGUMENTS];
    void *parameters[TW_MOST_ARGUMENTS];
} tw_ready_launch;

/* The launches of a product of given sizes and pointers: A, B, C and the workspace. */
typedef struct {
    tw_ready_launch launches[TW_MOST_LAUNCHES];
    unsigned serial;
    int64_t sizes[4], workspace_bytes;
    uint64_t pointers[4]; /* of 64 bits, as the kernels take them */
    /* The graph that this place has of a handle, once it is made, and whether it has these launches. */
    unsigned graph_of, products;
    int is_in_graph;
    tw_graph *graph;
} tw_ready;

static TW_THREAD tw_ready tw_kept[TW_KEPT];
static atomic_uint tw_opened;

static int32_t tw_fail(int32_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(tw_message, sizeof tw_message, format, arguments);
    va_end(arguments);
    return status;
}

static int32_t tw_check(const tw_driver *driver, int status, const char *doing)
{
    const char *words = NULL;
    if (status == 0) {
        return TW_OK;
    }
    if (driver->cuGetErrorString(status, &words) != 0 || !words) {
        words = "unknown error";
    }
    return tw_fail(TW_CUDA, "%s: CUDA error %d: %s", doing, status, words);
}

static void tw_free_recipe(tw_read_recipe *read)
{
    for (int at = 0; at < TW_MOST_NEEDS; at++) {
        free(read->needs[at].steps);
    }
    free(read->workspace.steps);
    for (int at = 0; at < TW_MOST_LAUNCHES; at++) {
        tw_read_launch *const launch = &read->launches[at];
        free(launch->grid.steps);
        for (int each = 0; each < TW_MOST_ARGUMENTS; each++) {
            free(launch->arguments[each].steps);
        }
        for (int each = 0; each < TW_MOST_MAPS; each++) {
            free(launch->maps[each].offset.steps);
            for (int dim = 0; dim < 5; dim++) {
                free(launch->maps[each].dims[dim].steps);
            }
            for (int dim = 0; dim < 4; dim++) {
                free(launch->maps[each].strides[dim].steps);
            }
        }
    }
}

static int tw_read_a_map(const tw_map_recipe *recipe, tw_read_map *read)
{
    int right = tw_read(recipe->offset, &read->offset);
    for (int dim = 0; right && dim < recipe->rank; dim++) {
        right = tw_read(recipe->dims[dim], &read->dims[dim]);
        right = right && (dim + 1 == recipe->rank || tw_read(recipe->strides[dim], &read->strides[dim]));
    }
    return right;
}

static int tw_read_a_launch(const tw_launch_recipe *recipe, tw_read_launch *read)
{
    int maps = 0, right = recipe->argument_count <= TW_MOST_ARGUMENTS && tw_read(recipe->grid, &read->grid);
    for (int at = 0; right && at < recipe->argument_count; at++) {
        const tw_argument_recipe *const argument = &recipe->arguments[at];
        if (argument->map) {
            right = maps < TW_MOST_MAPS && tw_read_a_map(argument->map, &read->maps[maps]);
            maps++;
        } else if (argument->operand < 0) {
            right = tw_read(argument->value, &read->arguments[at]);
        }
    }
    return right;
}

/* Read the recipe's expressions; what was read before one that cannot be is freed with the rest. */
static int tw_read_all(const tw_recipe *recipe, tw_read_recipe *read)
{
    int right = recipe->need_count <= TW_MOST_NEEDS && recipe->launch_count <= TW_MOST_LAUNCHES;
    for (int at = 0; right && at < recipe->need_count; at++) {
        right = tw_read(recipe->needs[at].not_negative, &read->needs[at]);
    }
    right = right && tw_read(recipe->workspace_bytes, &read->workspace);
    for (int at = 0; right && at < recipe->launch_count; at++) {
        right = tw_read_a_launch(&recipe->launches[at], &read->launches[at]);
    }
    return right;
}

static int tw_has_maps(const tw_recipe *recipe)
{
    int found = 0;
    for (int at = 0; at < recipe->launch_count; at++) {
        for (int each = 0; each < recipe->launches[at].argument_count; each++) {
            found |= recipe->launches[at].arguments[each].map != NULL;
        }
    }
    return found;
}

/* Check that sizes are in the class; `sizes` are batch, m, n and k. */
static int32_t tw_in_class(const tw_recipe *recipe, const tw_read_recipe *read, const int64_t *sizes)
{
    for (int at = 0; at < 4; at++) {
        if (sizes[at] < 1 || sizes[at] > TW_LARGEST) {
            return tw_fail(TW_OUTSIDE_CLASS, "%s must be from 1 to %d, and is %lld", tw_names[at], TW_LARGEST,
                           (long long)sizes[at]);
        }
    }
    for (int at = 0; at < recipe->need_count; at++) {
        int64_t value = -1;
        if (!tw_value(&read->needs[at], sizes, &value) || value < 0) {
            return tw_fail(TW_OUTSIDE_CLASS, "%s; the product is %lld x %lld x %lld x %lld", recipe->needs[at].sentence,
                           (long long)sizes[1], (long long)sizes[2], (long long)sizes[3], (long long)sizes[0]);
        }
    }
    return TW_OK;
}

static int32_t tw_load(tw_gemm *gemm, const tw_launch_recipe *recipe, tw_read_launch *read)
{
    const tw_driver *const driver = &gemm->driver.functions;
    int status = driver->cuModuleLoadData(&read->module, recipe->cubin);
    int32_t failed;
    if (status == TW_NO_BINARY && recipe->ptx) {
        status = driver->cuModuleLoadData(&read->module, recipe->ptx);
    }
    if ((failed = tw_check(driver, status, "the kernel cannot be loaded")) != TW_OK) {
        read->module = NULL;
        return failed;
    }
    failed = tw_check(driver, driver->cuModuleGetFunction(&read->function, read->module, recipe->entry), recipe->entry);
    if (failed == TW_OK && recipe->shared_bytes > TW_UNASKED) {
        status = driver->cuFuncSetAttribute(read->function, TW_MAX_DYNAMIC_SHARED, (int)recipe->shared_bytes);
        failed = tw_check(driver, status, "the GPU has too little shared memory");
    }
    return failed;
}

static int32_t tw_enter(const tw_gemm *gemm, int *pushed)
{
    const tw_driver *const driver = &gemm->driver.functions;
    void *current = NULL;
    *pushed = driver->cuCtxGetCurrent(&current) != 0 || current != gemm->context;
    return *pushed ? tw_check(driver, driver->cuCtxPushCurrent(gemm->context), "the context cannot be entered") : TW_OK;
}

static void tw_leave(const tw_gemm *gemm, int pushed)
{
    void *left;
    if (pushed) {
        gemm->driver.functions.cuCtxPopCurrent(&left);
    }
}

static int32_t tw_open_in(tw_gemm *gemm, int32_t device)
{
    const tw_driver *const driver = &gemm->driver.functions;
    const char *const missing = tw_load_driver(&gemm->driver, tw_has_maps(&tw_the_recipe));
    int pushed = 0;
    int32_t failed;
    if (missing) {
        return tw_fail(TW_NO_DRIVER, "there is no NVIDIA driver that has %s", missing);
    }
    if (driver->cuInit(0) != 0 || driver->cuDeviceGet(&gemm->device, device) != 0) {
        return tw_fail(TW_NO_DRIVER, "the NVIDIA driver shows no GPU %d", (int)device);
    }
    if (!tw_read_all(&tw_the_recipe, &gemm->read)) {
        return tw_fail(TW_NO_MEMORY, "the recipe cannot be read: there is no memory");
    }
    failed = tw_check(driver, driver->cuDevicePrimaryCtxRetain(&gemm->context, gemm->device), "the GPU cannot be used");
    if (failed != TW_OK) {
        gemm->context = NULL;
        return failed;
    }
    gemm->has_graphs = tw_has_graphs(&gemm->driver);
    failed = tw_enter(gemm, &pushed);
    for (int at = 0; failed == TW_OK && at < tw_the_recipe.launch_count; at++) {
        failed = tw_load(gemm, &tw_the_recipe.launches[at], &gemm->read.launches[at]);
    }
    tw_leave(gemm, pushed);
    return failed;
}

int32_t TW_CALL tw_open(int32_t device, tw_gemm **gemm)
{
    int32_t failed;
    if (!gemm) {
        return tw_fail(TW_ARGUMENT, "there is no place for the handle");
    }
    *gemm = calloc(1, sizeof **gemm);
    if (!*gemm) {
        return tw_fail(TW_NO_MEMORY, "there is no memory");
    }
    atomic_flag_clear(&(*gemm)->busy);
    atomic_init(&(*gemm)->graph_count, 0);
    (*gemm)->serial = atomic_fetch_add(&tw_opened, 1) + 1;
    failed = tw_open_in(*gemm, device);
    if (failed != TW_OK) {
        tw_close(*gemm);
        *gemm = NULL;
    }
    return failed;
}

/* Have a workspace of so many bytes; a larger one than before is fresh, and its counters are zero. */
static int32_t tw_grow(tw_gemm *gemm, int64_t bytes, void *stream)
{
    const tw_driver *const driver = &gemm->driver.functions;
    int status;
    if (bytes <= gemm->workspace_bytes) {
        return TW_OK;
    }
    if (gemm->workspace) {
        driver->cuCtxSynchronize();
        driver->cuMemFree(gemm->workspace);
        gemm->workspace = 0;
        gemm->workspace_bytes = 0;
    }
    status = driver->cuMemAlloc(&gemm->workspace, (size_t)bytes);
    if (status != 0) {
        gemm->workspace = 0;
        return tw_check(driver, status, "there is no memory for the workspace");
    }
    gemm->workspace_bytes = bytes;
    status = driver->cuMemsetD8Async(gemm->workspace, 0, (size_t)tw_the_recipe.zeroed_bytes, stream);
    return tw_check(driver, status, "the workspace cannot be cleared");
}

static int32_t tw_encode(const tw_gemm *gemm, const tw_map_recipe *recipe, const tw_read_map *read,
                         const int64_t *sizes, const uint64_t *pointers, void *map)
{
    static const uint32_t ones[5] = {1, 1, 1, 1, 1};
    int64_t offset = 0, dims[5] = {0}, strides[5] = {0};
    uint64_t lengths[5], steps[5];
    int right = tw_value(&read->offset, sizes, &offset);
    for (int dim = 0; right && dim < recipe->rank; dim++) {
        right = tw_value(&read->dims[dim], sizes, &dims[dim]);
        right = right && (dim + 1 == recipe->rank || tw_value(&read->strides[dim], sizes, &strides[dim]));
        lengths[dim] = (uint64_t)dims[dim];
        steps[dim] = (uint64_t)strides[dim];
    }
    if (!right) {
        return tw_fail(TW_OUTSIDE_CLASS, "a size of the launch leaves 64 bits");
    }
    return tw_check(&gemm->driver.functions,
                    gemm->driver.functions.cuTensorMapEncodeTiled(
                        map, recipe->element, (uint32_t)recipe->rank,
                        (void *)(uintptr_t)(pointers[recipe->operand] + (uint64_t)offset), lengths, steps, recipe->box,
                        ones, 0, recipe->swizzle, TW_L2_128, 0),
                    "the tensor map cannot be encoded");
}

static int32_t tw_make_launch(const tw_gemm *gemm, int number, tw_ready *ready)
{
    const tw_launch_recipe *const recipe = &tw_the_recipe.launches[number];
    const tw_read_launch *const read = &gemm->read.launches[number];
    tw_ready_launch *const made = &ready->launches[number];
    int maps = 0;
    for (int at = 0; at < recipe->argument_count; at++) {
        const tw_argument_recipe *const argument = &recipe->arguments[at];
        made->parameters[at] = &made->values[at];
        if (argument->map) {
            const int32_t failed =
                tw_encode(gemm, argument->map, &read->maps[maps], ready->sizes, ready->pointers, made->maps[maps]);
            if (failed != TW_OK) {
                return failed;
            }
            made->parameters[at] = made->maps[maps++];
        } else if (argument->operand >= 0) {
            made->parameters[at] = &ready->pointers[argument->operand];
        } else if (!tw_value(&read->arguments[at], ready->sizes, &made->values[at])) {
            return tw_fail(TW_OUTSIDE_CLASS, "a size of the launch leaves 64 bits");
        }
    }
    if (!tw_value(&read->grid, ready->sizes, &made->grid) || made->grid < 1 || made->grid > TW_LARGEST) {
        return tw_fail(TW_OUTSIDE_CLASS, "the grid has %lld blocks", (long long)made->grid);
    }
    return TW_OK;
}

/* Make the launches of a product ready; until they all are, it is nobody's. */
static int32_t tw_make_ready(tw_gemm *gemm, tw_ready *ready)
{
    int32_t failed = TW_OK;
    ready->serial = 0;
    ready->is_in_graph = 0;
    ready->pointers[3] = gemm->workspace;
    for (int at = 0; failed == TW_OK && at < tw_the_recipe.launch_count; at++) {
        failed = tw_make_launch(gemm, at, ready);
    }
    ready->serial = failed == TW_OK ? gemm->serial : 0;
    return failed;
}

/* The thread's place for a product, whose launches are ready there if it was the last one with this place. */
static tw_ready *tw_place_of(const tw_gemm *gemm, const uint64_t *pointers, const int64_t *sizes, int32_t *failed)
{
    const uint64_t mixed = (pointers[0] + 3 * pointers[1] + 5 * pointers[2] + gemm->serial) * 0x9E3779B97F4A7C15U;
    tw_ready *const ready = &tw_kept[mixed >> 32 & (TW_KEPT - 1)];
    *failed = TW_OK;
    if (ready->serial == gemm->serial && memcmp(ready->pointers, pointers, 3 * sizeof *pointers) == 0 &&
        memcmp(ready->sizes, sizes, sizeof ready->sizes) == 0) {
        return ready;
    }
    ready->serial = 0;
    memcpy(ready->pointers, pointers, 3 * sizeof *pointers);
    memcpy(ready->sizes, sizes, sizeof ready->sizes);
    *failed = tw_in_class(&tw_the_recipe, &gemm->read, sizes);
    if (*failed == TW_OK && !tw_value(&gemm->read.workspace, sizes, &ready->workspace_bytes)) {
        *failed = tw_fail(TW_OUTSIDE_CLASS, "the workspace leaves 64 bits");
    }
    return ready;
}

/* Make the place's graph of its launches; a handle has so many graphs, and of what is refused none is tried again. */
static tw_graph *tw_first_graph(tw_gemm *gemm, const tw_node *nodes)
{
    const unsigned number = atomic_fetch_add(&gemm->graph_count, 1);
    tw_graph *const graph = number < TW_MOST_GRAPHS ? &gemm->graphs[number] : NULL;
    if (!graph) {
        atomic_fetch_sub(&gemm->graph_count, 1);
    } else if (!tw_make_graph(&gemm->driver.functions, nodes, tw_the_recipe.launch_count, graph)) {
        return NULL;
    }
    return graph;
}

/* The graph of the place, which has its launches now; NULL before it has had products enough, or where none can be. */
static tw_graph *tw_graph_of(tw_gemm *gemm, tw_ready *ready, const tw_node *nodes)
{
    if (ready->graph_of != gemm->serial) {
        ready->graph_of = gemm->serial;
        ready->products = 0;
        ready->graph = NULL;
    }
    if (!ready->graph) {
        ready->products += ready->products <= TW_REPEATED;
        ready->graph = ready->products == TW_REPEATED ? tw_first_graph(gemm, nodes) : NULL;
        ready->is_in_graph = 1;
    } else if (!ready->is_in_graph) {
        ready->is_in_graph = tw_set_graph(&gemm->driver.functions, nodes, tw_the_recipe.launch_count, ready->graph);
    }
    return ready->is_in_graph ? ready->graph : NULL;
}

static int32_t tw_launch_nodes(tw_gemm *gemm, tw_ready *ready, void *stream)
{
    const tw_driver *const driver = &gemm->driver.functions;
    tw_node nodes[TW_MOST_LAUNCHES];
    int32_t failed = TW_OK;
    for (int at = 0; at < tw_the_recipe.launch_count; at++) {
        const tw_launch_recipe *const recipe = &tw_the_recipe.launches[at];
        const tw_node node = {gemm->read.launches[at].function,
                              {(unsigned)ready->launches[at].grid, 1, 1},
                              {recipe->block[0], recipe->block[1], 1},
                              recipe->shared_bytes,
                              ready->launches[at].parameters,
                              NULL,
                              NULL,
                              NULL};
        nodes[at] = node;
    }
    if (gemm->has_graphs && tw_takes_graph(driver, stream) && tw_graph_of(gemm, ready, nodes)) {
        return tw_check(driver, driver->cuGraphLaunch(ready->graph->ready, stream), "the product's graph");
    }
    for (int at = 0; failed == TW_OK && at < tw_the_recipe.launch_count; at++) {
        const tw_node *const one = &nodes[at];
        failed = tw_check(driver,
                          driver->cuLaunchKernel(one->function, one->grid[0], 1, 1, one->block[0], one->block[1], 1,
                                                 one->shared_bytes, stream, one->parameters, NULL),
                          tw_the_recipe.launches[at].entry);
    }
    return failed;
}

static int32_t tw_launch_all(tw_gemm *gemm, tw_ready *ready, void *stream)
{
    int32_t failed = tw_grow(gemm, ready->workspace_bytes, stream);
    if (failed == TW_OK && (ready->serial != gemm->serial || ready->pointers[3] != gemm->workspace)) {
        failed = tw_make_ready(gemm, ready);
    }
    return failed == TW_OK ? tw_launch_nodes(gemm, ready, stream) : failed;
}

/* Queue a product's launches in the current context; `pointers` are of A, B and C. */
static int32_t tw_queue_all(tw_gemm *gemm, const uint64_t *pointers, const int64_t *sizes, void *stream)
{
    int32_t failed;
    tw_ready *const ready = tw_place_of(gemm, pointers, sizes, &failed);
    if (failed != TW_OK) {
        return failed;
    }
    while (ready->workspace_bytes > 0 && atomic_flag_test_and_set_explicit(&gemm->busy, memory_order_acquire)) {
    }
    failed = tw_launch_all(gemm, ready, stream);
    if (ready->workspace_bytes > 0) {
        atomic_flag_clear_explicit(&gemm->busy, memory_order_release);
    }
    return failed;
}

int32_t TW_CALL tw_matmul(tw_gemm *gemm, const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                          int64_t batch, void *stream)
{
    const uint64_t pointers[3] = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c};
    const int64_t sizes[4] = {batch, m, n, k};
    int pushed = 0;
    int32_t failed;
    if (!gemm || !a || !b || !c) {
        return tw_fail(TW_ARGUMENT, "a pointer is null");
    }
    if ((pointers[0] | pointers[1] | pointers[2]) % TW_ALIGNMENT) {
        return tw_fail(TW_ARGUMENT, "a matrix does not begin at a multiple of %d bytes", TW_ALIGNMENT);
    }
    if ((failed = tw_enter(gemm, &pushed)) == TW_OK) {
        failed = tw_queue_all(gemm, pointers, sizes, stream);
        tw_leave(gemm, pushed);
    }
    return failed;
}
#endif
