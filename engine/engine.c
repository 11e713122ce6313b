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
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/admit.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/engine_disk.h"
#include "engine/grammar/grammar_cache.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_feed.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/memory_plan.h"
#include "engine/model/decoder.h"
#include "engine/model/feed_forward.h"
#include "engine/schedule/request_plan.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/speculation_rules.h"
#include "engine/schedule/stats_board.h"
#include "engine/system_memory.h"
#include "engine/tokenizer/tokenizer.h"

/* While there are no requests, what is cached is saved to the tier on disk after a pause, bit by
 * bit.  Sequences that wait for the disk are looked after this often, should nothing arrive. */
static const double pause_s = 0.5, save_tick_s = 0.01, stall_s = 0.1;

enum command_kind { COMMAND_SUBMIT, COMMAND_CANCEL, COMMAND_STOP };

struct engine_command {
    struct engine_command *next;
    enum command_kind kind;
    struct sequence *seq; /* SUBMIT */
    uint64_t id;          /* CANCEL */
};

struct engine {
    struct engine_config config;
    struct engine_info info;
    struct tokenizer *tokenizer;
    struct model *model;
    struct system_memory system; /* when the pools were planned */
    struct kv_pool kv;
    struct host_pool store; /* base NULL: there is no host pool */
    struct kv_swaps swaps;
    struct engine_disk disk;
    struct kv_space space;
    struct sequence_shared shared;
    struct shared_credit guess_credit; /* of shared, if the backend runs ahead */
    struct constraint_credit grammar_credit;
    struct admission admission;

    struct mailbox commands, events;
    bool has_commands, has_events; /* the mailboxes exist: destroy accepts half-built engines */
    atomic_uint_least64_t next_id, n_submitted;
    atomic_uint n_live;          /* submitted, without a final event: bounds the queue */
    _Atomic double step_began_s; /* of clock_seconds(); 0: no step runs */
    atomic_bool healthy, saves;  /* saves: to the tier on disk, at the end */
    struct stats_board stats;
    pthread_mutex_t failure_lock;
    struct error failure; /* under its lock; code 0: none */
    /* [n_places()]: one command for each live request, so that no cancel is lost for lack of
     * memory. */
    struct engine_command *cancels;
    pthread_mutex_t spare_lock;
    struct engine_command *spare; /* list of the unused ones */

    /* The engine thread. */
    pthread_t thread;
    bool started;
    struct decoder *decoder;
    struct scheduler *scheduler;
    bool stalled; /* nothing could be computed: all sequences wait for the disk */
    struct engine_command stop;
};

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

/* Makes the tokenizer's eos_token end a text: files of chat models often name it there only. */
static int add_tokenizers_end(struct engine *e, struct error *err) {
    uint32_t end;
    if (!e->tokenizer || !tokenizer_named(e->tokenizer, TOKEN_END, &end)) return 0;
    return model_add_end(&e->model->config, end, err);
}

/* Tells whether weights and pages lie in the system's memory. */
static bool uses_system_memory(const struct engine *e) {
    struct backend *be = e->config.backend;
    return be->ops->memory(be).total == 0;
}

/* Refuses weights in no file that do not fit.  Nothing else stops them: pages that are written one
 * after the other end with the process killed, without a word. */
static int check_own_weights(const void *ctx, uint64_t bytes, struct error *err) {
    const struct engine *e = ctx;
    struct system_memory memory;
    const double gib = 1 << 30;
    if (bytes == 0 || !uses_system_memory(e)) return 0;
    system_memory_read(&memory);
    if (memory.available == 0 || bytes <= memory.available) return 0;
    return error_set(
        err, ERR_NOMEM, "%s take %.2f GiB, but %.2f GiB of memory can be had (%s)",
        e->config.random_weights
            ? "--load-format dummy: the weights"
            : "weights must be unpacked, as the device does not read their format: they",
        (double)bytes / gib, (double)memory.available / gib,
        *memory.limit ? memory.limit : "MemAvailable of /proc/meminfo");
}

