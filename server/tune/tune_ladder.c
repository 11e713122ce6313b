/* tune_ladder.c - measures the length from which a user waits no longer for a sparse prompt than
 * for a dense one.  Whole prompts go through an engine with the chosen patterns, one after the
 * other.
 *
 * Attention alone would not tell: a sparse prompt is computed layer-major, in many small steps.
 * For a short prompt these may cost more than its attention gains.
 *
 * Thread: main.  Memory: an engine's, while it measures. */
#include "server/tune/tune_job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "engine/base/sizes.h"
#include "engine/tune/tune_state.h"
#include "server/bench/report.h"
#include "server/bench/timed_engine.h"
#include "server/settings/options.h"
#include "server/tune/tune_prompts.h"

/* Pairs of a dense and a sparse run that count; one more pair before them warms up. */
enum { MIN_PAIRS = 3, MAX_PAIRS = 15 };
/* Short prompts are repeated for this long. */
static const double ENOUGH_S = 1.0;

/* Hashes what a rung of an earlier run must have been measured with, beside the state's
 * settings. */
static uint64_t hash_measurement(const struct tune *t) {
    static const char what[8] = "prompts"; /* tells them from rungs of attention alone */
    /* No attacker chooses patterns, so collisions are no risk. */
    static const uint64_t key[2] = {0};
    const size_t n = (size_t)t->model.n_attention * t->model.n_heads;
    struct siphash hash;
    uint64_t word;
    memcpy(&word, what, sizeof(word));
    siphash_init(&hash, key);
    siphash_absorb(&hash, word);
    siphash_absorb(&hash, t->options->dense_tail);
    siphash_absorb(&hash, t->config.max_long_rows);
    siphash_absorb(&hash, t->config.batch_invariant);
    for (size_t i = 0; i < n; i++) {
        const struct attn_pattern *p = &t->patterns.heads[i];
        siphash_absorb(&hash, p->kind);
        siphash_absorb(&hash, (uint64_t)p->p1 << 32 | p->p2);
    }
    return siphash_end(&hash);
}

/* ---- progress ---- */

/* Returns a rung's work in runs of a candidate on the longest prompt.  It counts the pairs that run
 * in any case. */
static double rung_work(const struct tune *t, uint32_t n_tokens) {
    const double share = (double)n_tokens / t->longest;
    return 2 * (1 + MIN_PAIRS) * share * share * t->model.n_attention;
}

double tune_ladder_work(const struct tune *t) {
    double work = 0;
    for (uint32_t length = TUNE_FIRST_RUNG; length <= min_u32(t->longest, t->top); length *= 2)
        work += rung_work(t, length);
    return work;
}

/* Returns whether tune_ladder_work() has counted the rung.  It leaves out rungs between the powers
 * of two and beyond the longest prompt. */
static bool is_foreseen(const struct tune *t, uint32_t n_tokens) {
    return n_tokens <= t->longest && (n_tokens & (n_tokens - 1)) == 0;
}

/* ---- a rung ---- */

/* Returns the seconds that a pair of n_tokens takes, by one that was measured: a prompt's time
 * grows by more than its length, and by less than its square. */
static double pair_seconds(uint32_t n_tokens, uint32_t n_measured, double measured_s) {
    return measured_s * pow((double)n_tokens / n_measured, 1.6);
}

/* Returns the seconds of a rung with such pairs. */
static double rung_seconds(double pair_s) {
    const double n = ENOUGH_S / pair_s;
    return pair_s * (1 + fmin(fmax(n, MIN_PAIRS), MAX_PAIRS));
}

/* Returns the seconds of the foreseen rungs from `next` on. */
static double ladder_seconds(const struct tune *t, uint32_t next, uint32_t n_measured,
                             double measured_s) {
    double seconds = 0;
    for (uint64_t n = next; n <= t->top; n *= 2)
        seconds += rung_seconds(pair_seconds((uint32_t)n, n_measured, measured_s));
    return seconds;
}

/* Goes on in seconds: what the units of work took so far says what the rest takes. */
static void begin_estimate(struct tune *t) {
    const double here = t->progress.done - t->progress.given;
    const double elapsed = clock_seconds() - t->progress.begun_s;
    const double trial = t->finds_filters ? tune_trial_work(t) : 0;
    t->unit_s = here > 0 ? elapsed / here : 0;
    t->after_s = trial * t->unit_s;
    const double ladder = t->loss.pair_s > 0
                              ? ladder_seconds(t, TUNE_FIRST_RUNG, t->loss.n_tokens, t->loss.pair_s)
                              : tune_ladder_work(t) * t->unit_s;
    progress_estimate(&t->progress, ladder + t->after_s);
}

