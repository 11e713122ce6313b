/* bench_engine.c - the end-to-end half of `quire bench`: see bench.h.
 *
 *   prefill   one prompt, one token: prompt tokens / time to the first token
 *   decode    B prompts; from when all of them decode to when the first is done
 *
 * The bounds: a decode step must read every weight once, of experts the weights of those that are
 * used.  It must also read the keys and values of every sequence; in sparse layers only the
 * selected ones, wherever they were fetched from.  A prefilled token must be multiplied with every
 * weight once, and with the keys and values before it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "server/bench/bench.h"
#include "server/bench/bench_schedule.h"
#include "server/bench/report.h"
#include "server/bench/timed_engine.h"
#include "server/settings/kv_policy.h"
#include "server/settings/progress.h"

/* Steps beyond those counted: the first step in which all generate may be noticed late. */
enum { NOTICE_STEPS = 4 };

/* The current run.  Its seconds and steps are those at the machine's bounds. */
struct run {
    double prompt_s, decode_s, told_s; /* told_s: of these, already shown as progress */
    uint32_t n_prompt_steps, n_decode_steps;
    double told_at; /* by clock_seconds() */
    char name[64];
};

struct bench {
    const struct bench_plan *plan;
    const struct ceilings *ceilings;
    const struct engine_config *config;
    struct report report;
    struct timed_engine timed;
    const struct engine_info *info;
    uint64_t kv_token_bytes; /* of all layers */
    const struct bench_requests *like;
    struct progress progress;
    struct run run;
    uint64_t random;
};

/* The decoding of a batch of prompts of one length. */
struct decode {
    uint32_t n_prompt, batch;
    uint32_t n_generate; /* tokens of each, including those before all generate */
    struct kv_choice kv;
    struct bench_schedule schedule;
};

static uint32_t random_token(struct bench *b) {
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 33) % b->info->model->n_vocab;
}

/* ---- runs ---- */

static void tell(struct bench *b, double done_s) {
    progress_add(&b->progress, done_s - b->run.told_s, b->run.name);
    b->run.told_s = done_s;
    b->run.told_at = clock_seconds();
}

/* Shows progress, once a second at most, so that it does not disturb the measurement. */
static void run_stepped(void *ctx, uint64_t n_steps) {
    struct bench *b = ctx;
    const struct run *run = &b->run;
    const double in_prompts = fmin(1, (double)n_steps / run->n_prompt_steps),
                 more = fmax(0, (double)n_steps - run->n_prompt_steps),
                 in_decode = run->n_decode_steps ? fmin(1, more / run->n_decode_steps) : 0;
    if (clock_seconds() - run->told_at < 1) return;
    tell(b, run->prompt_s * in_prompts + run->decode_s * in_decode);
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
                                        .prefill = b->like->prefill,
                                        .stepped = run_stepped,
                                        .ctx = b};
    b->run.told_s = 0;
    b->run.told_at = clock_seconds();
    const int rc = timed_engine_run(&b->timed, &prompts, out, err);
    tell(b, b->run.prompt_s + b->run.decode_s);
    free(tokens);
    return rc;
}

/* --- results --- */

/* Returns how many of n tokens that were read or generated a sequence retains. */
static double kept_tokens(const struct kv_choice *kv, double n) {
    const double capacity = (double)kv_choice_capacity(kv);
    return kv_choice_is_bounded(kv) && capacity < n ? capacity : n;
}

static double sparse_share(const struct offload_rules *offload) {
    const double n = groups_n_layers(offload->groups, offload->n_groups, offload->windows);
    return offload->n_groups ? n / offload->n_layers : 0;
}

/* Returns how many of n tokens' keys and values a decode step reads, as the mean over the
 * layers. */
static double read_tokens(const struct bench *b, const struct kv_choice *kv, double n) {
    const double few = (double)kv->n_selected + kv->n_tail;
    if (!kv_choice_selects(kv) || n <= few) return kept_tokens(kv, n);
    return n - sparse_share(&b->like->offload) * (n - few);
}

/* Returns how many pool tokens a sequence that will be offloaded holds while its prompt is
 * computed.  A prompt that does not fit is computed layer-major, with two sparse layers in the pool
 * at a time. */