static int load_files(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    const struct model_source source = {.random = c->random_weights,
                                        .context = c->max_model_len,
                                        .check = check_own_weights,
                                        .check_ctx = e,
                                        .progress = c->load_progress,
                                        .ctx = c->load_ctx};
    int code = c->tokens_only ? 0 : tokenizer_load(&e->tokenizer, c->model_dir, err);
    if (!code) code = model_load(&e->model, c->model_dir, &source, c->backend, err);
    if (!code) code = add_tokenizers_end(e, err);
    if (code) return code;
    const struct model_config *model = &e->model->config;
    if (c->max_model_len > model->max_position)
        return error_set(err, ERR_INVALID,
                         "--max-model-len (%" PRIu32 ") is more than the model's context, %" PRIu32,
                         c->max_model_len, model->max_position);
    e->info.max_model_len = c->max_model_len ? c->max_model_len : model->max_position;
    e->info.model = model;
    e->info.weights = &e->model->tally;
    e->info.tokenizer = e->tokenizer;
    e->info.weight_bytes = e->info.step_weight_bytes = e->model->weight_bytes;
    if (!model->tied_head) e->info.step_weight_bytes -= weight_bytes(&e->model->embedding);
    return 0;
}

/* Compiled grammars that are kept for later requests. */
enum { GRAMMARS_BYTES = 64 << 20 };

/* Prepares the vocabulary for grammars, where the build can compile any.  A model without end
 * tokens has none. */
static int create_grammars(struct engine *e, struct error *err) {
    const struct model_config *model = &e->model->config;
    struct grammar_vocab *vocab = NULL;
    if (!grammar_is_available() || !e->tokenizer || model->n_eos == 0) return 0;
    int code =
        grammar_vocab_create(&vocab, e->tokenizer, model->n_vocab, model->eos, model->n_eos, err);
    if (code) return code;
    code = grammar_cache_create(&e->info.grammars, vocab, GRAMMARS_BYTES);
    if (!code) return 0;
    grammar_vocab_destroy(vocab);
    return error_set(err, code, "no memory for grammars");
}

/* Returns the sizes of the decoder's buffers, and notes them in info.  Logits are computed
 * max_logit_rows at a time: a prompt's log-probabilities need one row per token, and a row is
 * large.  One pass is enough for the samples of up to 256 sequences in a step. */
static struct decoder_limits decoder_plan(struct engine *e, struct device_memory device) {
    const struct engine_config *c = &e->config;
    const struct model_config *model = &e->model->config;
    const uint32_t slice_bytes = 64u << 20;
    uint32_t rows = slice_bytes / (model->n_vocab * (uint32_t)sizeof(float));
    const uint32_t n_draws = c->max_num_seqs < 256 ? c->max_num_seqs : 256;
    if (rows < n_draws) rows = n_draws;
    if (rows > c->max_batched_tokens) rows = c->max_batched_tokens;
    e->info.sparse_prefill = memory_plan_sparse(c, model);
    e->info.long_rows =
        memory_plan_long_rows(c, model, e->info.max_model_len, device, e->info.available_bytes);
    e->info.long_bytes = decoder_long_bytes(model, e->info.long_rows, c->backend->act_dtype);
    return (struct decoder_limits){.max_rows = c->max_batched_tokens,
                                   .max_logit_rows = rows,
                                   .max_long_rows = e->info.long_rows,
                                   .groups = c->groups,
                                   .n_groups = e->info.selections ? c->n_groups : 0,
                                   .store = e->store.base ? &e->store : NULL};
}

/* Returns the most prompt rows that one index covers: a chunk's, or a whole layer-major
 * prompt's. */
static uint32_t most_sparse_rows(const struct decoder_limits *limits) {
    return max_u32(limits->max_long_rows, limits->max_rows);
}

/* Returns the most slots that one sequence may have in a layer.  A bounded cache never has more
 * than the trained context, whatever max_model_len is: kv_choice_check(). */
static uint32_t longest_sequence(const struct engine *e) {
    return e->kv.tracked ? e->model->config.max_position : e->info.max_model_len;
}

