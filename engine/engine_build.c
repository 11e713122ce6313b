/* engine_build.c - see engine_build.h.
 *
 * Thread: as engine_create().  Memory: see engine_build.h. */
#include "engine/engine_build.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/engine_check.h"
#include "engine/expert_memory.h"
#include "engine/grammar/grammar_cache.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/memory_plan.h"
#include "engine/model/decoder.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model_share.h"
#include "engine/request/channels.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/speculation_rules.h"
#include "engine/tokenizer/tokenizer.h"

/* ---- the model ---- */

/* Makes the tokenizer's eos_token end a text: files of chat models often name it there only. */
static int add_tokenizers_end(struct engine *e, struct error *err) {
    uint32_t end;
    if (!e->tokenizer || !tokenizer_named(e->tokenizer, TOKEN_END, &end)) return 0;
    return model_add_end(e->ranks->model->whole, end, err);
}

/* Tells whether weights and pages lie in the system's memory. */
static bool uses_system_memory(const struct engine *e) {
    struct backend *be = e->config.backend;
    return be->ops->memory(be).total == 0;
}

/* Refuses weights in no file that do not fit.  Nothing else stops them: pages that are written one
 * after the other end with the process killed, without a word. */
static int check_own_weights(const struct engine *e, uint64_t bytes, struct error *err) {
    struct system_memory memory;
    const double gib = 1 << 30;
    if (bytes == 0 || !uses_system_memory(e)) return 0;
    system_memory_read(&memory);
    if (memory.available == 0 || bytes <= memory.available) return 0;
    return error_set(err, ERR_NOMEM, "%s take %.2f GiB, but %.2f GiB of memory can be had (%s)",
                     e->config.random_weights ? "--load-format dummy: the weights"
                                              : "weights must be converted or repacked, as the "
                                                "device does not read their format: they",
                     (double)bytes / gib, (double)memory.available / gib,
                     *memory.limit ? memory.limit : "MemAvailable of /proc/meminfo");
}

/* Refuses settings that do not go with the model, and weights that do not fit, before any weight is
 * loaded. */
static int check_model(const void *ctx, const struct model_config *model, uint64_t bytes,
                       uint64_t offloaded_bytes, struct error *err) {
    const struct engine *e = ctx;
    int code = engine_check(&e->config, model, err);
    if (!code) code = check_own_weights(e, bytes, err);
    return code ? code : expert_memory_check(offloaded_bytes, err);
}

static uint64_t choose_offload(const void *ctx, const struct model *model, uint64_t layer_bytes) {
    const struct engine *e = ctx;
    return expert_memory_choose(&e->config, model, layer_bytes);
}

/* Returns the bytes of all experts, but for shared ones. */
static uint64_t expert_bytes(const struct model *model) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->config.n_layers; i++) {
        const struct layer_weights *w = &model->layers[i];
        if (model->config.layers[i].n_experts > 0)
            bytes += weight_bytes(&w->gate) + weight_bytes(&w->up) + weight_bytes(&w->down);
    }
    return bytes;
}

/* The loading of one rank's weights. */
struct rank_loading {
    const struct engine_config *config;
    uint32_t n_ranks, rank;
};

/* Tells how far the weights of all ranks are loaded. */
static bool tell_progress(void *ctx, uint64_t done, uint64_t total) {
    const struct rank_loading *loading = ctx;
    const struct engine_config *c = loading->config;
    if (!c->load_progress) return true;
    return c->load_progress(c->load_ctx, loading->rank * total + done, loading->n_ranks * total);
}

