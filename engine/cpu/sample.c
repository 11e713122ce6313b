/* sample.c - samples one token from one row of logits: penalties, temperature, top-k, min-p, top-p,
 * and the token at a uniform random number.
 *
 * Everything is linear in the vocabulary: top-k and top-p find their threshold by selection, not by
 * sorting.  Selection partitions the candidates again and again, each time the side that holds the
 * threshold. */
#include "engine/cpu/backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/sample.h"

enum { RUN = 128 }; /* logits that are looked at together */

struct sample_candidate {
    float value; /* the logit after penalties */
    float p;     /* its weight after temperature, relative to the best */
    uint32_t token;
};

struct sample_job {
    struct cpu_backend *cpu;
    const struct sample_args *args;
};

/* Orders the candidates for all filters and ties: higher logit first, then lower token. */
static bool before(const struct sample_candidate *a, const struct sample_candidate *b) {
    return a->value > b->value || (a->value == b->value && a->token < b->token);
}

static void swap(struct sample_candidate *a, struct sample_candidate *b) {
    struct sample_candidate t = *a;
    *a = *b;
    *b = t;
}

/* Moves the pivot to its place among c[0..n), better ones before it; returns its index. */
static uint32_t partition(struct sample_candidate *c, uint32_t n) {
    uint32_t mid = n / 2, last = n - 1;
    if (before(&c[mid], &c[0])) swap(&c[mid], &c[0]); /* median of three, left in the last place */
    if (before(&c[last], &c[0])) swap(&c[last], &c[0]);
    if (before(&c[mid], &c[last])) swap(&c[mid], &c[last]);
    uint32_t store = 0;
    for (uint32_t i = 0; i < last; i++) {
        if (before(&c[i], &c[last])) swap(&c[i], &c[store++]);
    }
    swap(&c[store], &c[last]);
    return store;
}

/* Moves the best k to the front. */
static void select_top_k(struct sample_candidate *c, uint32_t n, uint32_t k) {
    while (n > 1 && k > 0 && k < n) {
        uint32_t pivot = partition(c, n);
        if (k <= pivot) {
            n = pivot;
        } else {
            c += pivot + 1;
            n -= pivot + 1;
            k -= pivot + 1;
        }
    }
}

/* Moves the shortest run of best candidates whose weight reaches `mass` to the front.  Returns its
 * length. */
static uint32_t select_top_p(struct sample_candidate *c, uint32_t n, double mass) {
    uint32_t kept = 0;
    while (n > 1) {
        uint32_t pivot = partition(c, n);
        double better = 0;
        for (uint32_t i = 0; i < pivot; i++) better += c[i].p;
        if (pivot > 0 && better >= mass) {
            n = pivot;
            continue;
        }
        kept += pivot + 1;
        mass -= better + c[pivot].p;
        c += pivot + 1;
        n -= pivot + 1;
        if (mass <= 0) return kept;
    }
    return kept + n;
}

/* Forbids the tokens whose bit is 0.  Most words are all zeros or all ones. */
static void forbid_others(float *x, const uint32_t *allowed, uint32_t n_vocab) {
    for (uint32_t first = 0; first < n_vocab; first += 32) {
        const uint32_t word = allowed[first / 32], n = min_u32(32, n_vocab - first);
        for (uint32_t i = 0; i < n && word != UINT32_MAX; i++)
            if (!(word >> i & 1)) x[first + i] = -INFINITY;
    }
}

static void apply_penalties(float *x, const struct sample_row *row, uint32_t n_vocab) {
    const struct sampler *s = &row->sampler;
    for (uint32_t i = 0; i < row->n_bias; i++) {
        if (row->bias[i].token < n_vocab) x[row->bias[i].token] += row->bias[i].bias;
    }
    for (uint32_t i = 0; i < row->n_banned; i++) {
        if (row->banned[i] < n_vocab) x[row->banned[i]] = -INFINITY;
    }
    if (row->allowed) forbid_others(x, row->allowed, n_vocab);
    for (uint32_t i = 0; i < row->n_counts; i++) {
        const struct token_count *seen = &row->counts[i];
        if (seen->token >= n_vocab) continue;
        float *logit = &x[seen->token];
        *logit = *logit > 0 ? *logit / s->repetition_penalty : *logit * s->repetition_penalty;
        if (seen->n_output == 0) continue;
        *logit -= s->frequency_penalty * (float)seen->n_output + s->presence_penalty;
    }
}

