/* engine.c - the engine thread, and the two queues that join it to the server.
 *
 *   submit, cancel, stop ─► commands ─► [ drain, plan, step, results ] ─► events ─► take_events
 *
 * With a backend that runs ahead, a step is submitted before the previous step's results are taken.
 * So plans, text and events are made while the device works.
 *
 * The thread sleeps in the command queue while it has no sequence.  The events of a step are pushed
 * together after it, and wake the server once.  Stopping is a command, too, and closes the queue.
 * Requests submitted before it get a final event, later ones are refused.
 *
 * Thread: see engine.h; everything under "the engine thread" below belongs to it alone.
 * Memory: planned at create; a request's is its own. */
#include "engine/engine.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/host_pool.h"
#include "engine/engine_build.h"
#include "engine/grammar/grammar_cache.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_feed.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/model/expert_offload.h"
#include "engine/model/model.h"
#include "engine/schedule/request_plan.h"
#include "engine/schedule/scheduler.h"
#include "engine/tokenizer/tokenizer.h"

/* While there are no requests, what is cached is saved to the tier on disk after a pause, bit by
 * bit.  Sequences that wait for the disk are looked after this often, should nothing arrive. */
static const double pause_s = 0.5, save_tick_s = 0.01, stall_s = 0.1;

/* ---- commands to cancel ---- */

static void give_spare(struct engine *e, struct engine_command *command) {
    pthread_mutex_lock(&e->spare_lock);
    *command = (struct engine_command){.next = e->spare, .kind = COMMAND_CANCEL};
    e->spare = command;
    pthread_mutex_unlock(&e->spare_lock);
}

/* Takes an unused cancel command, or returns NULL if all are in the queue.  There is one for each
 * live request, so then every request is being cancelled already. */
static struct engine_command *take_spare(struct engine *e) {
    pthread_mutex_lock(&e->spare_lock);
    struct engine_command *command = e->spare;
    if (command) {
        e->spare = command->next;
        command->next = NULL;
    }
    pthread_mutex_unlock(&e->spare_lock);
    return command;
}

/* ---- create ---- */

static int check_config(const struct engine_config *c, struct error *err) {
    if (c->disk_path && !c->prefix_caching)
        return error_set(err, ERR_INVALID, "--kv-disk-path needs --enable-prefix-caching");
    if (c->kv_feed && !c->prefix_caching)
        return error_set(err, ERR_INVALID, "--kv-events needs --enable-prefix-caching");
    if (c->max_num_seqs == 0)
        return error_set(err, ERR_INVALID, "--max-num-seqs must be at least 1");
    /* Every running sequence must get its row in every step. */
    if (c->max_batched_tokens < c->max_num_seqs)
        return error_set(err, ERR_INVALID,
                         "--max-num-batched-tokens (%" PRIu32
                         ") must not be less than --max-num-seqs (%" PRIu32 ")",
                         c->max_batched_tokens, c->max_num_seqs);
    return 0;
}

static int create_queues(struct engine *e, struct error *err) {
    e->has_commands = mailbox_init(&e->commands) == 0;
    e->has_events = mailbox_init(&e->events) == 0;
    if (e->has_commands && e->has_events) return 0;
    return error_set(err, ERR_NOMEM, "no memory for the engine's queues");
}

static uint32_t n_places(const struct engine *e) {
    return e->config.max_num_seqs + e->config.max_queued;
}

static int create_cancels(struct engine *e, struct error *err) {
    e->cancels = calloc(n_places(e), sizeof(*e->cancels));
    if (!e->cancels) return error_set(err, ERR_NOMEM, "no memory for the engine's commands");
    for (uint32_t i = 0; i < n_places(e); i++) give_spare(e, &e->cancels[i]);
    return 0;
}

static void publish_stats(struct engine *e) {
    struct engine_stats stats;
    scheduler_stats(e->scheduler, &stats);
    stats_board_write(&e->stats, &stats);
}

static void *run_engine(void *arg);

