/* sequence.c - see sequence.h.
 *
 * Thread: created on any, then engine.  Memory: see sequence.h. */
#include "engine/schedule/sequence.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/request/event.h"
#include "engine/request/kept.h"

static int init_prompt_event(struct sequence *seq) {
    if (seq->params.n_prompt_logprobs < 0) return 0;
    size_t n_tops = (size_t)seq->n_prompt * (uint32_t)seq->params.n_prompt_logprobs;
    seq->prompt_event = event_create(EVENT_PROMPT, 0, seq->n_prompt, n_tops, &seq->prompt_tops);
    if (!seq->prompt_event) return ERR_NOMEM;
    /* Nothing predicts the first token. */
    seq->prompt_event->tokens[0] = (struct token_info){.token = seq->tokens[0], .logprob = NAN};
    seq->n_scored = 1;
    return 0;
}

/* Returns whose recent answers may guess the request's: those of the same salt and the same
 * client. */
static uint64_t answers_scope(const struct sequence_shared *shared,
                              const struct engine_request *request) {
    struct siphash hash;
    siphash_init(&hash, shared->prefill.key);
    siphash_absorb(&hash, request->cache_salt);
    siphash_absorb(&hash, request->client);
    return siphash_end(&hash);
}

static int init_parts(struct sequence *seq, const struct engine_request *request,
                      const struct request_plan *plan) {
    const struct sequence_shared *shared = seq->shared;
    seq->ending = event_create(EVENT_FINISH, 0, 0, 0, NULL);
    if (!seq->ending) return ERR_NOMEM;
    if (request->kept && !(seq->kept = kv_kept_create(plan->kv.n_most))) return ERR_NOMEM;
    seq->prefill = plan->prefill;
    seq->n_together = kv_plan_together(&plan->kv);
    seq->speculates = seq->speculation.is_on = plan->speculates;
    if (seq->speculates && drafter_init(&seq->drafter, plan->kv.n_most, shared->recent,
                                        answers_scope(shared, request), shared->guess_credit))
        return ERR_NOMEM;
    const uint64_t salt =
        prefill_salt(&seq->prefill, &shared->prefill, request->cache_salt & ~KV_SALT_PRIVATE,
                     shared->space->batch_invariant ? seq->id : 0);
    int code = kv_sequence_init(&seq->kv, shared->space, &plan->kv, salt);
    if (code) return code;
    code = sampling_state_init(&seq->sampling, &seq->params, shared->eos, shared->n_eos);
    if (code) return code;
    code = constraint_init(&seq->constraint, &seq->params, shared->tokenizer, shared->n_vocab,
                           shared->grammar_credit);
    if (code) return code;
    code = output_init(&seq->output, shared->tokenizer, &seq->params);
    if (code) return code;
    code = sampling_state_count_prompt(&seq->sampling, seq->tokens, seq->n_prompt);
    return code ? code : init_prompt_event(seq);
}

int sequence_create(struct sequence **out, const struct sequence_shared *shared,
                    const struct engine_request *request, const struct request_plan *plan,
                    uint64_t id) {
    struct sequence *seq = calloc(1, sizeof(*seq));
    if (!seq) return ERR_NOMEM;
    seq->shared = shared;
    seq->id = id;
    seq->priority = request->priority;
    seq->tenant = request->tenant;
    seq->weight = request->weight;
    seq->progress = request->progress;
    seq->timing.arrived_s = request->arrived_s;
    seq->user = request->user;
    seq->params = request->params;
    seq->tokens = request->prompt;
    seq->n_prompt = seq->n_tokens = request->n_prompt;
    seq->token_capacity = request->n_prompt + request->n_spare;
    if (seq->params.max_tokens > KV_MAX_TEXT - seq->n_prompt)
        seq->params.max_tokens = KV_MAX_TEXT - seq->n_prompt;
    int code = init_parts(seq, request, plan);
    if (code == 0) {
        *out = seq;
        return 0;
    }
    sequence_abandon(seq);
    sequence_destroy(seq);
    return code;
}

void sequence_abandon(struct sequence *seq) {
    seq->tokens = NULL;
    seq->params = (struct sampling_params){0};
}

void sequence_destroy(struct sequence *seq) {
    if (!seq) return;
    kv_sequence_fini(&seq->kv);
    sampling_state_fini(&seq->sampling);
    constraint_fini(&seq->constraint);
    output_fini(&seq->output);
    drafter_fini(&seq->drafter);
    if (seq->prompt_event) engine_event_free(seq->prompt_event);
    if (seq->ending) engine_event_free(seq->ending);
    free(seq->kept);
    sampling_fini(&seq->params);
    free(seq->tokens);
    free(seq);
}

