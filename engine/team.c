/* team.c - see team.h. */
#include "engine/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/base/thread.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/evict.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/model/decoder.h"
#include "engine/model/model.h"

enum { SPIN_ROUNDS = 4000, MOST_IN_FLIGHT = 2 };

/* What a call gives to every rank. */
struct call {
    int (*run)(struct team *team, uint32_t rank, const struct call *call, struct error *err);
    const struct step *step;
    const struct layer_slice *slice;
    const struct sample_row *samples;
    uint32_t n_samples;
    struct sample_result *results;
    struct evict_total *totals;
    struct sparse_totals *visited;
    struct select_total *selected;
};

/* A rank's own view of the step, and what it reports of those in flight.  Rank 0 reports to the
 * caller. */
struct view {
    struct step step;
    struct step_seq *seqs; /* [max_seqs] */
    struct attn_sparse sparse;
    struct attn_pattern *patterns; /* [n_layers][the rank's heads] */
    struct evict_total *totals[MOST_IN_FLIGHT];
    struct sparse_totals visited[MOST_IN_FLIGHT];
    struct select_total *selected;
};

struct worker {
    struct team *team;
    uint32_t rank;
    pthread_t thread;
    struct error err;      /* of the newest call */
    _Atomic double busy_s; /* in calls; written by the rank's thread */
};

/* The caller's memory, which gets what the ranks have reported of a step. */
struct report {
    struct evict_total *totals; /* NULL: there are none */
    uint32_t n_seqs;
    struct sparse_totals *visited; /* NULL: there are none */
};

struct team {
    uint32_t n;
    struct team_rank *ranks; /* [n], and so are the others */
    struct view *views;
    struct worker *workers;                /* that of rank 0 has no thread */
    uint32_t n_started;                    /* threads */
    struct report reports[MOST_IN_FLIGHT]; /* of step i: i % MOST_IN_FLIGHT */
    uint32_t n_steps, n_reported;
    bool interrupted;
    struct call call;
    pthread_mutex_t lock;
    pthread_cond_t begun, done;
    atomic_uint n_calls, n_done;
    atomic_bool stops;
};

/* ---- calls ---- */

/* Runs the call on a rank.  A rank that fails keeps no other one waiting. */
static void run_rank(struct team *team, uint32_t rank) {
    struct worker *worker = &team->workers[rank];
    struct backend *be = team->ranks[rank].be;
    const double start = clock_seconds();
    worker->err = (struct error){0};
    const int code = team->call.run(team, rank, &team->call, &worker->err);
    worker->err.code = code;
    atomic_store(&worker->busy_s, atomic_load(&worker->busy_s) + (clock_seconds() - start));
    if (code) be->ops->collective->interrupt(be);
}

static unsigned wait_for_call(struct team *team, unsigned seen) {
    for (int i = 0; i < SPIN_ROUNDS && atomic_load(&team->n_calls) == seen; i++) thread_pause();
    pthread_mutex_lock(&team->lock);
    while (atomic_load(&team->n_calls) == seen) pthread_cond_wait(&team->begun, &team->lock);
    pthread_mutex_unlock(&team->lock);
    return atomic_load(&team->n_calls);
}

static void *work(void *arg) {
    struct worker *worker = arg;
    struct team *team = worker->team;
    for (unsigned seen = 0;;) {
        seen = wait_for_call(team, seen);
        if (atomic_load(&team->stops)) return NULL;
        run_rank(team, worker->rank);
        pthread_mutex_lock(&team->lock);
        atomic_fetch_add(&team->n_done, 1);
        pthread_cond_signal(&team->done);
        pthread_mutex_unlock(&team->lock);
    }
}

static void begin_call(struct team *team) {
    pthread_mutex_lock(&team->lock);
    atomic_store(&team->n_done, 0);
    atomic_fetch_add(&team->n_calls, 1);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
}

