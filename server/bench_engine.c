/* bench_engine.c - the end-to-end half of `quire bench`: see bench.h.
 *
 *   prefill   one prompt, one token: prompt tokens / time to the first token
 *   decode    B prompts; from when all of them decode to when the first is done
 *
 * The bounds: a decode step must read every weight once and the keys and values of every sequence,
 * of sparse layers those that are seen, wherever they were fetched from; a prefilled token must be
 * multiplied with every weight once and with the keys and values before it. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/error.h"
#include "engine/model/model.h"
#include "server/bench.h"
#include "server/kv_policy.h"
#include "server/report.h"
#include "server/timed_engine.h"

struct bench {
    const struct bench_plan *plan;
    const struct ceilings *ceilings;
    struct report report;
    struct timed_engine timed;
    const struct engine_info *info;
    uint64_t kv_token_bytes; /* of all layers */
    const struct bench_requests *like;
    uint64_t random;
};

static uint32_t random_token(struct bench *b) {
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 33) % b->info->model->n_vocab;
}

static int run_batch(struct bench *b, uint32_t n_prompt, uint32_t batch, uint32_t n_generate,
                     struct timing *out, struct error *err) {
    const size_t n = (size_t)batch * n_prompt;
    uint32_t *tokens = malloc(n * sizeof(*tokens));
    if (!tokens) return error_set(err, ERR_NOMEM, "bench: no memory");
    for (size_t i = 0; i < n; i++) tokens[i] = random_token(b);
    const struct timed_batch prompts = {.tokens = tokens,
                                        .n_prompt = n_prompt,
                                        .n_sequences = batch,
                                        .n_generate = n_generate,
                                        .kv = kv_policy_resolve(&b->like->kv, n_prompt),
                                        .prefill = b->like->prefill};
    const int rc = timed_engine_run(&b->timed, &prompts, out, err);
    free(tokens);
    return rc;
}

/* --- results --- */

/* Weight bytes that a decode step reads: all but an embedding table that is not also the head. */
static double step_weight_bytes(const struct engine_info *info) {
    const struct model_config *m = info->model;
    double table = m->tied_head ? 0
                                : (double)m->n_vocab * m->dim * (double)dtype_size(m->weight_dtype);
    return (double)info->weight_bytes - table;
}

/* What a sequence keeps of n tokens that have been read or generated. */
static double kept_tokens(const struct kv_choice *kv, double n) {
    const double capacity = (double)kv_choice_capacity(kv);
    return kv_choice_is_bounded(kv) && capacity < n ? capacity : n;
}

static double sparse_share(const struct offload_rules *offload) {
    const double n = groups_n_layers(offload->groups, offload->n_groups, offload->windows);
    return offload->n_groups ? n / offload->n_layers : 0;
}

/* Of n tokens those whose keys and values a step reads that generates: the mean of the layers. */
static double read_tokens(const struct bench *b, const struct kv_choice *kv, double n) {
    const double few = (double)kv->n_selected + kv->n_tail;
    if (kv->type != KV_OFFLOAD || n <= few) return kept_tokens(kv, n);
    return n - sparse_share(&b->like->offload) * (n - few);
}

/* What a sequence that will be moved holds while its prompt is read; one that does not fit is read
 * layer by layer, two sparse layers at a time. */
static double reading_tokens(const struct bench *b, uint32_t n_prompt, double n) {
    const struct offload_rules *offload = &b->like->offload;
    if (n <= (double)b->info->kv_tokens || n_prompt > b->info->long_rows + 1) return n;
    return n * (1 - sparse_share(offload) + 2.0 / offload->n_layers);
}

/* What so many sequences of n tokens hold in the KV pool, at most. */
static double pool_tokens(const struct bench *b, const struct kv_choice *kv, uint32_t n_prompt,
                          uint32_t batch, double n) {
    /* While its prompt is read, a sequence has a chunk beside what it keeps; or, what will be
     * moved. */
    if (kv_choice_is_bounded(kv)) return batch * (kept_tokens(kv, n) + kv->chunk);
    if (kv->type != KV_OFFLOAD) return batch * n;
    if (kv->on_device) return batch * (n + sparse_share(&b->like->offload) * kv->n_selected);
    return reading_tokens(b, n_prompt, n) + (batch - 1) * read_tokens(b, kv, n);
}