/* Loads to each rank its share of the model. */
static int load_ranks(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    struct rank_loading loading = {.config = c, .n_ranks = team_n_ranks(e->team)};
    struct model_source source = {.random = c->random_weights,
                                  .random_format = c->random_format,
                                  .unpacks_exactly = c->unpacks_exactly,
                                  .context = c->max_model_len,
                                  .n_ranks = c->backend->n_ranks,
                                  .ranks_share = c->ranks_share,
                                  .choose_offload = choose_offload,
                                  .check = check_model,
                                  .check_ctx = e,
                                  .progress = tell_progress,
                                  .ctx = &loading};
    int code = 0;
    source.offload_bytes = c->expert_offload_bytes == EXPERT_OFFLOAD_AUTO
                               ? EXPERT_OFFLOAD_AUTO
                               : div_up(c->expert_offload_bytes, loading.n_ranks);
    for (uint32_t i = 0; i < loading.n_ranks && !code; i++) {
        source.rank = loading.rank = i;
        code = model_load(&e->ranks[i].model, c->model_dir, &source, e->ranks[i].be, err);
    }
    return code;
}

/* Notes how large the weights of all ranks are.  Each rank has the whole embedding. */
static void sum_weights(struct engine *e) {
    struct engine_info *info = &e->info;
    for (uint32_t i = 0; i < team_n_ranks(e->team); i++) {
        const struct model *model = e->ranks[i].model;
        const bool is_head = model->config.tied_head && !model_shares_weights(&model->config);
        info->weight_bytes += model->weight_bytes;
        info->step_weight_bytes +=
            model->weight_bytes - (is_head ? 0 : weight_bytes(&model->embedding));
        info->expert_bytes += expert_bytes(model);
        info->offloaded_bytes += model->offload.bytes;
        info->n_offloaded_layers = model->offload.n_layers; /* of every rank, as ranks are alike */
    }
}

static const struct collective_ops *collective_of(const struct engine *e) {
    const struct backend *be = e->config.backend;
    return be->n_ranks > 1 ? be->ops->collective : NULL;
}

/* Tells ranks which of them have the same KV heads. */
static void share_heads(struct engine *e) {
    const struct collective_ops *together = collective_of(e);
    if (together && together->share_heads)
        together->share_heads(e->config.backend, e->ranks->model->whole->n_kv_heads);
}

/* Tells whether ranks that have the same KV head cannot agree on its scores. */
static bool repeats_heads(const struct engine *e) {
    const struct collective_ops *together = collective_of(e);
    return together && !together->share_heads &&
           page_io_n_kv_heads(&e->ranks->io) > e->info.model->n_kv_heads;
}

static int load_files(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    int code = c->tokens_only ? 0 : tokenizer_load(&e->tokenizer, c->model_dir, err);
    if (!code) code = load_ranks(e, err);
    if (!code) share_heads(e);
    if (!code) code = add_tokenizers_end(e, err);
    if (code) return code;
    const struct model_config *model = e->ranks->model->whole;
    e->info.max_model_len = c->max_model_len ? c->max_model_len : model->max_position;
    e->info.model = model;
    e->info.weights = &e->ranks->model->tally;
    e->info.tokenizer = e->tokenizer;
    sum_weights(e);
    return 0;
}

/* Compiled grammars that are kept for later requests. */
enum { GRAMMARS_BYTES = 64 << 20 };

/* Finds the marks of channels (channels.h), of a model that has the first ones; returns how
 * many. */
static uint32_t find_marks(const struct tokenizer *tokenizer, uint32_t marks[CHANNEL_MOST_MARKS]) {
    uint32_t n = 0;
    for (const struct channel_mark *mark = channel_marks; mark->token; mark++) {
        uint32_t id;
        if (!tokenizer_find_added(tokenizer, mark->token, strlen(mark->token), &id)) break;
        if (tokenizer_is_special(tokenizer, id)) marks[n++] = id;
    }
    return n;
}

/* Prepares the vocabulary for grammars, where the build can compile any.  A model without end
 * tokens has none. */
