/* graph.c - steps of few rows as CUDA graphs: captured once for a number of rows, launched with one
 * call from then on.
 *
 * A graph belongs to a body's context (a decoder), a number of rows, and what attention's plan says
 * about its launches (attention_launch_kind()).
 *
 *   1st time   the body runs as it is: buffers grow, modules load, cuBLASLt is asked
 *   2nd time   it is captured, and the graph launched
 *   after      the graph is launched
 *
 * Where ranks share a device, a graph is launched if all of them have run the body (cuda/ranks).
 *
 * Nothing that changes between steps is an argument of a kernel: it lies in the step's header
 * (kernels.h) or behind it.  The addresses of buffers are the same in every step.  But a buffer may
 * move when it grows, and freed memory may be allocated again.  So code that moves or frees memory
 * counts it (n_moves), and the graphs from before are dropped.
 *
 * The kernels that attend to prompts are the exception: their grids are the step's items.  Before
 * the graph is launched again, the operation runs once more for each layer, with the arguments that
 * were noted, and its launches set the graph's kernels (step_nodes).  That costs the host a
 * tenth of launching the step's kernels one by one.
 *
 * Memory: the driver's, per graph; a new graph replaces the oldest. */
#include "cuda/host/internal.h"

#include <assert.h>
#include <stdlib.h>

#include "cuda/experts/fetch.h"
#include "cuda/ranks/group.h"
#include "engine/base/error.h"
#include "engine/device/backend.h"

/* Frees what only a graph with prompts has. */
static void forget_prompts(struct graph_entry *r) {
    if (r->recorded) cudaGraphDestroy(r->recorded);
    free(r->prompts);
    free(r->nodes.nodes);
    r->recorded = NULL;
    r->prompts = NULL;
    r->n_prompts = 0;
    r->nodes = (struct step_nodes){0};
}

static void drop(struct cuda_backend *cuda, struct graph_entry *r) {
    if (r->graph) {
        cudaStreamSynchronize(cuda->stream); /* the device may be running it */
        cudaGraphExecDestroy(r->graph);
        r->graph = NULL;
    }
    forget_prompts(r);
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

/* Makes room for one more layer's prompts.  Layers that share keys and values attend, too, so they
 * are not counted in advance.  Without memory the layer's kernels find no room, and are not noted,
 * which ends the recording. */
static bool grow_prompts(struct graph_entry *r) {
    const uint32_t room = r->nodes.room / MOST_PROMPT_KERNELS, n = room ? 2 * room : 4;
    if (r->n_prompts < room) return true;
    struct attn_args *prompts = realloc(r->prompts, n * sizeof(*prompts));
    if (prompts) r->prompts = prompts;
    cudaGraphNode_t *nodes = realloc(r->nodes.nodes, MOST_PROMPT_KERNELS * n * sizeof(*nodes));
    if (nodes) r->nodes.nodes = nodes;
    r->nodes.room = prompts && nodes ? MOST_PROMPT_KERNELS * n : r->nodes.n;
    return prompts && nodes;
}

void graph_note_prompts(struct cuda_backend *cuda, const struct attn_args *args) {
    struct graph_entry *r = cuda->graph;
    if (grow_prompts(r)) r->prompts[r->n_prompts++] = *args;
}

/* Captures what the body launches. */
static int capture(struct cuda_backend *cuda, struct graph_entry *r, graph_body body, void *ctx,
                   struct error *err) {
    int rc =
        cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
                   "recording a step", err);
    if (rc) return rc;
    cuda->graph = r;
    rc = body(ctx, r->n_rows, err);
    cuda->graph = NULL;
    if (!rc) rc = expert_fetches_join(cuda, err);
    const cudaError_t code = cudaStreamEndCapture(cuda->stream, &r->recorded);
    if (!rc) rc = cuda_check(cuda, code, "recording a step", err);
    if (rc) return rc;
    return cuda_check(cuda, cudaGraphInstantiate(&r->graph, r->recorded, 0), "a step's graph", err);
}

static int record(struct cuda_backend *cuda, struct graph_entry *r, graph_body body, void *ctx,
                  struct error *err) {
    const int rc = capture(cuda, r, body, ctx, err);
    if (rc || r->n_prompts == 0) forget_prompts(r); /* nothing of it will be set */
    r->nodes.graph = r->graph;
    return rc;
}

/* Sets the kernels of the graph that attend to prompts to those of the present step. */
static int set_prompts(struct cuda_backend *cuda, struct graph_entry *r, struct error *err) {
    int rc = 0;
    r->nodes.next = 0;
    cuda->graph = r;
    for (uint32_t i = 0; i < r->n_prompts && !rc; i++)
        rc = cuda_attn_prefill(&cuda->base, &r->prompts[i], err);
    cuda->graph = NULL;
    assert(rc || r->nodes.next == r->nodes.n);
    return rc;
}

/* Says whether a graph can have the step.  A recurrent layer's launches are as many as its prompts
 * have chunks. */
static bool fits_graph(const struct cuda_backend *cuda) {
    return attention_fits_graph(cuda) && !(cuda->recurrent.states && has_prompts(cuda));
}

/* Runs the body as it is, and remembers that. */
static int run_body(struct cuda_backend *cuda, struct graph_entry *r, uint32_t n_rows,
                    graph_body body, void *ctx, struct error *err) {
    const int rc = body(ctx, n_rows, err);
    forget_stale(cuda); /* memory that the body needed may have moved buffers */
    if (!rc && !r) add_graph(cuda, ctx, n_rows);
    return rc;
}

static int launch_graph(struct cuda_backend *cuda, struct graph_entry *r, struct error *err) {
    int rc = cuda_group_meet(&cuda->base, err);
    if (!rc) rc = cuda_check(cuda, cudaGraphLaunch(r->graph, cuda->stream), "a step", err);
    return rc ? rc : cuda_group_meet(&cuda->base, err);
}

static int run_recorded(struct cuda_backend *cuda, uint32_t n_rows, graph_body body, void *ctx,
                        struct error *err) {
    bool has_run;
    const bool fits = fits_graph(cuda);
    if (fits) forget_stale(cuda);
    struct graph_entry *r = fits ? find_graph(cuda, ctx, n_rows) : NULL;
    int rc = cuda_group_agree(&cuda->base, r != NULL, &has_run, err);
    if (rc) return rc;
    if (!fits) return body(ctx, n_rows, err);
    cuda->base.n_new_graphs += !has_run || !r->graph;
    if (!has_run) return run_body(cuda, r, n_rows, body, ctx, err);
    rc = r->graph ? set_prompts(cuda, r, err) : record(cuda, r, body, ctx, err);
    return rc ? rc : launch_graph(cuda, r, err);
}

int cuda_run_graph(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                   struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    int rc = expert_fetches_join(cuda, err);
    if (rc) return rc;
    cuda->in_graph = true;
    cuda->launch_rows = n_rows;
    rc = run_recorded(cuda, n_rows, body, ctx, err);
    cuda->in_graph = false;
    cuda->launch_rows = cuda->step.n_rows;
    return rc;
}
