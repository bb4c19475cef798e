/* Multiplies, compares with float64, and times the kernel as the service does.
 *
 *     ./check [M N K [BATCH]]
 *
 * The exit status is 0 if every element that is looked at is within the bound, and C the same, bit by bit, once the
 * product has come so often that a graph launches it. Times are of launches with cold caches:
 * operands rotate through sets that are together three times the last-level cache, and the GPU is kept busy while
 * launches are queued. Where the service used a graph for a short product, so does this. Operands that are timed are
 * normal numbers, as the service's: a GPU takes more power, and at times lower clocks, for numbers of many digits. */
#include <math.h>
#include <stdio.h>

#include "tilewise_gemm.h"
#include "tilewise_gemm.c"
#include "tilewise_sweep.h"

#define CHECKED 4096 /* elements of C that are compared */
#define BUSY_BYTES ((size_t)1 << 28) /* more than twice any GPU's cache */
#define SAMPLES 50
#define GRAPHS 12
#define BUSY_TIMES 6 /* reads of them: long enough for a host that is slow to queue the first launch */
#define DRAWN ((size_t)1 << 20) /* numbers that come again and again */
#define SUMMED 12 /* uniform numbers whose sum is nearly normal, with a deviation of 1 */
#define LEAST 0x1p-13 /* of a magnitude: a half that is normal */

typedef struct {
    int(TW_DRIVER_CALL *cuEventCreate)(void **, unsigned);
    int(TW_DRIVER_CALL *cuEventRecord)(void *, void *);
    int(TW_DRIVER_CALL *cuEventElapsedTime)(float *, void *, void *);
    int(TW_DRIVER_CALL *cuEventDestroy)(void *);
    int(TW_DRIVER_CALL *cuStreamCreate)(void **, unsigned);
    int(TW_DRIVER_CALL *cuStreamBeginCapture)(void *, int);
    int(TW_DRIVER_CALL *cuStreamEndCapture)(void *, void **);
    int(TW_DRIVER_CALL *cuGraphInstantiate)(void **, void *, unsigned long long);
    int(TW_DRIVER_CALL *cuGraphLaunch)(void *, void *);
} timing_functions;

#define TIMING_FUNCTIONS 9
typedef union {
    timing_functions functions;
    void *addresses[TIMING_FUNCTIONS];
} timing_table;

static const char *const timing_names[] = {"cuEventCreate",        "cuEventRecord",
                                           "cuEventElapsedTime",   "cuEventDestroy_v2",    "cuStreamCreate",
                                           "cuStreamBeginCapture_v2", "cuStreamEndCapture",
                                           "cuGraphInstantiateWithFlags", "cuGraphLaunch"};

static uint64_t drawn(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A number that every element type holds exactly: 1/64 to 2, of either sign. */
static double element(uint64_t *state)
{
    const uint64_t bits = drawn(state) >> 20;
    const double magnitude = (double)(bits % 128 + 1) / 64;
    return bits & 4096 ? magnitude : -magnitude;
}

static void put(void *matrix, size_t at, double value)
{
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (tw_the_recipe.dtype == 0) {
        ((float *)matrix)[at] = single;
    } else if (tw_the_recipe.dtype == 1) {
        ((double *)matrix)[at] = value;
    } else if (tw_the_recipe.dtype == 2) { /* normal as a half, and no bit is lost */
        ((uint16_t *)matrix)[at] = (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 13) - ((127 - 15) << 10)) % 0x8000);
    } else {
        ((uint16_t *)matrix)[at] = (uint16_t)(bits >> 16);
    }
}

static double half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return exponent == 31 ? NAN : bits & 0x8000 ? -magnitude : magnitude;
}

static double get(const void *matrix, size_t at)
{
    uint32_t bits;
    float single;
    if (tw_the_recipe.dtype == 0) {
        return ((const float *)matrix)[at];
    }
    if (tw_the_recipe.dtype == 1) {
        return ((const double *)matrix)[at];
    }
    if (tw_the_recipe.dtype == 2) {
        return half(((const uint16_t *)matrix)[at]);
    }
    bits = (uint32_t)((const uint16_t *)matrix)[at] << 16;
    memcpy(&single, &bits, sizeof single);
    return single;
}