/* Tells whether layers with a window free the pages that have left it.  They do not if a request
 * takes all of its pages at admission. */
static bool gives_back(const struct engine *e) {
    return e->model->config.window > 0 && !e->config.batch_invariant;
}

static uint32_t n_windowed(const struct engine *e) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < e->model->config.n_layers && gives_back(e); l++)
        n += e->model->config.windows[l] > 0;
    return n;
}

/* Bounds the slots of all sequences in a layer that keeps every token, as if all free memory became
 * pages; the pool is allocated last.  A layer-major prompt may have more: its layers share
 * pages. */
static uint64_t most_slots(const struct engine *e, struct device_memory device) {
    const uint64_t longest = (uint64_t)e->config.max_num_seqs * longest_sequence(e);
    const uint64_t n_sparse = e->info.selections ? e->store.n_host_layers : 0;
    const uint64_t n_layers = e->model->config.n_layers - n_sparse - n_windowed(e);
    if (device.total == 0 || n_layers == 0) return longest;
    const uint64_t n_slots = device.free / (e->kv.page_bytes * n_layers) * PAGE_TOKENS;
    return min_u64(max_u64(n_slots, e->info.long_rows), longest);
}

/* Bounds the slots of a step's prompts in a layer, because fp8 prompts of one step are dequantised
 * together: the longest sequence's, and max_batched_tokens of other prompts.  0: no limit. */
static uint64_t most_prompt_slots(const struct engine *e) {
    if (!page_is_scaled(e->config.kv_format)) return 0;
    return (uint64_t)longest_sequence(e) + e->config.max_batched_tokens;
}

static uint32_t most_selected(const struct engine *e) {
    return e->info.selections ? e->config.max_selected : 0;
}

static struct select_limits limit_selections(const struct engine *e) {
    const struct engine_config *c = &e->config;
    struct select_limits limits = {
        .max_slots = e->info.max_model_len,
        .max_selected = (most_selected(e) + PAGE_TOKENS - 1) / PAGE_TOKENS * PAGE_TOKENS,
        .n_groups = e->info.selections ? c->n_groups : 0};
    for (uint32_t i = 0; i < limits.n_groups; i++) {
        const uint32_t n = group_n_layers(&c->groups[i], e->model->config.windows);
        limits.max_group_layers = max_u32(limits.max_group_layers, n);
    }
    return limits;
}

/* Allocates all that a step needs besides weights and pages, so that all memory that is free
 * afterwards may become pages.  If the device reports its memory, workspace_bytes is what was
 * really taken. */
static int create_workspace(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    const struct model_config *model = &e->model->config;
    struct backend *be = c->backend;
    const struct device_memory before = be->ops->memory(be);
    const struct decoder_limits limits = decoder_plan(e, before);
    const struct sparse_limits sparse = {.max_rows = most_sparse_rows(&limits),
                                         .max_slots = e->info.max_model_len};
    const struct select_limits selections = limit_selections(e);
    const struct step_limits largest = {.max_rows = limits.max_rows,
                                        .max_seqs = c->max_num_seqs,
                                        .max_seq_pages = (uint32_t)kv_n_pages(longest_sequence(e)),
                                        .max_slots = most_slots(e, before),
                                        .max_prompt_slots = most_prompt_slots(e),
                                        .kv_format = c->kv_format,
                                        .tracked = e->kv.tracked,
                                        .max_logit_rows = limits.max_logit_rows,
                                        .n_layers = model->n_layers,
                                        .n_heads = model->n_heads,
                                        .n_kv_heads = model->n_kv_heads,
                                        .head_dim = model->head_dim,
                                        .n_freqs = model->n_freqs,
                                        .n_vocab = model->n_vocab,
                                        .sparse = e->info.sparse_prefill ? &sparse : NULL,
                                        .select = e->info.selections ? &selections : NULL};
    int code = decoder_create(&e->decoder, e->model, be, &e->kv, &limits, err);
    if (!code) code = be->ops->reserve(be, &largest, err);
    if (code) return code;
    const struct device_memory after = be->ops->memory(be);
    const uint64_t used = before.total - before.free;
    e->info.device_bytes = after.total;
    e->info.workspace_bytes = decoder_workspace_bytes(model, &limits);
    if (after.total == 0) return 0;
    e->info.workspace_bytes = before.free > after.free ? before.free - after.free : 0;
    e->info.other_bytes = used > e->info.weight_bytes ? used - e->info.weight_bytes : 0;
    return 0;
}