int engine_create(struct engine **out, const struct engine_config *config, struct error *err) {
    struct engine *e = calloc(1, sizeof(*e));
    if (!e) return error_set(err, ERR_NOMEM, "no memory for the engine");
    e->config = *config;
    e->stop.kind = COMMAND_STOP;
    stats_board_init(&e->stats);
    pthread_mutex_init(&e->failure_lock, NULL);
    pthread_mutex_init(&e->spare_lock, NULL);
    e->guess_credit = shared_credit_make();
    atomic_init(&e->next_id, 1);
    atomic_init(&e->healthy, true);
    atomic_init(&e->saves, true);
    int code = check_config(config, err);
    if (!code) code = create_queues(e, err);
    if (!code) code = create_cancels(e, err);
    if (!code) code = engine_disk_open(&e->disk, config, &e->commands, err);
    if (!code) code = engine_build(e, err);
    if (code) goto fail;
    publish_stats(e);
    if (pthread_create(&e->thread, NULL, run_engine, e)) {
        code = error_set(err, ERR_NOMEM, "cannot start the engine thread");
        goto fail;
    }
    e->started = true;
    *out = e;
    return 0;

fail:
    engine_destroy(e);
    return code;
}

const struct engine_info *engine_info(const struct engine *e) {
    return &e->info;
}

/* ---- the engine thread ---- */

/* Hands the step's events over.  Counters come first, because a client that sees a final event may
 * submit again at once. */
static void publish(struct engine *e, struct event_list *events) {
    uint32_t n_final = 0;
    for (const struct engine_event *event = events->first; event; event = event->next)
        n_final += event->kind == EVENT_FINISH;
    publish_stats(e);
    atomic_fetch_sub(&e->n_live, n_final);
    if (!events->first) return;
    bool was_empty;
    int code = mailbox_push(&e->events, events->first, events->last, &was_empty);
    assert(code == 0); /* this box is never closed */
    *events = (struct event_list){0};
    if (was_empty && e->config.wake) e->config.wake(e->config.wake_ctx);
}

/* Executes the commands; returns true if one of them is to stop. */
static bool obey(struct engine *e, struct engine_command *command, struct event_list *events) {
    bool stop = false;
    for (struct engine_command *next; command; command = next) {
        next = command->next;
        if (command->kind == COMMAND_STOP) {
            stop = true;
            continue; /* it is part of struct engine: not freed */
        }
        if (command->kind == COMMAND_SUBMIT) {
            scheduler_add(e->scheduler, command->seq, events);
            free(command);
        } else {
            scheduler_cancel(e->scheduler, command->id, events);
            give_spare(e, command);
        }
    }
    return stop;
}

static void device_failed(struct engine *e, const struct error *err, struct event_list *events) {
    pthread_mutex_lock(&e->failure_lock);
    if (!e->failure.code) error_set(&e->failure, ERR_DEVICE, "%s", err->text); /* the cause */
    pthread_mutex_unlock(&e->failure_lock);
    atomic_store(&e->healthy, false);
    scheduler_end_all(e->scheduler, FINISH_ERROR, ERR_DEVICE, err->text, events);
}

/* Takes the results of the oldest in-flight step. */
static void take_results(struct engine *e, struct event_list *events) {
    struct error err = {0};
    const uint32_t n_newer = scheduler_n_inflight(e->scheduler) - 1;
    int code = team_collect(e->team, n_newer, &err);
    if (code) {
        device_failed(e, &err, events);
        return;
    }
    scheduler_finish_step(e->scheduler, events);
    if (e->disk.tier) kv_disk_completed(e->disk.tier, n_newer, false);
}

/* Submits what follows a step that has been submitted.  States are copied before its last
 * evictions. */
static int step_submitted(struct engine *e, struct batch *batch, struct error *err) {
    if (e->disk.tier) kv_disk_submitted(e->disk.tier);
    const int code = batch_submitted(batch, err);
    return code ? code : team_submit_evictions(e->team, err);
}

/* Submits a step in which grammars or penalties read the tokens before those that are sampled.
 * They read the last step's results while the device computes this one's rows. */
static int submit_in_parts(struct engine *e, struct batch *batch, struct event_list *events,
                           struct error *err) {
    int code = team_submit_rows(e->team, &batch->step, batch->samples, batch->n_samples, err);
    if (!code) code = step_submitted(e, batch, err);
    if (code) return code;
    if (scheduler_n_inflight(e->scheduler) > 1) take_results(e, events);
    if (!atomic_load(&e->healthy)) return ERR_DEVICE; /* every sequence has ended */
    batch_complete_samples(batch);
    return team_submit_samples(e->team, batch->samples, batch->n_samples, batch->results,
                               batch->totals, err);
}