/* The largest |error| / (|A||B|) of elements here and there, the corners among them. */
static double largest_error(const void *a, const void *b, const void *c, const int64_t *sizes)
{
    const int64_t m = sizes[1], n = sizes[2], k = sizes[3], all = sizes[0] * m * n;
    uint64_t state = 7;
    double largest = 0;
    for (int64_t look = 0; look < (all < CHECKED ? all : CHECKED); look++) {
        const int64_t at = all <= CHECKED ? look : look == 0 ? 0 : look == 1 ? all - 1 : (int64_t)(drawn(&state) % all);
        const int64_t batch = at / (m * n), row = at / n % m, column = at % n;
        double sum = 0, magnitude = 0, error;
        for (int64_t q = 0; q < k; q++) {
            const int64_t of_a = batch * m * k + (tw_the_recipe.trans_a ? q * m + row : row * k + q);
            const int64_t of_b = batch * k * n + (tw_the_recipe.trans_b ? column * k + q : q * n + column);
            const double product = get(a, (size_t)of_a) * get(b, (size_t)of_b);
            sum += product;
            magnitude += fabs(product);
        }
        error = fabs(get(c, (size_t)at) - sum) / magnitude;
        largest = error <= largest ? largest : error; /* NaN is kept */
    }
    return largest;
}

static int by_value(const void *one, const void *other)
{
    const float left = *(const float *)one, right = *(const float *)other;
    return (left > right) - (left < right);
}

typedef struct {
    tw_gemm *gemm;
    timing_table timing;
    tw_address *pointers; /* of each set: A, B, C */
    int sets;
    tw_address busy;
    void *stream, *sweep;
    const int64_t *sizes;
} timer;

static int32_t queued(timer *clock, int number)
{
    const tw_address *const set = &clock->pointers[3 * (number % clock->sets)];
    const int64_t *const s = clock->sizes;
    return tw_matmul(clock->gemm, (void *)set[0], (void *)set[1], (void *)set[2], s[1],
                     s[2], s[3], s[0], clock->stream);
}

/* Queue reads that keep the GPU busy, and leave nothing in its cache that would have to be written. */
static int keep_busy(timer *clock)
{
    uint64_t words = clock->busy, count = BUSY_BYTES / 16;
    void *parameters[] = {&words, &count};
    int right = 1;
    for (int at = 0; right && at < BUSY_TIMES; at++) {
        right = clock->gemm->driver.functions.cuLaunchKernel(clock->sweep, 528, 1, 1, 512, 1, 1, 0, clock->stream,
                                                             parameters, NULL) == 0;
    }
    return right;
}

/* Seconds of one launch, or of one launch of a graph of `count` of them, by a pair of events; 0 if something fails. */
static int took(timer *clock, void *graph, int number, int count, float *sample)
{
    const timing_functions *const timing = &clock->timing.functions;
    void *start = NULL, *end = NULL;
    int right = timing->cuEventCreate(&start, 0) == 0 && timing->cuEventCreate(&end, 0) == 0 && keep_busy(clock) &&
                timing->cuEventRecord(start, clock->stream) == 0;
    right = right && (graph ? timing->cuGraphLaunch(graph, clock->stream) == 0 : queued(clock, number) == TW_OK);
    right = right && timing->cuEventRecord(end, clock->stream) == 0 &&
            clock->gemm->driver.functions.cuStreamSynchronize(clock->stream) == 0 &&
            timing->cuEventElapsedTime(sample, start, end) == 0;
    *sample /= 1e3F * (float)count;
    return right && timing->cuEventDestroy(start) == 0 && timing->cuEventDestroy(end) == 0;
}