uint32_t sequence_n_generated(const struct sequence *seq) {
    return seq->n_tokens - seq->n_prompt;
}

/* Counts the generated tokens, including those that only the device knows. */
static uint32_t n_sampled_in_all(const struct sequence *seq) {
    return sequence_n_generated(seq) + seq->n_sampled;
}

/* Reuses nothing for a prompt that needs every row computed: for its log-probabilities, or because
 * no_reuse forbids blocks of other requests.  With no_reuse the sequence's own blocks do not help
 * after a preemption either: they end at a whole page, so keys would be chosen for the rest
 * alone. */
struct kv_wish sequence_wish(const struct sequence *seq) {
    const struct kv_plan *plan = &seq->kv.plan;
    struct kv_wish wish = {.n_tokens = seq->n_tokens, .tokens = seq->tokens};
    if (seq->shared->space->batch_invariant) wish.n_tokens = plan->n_most;
    if (!seq->prompt_event && !seq->prefill.no_reuse)
        wish.n_max = seq->n_tokens - min_u32(seq->n_tokens, kv_plan_n_observed(plan));
    return wish;
}

/* Tells whether the sequence should leave out a step.  Its in-flight token comes meanwhile, and the
 * tokens forced behind that are computed together in the next step.
 *
 *   saved   a step of this sequence for each forced token, less the one left out
 *   lost    1 / 8 of a step, at most, of each of the n_running sequences that share the next step
 *
 * The next step is slower, because not every row wants its logits.  So it has no CUDA graph, and
 * two attention kernels a layer. */
static bool awaits_jump(const struct sequence *seq, uint32_t n_running) {
    enum { MIN_FORCED = 4, SEQS_PER_TOKEN = 8 };
    return seq->n_sampled > 0 &&
           constraint_n_forced(&seq->constraint) >= MIN_FORCED + n_running / SEQS_PER_TOKEN;
}

uint32_t sequence_n_left(const struct sequence *seq, uint32_t n_running) {
    if (awaits_jump(seq, n_running)) return 0;
    if (seq->n_drafts > 0) return 0; /* what comes next depends on which guesses are right */
    /* Nothing is computed after the last token, whatever its value. */
    if (seq->n_sampled > 0 && n_sampled_in_all(seq) >= seq->params.max_tokens) return 0;
    if (seq->n_sampled > 0 && seq->may_draft) return 0;
    return seq->n_tokens + seq->n_sampled - seq->kv.n_tokens;
}

/* Makes space for n tokens in all.  ERR_NOMEM. */
static int grow_tokens(struct sequence *seq, uint32_t n) {
    if (n <= seq->token_capacity) return 0;
    const uint32_t capacity = max_u32(seq->token_capacity + seq->token_capacity / 2 + 16, n);
    uint32_t *tokens = realloc(seq->tokens, capacity * sizeof(*tokens));
    if (!tokens) return ERR_NOMEM;
    seq->tokens = tokens;
    seq->token_capacity = capacity;
    return 0;
}

/* Tells whether the sequence's next row is that of its newest token, which is known. */
static bool is_generating(const struct sequence *seq) {
    return seq->n_inflight == 0 && sequence_n_generated(seq) > 0 &&
           seq->kv.n_tokens + 1 == seq->n_tokens;
}

/* Returns how many tokens it has guessed, and has pages for. */
static uint32_t guess(struct sequence *seq, uint32_t most) {
    /* The last token is always sampled, and no row is computed behind it. */
    most = min_u32(most, seq->params.max_tokens - sequence_n_generated(seq) - 1);
    most = min_u32(most, sequence_recurrent_max_guesses(&seq->kv, seq->n_tokens));
    if (grow_tokens(seq, seq->n_tokens + most)) return 0;
    const uint32_t n = drafter_guess(&seq->drafter, seq->tokens, seq->n_tokens, most);
    return n > 0 && kv_reserve_guesses(&seq->kv, seq->n_tokens + n) ? 0 : n;
}

uint32_t sequence_draft(struct sequence *seq, uint32_t most, uint32_t n_running) {
    if (!seq->speculates) return 0;
    drafter_read(&seq->drafter, seq->tokens, seq->n_tokens);
    drafter_share(&seq->drafter, n_running);
    if (!is_generating(seq)) return 0;
    seq->n_drafts = guess(seq, most);
    if (seq->n_drafts == 0 && seq->has_waited) drafter_waited(&seq->drafter);
    seq->has_waited = false;
    return seq->n_drafts;
}

bool sequence_pays_delay(struct sequence *seq) {
    return seq->speculates && drafter_pay_delay(&seq->drafter);
}