/* Submits a slice of a long prompt, all of whose tokens are known. */
static int submit_slice(struct engine *e, struct batch *batch, struct error *err) {
    if (batch->reads_tokens) batch_complete_samples(batch);
    return team_submit_slice(e->team, &batch->step, &batch->slice, batch->samples, batch->n_samples,
                             batch->results, batch->totals, err);
}

static int submit_batch(struct engine *e, struct batch *batch, struct event_list *events,
                        struct error *err) {
    const bool is_slice = batch->kind == STEP_TIME_SLICE,
               in_parts = batch->reads_tokens && !is_slice;
    int code = is_slice   ? submit_slice(e, batch, err)
               : in_parts ? submit_in_parts(e, batch, events, err)
                          : team_submit(e->team, &batch->step, batch->samples, batch->n_samples,
                                        batch->results, batch->totals, err);
    if (!code && batch->selects) code = team_submit_selected(e->team, batch->selected, err);
    if (!code && batch->sparse) code = team_submit_totals(e->team, &batch->visited, err);
    return code || in_parts ? code : step_submitted(e, batch, err);
}

static int submit_step(struct engine *e, struct batch *batch, struct event_list *events,
                       struct error *err) {
    const struct backend *be = e->config.backend;
    const uint64_t n_new_graphs = be->n_new_graphs;
    const int code = submit_batch(e, batch, events, err);
    if (be->n_new_graphs > n_new_graphs) scheduler_note_new_graph(e->scheduler);
    return code;
}

static void run_step(struct engine *e, struct event_list *events) {
    struct error err = {0};
    if (!atomic_load(&e->healthy)) { /* requests submitted before the failure was seen */
        engine_failure(e, &err);
        device_failed(e, &err, events);
        return;
    }
    if (kv_readings_advance(&e->space, &err)) {
        device_failed(e, &err, events);
        return;
    }
    struct batch *batch = scheduler_plan(e->scheduler);
    scheduler_end_failed(e->scheduler, events);
    const bool runs_ahead = e->config.backend->runs_ahead;
    e->stalled = !batch && scheduler_n_inflight(e->scheduler) == 0;
    const int code = batch ? submit_step(e, batch, events, &err) : 0;
    if (code == ERR_NOMEM && !runs_ahead) { /* no other step is in flight */
        scheduler_fail_step(e->scheduler, code, err.text, events);
        return;
    }
    if (code) {
        device_failed(e, &err, events);
        return;
    }
    const uint32_t n_ahead = batch && runs_ahead ? 1 : 0;
    if (scheduler_n_inflight(e->scheduler) > n_ahead) take_results(e, events);
}

/* Waits for commands while there is nothing to do, and saves what is cached meanwhile. */
static struct engine_command *await_idle(struct engine *e) {
    struct engine_command *commands = NULL;
    double save_at_s = clock_seconds() + pause_s;
    for (bool more = e->disk.tier != NULL; more && !commands;) {
        commands = mailbox_wait_until(&e->commands, save_at_s);
        if (commands || clock_seconds() < save_at_s) continue;
        more = engine_disk_save(&e->disk, &e->space);
        save_at_s = clock_seconds() + save_tick_s;
    }
    return commands ? commands : mailbox_wait(&e->commands);
}

static struct engine_command *await_commands(struct engine *e) {
    const bool idle =
        scheduler_n_live(e->scheduler) == 0 && scheduler_n_inflight(e->scheduler) == 0;
    if (idle) return await_idle(e);
    if (!e->stalled) return mailbox_take(&e->commands);
    return mailbox_wait_until(&e->commands, clock_seconds() + stall_s);
}

static void *run_engine(void *arg) {
    struct engine *e = arg;
    struct event_list events = {0};
    while (!obey(e, await_commands(e), &events)) {
        atomic_store(&e->step_began_s, clock_seconds());
        run_step(e, &events);
        atomic_store(&e->step_began_s, 0);
        publish(e, &events);
    }
    obey(e, mailbox_close(&e->commands), &events);
    while (scheduler_n_inflight(e->scheduler) > 0) take_results(e, &events);
    scheduler_end_all(e->scheduler, FINISH_CANCELLED, 0, NULL, &events);
    publish(e, &events);
    if (atomic_load(&e->healthy) && atomic_load(&e->saves))
        engine_disk_save_all(&e->disk, &e->space);
    return NULL;
}

