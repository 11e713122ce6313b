/* experts_bench.cu - times a layer of experts with few rows: gate and up, down, and the sum.
 *
 *   CSV: shape, format, rows, us of gate and up, of down and of the layer (medians), MB of the
 *   experts that are used, TB/s of these
 *
 * First each format is held against the reference kernel at a small shape; faults begin with #.
 * The argument names the formats to be timed, with commas; without it all are.
 *
 * Routing is drawn at random, and where it takes a kernel to put pairs in order, that is in the
 * layer's time.  Weights rotate through more than 1 GB, many times the second-level cache.  Steps
 * are replayed from a CUDA graph.
 *
 * Thread: main.  Memory: 3 GB of the device. */
#include "cuda/experts/combine.cu"
#include "cuda/experts/stream.cu"
#include "cuda/experts/stream_cut.c"
#include "cuda/linear/elements.cuh"
#include "tests/cuda/bench/bench.cuh"

/* The launchers of files that have names of others, too. */
namespace sorting {
#include "cuda/experts/sort.cu"
}
namespace reference {
#include "cuda/experts/any.cu"
}

int cuda_check(struct cuda_backend *, cudaError_t code, const char *what, struct error *) {
    check(code, what);
    return 0;
}
uint32_t packed_block(enum element) {
    return 1;
}
size_t packed_bytes(enum element, size_t n) {
    return n;
}

struct shape {
    const char *name;
    uint32_t dim, n_experts, n_used, ffn;
};

static const struct shape small_shape = {"small", 640, 16, 4, 384};

static const struct shape shapes[] = {{"qwen3-30b-a3b", 2048, 128, 8, 768},
                                      {"gpt-oss-20b", 2880, 32, 4, 2880}};

struct format {
    const char *name;
    struct weight_format format;
};

static const struct format formats[] = {
    {"int4-g128", {ELEMENT_I4, SCALE_BF16, 1, 128, false}},
    {"mxfp4", {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}},
    {"bf16", {ELEMENT_BF16, SCALE_NONE, 0, 0, false}},
    {"e4m3-row", {ELEMENT_E4M3, SCALE_F32, 1, 0, false}},
    {"e4m3-128x128", {ELEMENT_E4M3, SCALE_F32, 128, 128, false}},
    {"int4-g32-min", {ELEMENT_I4, SCALE_F16, 1, 32, true}},
    {"int4-g64", {ELEMENT_I4, SCALE_BF16, 1, 64, false}},
    {"int4-g128-min", {ELEMENT_I4, SCALE_F16, 1, 128, true}},
    {"int4-row", {ELEMENT_I4, SCALE_F32, 1, 0, false}},
    {"int8-g32", {ELEMENT_I8, SCALE_F16, 1, 32, false}},
    {"int8-g128", {ELEMENT_I8, SCALE_BF16, 1, 128, true}},
    {"int8-row", {ELEMENT_I8, SCALE_F32, 1, 0, false}},
    {"e4m3-g32", {ELEMENT_E4M3, SCALE_E8M0, 1, 32, false}}};

enum { N_STEPS = 24, N_REPLAYS = 7, MOST_ROWS = 64 };
static const size_t WEIGHT_BYTES = (size_t)1400 << 20;

static __global__ void fill_bytes_kernel(uint32_t *to, size_t n, uint32_t and_mask,
                                         uint32_t or_mask) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
        to[i] = ((uint32_t)(x >> 32) & and_mask) | or_mask;
    }
}

struct bench {
    struct cuda_backend *cuda;
    const struct shape *shape;
    const struct format *format;
    uint32_t n_rows, n_layers;
    char *weights, *scales;
    size_t matrix_bytes, scale_bytes;         /* of one stack */
    uint32_t *experts, *first, *pair, *place; /* experts: [N_STEPS][n_rows, n_used] */
    float *shares, *y;
    bf16 *x, *hidden, *out;
};

static void *allocate(size_t bytes) {
    void *memory;
    check(cudaMalloc(&memory, bytes), "memory");
    check(cudaMemset(memory, 0, bytes), "memory");
    return memory;
}

static struct expert_stack stack_of(const struct bench *b, uint32_t i) {
    struct expert_stack s = {};
    s.w = b->weights + i * b->matrix_bytes;
    s.scales = s.mins = b->scales + i * b->scale_bytes;
    s.format = b->format->format;
    s.in_strips = !weight_is_plain(&s.format);
    return s;
}