static int create_grammars(struct engine *e, struct error *err) {
    const struct model_config *model = e->ranks->model->whole;
    struct grammar_vocab *vocab = NULL;
    uint32_t marks[CHANNEL_MOST_MARKS];
    if (!grammar_is_available() || !e->tokenizer || model->n_eos == 0) return 0;
    const struct grammar_tokens special = {.eos = model->eos,
                                           .n_eos = model->n_eos,
                                           .marks = marks,
                                           .n_marks = find_marks(e->tokenizer, marks)};
    int code = grammar_vocab_create(&vocab, e->tokenizer, model->n_vocab, &special, err);
    if (code) return code;
    code = grammar_cache_create(&e->info.grammars, vocab, GRAMMARS_BYTES);
    if (!code) return 0;
    grammar_vocab_destroy(vocab);
    return error_set(err, code, "no memory for grammars");
}

/* Returns the sizes of the decoder's buffers, and notes them in info. */
static struct decoder_limits decoder_plan(struct engine *e, struct device_memory device) {
    const struct engine_config *c = &e->config;
    const struct model_config *model = &e->ranks->model->config;
    e->info.sparse_prefill = memory_plan_sparse(c, model);
    e->info.long_rows =
        memory_plan_long_rows(c, model, e->info.max_model_len, device, e->info.available_bytes);
    e->info.long_bytes = decoder_long_bytes(model, e->info.long_rows, c->backend->act_dtype);
    return (struct decoder_limits){.max_rows = c->max_batched_tokens,
                                   .max_logit_rows = memory_plan_logit_rows(c, model),
                                   .max_long_rows = e->info.long_rows,
                                   .groups = c->groups,
                                   .n_groups = e->info.selections ? c->n_groups : 0};
}

/* Returns the most prompt rows that one index covers: a chunk's, or a whole layer-major
 * prompt's. */
static uint32_t most_sparse_rows(const struct decoder_limits *limits) {
    return max_u32(limits->max_long_rows, limits->max_rows);
}

/* Returns the most slots that one sequence may have in a layer.  A bounded cache never has more
 * than the trained context, whatever max_model_len is: kv_choice_check(). */
static uint32_t longest_sequence(const struct engine *e) {
    return e->ranks->kv.tracked ? e->ranks->model->config.max_position : e->info.max_model_len;
}

static uint32_t n_windowed(const struct engine *e) {
    return memory_plan_n_windowed(&e->config, &e->ranks->model->config);
}

/* Bounds the slots of all sequences in a layer that keeps every token, as if all free memory became
 * pages; the pool is allocated last.  A layer-major prompt may have more: its layers share
 * pages. */
static uint64_t most_slots(const struct engine *e, struct device_memory device) {
    const uint64_t longest = (uint64_t)e->config.max_num_seqs * longest_sequence(e);
    const uint64_t n_sparse = e->info.selections ? e->ranks->store.n_host_layers : 0;
    const uint64_t n_layers = e->ranks->model->config.n_attention - n_sparse - n_windowed(e);
    if (device.total == 0 || n_layers == 0) return longest;
    const uint64_t n_slots = device.free / (e->ranks->kv.page_bytes * n_layers) * PAGE_TOKENS;
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
        const uint32_t n = group_n_layers(&c->groups[i], e->ranks->model->config.windows);
        limits.max_group_layers = max_u32(limits.max_group_layers, n);
    }
    return limits;
}

/* Creates a rank's decoder, and reserves what its steps need. */
static int create_decoder(struct team_rank *rank, const struct decoder_limits *limits,
                          const struct step_limits *largest, struct error *err) {
    struct decoder_limits own = *limits;
    own.store = rank->io.host;
    if (rank->states.slot_bytes > 0) own.states = &rank->states;
    const int code = decoder_create(&rank->decoder, rank->model, rank->be, &rank->kv, &own, err);
    return code ? code : rank->be->ops->reserve(rank->be, largest, err);
}

/* Allocates all that a step needs besides weights and pages, so that all memory that is free
 * afterwards may become pages.  If the device reports its memory, workspace_bytes is what was
 * really taken. */