/* Returns how many layers have no window. */
static uint32_t count_wide(const struct model_config *model) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < model->n_layers; l++) n += !layer_has_window(model->windows, l);
    return n;
}

static struct longest_text longest_text(const struct engine *e) {
    return (struct longest_text){.n_layers = e->model->config.n_layers,
                                 .n_tokens = e->info.max_model_len,
                                 .n_windowed = n_windowed(e),
                                 .window = e->model->config.window,
                                 .step_rows = e->config.max_batched_tokens,
                                 .long_rows = e->info.long_rows,
                                 .store = e->info.selections ? &e->store : NULL};
}

/* Refuses a size of the pool that is more than the system's memory. */
static int check_pool(const struct engine *e, struct error *err) {
    const uint64_t bytes = e->config.kv_cache_bytes;
    if (!uses_system_memory(e) || bytes == 0) return 0;
    return system_memory_check(&e->system, "--kv-cache-memory", bytes,
                               e->info.weight_bytes + e->info.host_pool_bytes, err);
}

/* Notes what may be had of the system's memory.  Where nothing says how long texts may be, and the
 * memory holds none of the model's context, they are as long as it holds. */
static void measure_memory(struct engine *e) {
    const struct engine_config *c = &e->config;
    system_memory_read(&e->system);
    e->info.available_bytes = e->system.available;
    if (!uses_system_memory(e) || e->system.available == 0) return;
    /* Random and unpacked weights are no files: they are in use already. */
    const uint64_t own = e->model->tally.unpacked_bytes,
                   mapped = c->random_weights ? 0 : e->info.weight_bytes - own;
    e->info.available_bytes = memory_plan_beside(e->system.available, mapped);
    if (c->max_model_len || c->kv_cache_bytes || c->only_bounded || c->host_pool_bytes) return;
    const struct longest_text longest = longest_text(e);
    e->info.max_model_len = memory_plan_context(&e->kv, &longest, e->info.available_bytes);
}

static int create_pages(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    struct backend *be = c->backend;
    const uint32_t n_layers = e->model->config.n_layers;
    const struct longest_text longest = longest_text(e);
    int code = check_pool(e, err);
    if (!code)
        code =
            memory_plan_kv(&e->kv, c, &longest, be->ops->memory(be), e->info.available_bytes, err);
    if (code) return code;
    e->info.n_pages = e->kv.n_pages;
    e->info.text_pages = memory_plan_text_pages(&longest);
    e->info.kv_bytes = (uint64_t)e->kv.n_pages * e->kv.page_bytes;
    e->info.kv_tokens = (uint64_t)e->kv.n_pages / n_layers * PAGE_TOKENS;
    const uint32_t n_wide = count_wide(&e->model->config);
    e->info.budget_tokens = n_wide ? (uint64_t)e->kv.n_pages / n_wide * PAGE_TOKENS : UINT64_MAX;
    return be->ops->alloc(be, e->info.kv_bytes, &e->kv.base, err);
}

/* Tells whether the filter and the first and last layer that follow it have full attention. */
static bool is_wide(const struct layer_group *group, const uint32_t *windows) {
    return !layer_has_window(windows, group->filter) && !layer_has_window(windows, group->first) &&
           !layer_has_window(windows, group->end - 1);
}