static void run(const struct bench *b, uint32_t step, bool with_up, bool with_down,
                bool by_reference = false) {
    const struct shape *s = b->shape;
    const uint32_t layer = step % b->n_layers, n_pairs = b->n_rows * s->n_used;
    struct expert_product up = {}, down = {};
    up.order = {b->experts + (size_t)step * n_pairs,
                b->first,
                b->pair,
                b->place,
                b->n_rows,
                s->n_used,
                s->n_experts};
    up.finds_order = n_pairs <= STREAM_FIND_PAIRS && !by_reference;
    down = up;
    up.x = b->x;
    up.gathers = up.gated = true;
    up.n_in = s->dim, up.n_out = s->ffn;
    up.stacks[0] = stack_of(b, layer * 3);
    up.stacks[1] = stack_of(b, layer * 3 + 1);
    up.y = b->hidden;
    down.x = b->hidden;
    down.n_in = s->ffn, down.n_out = s->dim;
    down.stacks[0] = stack_of(b, layer * 3 + 2);
    down.y = b->y;
    down.y_f32 = true;
    const struct combine_params sum = {b->place, b->shares, b->y,      nullptr, true,
                                       b->out,   b->n_rows, s->n_used, s->dim};
    if (!up.finds_order) check(sorting::launch_sort(&up.order, launch_of(b->cuda)), "sort");
    expert_launch *launch = by_reference ? reference::launch_experts_any : launch_experts_stream;
    down.order_is_old = with_up && !by_reference;
    if (with_up) launch(b->cuda, &up, nullptr);
    if (with_down) launch(b->cuda, &down, nullptr);
    if (with_up && with_down) check(launch_combine(&sum, launch_of(b->cuda)), "combine");
}

static double time_steps(const struct bench *b, bool with_up, bool with_down) {
    return time_graph(b->cuda->stream, N_REPLAYS,
                      [&]() {
                          for (uint32_t i = 0; i < N_STEPS; i++) run(b, i, with_up, with_down);
                      }) /
           N_STEPS;
}

/* Draws experts for all steps.  Returns how many have rows in a step, on average. */
static double draw(const struct bench *b) {
    const struct shape *s = b->shape;
    std::vector<uint32_t> experts;
    size_t n_active = 0;
    for (uint32_t step = 0; step < N_STEPS; step++) {
        std::vector<bool> is_used(s->n_experts);
        for (uint32_t row = 0; row < b->n_rows; row++) {
            std::vector<uint32_t> all(s->n_experts);
            for (uint32_t e = 0; e < s->n_experts; e++) all[e] = e;
            for (uint32_t r = 0; r < s->n_used; r++) {
                std::swap(all[r], all[r + rand() % (s->n_experts - r)]);
                experts.push_back(all[r]);
                is_used[all[r]] = true;
            }
        }
        n_active += std::count(is_used.begin(), is_used.end(), true);
    }
    check(cudaMemcpy(b->experts, experts.data(), experts.size() * 4, cudaMemcpyHostToDevice),
          "copy");
    return (double)n_active / N_STEPS;
}

/* Compares a step with that of the reference kernel. */
static void check_step(const struct bench *b) {
    const size_t n = (size_t)b->n_rows * b->shape->dim;
    std::vector<bf16> out[2];
    for (int i = 0; i < 2; i++) {
        out[i].resize(n);
        check(cudaMemset(b->out, 0, n * sizeof(bf16)), "clearing");
        check(cudaMemset(b->y, 0xff, n * b->shape->n_used * sizeof(float)), "clearing");
        run(b, 0, true, true, i);
        check(cudaStreamSynchronize(b->cuda->stream), "running");
        check(cudaMemcpy(out[i].data(), b->out, n * sizeof(bf16), cudaMemcpyDeviceToHost), "copy");
    }
    double most = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = __bfloat162float(out[0][i]), c = __bfloat162float(out[1][i]);
        most = std::max(most, fabs(c));
        off = std::max(off, isfinite(a) ? fabs(a - c) : 1e30);
    }
    if (!(off <= 1e-2 * most) || most == 0)
        printf("# WRONG: %s, %u rows: off by %g of %g\n", b->format->name, b->n_rows, off, most);
}

static void bench_rows(struct bench *b, uint32_t n_rows) {
    b->n_rows = n_rows;
    const double n_active = draw(b), mb = n_active * 3 *
                                          (double)(b->matrix_bytes + b->scale_bytes) /
                                          b->shape->n_experts / 1e6;
    check_step(b);
    const double up = time_steps(b, true, false), down = time_steps(b, false, true),
                 layer = time_steps(b, true, true);
    printf("%s,%s,%u,%.1f,%.1f,%.1f,%.1f,%.2f\n", b->shape->name, b->format->name, n_rows, up, down,
           layer, mb, mb / layer);
    fflush(stdout);
}