static int create_workspace(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    const struct model_config *model = &e->ranks->model->config;
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
                                        .tracked = e->ranks->kv.tracked,
                                        .max_logit_rows = limits.max_logit_rows,
                                        .n_layers = model->n_attention,
                                        .n_heads = model->n_heads,
                                        .n_kv_heads = model->n_kv_heads,
                                        .head_dim = model->head_dim,
                                        .windowed = model->windowed,
                                        .n_freqs = max_u32(model->n_freqs, model->n_local_freqs),
                                        .n_vocab = model->n_vocab,
                                        .sparse = e->info.sparse_prefill ? &sparse : NULL,
                                        .select = e->info.selections ? &selections : NULL};
    int code = team_reserve(e->team, c->max_num_seqs, err);
    for (uint32_t i = 0; i < team_n_ranks(e->team) && !code; i++)
        code = create_decoder(&e->ranks[i], &limits, &largest, err);
    if (code) return code;
    const struct device_memory after = be->ops->memory(be);
    const uint64_t used = before.total - before.free;
    e->info.device_bytes = after.total;
    e->info.workspace_bytes = team_n_ranks(e->team) * decoder_workspace_bytes(model, be, &limits);
    if (after.total == 0) return 0;
    e->info.workspace_bytes = before.free > after.free ? before.free - after.free : 0;
    const uint64_t own = e->info.weight_bytes - e->info.offloaded_bytes;
    e->info.other_bytes = used > own ? used - own : 0;
    return 0;
}

/* Returns how many layers have no window. */
static uint32_t count_full_attention(const struct model_config *model) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < model->n_attention; l++) n += !layer_has_window(model->windows, l);
    return n;
}

static struct longest_text longest_text(const struct engine *e) {
    return (struct longest_text){.n_layers = e->ranks->model->config.n_attention,
                                 .n_tokens = e->info.max_model_len,
                                 .n_windowed = n_windowed(e),
                                 .window = e->ranks->model->config.window,
                                 .step_rows = e->config.max_batched_tokens,
                                 .long_rows = e->info.long_rows,
                                 .n_ranks = e->config.backend->n_ranks,
                                 .store = e->info.selections ? &e->ranks->store : NULL};
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
    /* Random, converted and repacked weights are no files: they are in use already. */
    const struct weight_tally *tally = &e->ranks->model->tally;
    const uint64_t own = tally->converted_bytes + tally->repacked_bytes,
                   mapped = c->random_weights ? 0 : e->info.weight_bytes - own;
    e->info.available_bytes =
        memory_plan_beside(e->system.available, mapped) / max_u32(c->n_replicas, 1);
    if (c->max_model_len || c->kv_cache_bytes || c->only_bounded || c->host_pool_bytes) return;
    const struct longest_text longest = longest_text(e);
    e->info.max_model_len = memory_plan_context(&e->ranks->kv, &longest,
                                                e->info.available_bytes / team_n_ranks(e->team));
}

/* Gives every rank its parts of the pages. */
static int alloc_pages(struct engine *e, struct error *err) {
    int code = 0;
    for (uint32_t i = 0; i < team_n_ranks(e->team) && !code; i++) {
        struct kv_pool *kv = &e->ranks[i].kv;
        struct backend *be = e->ranks[i].be;
        kv->n_pages = e->ranks->kv.n_pages;
        code = be->ops->alloc(be, kv->n_pages * (uint64_t)kv->page_bytes, &kv->base, err);
    }
    return code;
}

enum { MOST_STORED_STATES = 1 << 16 };

/* Returns the bytes of a recurrent state, the parts of all ranks. */
static uint64_t state_bytes(const struct engine *e) {
    return team_n_ranks(e->team) * (uint64_t)e->ranks->states.slot_bytes;
}

/* Makes the pool of recurrent states, where the model has such layers, and counts its slots.  Every
 * rank has its parts of them. */
