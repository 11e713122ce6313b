/* backend.c - see cpu.h: creation, memory and the table of operations. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "engine/cpu/backend.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/cgroup.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/cpu/group.h"
#include "engine/cpu/isa.h"
#include "engine/device/collective.h"
#include "engine/device/dtype.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

enum { MAX_THREADS = 1024 };

/* The header of an allocation holds its length, so that free() can unmap it.  Anonymous mappings
 * are zero and cost nothing until touched: a large KV pool is resident only as far as it is
 * used. */
struct page_mapping {
    size_t bytes;
    char padding[CPU_BUFFER_ALIGN - sizeof(size_t)];
};

static struct device_memory cpu_memory(struct backend *be) {
    (void)be;
    return (struct device_memory){0};
}

/* Reserves the index of a sparse prompt, which alone outlives its step.  Scratch grows to the
 * largest step seen and is kept: memory here is not planned ahead. */
static int cpu_reserve(struct backend *be, const struct step_limits *limits, struct error *err) {
    return sparse_reserve((struct cpu_backend *)be, limits, err);
}

int cpu_alloc(struct backend *be, size_t bytes, void **out, struct error *err) {
    (void)be;
    size_t total = bytes + sizeof(struct page_mapping);
    if (total < bytes)
        return error_set(err, ERR_NOMEM, "cpu: %zu bytes cannot be allocated", bytes);
    struct page_mapping *mapping = mmap(NULL, total, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return error_set(err, ERR_NOMEM, "cpu: no memory for %zu bytes", bytes);
    madvise(mapping, total, MADV_HUGEPAGE); /* fewer faults, fewer TLB misses; only advice */
    mapping->bytes = total;
    *out = mapping + 1;
    return 0;
}

void cpu_free(struct backend *be, void *memory) {
    (void)be;
    if (!memory) return;
    struct page_mapping *mapping = (struct page_mapping *)memory - 1;
    munmap(mapping, mapping->bytes);
}

static int cpu_upload(struct backend *be, void *to, const void *host, size_t bytes,
                      struct error *err) {
    (void)be, (void)err;
    memcpy(to, host, bytes);
    return 0;
}

static int cpu_download(struct backend *be, void *host, const void *from, size_t bytes,
                        struct error *err) {
    (void)be, (void)err;
    memcpy(host, from, bytes);
    return 0;
}

static int cpu_copy_pages(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                          const uint32_t *to, uint32_t n, struct error *err) {
    (void)be, (void)err;
    for (uint32_t i = 0; i < n; i++)
        memcpy(kv_page_at(kv, to[i]), kv_page_at(kv, from[i]), kv->page_bytes);
    return 0;
}

static bool has_scores(const struct step_seq *seq) {
    return seq->budget && kv_has_scores(seq->budget);
}

static uint32_t most_slots(const struct step *step, const struct step_seq *seq) {
    uint32_t n_slots = 0;
    for (uint32_t l = 0; l < step->n_layers; l++)
        n_slots = max_u32(n_slots, seq->layers[l].n_slots);
    return n_slots;
}

/* Finds out what the step's budgets and selections need: whether there are budgets or scores, and
 * where decode's raw scores lie: in as many pages as the layer with the most slots has. */
static int begin_scores(struct cpu_backend *cpu, const struct step *step, struct error *err) {
    struct score_inputs *scores = &cpu->scores;
    cpu->bounded = scores->wanted = false;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        cpu->bounded |= seq->budget != NULL;
        scores->wanted |= has_scores(seq) || seq->select || (seq->sparse && seq->sparse->groups);
    }
    if (!scores->wanted) return 0;
    int rc = cpu_buffer_reserve(&scores->first_page, (step->n_decode + 1) * sizeof(uint32_t), err);
    if (rc < 0) return rc;
    uint32_t *first_page = scores->first_page.data;
    first_page[0] = 0;
    for (uint32_t i = 0; i < step->n_decode; i++) {
        const struct step_seq *seq = &step->seqs[i];
        const uint32_t n_pages = (uint32_t)kv_n_pages(most_slots(step, seq));
        first_page[i + 1] = first_page[i] + (has_scores(seq) || seq->select ? n_pages : 0);
    }
    return 0;
}

