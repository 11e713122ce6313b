/* select.c - chooses the tokens that the sparse layers of a sequence see, and fetches them into
 * these layers' slots (OmniKV section 4; contract: engine/device/select.h).
 *
 *   attention of the filter     raw scores of every page, (max, sum) of every head
 *   score    a task is a page   max over heads of p, for each of its tokens; then the max over the
 *                               ranks that share the model (group.h)
 *   sum      a task is a page   with an observation: the sum over the last queries (observe.h)
 *   choose   a sequence         the best tokens; slots whose token is not chosen get new ones
 *   fetch    a sparse layer     keys and values of new tokens, from the host pool to their slots
 *            of a sequence
 *
 *   slots     D A F C           chosen: A B C E
 *   freed     x   x
 *   fetched   B   E             free slots and new tokens, both ascending
 *   slots     B A E C
 *
 * Every task has its output to itself, and no result depends on how many workers there are. */
#include "engine/cpu/tile.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/group.h"
#include "engine/cpu/host_pool.h"
#include "engine/cpu/observe.h"
#include "engine/cpu/sparse_lines.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

struct move {
    uint32_t slot, token;
};

struct select_job {
    struct cpu_backend *cpu;
    const struct select_args *args;
    const uint32_t *first_page; /* prefix sums of score_inputs */
    float *token_scores;        /* token scores [page][PAGE_TOKENS], pages as in first_page */
    struct move *moves;         /* [page][PAGE_TOKENS]: new tokens and their slots */
    struct selection *done;     /* [n_decode] */
};

static const struct kv_select *select_of(const struct select_job *job, uint32_t seq) {
    return job->cpu->step->seqs[seq].select;
}

/* Tells whether the layer, for this sequence, attends to what its group's filter chooses. */
static bool follows(const struct select_job *job, uint32_t seq, uint32_t layer) {
    const struct step *step = job->cpu->step;
    return group_has(job->args->group, step->windows, layer) &&
           !step_budget(&step->seqs[seq], layer);
}

static uint32_t n_following(const struct select_job *job, uint32_t seq) {
    uint32_t n = 0;
    for (uint32_t l = job->args->group->first; l < job->args->group->end; l++)
        n += follows(job, seq, l);
    return n;
}

/* --- Token scores of the candidates. --- */

/* Replaces the newest query's scores of a page by the sum over the window, and keeps them. */
static void sum_observed(const struct select_job *job, uint32_t seq, uint32_t page,
                         float *token_scores) {
    const struct select_args *args = job->args;
    const struct step_seq *s = &job->cpu->step->seqs[seq];
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) token_scores[i] = fmaxf(token_scores[i], 0.0f);
    observed_keep(args->attn.kv, s->observed, args->group_index, page, s->n_before, token_scores);
    if (page < s->select->n_candidates / PAGE_TOKENS)
        observed_sum(args->attn.kv, s->observed, args->group_index, page, s->n_before,
                     token_scores);
}

/* Returns how many pages of a sequence get scores. */
static uint32_t n_scored_pages(const struct select_job *job, uint32_t seq) {
    const struct kv_select *select = select_of(job, seq);
    const struct kv_observation *observed = job->cpu->step->seqs[seq].observed;
    if (!select) return 0;
    return (observed ? observed->n_scored : select->n_candidates) / PAGE_TOKENS;
}

static void token_score_task(void *ctx, uint32_t page, uint32_t worker) {
    (void)worker;
    const struct select_job *job = ctx;
    const struct step *step = job->cpu->step;
    const struct score_inputs *scores = &job->cpu->scores;
    const uint32_t n_heads = job->args->attn.n_heads,
                   seq = task_owner(job->first_page, step->n_decode, page);
    if (page - job->first_page[seq] >= n_scored_pages(job, seq)) return;
    const float *raw = (const float *)scores->raw.data + (size_t)page * n_heads * PAGE_TOKENS,
                *softmax = (const float *)scores->softmax.data +
                           2 * (size_t)step->seqs[seq].first_row * n_heads;
    float *token_scores = job->token_scores + (size_t)page * PAGE_TOKENS;
    for (uint32_t i = 0; i < PAGE_TOKENS; i++)
        token_scores[i] = -1.0f; /* less than any probability */
    for (uint32_t head = 0; head < n_heads; head++) {
        float p[PAGE_TOKENS] = {0};
        job->cpu->kernels->add_scores(p, 1.0f, raw + (size_t)head * PAGE_TOKENS,
                                      softmax + 2 * (size_t)head, 1, PAGE_TOKENS);
        keep_larger(token_scores, p);
    }
}