static int create_states(struct engine *e, struct error *err) {
    struct backend *be = e->ranks->be;
    const size_t slot_bytes = e->ranks->states.slot_bytes;
    if (slot_bytes == 0) return 0;
    const uint32_t n_slots =
        memory_plan_states(&e->config, slot_bytes, be->ops->memory(be), e->info.available_bytes);
    e->info.n_states = n_slots;
    e->info.state_bytes = n_slots * state_bytes(e);
    int code = 0;
    for (uint32_t i = 0; i < team_n_ranks(e->team) && !code; i++) {
        struct state_pool *states = &e->ranks[i].states;
        be = e->ranks[i].be;
        states->n_slots = n_slots;
        code = be->ops->alloc(be, n_slots * (uint64_t)slot_bytes, &states->base, err);
    }
    if (!code) code = page_pool_create(&e->space.state_slots, n_slots, err);
    if (!code)
        code =
            checkpoints_create(&e->space.checkpoints, e->space.state_slots, &e->ranks->stored, err);
    e->space.checkpoint_tokens = CHECKPOINT_TOKENS;
    return code;
}

/* Gives every rank the host's memory for its parts of n checkpoints. */
static int alloc_stored_states(struct engine *e, uint32_t n, struct error *err) {
    int code = 0;
    for (uint32_t i = 0; i < team_n_ranks(e->team) && !code; i++) {
        struct backend *be = e->ranks[i].be;
        void *base = NULL;
        code =
            be->ops->host_pool->alloc(be, n * (uint64_t)e->ranks[i].states.slot_bytes, &base, err);
        e->ranks[i].stored.base = base;
        e->ranks[i].stored.n = n;
    }
    return code;
}

/* Takes half of the host pool's memory for checkpoints that leave their slots, if two fit. */
static int create_state_store(struct engine *e, struct error *err) {
    struct backend *be = e->config.backend;
    const bool is_of_use = be->ops->host_pool && e->config.prefix_caching;
    if (state_bytes(e) == 0 || !is_of_use) return 0;
    const uint64_t n = e->config.host_pool_bytes / 2 / state_bytes(e);
    if (n < 2) return 0;
    e->info.n_stored_states = (uint32_t)min_u64(n, MOST_STORED_STATES);
    const uint64_t bytes = e->info.n_stored_states * state_bytes(e);
    e->config.host_pool_bytes -= bytes;
    const int code =
        system_memory_check(&e->system, "--kv-offload-size", bytes + e->config.host_pool_bytes,
                            uses_system_memory(e) ? e->info.weight_bytes : 0, err);
    return code ? code : alloc_stored_states(e, e->info.n_stored_states, err);
}

static int create_pages(struct engine *e, struct error *err) {
    const struct engine_config *c = &e->config;
    struct backend *be = c->backend;
    const uint32_t n_layers = e->ranks->model->config.n_attention;
    const struct longest_text longest = longest_text(e);
    int code = check_pool(e, err);
    if (!code)
        code = memory_plan_kv(&e->ranks->kv, c, &longest, be->ops->memory(be),
                              e->info.available_bytes, err);
    if (code) return code;
    e->info.n_pages = e->ranks->kv.n_pages;
    e->info.text_pages = memory_plan_text_pages(&longest);
    e->info.kv_bytes = e->ranks->kv.n_pages * (uint64_t)page_io_page_bytes(&e->ranks->io);
    e->info.kv_tokens = (uint64_t)e->ranks->kv.n_pages / n_layers * PAGE_TOKENS;
    const uint32_t n_full = count_full_attention(&e->ranks->model->config);
    e->info.budget_tokens =
        n_full ? (uint64_t)e->ranks->kv.n_pages / n_full * PAGE_TOKENS : UINT64_MAX;
    return alloc_pages(e, err);
}

