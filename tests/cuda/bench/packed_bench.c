/* packed_bench.c - times products of packed weights by the kernels that the backend
 * chooses, beside those of bf16 and of the kernel "unpacked".
 *
 *   packed_bench [ROWS ...]
 *
 *   CSV: format, rows, us of a layer's products (median), by "unpacked", in bf16, bf16 / packed
 *
 * The products are those of a layer of Llama-3-8B, with the SiLU inside of gate and up.  Weights
 * are random.  Two layers are launched from a CUDA graph, so that no weight stays in the
 * second-level cache.  A graph of "unpacked" is not measured from 2,048 rows on.
 *
 * Thread: main.  Memory: 3 GB of the device. */
#include "cuda/host/internal.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "tests/cuda/cuda_test.h"

enum { DIM = 4096, FFN = 14336, KV = 1024, N_LAYERS = 2, N_WEIGHTS = 7, MAX_ROWS = 8192 };
enum { WARM = 3, RUNS = 9, MAX_UNPACKED = 2048 };

static const struct weight_format formats[] = {
    {ELEMENT_I4, SCALE_BF16, 1, 128, false},    {ELEMENT_I4, SCALE_BF16, 1, 64, false},
    {ELEMENT_I4, SCALE_BF16, 1, 32, false},     {ELEMENT_I4, SCALE_F16, 1, 128, false},
    {ELEMENT_I4, SCALE_F16, 1, 64, false},      {ELEMENT_I4, SCALE_F16, 1, 32, false},
    {ELEMENT_I4, SCALE_F16, 1, 16, false},      {ELEMENT_I4, SCALE_F32, 1, 128, false},
    {ELEMENT_I4, SCALE_F32, 1, 128, true},      {ELEMENT_I4, SCALE_F32, 1, 64, true},
    {ELEMENT_I4, SCALE_F32, 1, 32, true},       {ELEMENT_I4, SCALE_F16, 1, 32, true},
    {ELEMENT_I4, SCALE_F16, 1, 16, true},       {ELEMENT_I4, SCALE_BF16, 1, 0, false},
    {ELEMENT_I8, SCALE_BF16, 1, 0, false},      {ELEMENT_I8, SCALE_BF16, 1, 128, false},
    {ELEMENT_I8, SCALE_F16, 1, 32, false},      {ELEMENT_I8, SCALE_F16, 1, 32, true},
    {ELEMENT_I8, SCALE_F16, 1, 16, false},      {ELEMENT_E4M3, SCALE_BF16, 1, 0, false},
    {ELEMENT_E4M3, SCALE_F32, 128, 128, false}, {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}};
static const struct weight_format bf16 = {.element = ELEMENT_BF16};

enum { Q, K, V, O, GATE, UP, DOWN };
static const uint32_t sides[N_WEIGHTS][2] = {{DIM, DIM}, {KV, DIM},  {KV, DIM}, {DIM, DIM},
                                             {FFN, DIM}, {FFN, DIM}, {DIM, FFN}};

struct layers {
    struct weight w[N_LAYERS][N_WEIGHTS];
    void *x, *y, *gate_up;
};

static uint64_t next_random(void) {
    static uint64_t s = 88172645463325252ull;
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    return s;
}

/* Fills scales or minimums: 2^-8 in any type. */
static void fill_scales(void *to, size_t bytes, enum scale_type type) {
    const float x = 0x1p-8f;
    uint16_t half;
    weight_from_float(&x, 1, type == SCALE_F16 ? ELEMENT_F16 : ELEMENT_BF16, &half);
    for (size_t i = 0; i < bytes / 4 && type == SCALE_F32; i++) ((float *)to)[i] = x;
    for (size_t i = 0; i < bytes / 2 && (type == SCALE_F16 || type == SCALE_BF16); i++)
        ((uint16_t *)to)[i] = half;
    if (type == SCALE_E8M0) memset(to, 119, bytes);
}