/* Tokens that the queries of a prompt see, together: what was kept before their chunk, and of the
 * chunk those before them and themselves. */
static double seen_tokens(const struct kv_choice *kv, uint32_t n) {
    double seen = 0;
    for (uint32_t at = 0, rows; at < n; at += rows) {
        rows = kv_choice_is_bounded(kv) && kv->chunk < n - at ? kv->chunk : n - at;
        seen += rows * (kept_tokens(kv, at) + (rows + 1.0) / 2);
    }
    return seen;
}

/* Operations of a prompt: two for each weight and token, and for each query with each key and
 * value that it sees.  Past the last layer's attention only the last token goes on. */
static double prompt_flops(const struct model_config *m, const struct kv_choice *kv, uint32_t n) {
    double qkv = (double)m->dim * (m->n_heads + 2.0 * m->n_kv_heads) * m->head_dim;
    double o = (double)m->n_heads * m->head_dim * m->dim, ffn = 3.0 * m->dim * m->ffn_dim;
    double attention = 4.0 * m->n_heads * m->head_dim * seen_tokens(kv, n);
    double rows = (double)n * (m->n_layers - 1) + 1;
    return m->n_layers * (2.0 * n * qkv + attention) + 2 * rows * (o + ffn) +
           2.0 * m->n_vocab * m->dim;
}

static const char *const names[] = {"phase", "prompt_tokens", "sequences",        "tokens_per_s",
                                    "least", "greatest",      "bound_tokens_per_s", "of_bound"};
enum { N_COLUMNS = sizeof(names) / sizeof(*names) };

static void print_result(const struct bench *b, const char *phase, uint32_t n_prompt,
                         uint32_t batch, double *rates, double bound) {
    char cells[N_COLUMNS][REPORT_CELL];
    const struct spread rate = report_spread(rates, b->plan->n_runs);
    snprintf(cells[0], REPORT_CELL, "%s", phase);
    snprintf(cells[1], REPORT_CELL, "%u", n_prompt);
    snprintf(cells[2], REPORT_CELL, "%u", batch);
    snprintf(cells[3], REPORT_CELL, "%.1f", rate.median);
    snprintf(cells[4], REPORT_CELL, "%.1f", rate.least);
    snprintf(cells[5], REPORT_CELL, "%.1f", rate.greatest);
    snprintf(cells[6], REPORT_CELL, "%.1f", bound);
    snprintf(cells[7], REPORT_CELL, "%.3f", rate.median / bound);
    report_row(&b->report, (const char (*)[REPORT_CELL])cells);
}

static void print_sparse(uint32_t n_prompt, const struct prefill_usage *usage) {
    if (usage->mode == PREFILL_SPARSE)
        printf("# prefill,%u sparse: density %.4f, index %.3f s, attention %.3f s\n", n_prompt,
               usage->density, usage->index_s, usage->attention_s);
}

static void print_offload(const struct bench *b, uint32_t n_prompt, uint32_t batch,
                          uint32_t n_generate, const struct kv_usage *usage) {
    const uint64_t n_moved = b->like->kv.tokens.on_device ? 0 : usage->n_copies;
    if (usage->n_chosen == 0) return;
    printf("# decode,%u,%u offload: hit rate %.4f, %.3f MB fetched a token\n", n_prompt, batch,
           1 - (double)usage->n_fetched / (double)usage->n_chosen,
           1e-6 * (double)offload_rules_copied_bytes(&b->like->offload, usage->n_copies, n_moved) /
               n_generate);
}

static int bench_prefill(struct bench *b, uint32_t n_prompt, struct error *err) {
    double rates[BENCH_MAX_RUNS];
    struct timing t = {0};
    const struct kv_choice kv = kv_policy_resolve(&b->like->kv, n_prompt);
    if (!kv_choice_is_bounded(&kv) && n_prompt >= b->info->max_model_len) {
        printf("# prefill,%u not run: more than --max-model-len\n", n_prompt);
        return 0;
    }
    for (uint32_t run = 0; run < b->plan->n_runs; run++) {
        int rc = run_batch(b, n_prompt, 1, 1, &t, err);
        if (rc < 0) return rc;
        rates[run] = n_prompt / t.total_seconds;
    }
    print_sparse(n_prompt, &t.prefill);
    print_result(b, "prefill", n_prompt, 1, rates,
                 n_prompt * b->ceilings->flops_per_s / prompt_flops(b->info->model, &kv, n_prompt));
    return 0;
}