static void wait_for_workers(struct team *team) {
    const unsigned n = team->n - 1;
    for (int i = 0; i < SPIN_ROUNDS && atomic_load(&team->n_done) < n; i++) thread_pause();
    pthread_mutex_lock(&team->lock);
    while (atomic_load(&team->n_done) < n) pthread_cond_wait(&team->done, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

/* Reports the error of the rank that has failed, not of those that were interrupted. */
static int first_error(struct team *team, struct error *err) {
    const struct error *first = NULL;
    for (uint32_t i = 0; i < team->n; i++) {
        const struct error *own = &team->workers[i].err;
        if (own->code && (!first || first->code == ERR_STOPPED)) first = own;
    }
    if (!first) return 0;
    team->interrupted = true;
    team->n_reported = team->n_steps; /* nothing comes of a step that failed */
    if (err) *err = *first;
    return first->code;
}

static int run_call(struct team *team, const struct call *call, struct error *err) {
    if (team->n == 1) return call->run(team, 0, call, err);
    struct backend *be = team->ranks->be;
    if (team->interrupted) be->ops->collective->resume(be);
    team->interrupted = false;
    team->call = *call;
    begin_call(team);
    run_rank(team, 0);
    wait_for_workers(team);
    return first_error(team, err);
}

/* ---- views of a step ---- */

/* Copies the patterns of the rank's heads to its view. */
static void take_patterns(struct team *team, uint32_t rank, const struct attn_sparse *sparse) {
    const struct model *model = team->ranks[rank].model;
    const uint32_t n_all = model->whole->n_heads, n = model->config.n_heads;
    struct view *view = &team->views[rank];
    view->sparse = *sparse;
    view->sparse.patterns = view->patterns;
    for (uint32_t layer = 0; layer < model->config.n_layers; layer++)
        memcpy(view->patterns + (size_t)layer * n,
               sparse->patterns + (size_t)layer * n_all + (size_t)rank * n,
               n * sizeof(*view->patterns));
}

/* Returns the step as the rank has it: a sparse sequence has the patterns of its heads. */
static const struct step *view_of(struct team *team, uint32_t rank, const struct step *step) {
    uint32_t at = 0;
    while (at < step->n_seqs && !step->seqs[at].sparse) at++;
    if (team->n == 1 || at == step->n_seqs) return step;
    struct view *view = &team->views[rank];
    memcpy(view->seqs, step->seqs, step->n_seqs * sizeof(*view->seqs));
    take_patterns(team, rank, step->seqs[at].sparse);
    view->seqs[at].sparse = &view->sparse;
    view->step = *step;
    view->step.seqs = view->seqs;
    return &view->step;
}

/* ---- what ranks report ---- */

/* Returns the place of the newest step's reports. */
static uint32_t newest(const struct team *team) {
    return (team->n_steps - 1) % MOST_IN_FLIGHT;
}

/* Notes where the call's step reports to. */
static void begin_reports(struct team *team, const struct call *call) {
    if (call->step) {
        team->n_steps++;
        team->reports[newest(team)] = (struct report){.n_seqs = call->step->n_seqs};
    }
    if (call->totals) team->reports[newest(team)].totals = call->totals;
    if (call->visited) team->reports[newest(team)].visited = call->visited;
}

static int submit(struct team *team, const struct call *call, struct error *err) {
    begin_reports(team, call);
    return run_call(team, call, err);
}

/* Returns where the rank writes what its sequences evict. */
static struct evict_total *totals_of(struct team *team, uint32_t rank, const struct call *call) {
    return rank == 0 || !call->totals ? call->totals : team->views[rank].totals[newest(team)];
}

static void add_evictions(const struct team *team, const struct report *report, uint32_t place) {
    for (uint32_t i = 0; i < report->n_seqs && report->totals; i++) {
        float sum = report->totals[i].retained_attention;
        for (uint32_t r = 1; r < team->n; r++)
            sum += team->views[r].totals[place][i].retained_attention;
        report->totals[i].retained_attention = sum / (float)team->n; /* as many heads on each */
    }
}

static void add_visited(const struct team *team, const struct report *report, uint32_t place) {
    struct sparse_totals *to = report->visited;
    for (uint32_t r = 1; r < team->n && to; r++) {
        const struct sparse_totals *from = &team->views[r].visited[place];
        for (int kind = 0; kind < PATTERN_N_KINDS; kind++) {
            to->visited[kind] += from->visited[kind];
            to->causal[kind] += from->causal[kind];
        }
        to->n_dense += from->n_dense;
        if (from->index_s > to->index_s) to->index_s = from->index_s;
        if (from->attention_s > to->attention_s) to->attention_s = from->attention_s;
    }
}

/* Adds what all ranks have reported of a step to what rank 0 has. */
static void add_reports(struct team *team, uint32_t step) {
    const uint32_t place = step % MOST_IN_FLIGHT;
    if (team->n == 1) return;
    add_evictions(team, &team->reports[place], place);
    add_visited(team, &team->reports[place], place);
}

/* ---- decoder.h for all ranks ---- */

static int run_submit(struct team *team, uint32_t rank, const struct call *c, struct error *err) {
    return decoder_submit(team->ranks[rank].decoder, view_of(team, rank, c->step), c->samples,
                          c->n_samples, c->results, totals_of(team, rank, c), err);
}

static int run_rows(struct team *team, uint32_t rank, const struct call *c, struct error *err) {
    return decoder_submit_rows(team->ranks[rank].decoder, view_of(team, rank, c->step), c->samples,
                               c->n_samples, err);
}

static int run_samples(struct team *team, uint32_t rank, const struct call *c, struct error *err) {
    return decoder_submit_samples(team->ranks[rank].decoder, c->samples, c->n_samples, c->results,
                                  totals_of(team, rank, c), err);
}

static int run_slice(struct team *team, uint32_t rank, const struct call *c, struct error *err) {
    return decoder_submit_slice(team->ranks[rank].decoder, view_of(team, rank, c->step), c->slice,
                                c->samples, c->n_samples, c->results, totals_of(team, rank, c),
                                err);
}

static int run_evictions(struct team *team, uint32_t rank, const struct call *c,
                         struct error *err) {
    (void)c;
    return decoder_submit_evictions(team->ranks[rank].decoder, err);
}

static int run_totals(struct team *team, uint32_t rank, const struct call *c, struct error *err) {
    struct sparse_totals *out = rank ? &team->views[rank].visited[newest(team)] : c->visited;
    return decoder_submit_totals(team->ranks[rank].decoder, out, err);
}

/* Reports what rank 0 selects, as all ranks select the same tokens. */
static int run_selected(struct team *team, uint32_t rank, const struct call *c, struct error *err) {
    struct select_total *out = rank ? team->views[rank].selected : c->selected;
    return decoder_submit_selected(team->ranks[rank].decoder, out, err);
}

int team_submit(struct team *team, const struct step *step, const struct sample_row *samples,
                uint32_t n_samples, struct sample_result *results, struct evict_total *totals,
                struct error *err) {
    const struct call call = {.run = run_submit,
                              .step = step,
                              .samples = samples,
                              .n_samples = n_samples,
                              .results = results,
                              .totals = totals};
    return submit(team, &call, err);
}

int team_submit_rows(struct team *team, const struct step *step, const struct sample_row *samples,
                     uint32_t n_samples, struct error *err) {
    const struct call call = {
        .run = run_rows, .step = step, .samples = samples, .n_samples = n_samples};
    return submit(team, &call, err);
}

int team_submit_samples(struct team *team, const struct sample_row *samples, uint32_t n_samples,
                        struct sample_result *results, struct evict_total *totals,
                        struct error *err) {
    const struct call call = {.run = run_samples,
                              .samples = samples,
                              .n_samples = n_samples,
                              .results = results,
                              .totals = totals};
    return submit(team, &call, err);
}

int team_submit_slice(struct team *team, const struct step *step, const struct layer_slice *slice,
                      const struct sample_row *samples, uint32_t n_samples,
                      struct sample_result *results, struct evict_total *totals,
                      struct error *err) {
    const struct call call = {.run = run_slice,
                              .step = step,
                              .slice = slice,
                              .samples = samples,
                              .n_samples = n_samples,
                              .results = results,
                              .totals = totals};
    return submit(team, &call, err);
}

int team_submit_evictions(struct team *team, struct error *err) {
    const struct call call = {.run = run_evictions};
    return submit(team, &call, err);
}

int team_submit_totals(struct team *team, struct sparse_totals *out, struct error *err) {
    const struct call call = {.run = run_totals, .visited = out};
    return submit(team, &call, err);
}

int team_submit_selected(struct team *team, struct select_total *out, struct error *err) {
    const struct call call = {.run = run_selected, .selected = out};
    return submit(team, &call, err);
}

int team_collect(struct team *team, uint32_t n_newer, struct error *err) {
    int code = 0;
    for (uint32_t i = 0; i < team->n && !code; i++) {
        code = decoder_collect(team->ranks[i].decoder, n_newer, err);
        if (!code) code = model_check(team->ranks[i].model, err);
    }
    while (!code && team->n_steps - team->n_reported > n_newer)
        add_reports(team, team->n_reported++);
    return code;
}

/* ---- its life ---- */

static int refuse_memory(const struct team *team, struct error *err) {
    return error_set(err, ERR_NOMEM, "no memory for %u ranks", team->n);
}

static int start_workers(struct team *team, struct error *err) {
    for (uint32_t i = 0; i < team->n; i++) {
        team->workers[i].team = team;
        team->workers[i].rank = i;
        if (i == 0) continue;
        if (thread_start(&team->workers[i].thread, work, &team->workers[i]))
            return error_set(err, ERR_NOMEM, "cannot start the threads of %u ranks", team->n);
        team->n_started++;
    }
    return 0;
}

static void link_ranks(struct team *team, struct backend *rank_0) {
    for (uint32_t i = 0; i < team->n; i++) {
        struct team_rank *rank = &team->ranks[i];
        rank->be = team->n > 1 ? rank_0->ranks[i] : rank_0;
        rank->io = (struct page_io){.be = rank->be, .memory = &rank->kv};
        rank->stored = (struct checkpoint_store){.be = rank->be, .states = &rank->states};
        if (i + 1 == team->n) continue;
        rank->io.next = &team->ranks[i + 1].io;
        rank->stored.next = &team->ranks[i + 1].stored;
    }
}

int team_create(struct team **out, struct backend *rank_0, struct error *err) {
    struct team *team = calloc(1, sizeof(*team));
    if (!team) return error_set(err, ERR_NOMEM, "no memory for the model's ranks");
    team->n = max_u32(rank_0->n_ranks, 1);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begun, NULL);
    pthread_cond_init(&team->done, NULL);
    team->ranks = calloc(team->n, sizeof(*team->ranks));
    team->views = calloc(team->n, sizeof(*team->views));
    team->workers = calloc(team->n, sizeof(*team->workers));
    int code = 0;
    if (!team->ranks || !team->views || !team->workers) code = refuse_memory(team, err);
    else link_ranks(team, rank_0);
    if (!code) code = start_workers(team, err);
    if (code) team_destroy(team);
    else *out = team;
    return code;
}

int team_reserve(struct team *team, uint32_t max_seqs, struct error *err) {
    for (uint32_t i = 0; i < team->n && team->n > 1; i++) {
        const struct model_config *c = &team->ranks[i].model->config;
        struct view *view = &team->views[i];
        view->seqs = calloc(max_seqs, sizeof(*view->seqs));
        view->patterns = calloc((size_t)c->n_layers * c->n_heads, sizeof(*view->patterns));
        view->selected = calloc(max_seqs, sizeof(*view->selected));
        bool is_whole = view->seqs && view->patterns && view->selected;
        for (int k = 0; k < MOST_IN_FLIGHT; k++) {
            view->totals[k] = calloc(max_seqs, sizeof(*view->totals[k]));
            is_whole &= view->totals[k] != NULL;
        }
        if (!is_whole) return refuse_memory(team, err);
    }
    return 0;
}

double team_busy_s(const struct team *team, uint32_t rank) {
    return atomic_load(&team->workers[rank].busy_s);
}

uint32_t team_n_ranks(const struct team *team) {
    return team->n;
}

struct team_rank *team_ranks(struct team *team) {
    return team->ranks;
}

static void stop_workers(struct team *team) {
    atomic_store(&team->stops, true);
    begin_call(team);
    for (uint32_t i = 1; i <= team->n_started; i++) pthread_join(team->workers[i].thread, NULL);
}

static void free_rank(struct team_rank *rank, struct view *view) {
    struct backend *be = rank->be;
    decoder_destroy(rank->decoder);
    if (rank->store.base) be->ops->host_pool->free(be, rank->store.base);
    if (rank->kv.base) be->ops->free(be, rank->kv.base);
    if (rank->states.base) be->ops->free(be, rank->states.base);
    if (rank->stored.base) be->ops->host_pool->free(be, rank->stored.base);
    model_destroy(rank->model, be);
    free(view->seqs);
    free(view->patterns);
    free(view->selected);
    for (int k = 0; k < MOST_IN_FLIGHT; k++) free(view->totals[k]);
}

void team_destroy(struct team *team) {
    if (!team) return;
    stop_workers(team);
    for (uint32_t i = 0; i < team->n && team->ranks && team->views; i++)
        free_rank(&team->ranks[i], &team->views[i]);
    pthread_cond_destroy(&team->done);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->lock);
    free(team->workers);
    free(team->views);
    free(team->ranks);
    free(team);
}