static int check_groups(const struct engine *e, struct error *err) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < e->config.n_groups; i++) {
        const struct layer_group *group = &e->config.groups[i];
        if (group->filter < end || group->filter >= group->first || group->first >= group->end ||
            group->end > e->model->config.n_layers)
            return error_set(err, ERR_INVALID,
                             "the layers that follow filter layer %" PRIu32
                             " must be layers of the model, and must not follow another filter",
                             group->filter);
        if (!is_wide(group, e->model->config.windows))
            return error_set(err, ERR_INVALID,
                             "filter layer %" PRIu32
                             ", and the first and last layer that follow it, must have no window",
                             group->filter);
        end = group->end;
    }
    return e->config.n_groups <= MAX_LAYER_GROUPS
               ? 0
               : error_set(err, ERR_INVALID, "there must be at most %d filter layers",
                           MAX_LAYER_GROUPS);
}

/* Creates the host pool.  It comes before the workspace, because a device may need some of its own
 * memory for it. */
static int create_host_pool(struct engine *e, struct error *err) {
    struct backend *be = e->config.backend;
    struct host_pool *store = &e->store;
    e->info.selections = memory_plan_selections(&e->config);
    e->info.observes = e->info.selections && e->config.backend->ops->select->observe;
    int code = check_groups(e, err);
    if (code) return code;
    code = memory_plan_host_pool(store, &e->config, &e->model->config, err);
    if (code || store->n_blocks == 0) return code;
    e->info.host_pool_bytes = store->n_blocks * (uint64_t)host_pool_block_bytes(store);
    e->info.host_pool_tokens = (uint64_t)store->n_blocks * PAGE_TOKENS;
    code = system_memory_check(&e->system, "--kv-offload-size", e->info.host_pool_bytes,
                               uses_system_memory(e) ? e->info.weight_bytes : 0, err);
    if (code) return code;
    code = be->ops->host_pool->alloc(be, e->info.host_pool_bytes, &store->base, err);
    if (!code) code = page_pool_create(&e->space.blocks, store->n_blocks, err);
    e->space.io.host = store;
    e->space.swaps = &e->swaps;
    return code;
}

static struct shared_credit *guess_credit_of(struct engine *e) {
    return e->config.backend->runs_ahead ? &e->guess_credit : NULL;
}

/* Creates the scheduler.  Work is in multiply-adds of a layer: of its matrices for every row, and
 * of two products of its heads for every row and slot. */
static int create_scheduler(struct engine *e, struct error *err) {
    const struct model_config *m = &e->model->config;
    const double dim = m->dim, q_dim = (double)m->n_heads * m->head_dim,
                 kv_dim = (double)m->n_kv_heads * m->head_dim;
    const struct scheduler_config config = {
        .space = &e->space,
        .max_rows = e->config.max_batched_tokens,
        .max_seqs = e->config.max_num_seqs,
        .max_long_rows = e->info.long_rows,
        .max_prompt_slots = most_prompt_slots(e),
        .max_itl_s = e->config.max_itl_ms / 1000.0,
        .row_work = dim * (2 * q_dim + 2 * kv_dim) + feed_forward_work(m),
        .enter_work = dim * (q_dim + 2 * kv_dim),
        .pair_work = 2 * q_dim,
        .now_s = clock_seconds,
        .guess_credit = guess_credit_of(e)};
    return scheduler_create(&e->scheduler, &config, err);
}

static int create_memory(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    const uint32_t n_layers = e->model->config.n_layers;
    e->kv = memory_plan_pages(c, &e->model->config);
    e->info.bounded_caches = e->kv.tracked;
    measure_memory(e);
    int code = create_host_pool(e, err);
    if (!code) code = create_workspace(e, err);
    if (!code) code = create_pages(e, err);
    if (code) return code;
    e->space.n_layers = n_layers;
    e->space.feed = c->kv_feed;
    e->space.windows = e->model->config.windows;
    e->space.window = gives_back(e) ? e->model->config.window : 0;
    e->space.io.be = c->backend;
    e->space.io.memory = &e->kv;
    e->space.groups = c->groups;
    e->space.n_groups = e->info.selections ? c->n_groups : 0;
    e->space.batch_invariant = c->batch_invariant;
    if ((code = engine_disk_begin(&e->disk, c, e->model, &e->space, err))) return code;
    code = page_pool_create(&e->space.pool, e->kv.n_pages, err);
    if (!code && c->prefix_caching) code = prefix_cache_create(&e->space.cache, &e->space, err);
    if (!code && c->prefix_caching && e->kv.tracked)
        code = state_cache_create(&e->space.states, &e->space, err);
    if (code) return code;
    return create_scheduler(e, err);
}