/* The first sequences decode while the last ones are still being prefilled: each of those steps
 * takes one of their tokens, and at least one prompt token of the others. */
static uint32_t decode_slack(uint32_t n_prompt, uint32_t batch) {
    return batch == 1 ? 0 : batch + (uint32_t)((uint64_t)batch * n_prompt / 256);
}

static int bench_decode(struct bench *b, uint32_t n_prompt, uint32_t batch, struct error *err) {
    double rates[BENCH_MAX_RUNS], step_bytes = 0;
    const uint32_t n_generate = (uint32_t)b->plan->n_generate + decode_slack(n_prompt, batch);
    const struct kv_choice kv = kv_policy_resolve(&b->like->kv, n_prompt);
    for (uint32_t run = 0; run < b->plan->n_runs; run++) {
        struct timing t;
        int rc = run_batch(b, n_prompt, batch, n_generate, &t, err);
        if (rc < 0) return rc;
        if (t.decode_tokens == 0)
            return error_set(err, ERR_INVALID, "bench: no step had all %u sequences", batch);
        rates[run] = (double)t.decode_tokens / t.decode_seconds;
        const double n_read = batch * read_tokens(b, &kv, t.context_tokens / batch);
        step_bytes = step_weight_bytes(b->info) + (double)b->kv_token_bytes * n_read;
        if (run == 0) print_offload(b, n_prompt, batch, n_generate, &t.kv);
    }
    print_result(b, "decode", n_prompt, batch, rates,
                 batch * b->ceilings->read_bytes_per_s / step_bytes);
    return 0;
}

static int bench_decode_if_it_fits(struct bench *b, uint32_t n_prompt, uint32_t batch,
                                   struct error *err) {
    const uint64_t longest = n_prompt + b->plan->n_generate + decode_slack(n_prompt, batch);
    const struct kv_choice kv = kv_policy_resolve(&b->like->kv, n_prompt);
    const uint64_t resident = batch * (uint64_t)kept_tokens(&kv, n_prompt);
    const char *why = NULL;
    if (b->plan->max_resident && resident > b->plan->max_resident) why = "--max-resident";
    else if (!kv_choice_is_bounded(&kv) && longest > b->info->max_model_len)
        why = "--max-model-len";
    else if (pool_tokens(b, &kv, n_prompt, batch, (double)longest) > (double)b->info->kv_tokens)
        why = "the KV pool";
    else if (kv.type == KV_OFFLOAD && !kv.on_device && batch * longest > b->info->store_tokens)
        why = "--kv-offload-size";
    if (!why) return bench_decode(b, n_prompt, batch, err);
    printf("# decode,%u,%u not run: more than %s\n", n_prompt, batch, why);
    return 0;
}

static int run_plan(struct bench *b, struct error *err) {
    const struct bench_plan *plan = b->plan;
    int rc = 0;
    report_begin(&b->report);
    for (uint32_t i = 0; rc == 0 && i < plan->prompts.n; i++)
        rc = bench_prefill(b, plan->prompts.sizes[i], err);
    for (uint32_t i = 0; rc == 0 && i < plan->batches.n; i++)
        for (uint32_t j = 0; rc == 0 && j < plan->prompts.n; j++)
            rc = bench_decode_if_it_fits(b, plan->prompts.sizes[j], plan->batches.sizes[i], err);
    return rc;
}

int bench_engine_run(const struct bench_plan *plan, const struct ceilings *ceilings,
                     struct engine_config config, const struct bench_requests *like,
                     struct error *err) {
    struct bench b = {.plan = plan,
                      .ceilings = ceilings,
                      .report = {plan->table, names, N_COLUMNS},
                      .like = like,
                      .random = 42};
    config.bounded_caches = kv_choice_is_bounded(&like->kv.tokens);
    int rc = timed_engine_open(&b.timed, config, err);
    if (rc) return rc;
    b.info = b.timed.info;
    b.kv_token_bytes = b.info->kv_bytes / b.info->kv_tokens;
    printf("# weights %.1f MB, KV %.1f kB a token, room for %llu tokens\n",
           (double)b.info->weight_bytes * 1e-6, (double)b.kv_token_bytes * 1e-3,
           (unsigned long long)b.info->kv_tokens);
    rc = run_plan(&b, err);
    timed_engine_close(&b.timed);
    return rc;
}