static int time_prompt(struct tune *t, struct timed_engine *timed, enum prefill_mode mode,
                       double *seconds, struct error *err) {
    const struct timed_batch batch = {
        .tokens = t->prompt.ids,
        .n_prompt = (uint32_t)t->prompt.n,
        .n_sequences = 1,
        .n_generate = 1,
        .prefill = {.mode = mode, .dense_tail = (uint32_t)t->options->dense_tail}};
    struct timing timing;
    const int rc = timed_engine_run(timed, &batch, &timing, err);
    *seconds = timing.total_seconds;
    return rc;
}

static bool is_enough(uint32_t n_pairs, double seconds) {
    return n_pairs == MAX_PAIRS || (n_pairs >= MIN_PAIRS && seconds >= ENOUGH_S);
}

/* Runs dense and sparse in turn, so that other load on the machine affects both alike. */
static int time_pairs(struct tune *t, struct timed_engine *timed, struct tune_rung *rung,
                      struct error *err) {
    double dense[1 + MAX_PAIRS], sparse[1 + MAX_PAIRS], spent = 0;
    char where[64];
    uint32_t n = 0;
    snprintf(where, sizeof(where), "break-even, %" PRIu32 " tokens", rung->n_tokens);
    for (; n == 0 || !is_enough(n - 1, spent); n++) {
        int rc = time_prompt(t, timed, PREFILL_DENSE, &dense[n], err);
        if (!rc) rc = time_prompt(t, timed, PREFILL_SPARSE, &sparse[n], err);
        if (rc) return rc;
        if (n > 0) spent += dense[n] + sparse[n];
        progress_add(&t->progress, dense[n] + sparse[n], where);
    }
    rung->dense_s = report_spread(dense + 1, n - 1).median;
    rung->sparse_s = report_spread(sparse + 1, n - 1).median;
    return 0;
}

static int measure_rung(struct tune *t, struct timed_engine *timed, struct tune_rung *rung,
                        struct error *err) {
    int rc = tune_make_prompt(t, TUNE_RETRIEVAL, TUNE_MAX_SAMPLES, rung->n_tokens, err);
    if (!rc) rc = time_pairs(t, timed, rung, err);
    if (rc || !is_foreseen(t, rung->n_tokens)) return rc;
    progress_estimate(&t->progress,
                      t->after_s + ladder_seconds(t, 2 * rung->n_tokens, rung->n_tokens,
                                                  rung->dense_s + rung->sparse_s));
    return 0;
}

/* ---- the ladder ---- */

static int climb(struct tune *t, struct timed_engine *timed, struct error *err) {
    const uint64_t key = hash_measurement(t);
    uint32_t n_tokens;
    int rc = 0;
    while (!rc && (n_tokens = tune_next_rung(t->rungs, t->n_rungs, t->top)) > 0) {
        struct tune_rung rung = {.n_tokens = n_tokens};
        if (!tune_state_find_rung(t->state, key, n_tokens, &rung)) {
            rc = measure_rung(t, timed, &rung, err);
            if (!rc) rc = tune_state_add_rung(t->state, key, &rung, err);
        }
        if (!rc) tune_insert_rung(t->rungs, t->n_rungs++, &rung);
    }
    return rc;
}

bool tune_is_all_dense(const struct tune *t) {
    for (uint32_t i = 0; i < t->model.n_attention * t->model.n_heads; i++)
        if (t->patterns.heads[i].kind != PATTERN_DENSE) return false;
    return true;
}

int tune_open_engine(struct tune *t, struct timed_engine *timed, struct error *err) {
    struct engine_config config = t->config;
    struct error why = {0};
    config.max_model_len = t->top + 1; /* the generated token */
    config.max_num_seqs = 1;
    config.sparse_prefill = true;
    config.patterns = t->patterns.heads;
    const int rc = timed_engine_open(timed, config, &why);
    return rc ? error_set(err, rc, "break-even, prompts of up to %" PRIu32 " tokens: %.400s",
                          t->top, why.text)
              : 0;
}

int tune_climb_ladder(struct tune *t, struct error *err) {
    struct timed_engine timed;
    if (tune_is_all_dense(t)) return 0; /* nothing is left out, so nothing is faster */
    int rc = tune_open_engine(t, &timed, err);
    if (rc) return rc;
    begin_estimate(t);
    rc = climb(t, &timed, err);
    timed_engine_close(&timed);
    return rc;
}
