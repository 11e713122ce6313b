/* graph.c - decode steps as CUDA graphs: captured once for a number of rows, launched with one call
 * from then on.
 *
 * A graph belongs to a body's context (a decoder), a number of rows, and what attention's plan says
 * about its launches (attention_launch_kind()).
 *
 *   1st time   the body runs as it is: buffers grow, modules load, cuBLASLt is asked
 *   2nd time   it is captured, and the graph launched
 *   after      the graph is launched
 *
 * Nothing that changes between steps is an argument of a kernel: it lies in the step's header
 * (kernels.h) or behind it.  The addresses of buffers are the same in every step.  But a buffer may
 * move when it grows, and freed memory may be allocated again.  So code that moves or frees memory
 * counts it (n_moves), and the graphs from before are dropped.
 *
 * Memory: the driver's, per graph; a new graph replaces the oldest. */
#include "cuda/host/internal.h"

#include "engine/base/error.h"
#include "engine/device/backend.h"

static void drop(struct cuda_backend *cuda, struct graph_entry *r) {
    if (!r->graph) return;
    cudaStreamSynchronize(cuda->stream); /* the device may be running it */
    cudaGraphExecDestroy(r->graph);
}

void graphs_close(struct cuda_backend *cuda) {
    for (uint32_t i = 0; i < cuda->n_graphs; i++) drop(cuda, &cuda->graphs[i]);
    cuda->n_graphs = cuda->next_graph = 0;
}

static void forget_stale(struct cuda_backend *cuda) {
    if (cuda->n_reallocs_recorded == cuda->n_moves) return;
    graphs_close(cuda);
    cuda->n_reallocs_recorded = cuda->n_moves;
}

static struct graph_entry *find_graph(struct cuda_backend *cuda, const void *ctx, uint32_t n_rows) {
    const uint32_t kind = attention_launch_kind(cuda);
    for (uint32_t i = 0; i < cuda->n_graphs; i++) {
        struct graph_entry *r = &cuda->graphs[i];
        if (r->ctx == ctx && r->n_rows == n_rows && r->launch_kind == kind) return r;
    }
    return NULL;
}

static void add_graph(struct cuda_backend *cuda, const void *ctx, uint32_t n_rows) {
    struct graph_entry *r = &cuda->graphs[cuda->next_graph];
    if (cuda->n_graphs < MAX_GRAPHS) cuda->n_graphs++;
    else drop(cuda, r);
    *r = (struct graph_entry){
        .ctx = ctx, .n_rows = n_rows, .launch_kind = attention_launch_kind(cuda)};
    cuda->next_graph = (cuda->next_graph + 1) % MAX_GRAPHS;
}

static int record(struct cuda_backend *cuda, struct graph_entry *r, graph_body body, void *ctx,
                  struct error *err) {
    cudaGraph_t graph = NULL;
    int rc =
        cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
                   "recording a step", err);
    if (rc) return rc;
    cuda->recording = true;
    rc = body(ctx, r->n_rows, err);
    cuda->recording = false;
    const cudaError_t code = cudaStreamEndCapture(cuda->stream, &graph);
    if (!rc) rc = cuda_check(cuda, code, "recording a step", err);
    if (!rc)
        rc = cuda_check(cuda, cudaGraphInstantiate(&r->graph, graph, 0), "a step's graph", err);
    if (graph) cudaGraphDestroy(graph);
    return rc;
}

static int run_recorded(struct cuda_backend *cuda, uint32_t n_rows, graph_body body, void *ctx,
                        struct error *err) {
    forget_stale(cuda);
    struct graph_entry *r = find_graph(cuda, ctx, n_rows);
    if (!r) {
        const int rc = body(ctx, n_rows, err);
        forget_stale(cuda); /* memory that the body needed may have moved buffers */
        if (!rc) add_graph(cuda, ctx, n_rows);
        return rc;
    }
    if (!r->graph) {
        const int rc = record(cuda, r, body, ctx, err);
        if (rc) return rc;
    }
    return cuda_check(cuda, cudaGraphLaunch(r->graph, cuda->stream), "a step", err);
}

int cuda_run_graph(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                   struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    cuda->in_graph = true;
    cuda->launch_rows = n_rows;
    const int rc = run_recorded(cuda, n_rows, body, ctx, err);
    cuda->in_graph = false;
    cuda->launch_rows = cuda->step.n_rows;
    return rc;
}