static int cpu_step_begin(struct backend *be, const struct step *step, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    cpu->step = step;
    memset(cpu->angles_valid, 0, sizeof(cpu->angles_valid));
    cpu->drew = false;
    int rc = begin_scores(cpu, step, err);
    return rc < 0 ? rc : select_begin(cpu, step, err);
}

static int cpu_collect(struct backend *be, uint32_t n_newer, struct error *err) {
    (void)be, (void)n_newer, (void)err; /* nothing is pending, as in sync */
    return 0;
}

static int cpu_sync(struct backend *be, struct error *err) {
    (void)be, (void)err; /* every operation has finished when it returns */
    return 0;
}

static void cpu_destroy(struct backend *be) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    if (be->rank == 0) cpu_group_destroy(cpu->group);
    pool_destroy(cpu->pool);
    buffer_free(&cpu->scratch);
    for (int i = 0; i < MAX_ROPES; i++) buffer_free(&cpu->angles[i]);
    buffer_free(&cpu->text_positions);
    buffer_free(&cpu->tasks);
    buffer_free(&cpu->partials);
    buffer_free(&cpu->inputs);
    buffer_free(&cpu->rank_angles.table);
    buffer_free(&cpu->rank_angles.inv_freq);
    buffer_free(&cpu->scores.first_page);
    buffer_free(&cpu->scores.raw);
    buffer_free(&cpu->scores.softmax);
    buffer_free(&cpu->shared_scores);
    buffer_free(&cpu->shared_losses);
    select_free(&cpu->selections);
    sparse_free(&cpu->sparse);
    free(cpu->sampled);
    free(cpu);
}

/* Calls the body directly: an operation costs only its work, so a CUDA graph has no counterpart
 * here. */
static int cpu_run_graph(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                         struct error *err) {
    (void)be;
    return body(ctx, n_rows, err);
}

static const struct backend_ops cpu_ops = {
    .destroy = cpu_destroy,
    .memory = cpu_memory,
    .reserve = cpu_reserve,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .takes = cpu_takes,
    .weight_load = cpu_weight_load,
    .repacked_bytes = cpu_repacked_bytes,
    .weight_release = cpu_weight_release,
    .upload = cpu_upload,
    .download = cpu_download,
    .copy_pages = cpu_copy_pages,
    .step_begin = cpu_step_begin,
    .embed = cpu_embed,
    .add_positions = cpu_add_positions,
    .rmsnorm = cpu_rmsnorm,
    .layernorm = cpu_layernorm,
    .linear = cpu_linear,
    .gated = cpu_gated,
    .activate = cpu_activate,
    .gate = cpu_gate,
    .rope_append = cpu_rope_append,
    .attn_decode = cpu_attn_decode,
    .attn_prefill = cpu_attn_prefill,
    .gather_rows = cpu_gather_rows,
    .soft_cap = cpu_soft_cap,
    .sample = cpu_sample,
    .run_graph = cpu_run_graph,
    .collect = cpu_collect,
    .sync = cpu_sync,
    .measure = cpu_measure,
    .host_pool = &cpu_host_pool_ops,
    .evict = &cpu_evict_ops,
    .sparse = &cpu_sparse_ops,
    .select = &cpu_select_ops,
    .experts = &cpu_expert_ops,
    .recurrent = &cpu_recurrent_ops,
    .collective = &cpu_collective_ops,
};

/* Counts no more threads than the quota allows.  With more, the control group is stopped in the
 * middle of a step, and all wait for the thread that it hit. */
uint32_t cpu_default_threads(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    const double quota = cgroup_cpus("");
    int n = CPU_COUNT(&set);
    if (quota > 0 && quota < n) n = (int)quota;
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (uint32_t)n;
}