static struct weight make_weight(const struct weight_format *format, const uint32_t *side) {
    struct error err = {0};
    struct weight host = weight_plain(NULL, format->element, side[0], side[1]), out;
    host.format = *format;
    void *memory = malloc(weight_copy_bytes(&host));
    host = weight_copy_at(&host, memory);
    const size_t n = host.rows * weight_row_bytes(&host);
    const uint64_t keep = format->element == ELEMENT_BF16   ? 0xbfffbfffbfffbfffull /* below 2 */
                          : format->element == ELEMENT_E4M3 ? 0xbfbfbfbfbfbfbfbfull
                                                            : ~0ull;
    for (size_t i = 0; i < n / 8; i++) ((uint64_t *)memory)[i] = next_random() & keep;
    fill_scales((void *)host.scales, weight_scale_bytes(&host), format->scale);
    if (format->has_min) fill_scales((void *)host.mins, weight_scale_bytes(&host), format->scale);
    must(gpu->ops->weight_load(gpu, &host, &out, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    free(memory);
    return out;
}

static void run_layer(const struct layers *l, const struct weight *w, uint32_t n_rows) {
    struct error err = {0};
    const size_t width = DIM + 2 * KV;
    char *y = l->y;
    const struct linear_args qkv = {.x = l->x,
                                    .n_rows = n_rows,
                                    .n_in = DIM,
                                    .n_parts = 3,
                                    .parts = {{&w[Q], NULL, y, width},
                                              {&w[K], NULL, y + 2 * DIM, width},
                                              {&w[V], NULL, y + 2 * (DIM + KV), width}}},
                             output = {.x = l->x,
                                       .n_rows = n_rows,
                                       .n_in = DIM,
                                       .n_parts = 1,
                                       .parts = {{&w[O], NULL, y, DIM}},
                                       .accumulate = true},
                             down = {.x = l->x,
                                     .n_rows = n_rows,
                                     .n_in = FFN,
                                     .n_parts = 1,
                                     .parts = {{&w[DOWN], NULL, y, DIM}},
                                     .accumulate = true};
    const struct gated_args gated = {.x = l->x,
                                     .n_rows = n_rows,
                                     .n_in = DIM,
                                     .gate = &w[GATE],
                                     .up = &w[UP],
                                     .gate_up = l->gate_up,
                                     .out = y,
                                     .kind = GATE_SILU};
    must(gpu->ops->linear(gpu, &qkv, &err), &err);
    must(gpu->ops->linear(gpu, &output, &err), &err);
    must(gpu->ops->gated(gpu, &gated, &err), &err);
    must(gpu->ops->linear(gpu, &down, &err), &err);
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns the median of what a layer takes, in microseconds. */
static double time_layers(const struct layers *l, uint32_t n_rows) {
    struct cuda_backend *cuda = CUDA_BACKEND(gpu);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[RUNS];
    for (int i = 0; i < N_LAYERS; i++) run_layer(l, l->w[i], n_rows); /* memory is reserved */
    cudaStreamSynchronize(cuda->stream);
    cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed);
    for (int i = 0; i < N_LAYERS; i++) run_layer(l, l->w[i], n_rows);
    assert_int_equal(cudaStreamEndCapture(cuda->stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    cudaEventCreate(&begin), cudaEventCreate(&end);
    for (int run = -WARM; run < RUNS; run++) {
        cudaEventRecord(begin, cuda->stream);
        cudaGraphLaunch(exec, cuda->stream);
        cudaEventRecord(end, cuda->stream);
        assert_int_equal(cudaEventSynchronize(end), cudaSuccess);
        if (run >= 0) cudaEventElapsedTime(&ms[run], begin, end);
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    qsort(ms, RUNS, sizeof(*ms), by_value);
    return ms[RUNS / 2] * 1e3 / N_LAYERS;
}

static void load_layers(struct layers *l, const struct weight_format *format) {
    for (int i = 0; i < N_LAYERS; i++)
        for (int k = 0; k < N_WEIGHTS; k++) l->w[i][k] = make_weight(format, sides[k]);
}

static void free_layers(struct layers *l) {
    for (int i = 0; i < N_LAYERS; i++)
        for (int k = 0; k < N_WEIGHTS; k++) gpu->ops->weight_release(gpu, &l->w[i][k]);
}

int main(int argc, char **argv) {
    static const uint32_t usual[] = {16, 64, 256, 512, 1024, 4096};
    uint32_t rows[16], n = 0;
    double plain[16];
    struct layers l;
    const int status = open_backends();
    if (status) return status;
    for (int i = 1; i < argc && n < 16; i++) rows[n++] = (uint32_t)atoi(argv[i]);
    for (size_t i = 0; n < sizeof(usual) / sizeof(*usual) && argc == 1; i++) rows[n++] = usual[i];
    float *x = random_bf16((size_t)DIM * DIM, 1);
    l.x = gpu_alloc((size_t)MAX_ROWS * FFN * 2);
    l.y = gpu_alloc((size_t)MAX_ROWS * FFN * 2);
    l.gate_up = gpu_alloc((size_t)MAX_ROWS * FFN * 4);
    void *part = gpu_array(x, (size_t)DIM * DIM, ELEMENT_BF16);
    for (size_t at = 0; at + (size_t)DIM * DIM <= (size_t)MAX_ROWS * FFN; at += (size_t)DIM * DIM)
        cudaMemcpy((char *)l.x + at * 2, part, (size_t)DIM * DIM * 2, cudaMemcpyDeviceToDevice);
    load_layers(&l, &bf16);
    for (uint32_t i = 0; i < n; i++) plain[i] = time_layers(&l, rows[i]);
    free_layers(&l);
    printf("format,rows,us,us by unpacked,us in bf16,bf16 / packed\n");
    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        struct cuda_backend *cuda = CUDA_BACKEND(gpu);
        const struct packed_wide_device wide = cuda->products.packed_wide;
        const bool streams = cuda->products.packed_streams;
        char text[WEIGHT_FORMAT_TEXT];
        weight_format_text(&formats[f], text);
        load_layers(&l, &formats[f]);
        for (uint32_t i = 0; i < n; i++) {
            const double us = time_layers(&l, rows[i]);
            double unpacked = 0;
            cuda->products.packed_wide = (struct packed_wide_device){0};
            cuda->products.packed_streams = false;
            if (rows[i] < MAX_UNPACKED) unpacked = time_layers(&l, rows[i]);
            cuda->products.packed_wide = wide;
            cuda->products.packed_streams = streams;
            printf("%s,%u,%.1f,%.1f,%.1f,%.3f\n", text, rows[i], us, unpacked, plain[i],
                   plain[i] / us);
            fflush(stdout);
        }
        free_layers(&l);
    }
    gpu_free(l.x), gpu_free(l.y), gpu_free(l.gate_up), gpu_free(part), free(x);
    close_backends();
    return 0;
}
