/* scheduler.c - see scheduler.h for the rules, this file for their order.
 *
 * Running sequences are walked in order of rank and victims are taken from the end, so a sequence
 * that already has its place in the step being planned is never preempted by a later one.
 *
 * Cost of a step: a few operations per running sequence and per waiting sequence that is looked at;
 * nothing depends on how long a sequence is, except the tokens that are new to it.
 *
 * Thread: engine.  Memory: see scheduler.h. */
#include "engine/scheduler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/kv/policy.h"
#include "engine/kv/pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/sequence.h"

struct scheduler {
    const struct kv_space *space;
    uint32_t max_rows, max_seqs;
    struct sequence *first_waiting, *last_waiting;
    struct sequence **running; /* [n_running], by rank */
    uint32_t n_waiting, n_running;
    /* The sequence that found too few pages, and how many it found: no need to try again with as
     * few. */
    const struct sequence *blocked;
    int64_t blocked_pages;
    struct batch batch;
    struct engine_stats stats;
};

int scheduler_create(struct scheduler **out, const struct kv_space *space, uint32_t max_rows,
                     uint32_t max_seqs, struct error *err) {
    assert(max_seqs >= 1 && max_rows >= max_seqs);
    struct scheduler *s = calloc(1, sizeof(*s));
    if (!s) return error_set(err, ERR_NOMEM, "no memory for the scheduler");
    s->space = space;
    s->max_rows = max_rows;
    s->max_seqs = max_seqs;
    int code = batch_init(&s->batch, max_rows, max_seqs, err);
    if (code) goto fail;
    s->running = calloc(max_seqs, sizeof(*s->running));
    if (!s->running) {
        code = error_set(err, ERR_NOMEM, "no memory for %u sequences", max_seqs);
        goto fail;
    }
    *out = s;
    return 0;

fail:
    scheduler_destroy(s);
    return code;
}

void scheduler_destroy(struct scheduler *s) {
    if (!s) return;
    assert(s->n_running == 0 && s->n_waiting == 0);
    batch_fini(&s->batch);
    free(s->running);
    free(s);
}

static bool ranks_before(const struct sequence *a, const struct sequence *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->id < b->id;
}

/* New sequences belong near the end, preempted ones near the beginning: walk from the closer
 * side. */
static void waiting_insert(struct scheduler *s, struct sequence *seq) {
    struct sequence *next = NULL;
    if (seq->admitted) {
        for (next = s->first_waiting; next && ranks_before(next, seq);) next = next->next;
    } else {
        struct sequence *prev = s->last_waiting;
        while (prev && ranks_before(seq, prev)) prev = prev->prev;
        next = prev ? prev->next : s->first_waiting;
    }
    seq->next = next;
    seq->prev = next ? next->prev : s->last_waiting;
    if (seq->prev) seq->prev->next = seq;
    else s->first_waiting = seq;
    if (next) next->prev = seq;
    else s->last_waiting = seq;
    s->n_waiting++;
}

static void waiting_remove(struct scheduler *s, struct sequence *seq) {
    if (seq->prev) seq->prev->next = seq->next;
    else s->first_waiting = seq->next;
    if (seq->next) seq->next->prev = seq->prev;
    else s->last_waiting = seq->prev;
    seq->prev = seq->next = NULL;
    if (s->blocked == seq) s->blocked = NULL;
    s->n_waiting--;
}