/* ---- any thread ---- */

static int check_places(const struct engine *e, uint32_t n_live, uint32_t n_more,
                        struct error *err) {
    if ((uint64_t)n_live + n_more <= n_places(e)) return 0;
    return error_set(err, ERR_FULL, "the queue is full: %u requests are running or waiting",
                     n_live);
}

int engine_check_room(struct engine *e, uint32_t n_requests, struct error *err) {
    return check_places(e, atomic_load(&e->n_live), n_requests, err);
}

/* Claims places in the queue for n requests, all or none. */
static int claim_places(struct engine *e, uint32_t n, struct error *err) {
    unsigned live = atomic_load(&e->n_live);
    do {
        if (check_places(e, live, n, err)) return ERR_FULL;
    } while (!atomic_compare_exchange_weak(&e->n_live, &live, live + n));
    return 0;
}

/* Appends a command for the request to the chain.  ERR_NOMEM. */
static int add_command(struct engine *e, const struct engine_request *request,
                       const struct request_plan *plan, uint64_t id, struct engine_command ***end) {
    struct engine_command *command = calloc(1, sizeof(*command));
    if (!command) return ERR_NOMEM;
    command->kind = COMMAND_SUBMIT;
    if (sequence_create(&command->seq, &e->shared, request, plan, id)) {
        free(command);
        return ERR_NOMEM;
    }
    **end = command;
    *end = &command->next;
    return 0;
}

static void drop_commands(struct engine_command *command) {
    for (struct engine_command *next; command; command = next) {
        next = command->next;
        sequence_abandon(command->seq);
        sequence_destroy(command->seq);
        free(command);
    }
}

/* Submits requests that have been admitted, all or none. */
static int submit_planned(struct engine *e, const struct engine_request *requests,
                          uint32_t n_requests, uint64_t *ids, struct error *err) {
    struct engine_command *first = NULL, **end = &first;
    int code = claim_places(e, n_requests, err);
    if (code) return code;
    const uint64_t id = atomic_fetch_add(&e->next_id, n_requests);
    for (uint32_t i = 0; i < n_requests; i++) {
        ids[i] = id + i;
        if (!(code = add_command(e, &requests[i], requests[i].plan, ids[i], &end))) continue;
        error_set(err, code, "no memory for the request");
        goto fail;
    }
    struct engine_command *last =
        (struct engine_command *)((char *)end - offsetof(struct engine_command, next));
    if (mailbox_push(&e->commands, first, last, NULL)) {
        code = error_set(err, ERR_DEVICE, "the engine is stopping");
        goto fail;
    }
    atomic_fetch_add(&e->n_submitted, n_requests);
    return 0;

fail:
    drop_commands(first);
    atomic_fetch_sub(&e->n_live, n_requests);
    return code;
}

int engine_admit(struct engine *e, struct engine_request *requests, uint32_t n_requests,
                 struct error *err) {
    for (uint32_t i = 0; i < n_requests; i++) {
        if (requests[i].plan) continue;
        struct request_plan *plan = malloc(sizeof(*plan));
        if (!plan) return error_set(err, ERR_NOMEM, "no memory for the request");
        const int code = admit(&e->admission, &requests[i], plan, err);
        if (code == 0) requests[i].plan = plan;
        else free(plan);
        if (code) return code;
    }
    return 0;
}

int engine_submit(struct engine *e, struct engine_request *requests, uint32_t n_requests,
                  uint64_t *ids, struct error *err) {
    if (!engine_healthy(e)) return engine_failure(e, err);
    if (n_requests == 0) return 0;
    int code = engine_admit(e, requests, n_requests, err);
    if (!code) code = submit_planned(e, requests, n_requests, ids, err);
    for (uint32_t i = 0; i < n_requests; i++) {
        free(requests[i].plan);
        requests[i].plan = NULL;
    }
    return code;
}

void engine_cancel(struct engine *e, uint64_t request_id) {
    struct engine_command *command = take_spare(e);
    if (!command) return;
    command->id = request_id;
    if (mailbox_push(&e->commands, command, command, NULL)) give_spare(e, command);
}