/* Writes what the backend is, for the log, and what its sums depend on. */
static void describe(struct cpu_backend *cpu, const struct cpu_config *config,
                     const struct isa *isa) {
    const uint32_t n_ranks = config->n_ranks;
    const char *products = config->matmul_dtype == DTYPE_BF16 ? "bfloat16" : "float32";
    char ranks[24] = "";
    if (n_ranks > 1) snprintf(ranks, sizeof(ranks), ", %u ranks", n_ranks);
    snprintf(cpu->base.description, sizeof(cpu->base.description),
             "CPU, %s%s, %u threads%s, %s products%s", isa_name(isa->isa), ranks,
             pool_size(cpu->pool), n_ranks > 1 ? " each" : "", products,
             config->int8_products ? ", int8 activations where weights are quantised" : "");
    snprintf(cpu->base.arithmetic, sizeof(cpu->base.arithmetic), "%s, %s products%s%s",
             isa_name(isa->isa), products, config->int8_products ? ", int8 activations" : "",
             ranks);
}

/* Creates one backend, of a group or alone. */
static int create_one(struct backend **out, const struct cpu_config *config, const struct isa *isa,
                      uint32_t n_threads, struct error *err) {
    struct cpu_backend *cpu = calloc(1, sizeof(*cpu));
    if (!cpu) return error_set(err, ERR_NOMEM, "cpu: no memory");
    const int rc = pool_create(&cpu->pool, n_threads, err);
    if (rc < 0) {
        free(cpu);
        return rc;
    }
    cpu->kernels = isa->kernels;
    cpu->bf16_products = config->matmul_dtype == DTYPE_BF16 ? isa->bf16_products : NULL;
    cpu->int8_products = config->int8_products ? isa->int8_products : NULL;
    cpu->base = (struct backend){.ops = &cpu_ops, .name = "cpu", .act_dtype = DTYPE_F32};
    describe(cpu, config, isa);
    *out = &cpu->base;
    return 0;
}

/* Creates the backends of all ranks, which divide the threads among them. */
static int create_ranks(struct backend **out, const struct cpu_config *config,
                        const struct isa *isa, uint32_t n_threads, struct error *err) {
    const uint32_t n = config->n_ranks;
    struct backend *ranks[RANKS_MAX] = {0};
    struct cpu_group *group;
    uint32_t n_made = 0;
    int rc = 0;
    while (n_made < n && !rc) {
        const uint32_t n_own = n_threads * (n_made + 1) / n - n_threads * n_made / n;
        rc = create_one(&ranks[n_made], config, isa, max_u32(n_own, 1), err);
        n_made += rc == 0;
    }
    if (!rc) rc = cpu_group_create(&group, ranks, n, err);
    if (!rc) *out = ranks[0];
    for (uint32_t i = 0; i < n_made && rc; i++) cpu_destroy(ranks[i]);
    return rc;
}

const char *cpu_lacks_kernels(const struct cpu_config *config) {
    return isa_lacking(config->isa, config->matmul_dtype == DTYPE_BF16);
}

int cpu_backend_create(struct backend **out, const struct cpu_config *config, struct error *err) {
    const uint32_t n_threads = config->n_threads ? config->n_threads : cpu_default_threads();
    if (n_threads > MAX_THREADS)
        return error_set(err, ERR_INVALID, "cpu: at most %d threads", MAX_THREADS);
    if (config->n_ranks > RANKS_MAX)
        return error_set(err, ERR_INVALID, "cpu: at most %d ranks", RANKS_MAX);
    const bool bf16_products = config->matmul_dtype == DTYPE_BF16;
    const struct isa *isa = isa_find(config->isa, bf16_products);
    if (!isa && cpu_lacks_kernels(config))
        return error_set(err, ERR_UNSUPPORTED,
                         "cpu: this quire was built without kernels for %s: scripts/build makes "
                         "those of all processors",
                         isa_name(config->isa));
    if (!isa)
        return error_set(err, ERR_UNSUPPORTED, "cpu: this processor has no %s",
                         isa_name(config->isa));
    if (bf16_products && !isa->bf16_products)
        return error_set(err, ERR_UNSUPPORTED, "cpu: no bfloat16 dot products here");
    if (config->n_ranks > 1) return create_ranks(out, config, isa, n_threads, err);
    return create_one(out, config, isa, n_threads, err);
}