uint32_t sequence_sample_rows(const struct sequence *seq, uint32_t n_before, uint32_t n_rows,
                              uint32_t first_row, struct sample_row *rows, bool *reads_tokens) {
    uint32_t end = n_before + n_rows, n = 0;
    for (uint32_t at = n_before; seq->prompt_event && at < end && at + 1 < seq->n_prompt; at++) {
        if (at + 1 < seq->n_scored) continue; /* known since before a preemption */
        rows[n++] = (struct sample_row){.logit_row = first_row + at - n_before,
                                        .kind = SAMPLE_SCORE,
                                        .target = seq->tokens[at + 1],
                                        .sampler = {.top_p = 1, .repetition_penalty = 1},
                                        .n_top = (uint32_t)seq->params.n_prompt_logprobs};
    }
    /* The last row is sampled even when no token is to be generated: its logits show that the pages
     * are valid. */
    const uint32_t n_drafts = seq->n_drafts, first = first_row + n_rows - 1 - n_drafts;
    const bool draws = end == seq->n_tokens + seq->n_sampled + n_drafts;
    for (uint32_t i = 0; draws && i <= n_drafts; i++)
        rows[n++] = sampling_row(&seq->sampling, first + i, n_sampled_in_all(seq) + i);
    *reads_tokens |= n > 0 && (seq->constraint.matcher || seq->sampling.counting);
    return n;
}

void sequence_complete_row(struct sequence *seq, struct sample_row *row) {
    bool ban;
    row->counts = seq->sampling.counts; /* the table may have moved */
    row->n_counts = seq->sampling.n_counts;
    if (seq->over) return; /* what is sampled is dropped */
    row->allowed = constraint_mask(&seq->constraint, row->banned, row->n_banned, &ban);
    if (!ban) row->n_banned = 0;
}

static void fill_final(const struct sequence *seq, struct engine_event *event) {
    event->kind = EVENT_FINISH;
    event->n_generated = sequence_n_generated(seq);
    event->kv = kv_report(&seq->kv, seq->n_done);
    event->speculation = seq->speculation;
    event->prefill = prefill_usage(&seq->prefill, seq->was_sparse, &seq->visited, seq->n_cached);
}

static void emit(const struct sequence *seq, struct engine_event *event,
                 struct event_list *events) {
    event->request_id = seq->id;
    event->user = seq->user;
    event->n_prompt = seq->n_prompt;
    event->n_cached = seq->n_cached;
    event_list_append(events, event);
}

void sequence_report(const struct sequence *seq, uint32_t n_processed, struct event_list *events) {
    struct engine_event *event = seq->progress ? event_create(EVENT_PROGRESS, 0, 0, 0, NULL) : NULL;
    if (!event) return;
    event->n_processed = n_processed;
    emit(seq, event, events);
}

void sequence_end(struct sequence *seq, enum finish_reason reason, int code, const char *text,
                  struct event_list *events) {
    struct engine_event *event = seq->ending;
    assert(event); /* exactly one final event */
    seq->ending = NULL;
    seq->failed = reason == FINISH_ERROR;
    fill_final(seq, event);
    event->reason = reason;
    event->error_code = code;
    if (text) snprintf(event->error_text, sizeof(event->error_text), "%s", text);
    emit(seq, event, events);
}

static bool fail(struct sequence *seq, int code, const char *text, struct event_list *events) {
    sequence_end(seq, FINISH_ERROR, code, text, events);
    return true;
}

static bool fail_no_memory(struct sequence *seq, struct event_list *events) {
    return fail(seq, ERR_NOMEM, "no memory for the request's output", events);
}

static void accept_score(struct sequence *seq, const struct sample_result *result) {
    uint32_t index = seq->n_scored++, n_top = (uint32_t)seq->params.n_prompt_logprobs;
    struct token_logprob *tops = seq->prompt_tops + (size_t)index * n_top;
    memcpy(tops, result->top, result->n_top * sizeof(*tops));
    seq->prompt_event->tokens[index] = (struct token_info){
        .token = result->token, .logprob = result->logprob, .n_top = result->n_top, .top = tops};
}

static bool contains(const uint32_t *tokens, uint32_t n, uint32_t token) {
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == token) return true;
    return false;
}

/* Whether and how a sampled token ends the sequence. */
struct verdict {
    bool ends, by_string, by_token;
    enum finish_reason reason;
    uint32_t stop_index, stop_token;
};