struct engine_event *engine_take_events(struct engine *e) {
    return mailbox_take(&e->events);
}

/* Returns the bytes of experts that all ranks have fetched from the machine's memory. */
static uint64_t expert_fetched_bytes(const struct engine *e) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < team_n_ranks(e->team); i++)
        sum += expert_offload_fetched(e->ranks[i].model);
    return sum;
}

void engine_stats(struct engine *e, struct engine_stats *out) {
    stats_board_read(&e->stats, out);
    out->expert_fetched_bytes = expert_fetched_bytes(e);
    /* Requests that the engine thread has not taken from the queue yet are waiting, too. */
    const uint32_t n_live = atomic_load(&e->n_live);
    out->n_waiting = n_live > out->n_running ? n_live - out->n_running : 0;
    out->n_submitted = atomic_load(&e->n_submitted);
    if (e->disk.tier) kv_disk_stats(e->disk.tier, &out->disk);
    if (!e->config.kv_feed) return;
    out->n_kv_events = kv_feed_n_put(e->config.kv_feed);
    out->n_kv_feed_broken = kv_feed_n_broken(e->config.kv_feed);
}

uint32_t engine_n_ranks(const struct engine *e) {
    return team_n_ranks(e->team);
}

void engine_rank(const struct engine *e, uint32_t rank, struct engine_rank *out) {
    const struct team_rank *r = &e->ranks[rank];
    const struct collective_ops *together = r->be->ops->collective;
    const bool is_timed = r->be->n_ranks > 1 && together->waited_s;
    *out = (struct engine_rank){
        .weight_bytes = r->model->weight_bytes,
        .kv_bytes = r->kv.n_pages * (uint64_t)r->kv.page_bytes,
        .state_bytes = r->states.n_slots * (uint64_t)r->states.slot_bytes,
        .host_pool_bytes =
            r->store.n_blocks ? r->store.n_blocks * (uint64_t)host_pool_block_bytes(&r->store) : 0,
        .busy_s = team_busy_s(e->team, rank),
        .waited_s = is_timed ? together->waited_s(r->be) : NAN};
}

bool engine_healthy(struct engine *e) {
    return atomic_load(&e->healthy);
}

double engine_step_seconds(struct engine *e) {
    const double began_s = atomic_load(&e->step_began_s);
    return began_s > 0 ? clock_seconds() - began_s : 0;
}

int engine_failure(struct engine *e, struct error *out) {
    pthread_mutex_lock(&e->failure_lock);
    *out = e->failure;
    pthread_mutex_unlock(&e->failure_lock);
    return out->code;
}

uint64_t engine_disk_failure(struct engine *e, struct error *out) {
    return e->disk.tier ? kv_disk_failure(e->disk.tier, out) : 0;
}

/* ---- stop ---- */

void engine_skip_saving(struct engine *e) {
    atomic_store(&e->saves, false);
}

void engine_stop(struct engine *e) {
    if (!e->started) return;
    int code = mailbox_push(&e->commands, &e->stop, &e->stop, NULL);
    assert(code == 0); /* only the stop command closes the box, and there is one */
    pthread_join(e->thread, NULL);
    e->started = false;
}

void engine_destroy(struct engine *e) {
    if (!e) return;
    engine_stop(e);
    engine_disk_close(&e->disk);
    if (e->has_events) {
        for (struct engine_event *event = mailbox_take(&e->events), *next; event; event = next) {
            next = event->next;
            engine_event_free(event);
        }
        mailbox_fini(&e->events);
    }
    if (e->has_commands) mailbox_fini(&e->commands);
    scheduler_destroy(e->scheduler);
    state_cache_destroy(e->space.states);
    prefix_cache_destroy(e->space.cache);
    page_pool_destroy(e->space.pool);
    page_pool_destroy(e->space.blocks);
    checkpoints_destroy(e->space.checkpoints);
    page_pool_destroy(e->space.state_slots);
    recent_answers_destroy(e->shared.recent);
    team_destroy(e->team);
    grammar_cache_destroy(e->info.grammars);
    tokenizer_destroy(e->tokenizer);
    pthread_mutex_destroy(&e->spare_lock);
    pthread_mutex_destroy(&e->failure_lock);
    stats_board_fini(&e->stats);
    free(e->cancels);
    free(e);
}