/* Samples of a graph of about 2 ms of launches, of which one takes `once`; 0 if something fails. */
static int took_graphs(timer *clock, double once, float *samples)
{
    const timing_functions *const timing = &clock->timing.functions;
    const int count = (int)(2e-3 / once) + 1;
    void *graph = NULL, *captured = NULL;
    int right = timing->cuStreamBeginCapture(clock->stream, 2) == 0;
    for (int at = 0; right && at < count; at++) {
        right = queued(clock, at) == TW_OK;
    }
    right = right && timing->cuStreamEndCapture(clock->stream, &captured) == 0 &&
            timing->cuGraphInstantiate(&graph, captured, 0) == 0;
    for (int at = -1; right && at < GRAPHS; at++) {
        right = took(clock, graph, 0, count, &samples[at < 0 ? 0 : at]);
    }
    return right;
}

/* The median in seconds; below 0 if something fails. */
static double median(timer *clock, int graphs)
{
    const int taken = graphs ? GRAPHS : SAMPLES;
    float samples[SAMPLES];
    int right = took(clock, NULL, 0, 1, samples) && took(clock, NULL, 1, 1, samples);
    if (right && graphs) {
        right = took_graphs(clock, samples[0], samples);
    }
    for (int at = 0; right && !graphs && at < taken; at++) {
        right = took(clock, NULL, at, 1, &samples[at]);
    }
    if (!right) {
        return -1;
    }
    qsort(samples, (size_t)taken, sizeof *samples, by_value);
    return (samples[taken / 2] + samples[(taken - 1) / 2]) / 2;
}

/* Whether C is the same as before where a graph launches the product. */
static int same_again(tw_gemm *gemm, const void *a, const void *b, const void *c, const int64_t *s, const size_t *bytes)
{
    const tw_driver *const driver = &gemm->driver.functions;
    tw_address places[3] = {0};
    void *const again = malloc(bytes[2]);
    int pushed = 0, right = again && tw_enter(gemm, &pushed) == TW_OK;
    for (int at = 0; right && at < 3; at++) {
        right = driver->cuMemAlloc(&places[at], bytes[at]) == 0;
    }
    right = right && driver->cuMemcpyHtoD(places[0], a, bytes[0]) == 0;
    right = right && driver->cuMemcpyHtoD(places[1], b, bytes[1]) == 0;
    for (int at = 0; right && at <= TW_REPEATED; at++) {
        right = driver->cuMemsetD8Async(places[2], 0xFF, bytes[2], NULL) == 0 &&
                tw_matmul(gemm, (void *)places[0], (void *)places[1], (void *)places[2], s[1], s[2], s[3], s[0],
                          NULL) == TW_OK;
    }
    right = right && tw_finish(gemm, NULL) == TW_OK && driver->cuMemcpyDtoH(again, places[2], bytes[2]) == 0;
    right = right && memcmp(again, c, bytes[2]) == 0;
    for (int at = 0; at < 3; at++) {
        if (places[at]) {
            driver->cuMemFree(places[at]);
        }
    }
    tw_leave(gemm, pushed);
    free(again);
    return right;
}

/* Fill a matrix with normal numbers; the same ones, whatever it is. */
static void draw(void *matrix, size_t bytes)
{
    const size_t all = bytes / (size_t)tw_the_recipe.element_bytes, own = all < DRAWN ? all : DRAWN;
    uint64_t state = 42;
    for (size_t at = 0; at < own; at++) {
        double sum = -SUMMED / 2.0;
        for (int each = 0; each < SUMMED; each++) {
            sum += (double)(drawn(&state) >> 11) * 0x1p-53;
        }
        put(matrix, at, fabs(sum) < LEAST ? LEAST : sum);
    }
    for (size_t at = own; at < all; at += own) {
        const size_t count = all - at < own ? all - at : own;
        memcpy((char *)matrix + at * (size_t)tw_the_recipe.element_bytes, matrix,
               count * (size_t)tw_the_recipe.element_bytes);
    }
}