/* Says whether one of n is greater.  Without a branch, so that compilers use vectors. */
static bool any_greater(const float *x, uint32_t n, float than) {
    int any = 0;
    for (uint32_t i = 0; i < n; i++) any |= x[i] > than;
    return any;
}

/* Returns the first of the greatest. */
static uint32_t arg_max(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t first = 0; first < n; first += RUN) {
        const uint32_t end = min_u32(n, first + RUN);
        if (!any_greater(x + first, end - first, x[best])) continue;
        for (uint32_t i = first; i < end; i++)
            if (x[i] > x[best]) best = i;
    }
    return best;
}

/* Computes every token's weight relative to the best logit, and collects the candidates.  A token
 * whose weight vanishes cannot be sampled and is left out. */
static uint32_t collect(struct sample_candidate *c, float *weights, const float *x,
                        uint32_t n_vocab, float max, float temperature) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        float p = weights[i] = expf((x[i] - max) / temperature);
        if (p > 0) c[n++] = (struct sample_candidate){x[i], p, i};
    }
    return n;
}

static uint32_t keep_min_p(struct sample_candidate *c, uint32_t n, float min_p) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].p >= min_p) c[kept++] = c[i]; /* the best has weight 1 */
    }
    return kept;
}

static double total_weight(const struct sample_candidate *c, uint32_t n) {
    double total = 0;
    for (uint32_t i = 0; i < n; i++) total += c[i].p;
    return total;
}

/* Returns the last of the kept candidates in the order of before().  It tells of any token whether
 * it is kept. */
static struct sample_candidate worst_of(const struct sample_candidate *c, uint32_t n) {
    struct sample_candidate worst = c[0];
    for (uint32_t i = 1; i < n; i++)
        if (before(&worst, &c[i])) worst = c[i];
    return worst;
}

/* Returns the kept token at which the running sum of weights exceeds `at`.  The sum runs in order
 * of token id, so that it does not depend on the order in which selection left the candidates. */
static uint32_t token_at(const float *x, const float *weights, uint32_t n_vocab,
                         const struct sample_candidate *worst, double at) {
    double sum = 0;
    uint32_t last = worst->token;
    for (uint32_t i = 0; i < n_vocab; i++) {
        const struct sample_candidate c = {.value = x[i], .token = i};
        if (before(worst, &c)) continue;
        sum += weights[i];
        if (at < sum) return i;
        last = i;
    }
    return last; /* rounding: uniform so close to 1 that the sum fell short */
}

static uint32_t draw(const struct sample_row *row, const float *x, uint32_t n_vocab, uint32_t best,
                     struct sample_candidate *c, float *weights) {
    const struct sampler *s = &row->sampler;
    if (s->temperature <= 0) return best;
    uint32_t n = collect(c, weights, x, n_vocab, x[best], s->temperature);
    if (s->top_k > 0 && s->top_k < n) {
        select_top_k(c, n, s->top_k);
        n = s->top_k;
    }
    if (s->min_p > 0) n = keep_min_p(c, n, s->min_p);
    if (s->top_p < 1) n = select_top_p(c, n, s->top_p * total_weight(c, n));
    struct sample_candidate worst = worst_of(c, n);
    return token_at(x, weights, n_vocab, &worst, row->uniform * total_weight(c, n));
}

/* Reports the n_top best of the unmodified logits, by insertion, as n_top is small.  Compares
 * logits, not their log-probabilities, in which small differences are rounded away. */