static void observed_task(void *ctx, uint32_t page, uint32_t worker) {
    (void)worker;
    const struct select_job *job = ctx;
    const struct step *step = job->cpu->step;
    const uint32_t seq = task_owner(job->first_page, step->n_decode, page),
                   page_of_text = page - job->first_page[seq];
    if (!step->seqs[seq].observed || page_of_text >= n_scored_pages(job, seq)) return;
    sum_observed(job, seq, page_of_text, job->token_scores + (size_t)page * PAGE_TOKENS);
}

/* Computes the token scores of all candidates. */
static int score_tokens(struct select_job *job, uint32_t n_pages, struct error *err) {
    pool_run(job->cpu->pool, token_score_task, job, n_pages);
    const int rc =
        cpu_group_largest(job->cpu, job->token_scores, (size_t)n_pages * PAGE_TOKENS, err);
    if (!rc) pool_run(job->cpu->pool, observed_task, job, n_pages);
    return rc;
}

/* --- The choice of tokens, and the slots of new ones. --- */

uint32_t *select_token_in(const struct kv_pool *kv, const struct kv_select *select, uint32_t group,
                          uint32_t slot) {
    const uint32_t each = kv_state_slots(kv), n_pages = (select->n_selected + each - 1) / each,
                   page = select->state_pages[group * n_pages + slot / each];
    return (uint32_t *)(void *)kv_page_at(kv, page) + slot % each;
}

static uint32_t *token_in(const struct select_job *job, const struct kv_select *select,
                          uint32_t slot) {
    return select_token_in(job->args->attn.kv, select, job->args->group_index, slot);
}

/* Clears the token's bit and returns whether it was set. */
static bool take(uint64_t *chosen, uint32_t token) {
    const uint64_t bit = (uint64_t)1 << token % 64;
    const bool was = chosen[token / 64] & bit;
    chosen[token / 64] &= ~bit;
    return was;
}

/* Assigns the newly chosen tokens to the slots whose tokens were not chosen again, both ascending.
 * With select->fresh all slots count as free.  Returns how many moves there are. */
static uint32_t plan_moves(const struct select_job *job, const struct kv_select *select,
                           uint64_t *chosen, struct move *moves) {
    uint32_t n_free = 0, n = 0;
    for (uint32_t slot = 0; slot < select->n_selected; slot++) {
        const bool stays = !select->fresh && take(chosen, *token_in(job, select, slot));
        if (!stays) moves[n_free++].slot = slot;
    }
    for (uint32_t token = 0; token < select->n_candidates; token++) {
        if (!take(chosen, token)) continue;
        moves[n].token = token;
        *token_in(job, select, moves[n++].slot) = token;
    }
    assert(n == n_free);
    return n;
}

static void choose_task(void *ctx, uint32_t seq, uint32_t worker) {
    const struct select_job *job = ctx;
    const struct kv_select *select = select_of(job, seq);
    if (!select) return;
    const size_t first = (size_t)job->first_page[seq] * PAGE_TOKENS;
    uint64_t *chosen = scratch_of(job->cpu, worker);
    float *token_scores = job->token_scores + first;
    for (uint32_t i = 0; i < select->n_sink; i++) token_scores[i] = INFINITY;
    lines_select(token_scores, select->n_candidates, select->n_selected, chosen);
    struct selection *done = &job->done[seq];
    done->n_moves = plan_moves(job, select, chosen, job->moves + first);
    done->total.n_chosen += select->n_selected;
    done->total.n_fetched += done->n_moves;
    done->total.n_copies += done->n_moves * n_following(job, seq);
}

/* --- Fetching. --- */

/* Fetches one token of a sparse layer into slot `at` of a page.  Its source is the host pool, where
 * the layer is `host_layer`, or pages of the same pool. */