static struct verdict judge_token(const struct sequence *seq, uint32_t token) {
    const struct sampling_params *p = &seq->params;
    struct verdict v = {.reason = FINISH_STOP};
    if (!p->ignore_eos && contains(seq->shared->eos, seq->shared->n_eos, token)) {
        v.ends = true;
    } else if (contains(p->stop_tokens, p->n_stop_tokens, token)) {
        v.ends = v.by_token = true;
        v.stop_token = token;
    }
    return v;
}

static int append_token(struct sequence *seq, uint32_t token) {
    constraint_take(&seq->constraint, token);
    if (grow_tokens(seq, seq->n_tokens + 1)) return ERR_NOMEM;
    seq->tokens[seq->n_tokens++] = token;
    return sampling_state_count(&seq->sampling, token);
}

/* Appends the sampled token to tokens, counts and output, and judges it.  ERR_NOMEM. */
static int take_token(struct sequence *seq, const struct sample_result *result, struct verdict *v) {
    const struct sampling_params *p = &seq->params;
    *v = judge_token(seq, result->token);
    int code = append_token(seq, result->token);
    if (code) return code;
    enum output_mode mode = OUTPUT_TEXT;
    if (v->ends) mode = p->include_stop ? OUTPUT_END : OUTPUT_SILENT;
    else if (sequence_n_generated(seq) < p->min_tokens) mode = OUTPUT_EARLY;
    code = output_push(&seq->output, result, mode, &v->stop_index);
    if (code < 0) return code;
    if (code == 1) v->ends = v->by_string = true;
    /* Behind the grammar's end nothing can come, whatever ignore_eos says. */
    if (!v->ends && seq->constraint.is_over) v->ends = true;
    if (!v->ends && sequence_n_generated(seq) >= p->max_tokens) {
        v->ends = true;
        v->reason = FINISH_LENGTH;
    }
    return v->ends && !v->by_string ? output_flush(&seq->output) : 0;
}

/* Tells whether tokens may be computed without having been sampled.  Their log-probabilities would
 * be missing; caches that choose what they keep would see them together; and their bits would
 * depend on whether a step is in flight. */
static bool may_jump(const struct sequence *seq) {
    return seq->constraint.matcher && seq->params.n_logprobs < 0 &&
           kv_plan_sees_all(&seq->kv.plan) && !seq->shared->space->batch_invariant;
}

/* Appends the tokens that the grammar forces, unless an in-flight step is going to sample the first
 * of them.  ERR_NOMEM. */
static int jump_ahead(struct sequence *seq, struct verdict *v) {
    if (!may_jump(seq)) return 0;
    constraint_force(&seq->constraint);
    int code = 0;
    while (!code && !v->ends && seq->n_sampled == 0 && constraint_n_forced(&seq->constraint) > 0) {
        const struct sample_result forced = {.token = constraint_next_forced(&seq->constraint)};
        code = take_token(seq, &forced, v);
    }
    return code;
}

/* Gives the final event what the request wants to know of its cache.  ERR_DEVICE. */
static int fill_kept(struct sequence *seq, struct engine_event *event, struct error *err) {
    if (!seq->kept) return 0;
    const int code = kv_list_kept(&seq->kv, seq->n_done, seq->kept, err);
    if (code) return code;
    event->kept = seq->kept;
    seq->kept = NULL;
    return 0;
}

/* Notes what came of the step's guesses, and whether there is something to guess from behind the
 * newest token. */
static void learn_drafts(struct sequence *seq, uint32_t n_taken, uint32_t n_accepted) {
    const bool is_recent = seq->n_drafts > 0 && seq->drafter.copied_recent;
    const struct speculation_usage one = {.n_drafts = seq->n_drafts > 0,
                                          .n_drafted = seq->n_drafts,
                                          .n_accepted = n_accepted,
                                          .n_recent_drafted = is_recent ? seq->n_drafts : 0,
                                          .n_recent_accepted = is_recent ? n_accepted : 0};
    speculation_usage_add(&seq->speculation, &one);
    drafter_learn(&seq->drafter, n_taken, seq->n_drafts, n_accepted);
    seq->n_drafts = 0;
    drafter_read(&seq->drafter, seq->tokens, seq->n_tokens);
    seq->may_draft = drafter_is_ready(&seq->drafter, seq->tokens, seq->n_tokens);
    seq->has_waited |= seq->may_draft && seq->n_sampled > 0;
}

/* Takes n sampled tokens, the first n - 1 of which were guessed, up to one that ends the sequence.
 * The step stored rows of guesses behind it, too, which are taken back.  ERR_NOMEM. */