static void running_insert(struct scheduler *s, struct sequence *seq) {
    uint32_t at = s->n_running++;
    for (; at > 0 && ranks_before(seq, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = seq;
}

static void running_remove(struct scheduler *s, uint32_t at) {
    s->n_running--;
    memmove(s->running + at, s->running + at + 1, (s->n_running - at) * sizeof(*s->running));
}

/* Ends a sequence that is in neither list any more. */
static void end(struct scheduler *s, struct sequence *seq, enum finish_reason reason, int code,
                const char *text, struct event_list *events) {
    sequence_end(seq, reason, code, text, events);
    if (reason == FINISH_CANCELLED) s->stats.n_cancelled++;
    else s->stats.n_failed++;
    sequence_destroy(seq);
}

void scheduler_add(struct scheduler *s, struct sequence *seq, struct event_list *events) {
    const struct kv_policy *policy = seq->kv.policy;
    uint64_t longest = (uint64_t)seq->n_prompt + seq->params.max_tokens;
    if (policy->pages_for(s->space, longest) > page_pool_n_pages(s->space->pool))
        end(s, seq, FINISH_ERROR, ERR_TOO_LONG, "the request is longer than the whole KV cache",
            events);
    else if (policy->prepare(&seq->kv, seq->tokens, seq->n_prompt))
        end(s, seq, FINISH_ERROR, ERR_NOMEM, "no memory for the request's page lists", events);
    else waiting_insert(s, seq);
}

void scheduler_cancel(struct scheduler *s, uint64_t id, struct event_list *events) {
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct sequence *seq = s->running[i];
        if (seq->id != id) continue;
        running_remove(s, i);
        end(s, seq, FINISH_CANCELLED, 0, NULL, events);
        return;
    }
    struct sequence *seq = s->first_waiting;
    while (seq && seq->id != id) seq = seq->next;
    if (!seq) return;
    waiting_remove(s, seq);
    end(s, seq, FINISH_CANCELLED, 0, NULL, events);
}

void scheduler_end_all(struct scheduler *s, enum finish_reason reason, int code, const char *text,
                       struct event_list *events) {
    while (s->n_running > 0) end(s, s->running[--s->n_running], reason, code, text, events);
    while (s->first_waiting) {
        struct sequence *seq = s->first_waiting;
        waiting_remove(s, seq);
        end(s, seq, reason, code, text, events);
    }
}

static uint64_t available_pages(const struct scheduler *s) {
    uint64_t n_idle = s->space->cache ? prefix_cache_n_idle_pages(s->space->cache) : 0;
    return page_pool_n_free(s->space->pool) + n_idle;
}

static void preempt_last(struct scheduler *s) {
    struct sequence *seq = s->running[--s->n_running];
    seq->kv.policy->release(&seq->kv);
    seq->n_rows = 0;
    s->stats.n_preempted++;
    waiting_insert(s, seq);
}

/* Room for `want` more tokens of running[at], at the expense of those after it.  False: it lost its
 * own place. */
static bool make_room(struct scheduler *s, uint32_t at, uint32_t want, struct event_list *events) {
    struct sequence *seq = s->running[at];
    int code;
    while ((code = seq->kv.policy->reserve(&seq->kv, seq->kv.n_tokens + want)) == ERR_FULL) {
        bool itself = s->n_running - 1 == at;
        preempt_last(s);
        if (itself) return false;
    }
    if (code == 0) return true;
    running_remove(s, at);
    end(s, seq, FINISH_ERROR, code, "no memory for the request's page lists", events);
    return false;
}

/* Gives rows to the running sequences; returns how many rows are left for more prompts. */
static uint32_t plan_running(struct scheduler *s, struct event_list *events) {
    uint32_t budget = s->max_rows;
    for (uint32_t i = 0; i < s->n_running; i++) budget -= sequence_n_left(s->running[i]) == 1;
    for (uint32_t i = 0; i < s->n_running;) {
        struct sequence *seq = s->running[i];
        uint32_t left = sequence_n_left(seq), n_rows = left;
        if (left > 1 && n_rows > budget) n_rows = budget;
        if (n_rows > 0 && !make_room(s, i, n_rows, events)) continue;
        seq->n_rows = n_rows;
        if (left > 1) budget -= n_rows;
        i++;
    }
    return budget;
}

/* True while a running sequence computes a prompt whose next block this one needs, too: it will be
 * cheaper soon. */
static bool is_held_back(const struct scheduler *s, const struct sequence *seq) {
    if (seq->prompt_event) return false; /* it cannot use cached blocks, see admit */
    for (uint32_t i = 0; i < s->n_running; i++)
        if (seq->kv.policy->worth_waiting(&seq->kv, &s->running[i]->kv)) return true;
    return false;
}

/* Pages that a sequence may be started with: a page in every layer is left for each running
 * sequence, so that what is admitted is not preempted at once.  Negative when there are not even
 * those. */
static int64_t spare_pages(const struct scheduler *s, const struct kv_policy *policy) {
    return (int64_t)available_pages(s) - (int64_t)(s->n_running * policy->pages_for(s->space, 1));
}

/* Tokens that a sequence has pages for when it starts: its own, or all it may come to have where it
 * must not lose its place again. */
static uint32_t admission_tokens(const struct scheduler *s, const struct sequence *seq) {
    return s->space->batch_invariant ? seq->n_prompt + seq->params.max_tokens : seq->n_tokens;
}

/* Takes the pages that the sequence starts with. */
static int take_pages(struct scheduler *s, struct sequence *seq) {
    const struct kv_policy *policy = seq->kv.policy;
    const uint32_t n_tokens = admission_tokens(s, seq);
    int64_t before = spare_pages(s, policy);
    if (s->blocked == seq && before <= s->blocked_pages) return ERR_FULL;
    /* Log-probabilities of a prompt need every row of it computed. */
    if (!seq->prompt_event) policy->adopt(&seq->kv, seq->tokens, seq->n_tokens - 1);
    int64_t need = (int64_t)(policy->pages_for(s->space, n_tokens) -
                             policy->pages_for(s->space, seq->kv.n_tokens));
    int code = ERR_FULL;
    if (s->n_running == 0 || need <= spare_pages(s, policy))
        code = policy->reserve(&seq->kv, n_tokens);
    if (code == 0) return 0;
    policy->release(&seq->kv);
    s->blocked = seq;
    s->blocked_pages = before;
    return code;
}

/* Moves the sequence from waiting to running, with its first rows. */
static uint32_t start_running(struct scheduler *s, struct sequence *seq, uint32_t budget) {
    waiting_remove(s, seq);
    if (!seq->admitted) {
        seq->n_cached = seq->kv.n_tokens;
        s->stats.prompt_tokens += seq->n_prompt;
        s->stats.cached_tokens += seq->n_cached;
    }
    seq->admitted = true;
    uint32_t left = sequence_n_left(seq);
    seq->n_rows = left < budget ? left : budget;
    running_insert(s, seq);
    return seq->n_rows;
}

static void admit(struct scheduler *s, uint32_t budget, struct event_list *events) {
    struct sequence *next;
    for (struct sequence *seq = s->first_waiting; seq && budget > 0 && s->n_running < s->max_seqs;
         seq = next) {
        next = seq->next;
        if (is_held_back(s, seq)) continue;
        int code = take_pages(s, seq);
        /* Whoever comes first waits for pages first: nobody overtakes, so long requests do not
         * starve. */
        if (code == ERR_FULL && s->n_running > 0) return;
        if (code == 0) {
            budget -= start_running(s, seq, budget);
            continue;
        }
        waiting_remove(s, seq);
        end(s, seq, FINISH_ERROR, code, "no memory for the request's pages", events);
    }
}

struct batch *scheduler_plan(struct scheduler *s, struct event_list *events) {
    uint32_t budget = plan_running(s, events);
    admit(s, budget, events);
    if (s->n_running == 0) return NULL;
    batch_build(&s->batch, s->running, s->n_running);
    assert(s->batch.step.n_rows > 0);
    return &s->batch;
}

/* True when the sequence has had its final event. */
static bool finish_entry(struct scheduler *s, const struct batch_entry *entry,
                         struct event_list *events) {
    struct sequence *seq = entry->seq;
    uint32_t n_generated = sequence_n_generated(seq);
    seq->kv.policy->commit(&seq->kv, seq->n_rows);
    seq->n_rows = 0;
    bool over = sequence_accept(seq, s->batch.samples + entry->first_sample,
                                s->batch.results + entry->first_sample, entry->n_samples, events);
    s->stats.generated_tokens += sequence_n_generated(seq) - n_generated;
    if (!over) return false;
    if (events->last->reason == FINISH_ERROR) s->stats.n_failed++;
    else s->stats.n_finished++;
    return true;
}

void scheduler_finish_step(struct scheduler *s, struct event_list *events) {
    s->stats.n_steps++;
    uint32_t n_over = 0;
    for (uint32_t i = 0; i < s->batch.step.n_seqs; i++) {
        struct sequence *seq = s->batch.entries[i].seq;
        if (!finish_entry(s, &s->batch.entries[i], events)) continue;
        seq->n_rows = UINT32_MAX; /* marks it for the sweep below */
        n_over++;
    }
    uint32_t n_kept = 0;
    for (uint32_t i = 0; n_over > 0 && i < s->n_running; i++) {
        struct sequence *seq = s->running[i];
        if (seq->n_rows == UINT32_MAX) sequence_destroy(seq);
        else s->running[n_kept++] = seq;
    }
    if (n_over > 0) s->n_running = n_kept;
}

uint32_t scheduler_n_live(const struct scheduler *s) {
    return s->n_running + s->n_waiting;
}

void scheduler_stats(const struct scheduler *s, struct engine_stats *out) {
    *out = s->stats;
    out->n_running = s->n_running;
    out->n_waiting = s->n_waiting;
    out->pages_free = page_pool_n_free(s->space->pool);
    out->pages_total = page_pool_n_pages(s->space->pool);
    if (s->space->cache) out->pages_cached = prefix_cache_n_idle_pages(s->space->cache);
}