/* Gives every rank its parts of the host blocks. */
static int alloc_host_pools(struct engine *e, struct error *err) {
    int code = 0;
    for (uint32_t i = 0; i < team_n_ranks(e->team) && !code; i++) {
        struct host_pool *store = &e->ranks[i].store;
        struct backend *be = e->ranks[i].be;
        *store = e->ranks->store;
        store->base = NULL;
        e->ranks[i].io.host = store;
        code = be->ops->host_pool->alloc(
            be, store->n_blocks * (uint64_t)host_pool_block_bytes(store), &store->base, err);
    }
    return code;
}

static int create_host_pool(struct engine *e, struct error *err) {
    struct host_pool *store = &e->ranks->store;
    e->info.selections = memory_plan_selections(&e->config);
    int code = memory_plan_host_pool(store, &e->config, &e->ranks->model->config, err);
    if (code || store->n_blocks == 0) return code;
    e->info.host_pool_bytes =
        team_n_ranks(e->team) * store->n_blocks * (uint64_t)host_pool_block_bytes(store);
    e->info.host_pool_tokens = (uint64_t)store->n_blocks * PAGE_TOKENS;
    code = system_memory_check(&e->system, "--kv-offload-size", e->info.host_pool_bytes,
                               uses_system_memory(e) ? e->info.weight_bytes : 0, err);
    if (code) return code;
    code = alloc_host_pools(e, err);
    if (!code) code = page_pool_create(&e->space.blocks, store->n_blocks, err);
    e->space.swaps = &e->swaps;
    return code;
}

static struct shared_credit *guess_credit_of(struct engine *e) {
    return e->config.backend->runs_ahead ? &e->guess_credit : NULL;
}

/* The rows of a prompt that are worth a step for the last one alone, which reads all weights. */
enum { MOST_WITH_LAST = 256 };

/* Creates the scheduler.  Work is in multiply-adds of a layer: of its matrices for every row, and
 * of two products of its heads for every row and slot. */