static int create_queues(struct engine *e, struct error *err) {
    e->has_commands = mailbox_init(&e->commands) == 0;
    e->has_events = mailbox_init(&e->events) == 0;
    if (e->has_commands && e->has_events) return 0;
    return error_set(err, ERR_NOMEM, "no memory for the engine's queues");
}

static int describe_prefill(struct engine *e, struct error *err) {
    const struct model_config *model = &e->model->config;
    struct prefill_support *support = &e->shared.prefill;
    if (e->config.patterns && admit_patterns(model, e->config.patterns, err)) return ERR_INVALID;
    *support = (struct prefill_support){.available = e->info.sparse_prefill,
                                        .patterns = e->config.patterns,
                                        .n_heads_in_all = model->n_layers * model->n_heads,
                                        .max_tokens = e->info.max_model_len,
                                        .min_sparse_tokens = e->config.min_sparse_tokens};
    support->filters_choose =
        e->info.sparse_prefill && e->config.backend->ops->sparse->choose != NULL;
    support->groups = e->config.groups;
    support->n_groups = e->config.n_groups;
    const int code = engine_disk_key(&e->disk, KEY_OF_PREFILL, support->key, err);
    return code ? code : engine_disk_key(&e->disk, KEY_OF_SALTS, e->info.salt_key, err);
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

static struct kv_limits kv_limits(const struct engine *e) {
    return (struct kv_limits){
        .max_model_len = e->info.max_model_len,
        .trained_context = e->info.model->max_position,
        .n_layers = e->info.model->n_layers,
        .some_windowed = e->info.model->windows && model_has_full_attention(e->info.model),
        .all_windowed = !model_has_full_attention(e->info.model),
        .learned_positions = e->info.model->positions == POSITIONS_LEARNED,
        .bounded_caches = e->info.bounded_caches,
        .budgets_by_layer = e->info.bounded_caches && e->config.backend->ops->evict->by_layer,
        .budgets_beside_windows =
            e->info.bounded_caches && e->config.backend->ops->evict->beside_windows,
        .groups = e->config.groups,
        .n_groups = e->config.n_groups,
        .selections = e->info.selections,
        .max_selected = most_selected(e),
        .observes = e->info.observes,
        .device = e->config.backend->name,
        .has_host_pool = e->store.base != NULL};
}

static void publish_stats(struct engine *e) {
    struct engine_stats stats;
    scheduler_stats(e->scheduler, &stats);
    stats_board_write(&e->stats, &stats);
}

/* Makes the store of recent answers, unless no request may find even another one's prefix. */
static int create_recent_answers(struct engine *e, struct error *err) {
    e->info.speculation_excluded = speculation_excluded(&e->space);
    if (e->info.speculation_excluded || !e->config.prefix_caching) return 0;
    if (recent_answers_create(&e->shared.recent, RECENT_TOKENS) == 0) return 0;
    return error_set(err, ERR_NOMEM, "no memory for recent answers");
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
    if (!code) code = load_files(e, err);
    if (!code) code = create_grammars(e, err);
    if (!code) code = create_memory(e, err);
    if (code) goto fail;
    e->shared = (struct sequence_shared){.space = &e->space,
                                         .tokenizer = e->tokenizer,
                                         .eos = e->model->config.eos,
                                         .n_eos = e->model->config.n_eos,
                                         .n_vocab = e->model->config.n_vocab,
                                         .max_rows = e->config.max_batched_tokens,
                                         .max_long_rows = e->info.long_rows,
                                         .guess_credit = guess_credit_of(e),
                                         .grammar_credit = &e->grammar_credit};
    if ((code = describe_prefill(e, err))) goto fail;
    if ((code = create_recent_answers(e, err))) goto fail;
    e->admission = (struct admission){.model = e->info.model,
                                      .shared = &e->shared,
                                      .kv = kv_limits(e),
                                      .runs_ahead = config->backend->runs_ahead};
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
    int code = decoder_collect(e->decoder, n_newer, &err);
    if (!code) code = model_check(e->model, &err); /* the CPU's weights are mapped files */
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
    return code ? code : decoder_submit_evictions(e->decoder, err);
}

/* Submits a step in which grammars or penalties read the tokens before those that are sampled.
 * They read the last step's results while the device computes this one's rows. */
static int submit_in_parts(struct engine *e, struct batch *batch, struct event_list *events,
                           struct error *err) {
    int code = decoder_submit_rows(e->decoder, &batch->step, batch->samples, batch->n_samples, err);
    if (!code) code = step_submitted(e, batch, err);
    if (code) return code;
    if (scheduler_n_inflight(e->scheduler) > 1) take_results(e, events);
    if (!atomic_load(&e->healthy)) return ERR_DEVICE; /* every sequence has ended */
    batch_complete_samples(batch);
    return decoder_submit_samples(e->decoder, batch->samples, batch->n_samples, batch->results,
                                  batch->totals, err);
}

/* Submits a slice of a long prompt, all of whose tokens are known. */
static int submit_slice(struct engine *e, struct batch *batch, struct error *err) {
    if (batch->reads_tokens) batch_complete_samples(batch);
    return decoder_submit_slice(e->decoder, &batch->step, &batch->slice, batch->samples,
                                batch->n_samples, batch->results, batch->totals, err);
}

static int submit_batch(struct engine *e, struct batch *batch, struct event_list *events,
                        struct error *err) {
    const bool is_slice = batch->kind == STEP_TIME_SLICE,
               in_parts = batch->reads_tokens && !is_slice;
    int code = is_slice   ? submit_slice(e, batch, err)
               : in_parts ? submit_in_parts(e, batch, events, err)
                          : decoder_submit(e->decoder, &batch->step, batch->samples,
                                           batch->n_samples, batch->results, batch->totals, err);
    if (!code && batch->selects) code = decoder_submit_selected(e->decoder, batch->selected, err);
    if (!code && batch->sparse) code = decoder_submit_totals(e->decoder, &batch->visited, err);
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
    struct batch *batch = scheduler_plan(e->scheduler, events);
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

void engine_stats(struct engine *e, struct engine_stats *out) {
    stats_board_read(&e->stats, out);
    /* Requests that the engine thread has not taken from the queue yet are waiting, too. */
    const uint32_t n_live = atomic_load(&e->n_live);
    out->n_waiting = n_live > out->n_running ? n_live - out->n_running : 0;
    out->n_submitted = atomic_load(&e->n_submitted);
    if (e->disk.tier) kv_disk_stats(e->disk.tier, &out->disk);
    if (!e->config.kv_feed) return;
    out->n_kv_events = kv_feed_n_put(e->config.kv_feed);
    out->n_kv_feed_broken = kv_feed_n_broken(e->config.kv_feed);
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
    decoder_destroy(e->decoder);
    state_cache_destroy(e->space.states);
    prefix_cache_destroy(e->space.cache);
    page_pool_destroy(e->space.pool);
    page_pool_destroy(e->space.blocks);
    recent_answers_destroy(e->shared.recent);
    if (e->store.base) e->config.backend->ops->host_pool->free(e->config.backend, e->store.base);
    if (e->kv.base) e->config.backend->ops->free(e->config.backend, e->kv.base);
    model_destroy(e->model, e->config.backend);
    grammar_cache_destroy(e->info.grammars);
    tokenizer_destroy(e->tokenizer);
    pthread_mutex_destroy(&e->spare_lock);
    pthread_mutex_destroy(&e->failure_lock);
    stats_board_fini(&e->stats);
    free(e->cancels);
    free(e);
}