static void bench_format(struct bench *b) {
    const struct shape *s = b->shape;
    const struct weight_format *f = &b->format->format;
    const size_t n = (size_t)s->n_experts * s->ffn * s->dim;
    const size_t n_scales = f->block_cols ? n / f->block_cols / f->block_rows + 4096 * s->n_experts
                                          : n / s->dim + n / s->ffn,
                 each = f->scale == SCALE_F32    ? 4
                        : f->scale == SCALE_E8M0 ? 1
                                                 : 2;
    b->matrix_bytes = (element_bytes(f->element, n) + 255) / 256 * 256;
    b->scale_bytes = f->scale ? (n_scales * each + 255) / 256 * 256 : 0;
    b->n_layers =
        b->shape == &small_shape ? 1 : (uint32_t)(WEIGHT_BYTES / (3 * b->matrix_bytes)) + 1;
    b->weights = (char *)allocate(b->n_layers * 3 * b->matrix_bytes);
    b->scales = (char *)allocate(b->n_layers * 3 * b->scale_bytes + 256);
    /* Elements of 8 and 16 bits below 2^-8 or so. */
    const uint32_t element_mask = f->element == ELEMENT_BF16   ? 0xbc7fbc7f
                                  : f->element == ELEMENT_E4M3 ? 0xb7b7b7b7
                                                               : ~0u;
    fill_bytes_kernel<<<1024, 256>>>((uint32_t *)b->weights, b->n_layers * 3 * b->matrix_bytes / 4,
                                     element_mask, 0);
    const uint32_t scale = f->scale == SCALE_F32    ? 0x3c000000
                           : f->scale == SCALE_E8M0 ? 0x77777777
                                                    : 0x3c003c00;
    fill_bytes_kernel<<<1024, 256>>>((uint32_t *)b->scales, b->n_layers * 3 * b->scale_bytes / 4, 0,
                                     scale);
    check(cudaDeviceSynchronize(), "filling");
    if (b->shape == &small_shape)
        for (b->n_rows = 1; b->n_rows <= MOST_ROWS; b->n_rows = b->n_rows * 2 + 1) {
            draw(b);
            check_step(b);
        }
    else
        for (uint32_t n_rows = 1; n_rows <= MOST_ROWS; n_rows *= 2) bench_rows(b, n_rows);
    cudaFree(b->weights), cudaFree(b->scales);
}

int main(int argc, char **argv) {
    struct cuda_backend *cuda = (struct cuda_backend *)calloc(1, sizeof(*cuda));
    struct cudaDeviceProp properties;
    struct bench b = {};
    check(cudaGetDeviceProperties(&properties, 0), "device");
    check(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), "stream");
    cuda->overlap = properties.major == 9;
    cuda->n_multiprocessors = (uint32_t)properties.multiProcessorCount;
    stream_open(cuda, nullptr);
    b.cuda = cuda;
    b.experts = (uint32_t *)allocate(N_STEPS * MOST_ROWS * 64 * 4);
    b.first = (uint32_t *)allocate(4096 * 4);
    b.pair = (uint32_t *)allocate(MOST_ROWS * 64 * 4);
    b.place = (uint32_t *)allocate(MOST_ROWS * 64 * 4);
    b.shares = (float *)allocate(MOST_ROWS * 65 * 4);
    fill_bytes_kernel<<<16, 256>>>((uint32_t *)b.shares, MOST_ROWS * 65, 0x007fffff, 0x3e000000);
    b.y = (float *)allocate((size_t)MOST_ROWS * 8 * 4096 * 4);
    b.x = (bf16 *)allocate((size_t)MOST_ROWS * 4096 * 2);
    b.hidden = (bf16 *)allocate((size_t)MOST_ROWS * 8 * 4096 * 2);
    b.out = (bf16 *)allocate((size_t)MOST_ROWS * 4096 * 2);
    fill_kernel<<<256, 256>>>(b.x, (size_t)MOST_ROWS * 4096, 1.0f);
    printf("shape,format,rows,gate_up_us,down_us,layer_us,mb,tb_s\n");
    for (const struct format &format : formats) {
        b.shape = &small_shape, b.format = &format;
        bench_format(&b);
    }
    for (const struct shape &shape : shapes)
        for (const struct format &format : formats) {
            if (argc > 1 && !strstr(argv[1], format.name)) continue;
            b.shape = &shape, b.format = &format;
            bench_format(&b);
        }
    return 0;
}