static void report_top(struct sample_result *result, const float *logits, uint32_t n_vocab,
                       uint32_t n_top, float lse) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab && n_top > 0; i++) {
        if (n == n_top && logits[i] <= logits[result->top[n - 1].token]) continue;
        uint32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logits[result->top[at - 1].token] < logits[i]; at--)
            result->top[at] = result->top[at - 1];
        result->top[at] = (struct token_logprob){i, logits[i] - lse};
    }
    result->n_top = n;
}

static uint32_t rank_of(const float *logits, uint32_t n_vocab, uint32_t token) {
    uint32_t rank = 1;
    for (uint32_t i = 0; i < n_vocab; i++)
        rank += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
    return rank;
}

/* Returns whether a row is usable: no logit is NaN or +inf, and one is finite. */
static bool row_valid(const float *logits, uint32_t n_vocab) {
    int usable = 1, finite = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        usable &= logits[i] < INFINITY; /* NaN is not */
        finite |= logits[i] > -INFINITY;
    }
    return usable && finite;
}

static bool changes_logits(const struct sample_row *row) {
    return row->n_bias || row->n_banned || row->n_counts || row->allowed;
}

static void sample_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct sample_job *job = ctx;
    const struct sample_args *args = job->args;
    const struct sample_row *row = &args->rows[task];
    struct sample_result *result = &args->results[task];
    uint32_t n_vocab = args->n_vocab;
    const float *logits = (const float *)args->logits + (size_t)row->logit_row * n_vocab,
                *x = logits;
    struct sample_candidate *candidates = scratch_of(job->cpu, worker);
    float *weights = (float *)(candidates + n_vocab), *changed = weights + n_vocab;

    result->token = result->n_top = 0;
    result->invalid = !row_valid(logits, n_vocab);
    if (result->invalid) return;
    const uint32_t best = arg_max(logits, n_vocab);
    if (row->kind == SAMPLE_SCORE) {
        result->token = row->target;
    } else {
        if (changes_logits(row)) {
            memcpy(changed, logits, n_vocab * sizeof(float));
            apply_penalties(changed, row, n_vocab);
            x = changed;
            result->invalid = !row_valid(x, n_vocab); /* no token is left */
            if (result->invalid) return;
        }
        result->token =
            draw(row, x, n_vocab, x == logits ? best : arg_max(x, n_vocab), candidates, weights);
    }
    float lse = job->cpu->kernels->log_sum_exp(logits, n_vocab, logits[best]);
    result->logprob = logits[result->token] - lse;
    result->rank = result->token == best ? 1 : rank_of(logits, n_vocab, result->token);
    report_top(result, logits, n_vocab, min_u32(row->n_top, SAMPLE_MAX_TOP), lse);
}

/* Keeps the sampled tokens for the next step, which may refer to them; see STEP_SAMPLED. */
static int keep_sampled(struct cpu_backend *cpu, const struct sample_args *args,
                        struct error *err) {
    if (!cpu->drew) cpu->n_sampled = 0;
    cpu->drew = true;
    uint32_t need = cpu->n_sampled + args->n;
    if (need > cpu->sampled_capacity) {
        uint32_t *sampled = realloc(cpu->sampled, 2 * need * sizeof(*sampled));
        if (!sampled) return error_set(err, ERR_NOMEM, "cpu: no memory for %u tokens", need);
        cpu->sampled = sampled;
        cpu->sampled_capacity = 2 * need;
    }
    for (uint32_t i = 0; i < args->n; i++) cpu->sampled[cpu->n_sampled++] = args->results[i].token;
    return 0;
}

int cpu_sample(struct backend *be, const struct sample_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    const size_t row_bytes = sizeof(struct sample_candidate) + 2 * sizeof(float);
    int rc = scratch_reserve(cpu, args->n_vocab * row_bytes, err);
    if (rc < 0) return rc;
    pool_run(cpu->pool, sample_task, &(struct sample_job){cpu, args}, args->n);
    return keep_sampled(cpu, args, err);
}