static double reading_tokens(const struct bench *b, uint32_t n_prompt, double n) {
    const struct offload_rules *offload = &b->like->offload;
    if (n <= (double)b->info->kv_tokens || n_prompt > b->info->long_rows + 1) return n;
    return n * (1 - sparse_share(offload) + 2.0 / offload->n_layers);
}

/* Returns how many pool tokens a sequence of n_text tokens holds, as the mean over layers, if
 * n_full are held in layers without a window.  The others hold the window and a step's rows. */
static double beside_windows(const struct bench *b, double n_full, double n_text) {
    const struct model_config *m = b->info->model;
    const double window = (double)max_u32(m->window, PAGE_TOKENS) + b->config->max_batched_tokens +
                          2 * PAGE_TOKENS,
                 n_windowed = b->config->batch_invariant || window > n_text ? n_text : window;
    double n = 0;
    for (uint32_t l = 0; l < m->n_attention; l++)
        n += layer_has_window(m->windows, l) ? n_windowed : n_full;
    return n / m->n_attention;
}

/* Returns how many tokens of the KV pool the batch's sequences of n tokens hold, at most. */
static double pool_tokens(const struct bench *b, const struct kv_choice *kv, uint32_t n_prompt,
                          uint32_t batch, double n) {
    /* While its prompt is computed, a bounded sequence also holds a chunk, and an offloaded one the
     * tokens that will move to the host pool. */
    const double kept = kept_tokens(kv, n);
    if (kv_choice_is_bounded(kv) && kv->whole)
        return batch * beside_windows(b, kept > n_prompt ? kept : n_prompt, n);
    if (kv_choice_is_bounded(kv))
        return batch * beside_windows(b, kept + kv_choice_chunk(kv, n_prompt), n);
    if (!kv_choice_selects(kv)) return batch * n;
    if (kv->on_device) return batch * (n + sparse_share(&b->like->offload) * kv->n_selected);
    return reading_tokens(b, n_prompt, n) + (batch - 1) * read_tokens(b, kv, n);
}

/* Returns how many tokens the queries of a prompt attend to, together.  Each query sees the tokens
 * retained before its chunk, and those of the chunk up to itself. */
static double seen_tokens(const struct kv_choice *kv, uint32_t n) {
    const uint32_t chunk = kv_choice_is_bounded(kv) ? kv_choice_chunk(kv, n) : n;
    double seen = 0;
    for (uint32_t at = 0, rows; at < n; at += rows) {
        rows = min_u32(chunk, n - at);
        seen += rows * (kept_tokens(kv, at) + (rows + 1.0) / 2);
    }
    return seen;
}

/* Returns the multiply-adds of one row in a recurrent layer: its products, what a state is read and
 * changed by, and what the convolution takes. */
static double recurrent_work(const struct model_config *m) {
    const struct recurrent_shape *s = &m->recurrent;
    const double n_values = (double)s->n_v_heads * s->v_dim,
                 products = n_values + recurrent_n_inputs(s) + recurrent_n_gates(s);
    return m->dim * products + 3.0 * (double)recurrent_n_elements(s) +
           (double)s->width * recurrent_n_channels(s);
}

/* Returns the operations of a prompt: two for each weight and token, and for each query with each
 * key and value that it sees.  Past the attention of the last layer with keys only the last token
 * is computed, also in layers that share these.  What those read of keys is left out. */
static double prompt_flops(const struct model_config *m, const struct kv_choice *kv, uint32_t n) {
    const struct mean_widths mean = model_mean_widths(m);
    const uint32_t n_attending = m->n_attention + m->n_kv_shared;
    double q = m->dim * mean.q, kv_all = 2.0 * m->dim * mean.k * n_attending,
           ffn = feed_forward_work(m), o = mean.q * m->dim * (m->output_gate ? 2 : 1);
    double attention = 4.0 * mean.q * seen_tokens(kv, n);
    double rows = (double)n * (m->n_layers - m->n_kv_shared - 1) + 1 + m->n_kv_shared,
           attending = rows - (double)n * m->recurrent.n_layers;
    return m->n_attention * (2.0 * n * q + attention) + 2.0 * n * kv_all +
           2 * (attending * o + rows * ffn) + 2.0 * m->n_kv_shared * q +
           2.0 * n * m->recurrent.n_layers * recurrent_work(m) + 2.0 * m->n_vocab * m->dim;
}