static int create_scheduler(struct engine *e, struct error *err) {
    const struct model_config *m = e->ranks->model->whole;
    const struct mean_widths mean = model_mean_widths(m);
    const double dim = m->dim, q_dim = mean.q, kv_dim = mean.k;
    const struct scheduler_config config = {
        .space = &e->space,
        .max_rows = e->config.max_batched_tokens,
        .max_seqs = e->config.max_num_seqs,
        .max_long_rows = e->info.long_rows,
        .max_prompt_slots = most_prompt_slots(e),
        .most_with_last = m->n_kv_shared > 0 ? MOST_WITH_LAST : 0,
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
    const struct model_config *model = &e->ranks->model->config;
    for (uint32_t i = 0; i < team_n_ranks(e->team); i++) {
        e->ranks[i].kv = memory_plan_pages(c, model);
        e->ranks[i].states = state_pool_of(&model->recurrent, c->backend->act_dtype, 0);
    }
    e->info.bounded_caches = e->ranks->kv.tracked;
    measure_memory(e);
    int code = create_state_store(e, err);
    if (!code) code = create_host_pool(e, err);
    if (!code) code = create_workspace(e, err);
    if (!code) code = create_states(e, err);
    if (!code) code = create_pages(e, err);
    if (code) return code;
    e->space.n_layers = model->n_attention;
    e->space.feed = c->kv_feed;
    e->space.windows = model->windows;
    e->space.window = n_windowed(e) > 0 ? model->window : 0;
    e->space.io = e->ranks->io;
    e->space.groups = c->groups;
    e->space.n_groups = e->info.selections ? c->n_groups : 0;
    e->space.batch_invariant = c->batch_invariant;
    e->space.prompt_unit = engine_prompt_unit(c, model);
    e->space.ends_recurrent = model_ends_recurrent(model);
    if ((code = engine_disk_begin(&e->disk, c, e->ranks->model, &e->space, err))) return code;
    e->info.disk_former_ranks = e->disk.tier ? kv_disk_former_writer(e->disk.tier) : NULL;
    e->info.disk_ranks = e->disk.writer;
    code = page_pool_create(&e->space.pool, e->ranks->kv.n_pages, err);
    if (!code && c->prefix_caching) code = prefix_cache_create(&e->space.cache, &e->space, err);
    const bool keeps_states = e->ranks->kv.tracked && model->recurrent.n_layers == 0;
    if (!code && c->prefix_caching && keeps_states)
        code = state_cache_create(&e->space.states, &e->space, err);
    if (code) return code;
    return create_scheduler(e, err);
}

static int describe_prefill(struct engine *e, struct error *err) {
    const struct model_config *model = e->ranks->model->whole;
    struct prefill_support *support = &e->shared.prefill;
    *support = (struct prefill_support){.available = e->info.sparse_prefill,
                                        .patterns = e->config.patterns,
                                        .n_heads_in_all = model->n_attention * model->n_heads,
                                        .max_tokens = e->info.max_model_len,
                                        .min_sparse_tokens = e->config.min_sparse_tokens};
    support->groups = e->config.groups;
    support->n_groups = e->config.n_groups;
    const int code = engine_disk_key(&e->disk, KEY_OF_PREFILL, support->key, err);
    return code ? code : engine_disk_key(&e->disk, KEY_OF_SALTS, e->info.salt_key, err);
}

static struct kv_limits kv_limits(const struct engine *e) {
    return (struct kv_limits){.max_model_len = e->info.max_model_len,
                              .trained_context = e->info.model->max_position,
                              .n_layers = e->info.model->n_attention,
                              .all_windowed = !model_has_full_attention(e->info.model),
                              .learned_positions = e->info.model->positions == POSITIONS_LEARNED,
                              .bounded_caches = e->info.bounded_caches,
                              .groups = e->config.groups,
                              .n_groups = e->config.n_groups,
                              .selections = e->info.selections,
                              .max_selected = most_selected(e),
                              .device = e->config.backend->name,
                              .has_host_pool = e->ranks->store.base != NULL,
                              .n_ranks = e->config.backend->n_ranks,
                              .ranks_share = e->config.ranks_share,
                              .repeats_heads = repeats_heads(e)};
}

/* Makes the store of recent answers, unless no request may find even another one's prefix. */
static int create_recent_answers(struct engine *e, struct error *err) {
    e->info.speculation_excluded = speculation_excluded(&e->space);
    if (e->info.speculation_excluded || !e->config.prefix_caching) return 0;
    if (recent_answers_create(&e->shared.recent, RECENT_TOKENS) == 0) return 0;
    return error_set(err, ERR_NOMEM, "no memory for recent answers");
}

int engine_build(struct engine *e, struct error *err) {
    int code = team_create(&e->team, e->config.backend, err);
    if (code) return code;
    e->ranks = team_ranks(e->team);
    code = load_files(e, err);
    if (!code) code = create_grammars(e, err);
    if (!code) code = create_memory(e, err);
    if (code) return code;
    e->shared = (struct sequence_shared){.space = &e->space,
                                         .tokenizer = e->tokenizer,
                                         .eos = e->ranks->model->whole->eos,
                                         .n_eos = e->ranks->model->whole->n_eos,
                                         .n_vocab = e->ranks->model->whole->n_vocab,
                                         .max_rows = e->config.max_batched_tokens,
                                         .max_long_rows = e->info.long_rows,
                                         .guess_credit = guess_credit_of(e),
                                         .grammar_credit = &e->grammar_credit};
    code = describe_prefill(e, err);
    if (!code) code = create_recent_answers(e, err);
    e->admission = (struct admission){.model = e->info.model,
                                      .shared = &e->shared,
                                      .kv = kv_limits(e),
                                      .runs_ahead = e->config.backend->runs_ahead};
    return code;
}