static int take_tokens(struct sequence *seq, const struct sample_result *results, uint32_t n,
                       struct verdict *v) {
    uint32_t n_taken = 0;
    int code = 0;
    if (seq->params.max_tokens == 0) return 0;
    do code = take_token(seq, &results[n_taken++], v);
    while (!code && !v->ends && n_taken < n);
    if (code || !seq->speculates) return code;
    learn_drafts(seq, n_taken, min_u32(n_taken, n - 1));
    if (n_taken == n) return 0;
    seq->n_done -= n - n_taken;
    kv_take_back(&seq->kv, min_u32(seq->n_done, seq->kv.n_tokens));
    return 0;
}

/* Leaves the answer to later requests of its scope, to guess from. */
static void leave_answer(const struct sequence *seq) {
    if (seq->speculates && seq->shared->recent)
        recent_answers_add(seq->shared->recent, seq->drafter.scope, seq->tokens + seq->n_prompt,
                           sequence_n_generated(seq));
}

static bool accept_draws(struct sequence *seq, const struct sample_result *results, uint32_t n,
                         struct event_list *events) {
    struct verdict v = {.ends = true, .reason = FINISH_LENGTH};
    int code = take_tokens(seq, results, n, &v);
    if (!code && !v.ends) code = jump_ahead(seq, &v);
    if (code) return fail_no_memory(seq, events);
    struct error why;
    if (seq->constraint.failed)
        return fail(seq, constraint_failure(&seq->constraint, &why), why.text, events);
    struct engine_event *event;
    if (output_take(&seq->output, v.ends, &event)) return fail_no_memory(seq, events);
    if (!event) return false;
    if (v.ends) {
        struct error err;
        if (fill_kept(seq, event, &err)) {
            engine_event_free(event);
            return fail(seq, err.code, err.text, events);
        }
        fill_final(seq, event);
        leave_answer(seq);
        event->reason = v.reason;
        event->stopped_by_string = v.by_string;
        event->stopped_by_token = v.by_token;
        event->stop_index = v.stop_index;
        event->stop_token = v.stop_token;
    }
    emit(seq, event, events);
    return v.ends;
}

static bool are_valid(const struct sample_result *results, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (results[i].invalid) return false;
    return true;
}

/* Takes back the rows of the step's guesses behind the first wrong one, and returns how many of its
 * n results count.  What was computed behind a wrong guess says nothing of the request. */
static uint32_t take_back_drafts(struct sequence *seq, const struct sample_result *results,
                                 uint32_t n) {
    const uint32_t n_drafts = seq->n_drafts;
    uint32_t n_right = 0;
    if (n_drafts == 0) return n;
    assert(n == n_drafts + 1);
    while (n_right < n_drafts && !results[n_right].invalid &&
           results[n_right].token == seq->tokens[seq->n_tokens + n_right])
        n_right++;
    kv_take_back(&seq->kv, seq->kv.n_tokens - (n_drafts - n_right));
    return n_right + 1;
}

bool sequence_accept(struct sequence *seq, uint32_t n_stored, const struct sample_row *rows,
                     const struct sample_result *results, uint32_t n, struct event_list *events) {
    const uint32_t n_counted = take_back_drafts(seq, results, n);
    n_stored -= n - n_counted;
    n = n_counted;
    seq->n_done = n_stored;
    if (!are_valid(results, n))
        return fail(seq, ERR_NUMERIC, "the model's output for this request is not a number",
                    events);
    const bool draws = n > 0 && rows[n - 1].kind == SAMPLE_DRAW;
    /* The newest row attended to every page before it.  Its logits are valid, so the pages are, and
     * other sequences may share them.  Sparse rows may have left pages out, but the last row of
     * their prompt has not. */
    if (draws || (n > 0 && !seq->was_sparse)) kv_insert(&seq->kv, seq->tokens, n_stored);
    kv_done(&seq->kv, n_stored);
    uint32_t n_scores = 0;
    while (n_scores < n && rows[n_scores].kind == SAMPLE_SCORE)
        accept_score(seq, &results[n_scores++]);
    if (!draws) return false;
    if (seq->prompt_event) {
        emit(seq, seq->prompt_event, events);
        seq->prompt_event = NULL;
    }
    return accept_draws(seq, results + n_scores, n - n_scores, events);
}

void sequence_accept_late(struct sequence *seq, uint32_t n_stored,
                          const struct sample_result *results, uint32_t n) {
    /* Of rows of guesses nothing is known.  What takes them back shares no states. */
    if (seq->n_drafts == 0 && n > 0 && are_valid(results, n)) kv_mark_valid(&seq->kv, n_stored);
}

void sequence_leave_state(struct sequence *seq) {
    if (!seq->failed && kv_leave_state(&seq->kv, seq->tokens, seq->n_tokens)) seq->tokens = NULL;
}