static const char *const names[] = {"phase", "prompt_tokens", "sequences",          "tokens_per_s",
                                    "least", "greatest",      "bound_tokens_per_s", "of_bound"};
enum { N_COLUMNS = sizeof(names) / sizeof(*names) };

static void print_result(struct bench *b, const char *phase, uint32_t n_prompt, uint32_t batch,
                         double *rates, double bound) {
    char cells[N_COLUMNS][REPORT_CELL];
    const struct spread rate = report_spread(rates, b->plan->n_runs);
    progress_end(&b->progress);
    snprintf(cells[0], REPORT_CELL, "%s", phase);
    snprintf(cells[1], REPORT_CELL, "%u", n_prompt);
    snprintf(cells[2], REPORT_CELL, "%u", batch);
    snprintf(cells[3], REPORT_CELL, "%.1f", rate.median);
    snprintf(cells[4], REPORT_CELL, "%.1f", rate.least);
    snprintf(cells[5], REPORT_CELL, "%.1f", rate.greatest);
    snprintf(cells[6], REPORT_CELL, "%.1f", bound);
    snprintf(cells[7], REPORT_CELL, "%.3f", rate.median / bound);
    report_row(&b->report, (const char(*)[REPORT_CELL])cells);
}

static void print_sparse(uint32_t n_prompt, const struct prefill_usage *usage) {
    if (usage->mode == PREFILL_SPARSE)
        printf("# prefill,%u sparse: density %.4f, index %.3f s, attention %.3f s\n", n_prompt,
               usage->density, usage->index_s, usage->attention_s);
}

static void print_offload(const struct bench *b, uint32_t n_prompt, uint32_t batch,
                          uint32_t n_generate, const struct kv_usage *usage) {
    const double n_chosen = usage->values[KV_SELECTED_TOKENS];
    const uint64_t n_copies = (uint64_t)usage->values[KV_FETCHED_COPIES],
                   n_moved = (uint64_t)usage->values[KV_MOVED_COPIES];
    if (!(n_chosen > 0)) return;
    printf("# decode,%u,%u offload: hit rate %.4f, %.3f MB fetched a token\n", n_prompt, batch,
           1 - usage->values[KV_FETCHED_TOKENS] / n_chosen,
           1e-6 * (double)offload_rules_copied_bytes(&b->like->offload, n_copies, n_moved) /
               n_generate);
}

/* ---- what fits ---- */

/* Returns the pages, over all layers, of a text from which nothing is evicted.  A layer with a
 * window holds only the window and the rows of another step, unless steps are batch-invariant. */
static uint64_t text_pages(const struct bench *b, uint64_t n_tokens) {
    const struct model_config *m = b->info->model;
    const uint32_t step_rows = max_u32(b->config->max_batched_tokens, b->info->long_rows);
    const uint64_t n_pages = div_up(n_tokens, PAGE_TOKENS),
                   n_in_window =
                       div_up((uint64_t)max_u32(m->window, PAGE_TOKENS) + step_rows, PAGE_TOKENS) +
                       1;
    uint64_t n = 0;
    for (uint32_t l = 0; l < m->n_attention; l++) {
        const bool is_windowed = m->windows && m->windows[l] > 0 && !b->config->batch_invariant;
        n += is_windowed ? min_u64(n_pages, n_in_window) : n_pages;
    }
    return n;
}

/* Returns the most pages that texts need at once if nothing is evicted: when the first is done, or
 * when the last one is admitted.  Admission requires a free page in every layer for each running
 * text.  Batch-invariant sequences have all their pages from the beginning. */