static void fetch_token(const struct select_job *job, const struct kv_select *select,
                        uint32_t layer, uint32_t host_layer, uint32_t token, uint32_t page,
                        uint32_t at) {
    const struct kv_pool *kv = job->args->attn.kv;
    const uint32_t from = token / PAGE_TOKENS, from_at = token % PAGE_TOKENS;
    if (select->blocks) {
        token_from_block(kv, page, at, job->args->store,
                         (struct host_token){select->blocks[from], host_layer, from_at});
        return;
    }
    for (uint32_t head = 0; head < kv->n_kv_heads; head++)
        copy_token(kv, head, page, at, select->pool_pages[layer][from], from_at);
}

static void fetch_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct select_job *job = ctx;
    const struct layer_group *group = job->args->group;
    const uint32_t n = group->end - group->first, seq = task / n, layer = group->first + task % n;
    const struct kv_select *select = select_of(job, seq);
    const uint32_t *windows = job->cpu->step->windows;
    if (!select || !follows(job, seq, layer)) return;
    const uint32_t host_layer = job->args->first_host_layer + group_n_before(group, windows, layer);
    const struct move *moves = job->moves + (size_t)job->first_page[seq] * PAGE_TOKENS;
    const uint32_t *pages = job->cpu->step->seqs[seq].layers[layer].pages;
    for (uint32_t i = 0; i < job->done[seq].n_moves; i++) {
        const uint32_t slot = moves[i].slot;
        fetch_token(job, select, layer, host_layer, moves[i].token, pages[slot / PAGE_TOKENS],
                    slot % PAGE_TOKENS);
    }
}

/* --- The operations. --- */

int select_begin(struct cpu_backend *cpu, const struct step *step, struct error *err) {
    struct selections *selections = &cpu->selections;
    const size_t bytes = step->n_decode * sizeof(struct selection);
    selections->wanted = false;
    for (uint32_t i = 0; i < step->n_decode; i++)
        selections->wanted |= step->seqs[i].select != NULL;
    if (!selections->wanted) return 0;
    int rc = cpu_buffer_reserve(&selections->done, bytes, err);
    if (!rc) memset(selections->done.data, 0, bytes);
    return rc;
}

void select_free(struct selections *selections) {
    buffer_free(&selections->token_scores);
    buffer_free(&selections->moves);
    buffer_free(&selections->done);
}

static int select_tokens(struct backend *be, const struct select_args *args, struct error *err) {
    struct select_job job = {.cpu = (struct cpu_backend *)be, .args = args};
    const struct layer_group *group = args->group;
    struct selections *selections = &job.cpu->selections;
    if (!selections->wanted) return 0;
    job.first_page = job.cpu->scores.first_page.data;
    const uint32_t n = job.cpu->step->n_decode, n_pages = job.first_page[n];
    const size_t n_tokens = (size_t)n_pages * PAGE_TOKENS;
    int rc = cpu_buffer_reserve(&selections->token_scores, n_tokens * sizeof(float), err);
    if (!rc) rc = cpu_buffer_reserve(&selections->moves, n_tokens * sizeof(struct move), err);
    if (!rc) rc = scratch_reserve(job.cpu, n_pages * sizeof(uint64_t), err);
    if (rc < 0) return rc;
    job.token_scores = selections->token_scores.data;
    job.moves = selections->moves.data;
    job.done = selections->done.data;
    if ((rc = score_tokens(&job, n_pages, err))) return rc;
    if (args->token_scores)
        memcpy(args->token_scores, job.token_scores,
               select_of(&job, 0)->n_candidates * sizeof(float));
    pool_run(job.cpu->pool, choose_task, &job, n);
    pool_run(job.cpu->pool, fetch_task, &job, n * (group->end - group->first));
    return 0;
}

static int select_totals(struct backend *be, struct select_total *totals, struct error *err) {
    (void)err;
    const struct cpu_backend *cpu = (struct cpu_backend *)be;
    const struct selection *done = cpu->selections.done.data;
    for (uint32_t i = 0; i < cpu->step->n_decode; i++)
        if (cpu->step->seqs[i].select) totals[i] = done[i].total;
    return 0;
}

const struct select_ops cpu_select_ops = {
    .select = select_tokens,
    .observe = observe_rows,
    .totals = select_totals,
};