static double timed(tw_gemm *gemm, void *a, void *b, const int64_t *sizes, const size_t *bytes)
{
    const tw_driver *const driver = &gemm->driver.functions;
    timer clock = {gemm, {{0}}, NULL, TW_SETS, 0, NULL, NULL, sizes};
    void *module = NULL;
    double seconds = -1;
    int pushed = 0, right = tw_enter(gemm, &pushed) == TW_OK;
    for (int at = 0; at < TIMING_FUNCTIONS; at++) {
        clock.timing.addresses[at] = tw_driver_function(tw_open_driver(), timing_names[at]);
        right = right && clock.timing.addresses[at];
    }
    draw(a, bytes[0]);
    draw(b, bytes[1]);
    gemm->has_graphs = 0; /* what the service times are launches */
    clock.pointers = calloc(3 * TW_SETS, sizeof(tw_address));
    for (int at = 0; right && clock.pointers && at < 3 * TW_SETS; at++) {
        right = driver->cuMemAlloc(&clock.pointers[at], bytes[at % 3]) == 0;
        right = right && (at % 3 == 2 || driver->cuMemcpyHtoD(clock.pointers[at], at % 3 ? b : a, bytes[at % 3]) == 0);
    }
    right = right && driver->cuMemAlloc(&clock.busy, BUSY_BYTES) == 0;
    right = right && driver->cuModuleLoadData(&module, tw_read_sweep) == 0 &&
            driver->cuModuleGetFunction(&clock.sweep, module, "read_sweep") == 0;
    right = right && clock.timing.functions.cuStreamCreate(&clock.stream, 1) == 0;
    if (right) {
        seconds = median(&clock, TW_GRAPHS);
    }
    for (int at = 0; clock.pointers && at < 3 * TW_SETS; at++) {
        if (clock.pointers[at]) {
            driver->cuMemFree(clock.pointers[at]);
        }
    }
    free(clock.pointers);
    tw_leave(gemm, pushed);
    return seconds;
}

static int report(const int64_t *sizes, double error, int again, double seconds)
{
    const double bound = TW_PER_K * (double)sizes[3] + TW_ROUNDING;
    const int right = error <= bound && again;
    printf("{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"batch\": %lld, \"max_scaled\": %.3g, \"bound\": %.3g, "
           "\"right\": %s, \"median_ms\": %.6f, \"measured_ms\": %.6f}\n",
           (long long)sizes[1], (long long)sizes[2], (long long)sizes[3], (long long)sizes[0], error, bound,
           right ? "true" : "false", 1e3 * seconds, (double)TW_MEASURED_MS);
    return right ? 0 : 1;
}

int main(int count, char **words)
{
    int64_t sizes[4] = {TW_BATCH, TW_M, TW_N, TW_K};
    size_t bytes[3];
    uint64_t state = 42;
    tw_gemm *gemm = NULL;
    void *a, *b, *c;
    double error;
    int again, status;
    for (int at = 1; at < count && at < 5; at++) {
        sizes[at % 4] = strtoll(words[at], NULL, 10);
    }
    if (tw_workspace(sizes[1], sizes[2], sizes[3], sizes[0]) < 0 || tw_open(0, &gemm) != TW_OK) {
        fprintf(stderr, "%s\n", tw_error());
        return 2;
    }
    for (int at = 0; at < 3; at++) {
        const int64_t elements = at == 0 ? sizes[1] * sizes[3] : at == 1 ? sizes[3] * sizes[2] : sizes[1] * sizes[2];
        bytes[at] = (size_t)(sizes[0] * elements) * (size_t)tw_the_recipe.element_bytes;
    }
    a = malloc(bytes[0]), b = malloc(bytes[1]), c = malloc(bytes[2]);
    if (!a || !b || !c) {
        fprintf(stderr, "there is no memory\n");
        return 2;
    }
    for (size_t at = 0; at < bytes[0] / (size_t)tw_the_recipe.element_bytes; at++) {
        put(a, at, element(&state));
    }
    for (size_t at = 0; at < bytes[1] / (size_t)tw_the_recipe.element_bytes; at++) {
        put(b, at, element(&state));
    }
    if (tw_matmul_host(gemm, a, b, c, sizes[1], sizes[2], sizes[3], sizes[0]) != TW_OK) {
        fprintf(stderr, "%s\n", tw_error());
        return 2;
    }
    error = largest_error(a, b, c, sizes);
    again = same_again(gemm, a, b, c, sizes, bytes);
    status = report(sizes, error, again, timed(gemm, a, b, sizes, bytes));
    free(a), free(b), free(c);
    tw_close(gemm);
    return status;
}