static uint64_t full_pages(const struct bench *b, const struct decode *d) {
    const struct bench_schedule *schedule = &d->schedule;
    uint64_t at_end = 0, at_last = text_pages(b, d->n_prompt);
    if (b->config->batch_invariant)
        return d->batch * text_pages(b, (uint64_t)d->n_prompt + d->n_generate);
    for (uint32_t i = 0; i < d->batch; i++) {
        const uint32_t behind = schedule->behind[i], since = schedule->n_first + behind,
                       n_then = schedule->n_last > since ? schedule->n_last - since : 0,
                       n_now = min_u32(d->n_generate, d->n_generate + 1 - behind);
        at_end += text_pages(b, (uint64_t)d->n_prompt + n_now);
        if (i == d->batch - 1) break;
        at_last += text_pages(b, (uint64_t)d->n_prompt + n_then) + b->info->model->n_attention;
    }
    return at_end > at_last ? at_end : at_last;
}

static bool fits_pool(const struct bench *b, const struct decode *d) {
    const double longest = (double)d->n_prompt + d->n_generate;
    if (d->kv.mechanism == KV_WHOLE) return full_pages(b, d) <= b->info->n_pages;
    return pool_tokens(b, &d->kv, d->n_prompt, d->batch, longest) <= (double)b->info->kv_tokens;
}

static bool is_sparse(const struct bench *b, uint32_t n_prompt) {
    const uint32_t least = max_u32(b->config->min_sparse_tokens, PREFILL_MIN_AUTO_ROWS);
    const enum prefill_mode mode = b->like->prefill.mode;
    if (!b->info->sparse_prefill || mode == PREFILL_DENSE) return false;
    return mode == PREFILL_SPARSE || (b->config->patterns && n_prompt >= least);
}

/* Returns the steps in which other sequences generate while a prompt is computed that owns the
 * prefill; 0 when there is no such prompt.  There is one after each layer slice, or one with each
 * chunk.  A chunk may end at a page, with the rest in the next step. */
static uint32_t steps_alone(const struct bench *b, const struct kv_choice *kv, uint32_t n_prompt,
                            uint32_t batch) {
    const uint32_t most = b->config->max_batched_tokens, tail = b->like->prefill.dense_tail;
    const bool is_limited = b->config->max_itl_ms > 0,
               is_moved = kv_choice_selects(kv) && !kv->on_device && n_prompt > b->info->kv_tokens;
    const uint32_t slice = is_limited ? SPARSE_TILE : max_u32(most - most % SPARSE_TILE, 1),
                   room = is_limited ? PREFILL_MIN_STEP_ROWS : max_u32(most - batch, 1);
    if (!is_moved && !is_sparse(b, n_prompt)) return 0;
    const uint64_t n_tail = div_up(tail, room) + 1;
    if (is_moved || n_prompt <= b->info->long_rows + tail)
        return (uint32_t)(b->info->model->n_attention * div_up(n_prompt, slice) + n_tail);
    return (uint32_t)(2 * div_up(n_prompt, room) + n_tail);
}

static void plan_decode(const struct bench *b, struct decode *d, uint32_t n_prompt,
                        uint32_t batch) {
    d->n_prompt = n_prompt;
    d->batch = batch;
    d->kv = kv_policy_resolve(&b->like->kv, n_prompt);
    const bool is_bounded = kv_choice_is_bounded(&d->kv);
    /* Under --max-itl, the first prefill chunk of each step has PREFILL_MIN_STEP_ROWS rows in any
     * case. */
    const uint32_t most = b->config->max_batched_tokens,
                   rows =
                       b->config->max_itl_ms ? min_u32(most, batch + PREFILL_MIN_STEP_ROWS) : most;
    const struct bench_shape shape = {.n_sequences = batch,
                                      .n_prompt = n_prompt,
                                      .max_rows = max_u32(rows, batch),
                                      .chunk = is_bounded ? d->kv.chunk : n_prompt,
                                      .n_alone = steps_alone(b, &d->kv, n_prompt, batch)};
    bench_schedule_make(&d->schedule, &shape);
    d->n_generate = (uint32_t)b->plan->n_generate;
    if (batch > 1) d->n_generate += d->schedule.behind[batch - 1] + NOTICE_STEPS;
}

