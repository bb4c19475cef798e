/* The launches of a product as a graph of the driver: to launch that takes the host less than half as long as to launch
 * its kernels. Sources: CUDA Driver API, "Graph Management" and "Stream Management". */
#ifndef TILEWISE_GRAPH_H
#define TILEWISE_GRAPH_H
#include "tilewise_driver.h"

#define TW_MOST_LAUNCHES 4
#define TW_RELAXED 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */

/* CUgraph, CUgraphExec, and the node of each launch, behind the one before. */
typedef struct {
    void *graph, *ready;
    void *nodes[TW_MOST_LAUNCHES];
} tw_graph;

static void tw_free_graph(const tw_driver *driver, tw_graph *graph)
{
    if (graph->ready) {
        driver->cuGraphExecDestroy(graph->ready); /* what is on its way goes on */
    }
    if (graph->graph) {
        driver->cuGraphDestroy(graph->graph);
    }
}

/* Make the graph of some launches; 0 if the driver refuses. It is not what another thread captures meanwhile. */
static int tw_make_graph(const tw_driver *driver, const tw_node *launches, int count, tw_graph *graph)
{
    int mode = TW_RELAXED, right = driver->cuThreadExchangeStreamCaptureMode(&mode) == 0;
    const int relaxed = right;
    right = right && driver->cuGraphCreate(&graph->graph, 0) == 0;
    for (int at = 0; right && at < count; at++) {
        right = driver->cuGraphAddKernelNode(&graph->nodes[at], graph->graph, at ? &graph->nodes[at - 1] : NULL,
                                             at ? 1 : 0, &launches[at]) == 0;
    }
    right = right && driver->cuGraphInstantiate(&graph->ready, graph->graph, 0) == 0;
    if (relaxed) {
        driver->cuThreadExchangeStreamCaptureMode(&mode);
    }
    return right;
}

/* Have the graph's next launches be other ones of the same kernels; 0 if the driver refuses. */
static int tw_set_graph(const tw_driver *driver, const tw_node *launches, int count, tw_graph *graph)
{
    int right = 1;
    for (int at = 0; right && at < count; at++) {
        right = driver->cuGraphExecKernelNodeSetParams(graph->ready, graph->nodes[at], &launches[at]) == 0;
    }
    return right;
}

/* Whether a graph may be launched on a stream. While one is captured it takes none, and a graph's kernels have the
 * default priority, whatever the stream's. */
static int tw_takes_graph(const tw_driver *driver, void *stream)
{
    int capturing = 1, priority = 1;
    return driver->cuStreamIsCapturing(stream, &capturing) == 0 && !capturing &&
           driver->cuStreamGetPriority(stream, &priority) == 0 && priority == 0;
}
#endif