/* Returns the option or pool that is too small for the batch; NULL: the batch can be run. */
static const char *too_small_for(const struct bench *b, const struct decode *d) {
    const uint64_t resident = d->batch * (uint64_t)kept_tokens(&d->kv, d->n_prompt),
                   longest = (uint64_t)d->n_prompt + d->n_generate;
    if (d->batch > b->config->max_num_seqs) return "--max-num-seqs";
    if (b->plan->max_resident && resident > b->plan->max_resident) return "--max-resident";
    if (!kv_choice_is_bounded(&d->kv) && longest > b->info->max_model_len) return "--max-model-len";
    if (!fits_pool(b, d)) return "the KV pool";
    if (kv_choice_selects(&d->kv) && !d->kv.on_device &&
        d->batch * longest > b->info->host_pool_tokens)
        return "--kv-offload-size";
    return NULL;
}

static bool prompt_fits(const struct bench *b, uint32_t n_prompt) {
    const struct kv_choice kv = kv_policy_resolve(&b->like->kv, n_prompt);
    return kv_choice_is_bounded(&kv) || n_prompt < b->info->max_model_len;
}

/* ---- prefill ---- */

static double prompt_seconds(const struct bench *b, const struct kv_choice *kv, uint32_t n) {
    return prompt_flops(b->info->model, kv, n) / b->ceilings->flops_per_s;
}

static struct run prefill_run(const struct bench *b, uint32_t n_prompt) {
    const struct kv_choice kv = kv_policy_resolve(&b->like->kv, n_prompt);
    struct run run = {.prompt_s = prompt_seconds(b, &kv, n_prompt),
                      .n_prompt_steps = (uint32_t)div_up(n_prompt, b->config->max_batched_tokens)};
    snprintf(run.name, sizeof(run.name), "prefill of %u", n_prompt);
    return run;
}

static int bench_prefill(struct bench *b, uint32_t n_prompt, struct error *err) {
    double rates[BENCH_MAX_RUNS];
    struct timing t = {0};
    if (!prompt_fits(b, n_prompt)) {
        printf("# prefill,%u not run: exceeds --max-model-len\n", n_prompt);
        return 0;
    }
    b->run = prefill_run(b, n_prompt);
    for (uint32_t run = 0; run < b->plan->n_runs; run++) {
        int rc = run_batch(b, n_prompt, 1, 1, &t, err);
        if (rc < 0) return rc;
        rates[run] = n_prompt / t.total_seconds;
    }
    print_sparse(n_prompt, &t.prefill);
    print_result(b, "prefill", n_prompt, 1, rates, n_prompt / b->run.prompt_s);
    return 0;
}

/* ---- decode ---- */

/* Returns the bytes of weights that a step of n sequences must read.  Of experts these are as many
 * as are used on the average by sequences that choose by chance. */
static double step_weight_bytes(const struct bench *b, uint32_t n) {
    const struct experts_shape experts = feed_forward_experts(b->info->model, n);
    const double all = (double)b->info->step_weight_bytes;
    if (experts.n_experts == 0) return all;
    const double unused = pow(1 - (double)experts.n_used / experts.n_experts, n);
    return all - unused * (double)b->info->expert_bytes;
}

/* Returns the bytes of a recurrent state, which each step reads and writes. */
static double state_bytes(const struct bench *b) {
    return b->info->n_states ? (double)b->info->state_bytes / b->info->n_states : 0;
}

static double step_seconds(const struct bench *b, const struct decode *d, double n_tokens) {
    const double n_read = d->batch * read_tokens(b, &d->kv, n_tokens);
    return (step_weight_bytes(b, d->batch) + (double)b->kv_token_bytes * n_read +
            2 * d->batch * state_bytes(b)) /
           b->ceilings->read_bytes_per_s;
}

static struct run decode_run(const struct bench *b, const struct decode *d) {
    const uint32_t behind = d->schedule.behind[d->batch - 1], n = d->n_generate - behind;
    struct run run = {.prompt_s = d->batch * prompt_seconds(b, &d->kv, d->n_prompt),
                      .decode_s = n * step_seconds(b, d, d->n_prompt + d->n_generate / 2.0),
                      .n_prompt_steps = d->schedule.n_first + behind,
                      .n_decode_steps = n};
    snprintf(run.name, sizeof(run.name), "decode of %u behind %u", d->batch, d->n_prompt);
    return run;
}

static int bench_decode(struct bench *b, const struct decode *d, struct error *err) {
    double rates[BENCH_MAX_RUNS], step_s = 0;
    b->run = decode_run(b, d);
    for (uint32_t run = 0; run < b->plan->n_runs; run++) {
        struct timing t;
        int rc = run_batch(b, d->n_prompt, d->batch, d->n_generate, &t, err);
        if (rc < 0) return rc;
        if (t.decode_tokens == 0) {
            printf("# decode,%u,%u not measured: no step decoded all sequences\n", d->n_prompt,
                   d->batch);
            return 0;
        }
        rates[run] = (double)t.decode_tokens / t.decode_seconds;
        step_s = step_seconds(b, d, t.context_tokens / d->batch);
        if (run == 0) print_offload(b, d->n_prompt, d->batch, d->n_generate, &t.kv);
    }
    print_result(b, "decode", d->n_prompt, d->batch, rates, d->batch / step_s);
    return 0;
}

static int bench_decode_if_it_fits(struct bench *b, uint32_t n_prompt, uint32_t batch,
                                   struct error *err) {
    struct decode d;
    plan_decode(b, &d, n_prompt, batch);
    const char *why = too_small_for(b, &d);
    if (!why) return bench_decode(b, &d, err);
    printf("# decode,%u,%u not run: exceeds %s\n", n_prompt, batch, why);
    return 0;
}

/* ---- the plan ---- */

/* Returns the seconds that the plan takes at the machine's bounds. */
static double least_seconds(const struct bench *b) {
    const struct bench_sizes *prompts = &b->plan->prompts, *batches = &b->plan->batches;
    struct decode d;
    double s = 0;
    for (uint32_t j = 0; j < prompts->n; j++) {
        if (prompt_fits(b, prompts->sizes[j])) s += prefill_run(b, prompts->sizes[j]).prompt_s;
        for (uint32_t i = 0; i < batches->n; i++) {
            plan_decode(b, &d, prompts->sizes[j], batches->sizes[i]);
            if (too_small_for(b, &d)) continue;
            const struct run run = decode_run(b, &d);
            s += run.prompt_s + run.decode_s;
        }
    }
    return s * (double)b->plan->n_runs;
}

static int run_plan(struct bench *b, struct error *err) {
    const struct bench_plan *plan = b->plan;
    const double least_s = least_seconds(b);
    char least[48];
    int rc = 0;
    progress_duration(least_s, least, sizeof(least));
    fprintf(stderr, "bench: takes at least %s, the time at this machine's bounds\n", least);
    progress_begin(&b->progress, "bench", least_s, 0);
    report_begin(&b->report);
    for (uint32_t i = 0; rc == 0 && i < plan->prompts.n; i++)
        rc = bench_prefill(b, plan->prompts.sizes[i], err);
    for (uint32_t i = 0; rc == 0 && i < plan->batches.n; i++)
        for (uint32_t j = 0; rc == 0 && j < plan->prompts.n; j++)
            rc = bench_decode_if_it_fits(b, plan->prompts.sizes[j], plan->batches.sizes[i], err);
    progress_end(&b->progress);
    return rc;
}

int bench_engine_run(const struct bench_plan *plan, const struct ceilings *ceilings,
                     struct engine_config config, const struct bench_requests *like,
                     struct error *err) {
    struct bench b = {.plan = plan,
                      .ceilings = ceilings,
                      .config = &config,
                      .report = {plan->table, names, N_COLUMNS},
                      .like = like,
                      .random = 42};
    config.bounded_caches = kv_choice_is_bounded(&like->kv.tokens);
    int rc = timed_engine_open(&b.timed, config, err);
    if (rc) return rc;
    b.info = b.timed.info;
    b.kv_token_bytes = b.info->kv_bytes / b.info->kv_tokens;
    printf("# weights %.1f MB, KV %.1f kB a token, KV cache of %llu tokens\n",
           (double)b.info->weight_bytes * 1e-6, (double)b.kv_token_bytes * 1e-3,
           (unsigned long long)b.info->kv_tokens);
    rc = run_plan(&b, err);
    timed_engine_close(&b.timed);
    return rc;
}
