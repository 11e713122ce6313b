/* fake_engine.c - see fake_engine.h. */
#include "tests/server/fake_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/span.h"
#include "engine/device/evict.h"
#include "engine/device/sample.h"
#include "engine/device/sparse.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_cache.h"

struct sequence {
    struct sequence *next;
    struct engine_request request;
    uint64_t id;
    uint32_t n_generated;
    bool cancelled, scored;
};

struct engine {
    uint32_t n_most;
    struct engine_info info;
    struct model_config model;
    void (*wake)(void *);
    void *wake_ctx;
    struct sequence *sequences;
    struct engine_event *events, **events_end;
    uint64_t n_submitted;
    uint32_t n_live, n_cancelled, fail_after;
    int refuse;
    const char *refuse_param, *answer;
    bool healthy;
    double step_s;
};

/* The tokenizer. */

struct tokenizer {
    char bytes[256];
};

const struct tokenizer *fake_tokenizer(void) {
    static struct tokenizer tokenizer;
    return &tokenizer;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *tokenizer) {
    (void)tokenizer;
    return FAKE_N_VOCAB;
}

static int add_id(struct token_list *out, uint32_t id, size_t max_ids, struct error *err) {
    if (max_ids && out->n == max_ids)
        return error_set(err, ERR_TOO_LONG, "more than %zu tokens", max_ids);
    if (out->n == out->capacity) {
        out->capacity = out->capacity ? 2 * out->capacity : 16;
        out->ids = realloc(out->ids, out->capacity * sizeof(*out->ids));
        if (!out->ids) abort();
    }
    out->ids[out->n++] = id;
    return 0;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     bool add_special, size_t max_ids, struct token_list *out, struct error *err) {
    (void)tokenizer;
    int rc = add_special ? add_id(out, FAKE_BOS, max_ids, err) : 0;
    for (size_t i = 0; i < length && !rc; i++)
        rc = add_id(out, (unsigned char)text[i], max_ids, err);
    return rc;
}

static bool is_trusted(const struct byte_span *spans, size_t n, size_t begin, size_t end) {
    for (size_t i = 0; i < n; i++)
        if (spans[i].begin <= begin && end <= spans[i].end) return true;
    return false;
}

/* Makes FAKE_BOS of "<s>" where that is trusted. */
int tokenizer_encode_input(const struct tokenizer *tokenizer, const struct tokenizer_input *input,
                           size_t max_ids, struct token_list *out, struct error *err) {
    const char *text = input->text;
    const size_t length = input->length;
    int rc = 0;
    if (!input->is_trusted_in_part)
        return tokenizer_encode(tokenizer, text, length, input->add_special, max_ids, out, err);
    for (size_t i = 0; i < length && !rc; i++) {
        const bool special = length - i >= 3 && memcmp(text + i, "<s>", 3) == 0 &&
                             is_trusted(input->trusted, input->n_trusted, i, i + 3);
        rc = add_id(out, special ? FAKE_BOS : (unsigned char)text[i], max_ids, err);
        if (special) i += 2;
    }
    return rc;
}

struct tokenizer_cache_stats tokenizer_cache_stats(struct tokenizer_cache *cache) {
    (void)cache;
    return (struct tokenizer_cache_stats){0};
}

const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, uint32_t id, size_t *length) {
    (void)tokenizer;
    static char bytes[256][2];
    if (id >= FAKE_N_VOCAB) return NULL;
    if (id == FAKE_BOS) {
        *length = 3;
        return "<s>";
    }
    bytes[id][0] = (char)id;
    *length = 1;
    return bytes[id];
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id) {
    (void)tokenizer;
    return id == FAKE_BOS;
}

size_t tokenizer_special_at(const struct tokenizer *tokenizer, const char *text, size_t n) {
    (void)tokenizer;
    return n >= 3 && memcmp(text, "<s>", 3) == 0 ? 3 : 0;
}

bool tokenizer_find_added(const struct tokenizer *tokenizer, const char *text, size_t n,
                          uint32_t *id) {
    *id = FAKE_BOS;
    return n == 3 && tokenizer_special_at(tokenizer, text, n) == n;
}

/* ASCII is whole at once; any other byte is one U+FFFD, which is enough for these tests. */
long detokenizer_push(struct detokenizer *d, const struct tokenizer *tokenizer, uint32_t id,
                      bool skip_special, char *buffer, size_t capacity) {
    (void)d;
    if (capacity < DETOKENIZER_GROWTH) return ERR_FULL;
    if (skip_special && id == FAKE_BOS) return 0;
    size_t length;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (length == 1 && (unsigned char)*bytes >= 0x80) {
        bytes = "\xEF\xBF\xBD";
        length = 3;
    }
    memcpy(buffer, bytes, length);
    return (long)length;
}

long detokenizer_finish(struct detokenizer *d, const struct tokenizer *tokenizer, char *buffer,
                        size_t capacity) {
    (void)tokenizer;
    (void)d, (void)buffer, (void)capacity;
    return 0;
}

int tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t n,
                     bool skip_special, char **out, size_t *length, struct error *err) {
    (void)err;
    struct detokenizer d = {0};
    *out = calloc(1, DETOKENIZER_GROWTH * (n + 1));
    if (!*out) abort();
    *length = 0;
    for (size_t i = 0; i < n; i++)
        *length += (size_t)detokenizer_push(&d, tokenizer, ids[i], skip_special, *out + *length,
                                            DETOKENIZER_GROWTH);
    return 0;
}

/* The engine. */

struct sampling_params sampling_defaults(void) {
    return (struct sampling_params){
        .sampler = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        .max_tokens = 16,
        .skip_special = true,
        .n_logprobs = -1,
        .n_prompt_logprobs = -1};
}

void sampling_fini(struct sampling_params *params) {
    free(params->bias);
    free(params->stop_tokens);
    for (uint32_t i = 0; i < params->n_stop; i++) free(params->stop[i]);
    free(params->stop);
    *params = (struct sampling_params){0};
}

struct engine *fake_engine_create(void (*wake)(void *), void *wake_ctx) {
    struct engine *engine = calloc(1, sizeof(*engine));
    if (!engine) abort();
    engine->n_most = UINT32_MAX;
    engine->model.n_vocab = FAKE_N_VOCAB;
    engine->model.max_position = FAKE_MAX_LEN;
    engine->info = (struct engine_info){.max_model_len = FAKE_MAX_LEN,
                                        .n_pages = 64,
                                        .kv_tokens = FAKE_KV_TOKENS,
                                        .budget_tokens = FAKE_KV_TOKENS,
                                        .bounded_caches = true,
                                        .selections = true,
                                        .host_pool_bytes = FAKE_STORE_BYTES,
                                        .model = &engine->model,
                                        .tokenizer = fake_tokenizer()};
    engine->wake = wake;
    engine->wake_ctx = wake_ctx;
    engine->events_end = &engine->events;
    engine->fail_after = UINT32_MAX;
    engine->healthy = true;
    return engine;
}

const struct engine_info *engine_info(const struct engine *engine) {
    return &engine->info;
}

static void give_event(struct engine *engine, struct engine_event *event) {
    const bool was_empty = !engine->events;
    *engine->events_end = event;
    engine->events_end = &event->next;
    if (was_empty && engine->wake) engine->wake(engine->wake_ctx);
}

/* n tokens from `ids`; the second best is always 'z', the log-probability -0.5 per step of the
 * alphabet. */
static struct engine_event *new_event(struct sequence *s, enum event_kind kind, const uint32_t *ids,
                                      uint32_t n) {
    struct engine_event *event = calloc(1, sizeof(*event));
    if (!event) abort();
    *event = (struct engine_event){
        .request_id = s->id, .user = s->request.user, .kind = kind, .n_tokens = n};
    event->text = calloc(1, n + 1);
    event->tokens = calloc(n + 1, sizeof(*event->tokens));
    struct token_logprob *top = calloc(2 * (size_t)n + 1, sizeof(*top));
    if (!event->text || !event->tokens || !top) abort();
    event->tokens[n].top = top; /* kept behind the last token for engine_event_free() */
    const int32_t n_top =
        kind == EVENT_PROMPT ? s->request.params.n_prompt_logprobs : s->request.params.n_logprobs;
    for (uint32_t i = 0; i < n; i++) {
        const bool known = n_top >= 0 && !(kind == EVENT_PROMPT && i == 0);
        const float logprob = -0.5f * (float)(ids[i] % 32);
        top[2 * i] = (struct token_logprob){ids[i], logprob};
        top[2 * i + 1] = (struct token_logprob){'z', -INFINITY};
        event->tokens[i] =
            (struct token_info){ids[i], known ? logprob : NAN,
                                known ? (uint32_t)(n_top < 2 ? n_top : 2) : 0, &top[2 * i]};
    }
    return event;
}

/* As if the text had only passed through the cache; half the attention stayed.  Of eight tokens
 * that each generated one chooses, two are new, in three layers; half of a text that may is
 * moved. */
static struct kv_usage use_of_cache(const struct sequence *s) {
    const struct kv_choice *kv = &s->request.kv;
    const bool selects = kv_choice_selects(kv), offloads = selects && !kv->on_device;
    const uint32_t n_text = s->request.n_prompt + s->n_generated;
    const uint64_t capacity = kv_choice_is_bounded(kv) ? kv_choice_capacity(kv) : n_text;
    const uint32_t n_kept = n_text < capacity ? n_text : (uint32_t)capacity;
    const uint32_t n_selecting = selects ? s->n_generated : 0;
    return (struct kv_usage){{[KV_BUDGET_TOKENS] = kv_choice_is_bounded(kv) ? (double)capacity : 0,
                              [KV_RESIDENT_TOKENS] = n_kept,
                              [KV_EVICTED_TOKENS] = n_text - n_kept,
                              [KV_RETAINED_ATTENTION] = kv->score == KV_SCORE_NONE ? NAN : 0.5f,
                              [KV_OFFLOADED_TOKENS] = offloads ? n_text / 2 : 0,
                              [KV_SELECTED_TOKENS] = 8 * n_selecting,
                              [KV_FETCHED_TOKENS] = 2 * n_selecting,
                              [KV_FETCHED_COPIES] = 6 * n_selecting,
                              [KV_MOVED_COPIES] = kv->on_device ? 0 : 6 * n_selecting}};
}

static void finish(struct engine *engine, struct sequence *s, enum finish_reason reason) {
    struct engine_event *event = new_event(s, EVENT_FINISH, NULL, 0);
    event->reason = reason;
    event->n_prompt = s->request.n_prompt;
    event->n_generated = s->n_generated;
    event->kv = use_of_cache(s);
    event->prefill = s->request.prefill.mode == PREFILL_SPARSE
                         ? (struct prefill_usage){PREFILL_SPARSE, 0.25, 0.001, 0.0025, 3, DENSE_NOT}
                         : (struct prefill_usage){PREFILL_DENSE, 1, 0, 0, 0, DENSE_SHORT};
    if (reason == FINISH_ERROR) {
        event->error_code = ERR_DEVICE;
        strcpy(event->error_text, "the fake engine failed");
    }
    event->stopped_by_string = reason == FINISH_STOP && s->request.params.n_stop > 0;
    give_event(engine, event);
}

/* True when the sequence ended. */
static bool step_sequence(struct engine *engine, struct sequence *s) {
    const struct sampling_params *params = &s->request.params;
    if (s->cancelled) {
        finish(engine, s, FINISH_CANCELLED);
        return true;
    }
    if (!s->scored && params->n_prompt_logprobs >= 0) {
        s->scored = true;
        give_event(engine, new_event(s, EVENT_PROMPT, s->request.prompt, s->request.n_prompt));
        return false;
    }
    if (s->n_generated == engine->fail_after || !engine->healthy) {
        finish(engine, s, FINISH_ERROR);
        return true;
    }
    if (s->n_generated >= params->max_tokens) {
        finish(engine, s, FINISH_LENGTH);
        return true;
    }
    if (engine->answer && !engine->answer[s->n_generated]) {
        finish(engine, s, FINISH_STOP);
        return true;
    }
    uint32_t letter = 'a' + (uint32_t)((params->seed + s->n_generated) % 26);
    if (engine->answer) letter = (unsigned char)engine->answer[s->n_generated];
    for (uint32_t i = 0; i < params->n_stop; i++) {
        if (params->stop[i][0] == (char)letter) {
            finish(engine, s, FINISH_STOP);
            return true;
        }
    }
    struct engine_event *event = new_event(s, EVENT_TEXT, &letter, 1);
    event->text[0] = (char)letter;
    event->text_length = 1;
    s->n_generated++;
    give_event(engine, event);
    return false;
}

uint32_t fake_engine_step(struct engine *engine) {
    for (struct sequence **link = &engine->sequences; *link;) {
        struct sequence *s = *link;
        if (!step_sequence(engine, s)) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        engine->n_live--;
        sampling_fini(&s->request.params);
        free(s->request.prompt);
        free(s);
    }
    return engine->n_live;
}

void fake_engine_leave_room(struct engine *engine, uint32_t n) {
    engine->n_most = engine->n_live + n;
}

int engine_check_room(struct engine *engine, uint32_t n_requests, struct error *err) {
    if (engine->n_live + n_requests <= engine->n_most) return 0;
    return error_set(err, ERR_FULL, "the fake engine is full");
}

int engine_admit(struct engine *engine, struct engine_request *requests, uint32_t n_requests,
                 struct error *err) {
    (void)engine, (void)requests, (void)n_requests, (void)err;
    return 0;
}

int engine_submit(struct engine *engine, struct engine_request *requests, uint32_t n_requests,
                  uint64_t *ids, struct error *err) {
    if (engine->refuse) {
        error_set(err, engine->refuse, "the fake engine refuses");
        return error_about(err, engine->refuse_param, engine->refuse);
    }
    struct sequence **end = &engine->sequences;
    while (*end) end = &(*end)->next;
    for (uint32_t i = 0; i < n_requests; i++) {
        struct sequence *s = calloc(1, sizeof(*s));
        if (!s) abort();
        s->request = requests[i];
        s->id = ids[i] = ++engine->n_submitted;
        *end = s;
        end = &s->next;
        engine->n_live++;
    }
    return 0;
}

void engine_cancel(struct engine *engine, uint64_t request_id) {
    for (struct sequence *s = engine->sequences; s; s = s->next) {
        if (s->id != request_id || s->cancelled) continue;
        s->cancelled = true;
        engine->n_cancelled++;
    }
}

struct engine_event *engine_take_events(struct engine *engine) {
    struct engine_event *events = engine->events;
    engine->events = NULL;
    engine->events_end = &engine->events;
    return events;
}

void engine_event_free(struct engine_event *event) {
    free((void *)event->tokens[event->n_tokens].top);
    free(event->tokens);
    free(event->text);
    free(event);
}

void engine_stats(struct engine *engine, struct engine_stats *out) {
    *out = (struct engine_stats){.n_running = engine->n_live,
                                 .pages_free = 60,
                                 .pages_total = 64,
                                 .n_submitted = engine->n_submitted,
                                 .n_cancelled = engine->n_cancelled,
                                 .kv = {[KV_EVICTED_TOKENS] = {0, 7, 8},
                                        [KV_RESIDENT_TOKENS] = {1, 2, 3},
                                        [KV_SELECTED_TOKENS] = {[3] = 4000},
                                        [KV_FETCHED_TOKENS] = {[3] = 1000},
                                        [KV_FETCHED_COPIES] = {[3] = 3000},
                                        [KV_MOVED_COPIES] = {[3] = 400}},
                                 .host_pool_used_bytes = 12345,
                                 .pages_offloaded = 24,
                                 .n_swapped_out = 36,
                                 .n_swapped_in = 12,
                                 .sparse = {.visited = {[PATTERN_A_SHAPE] = 2},
                                            .causal = {[PATTERN_BLOCK_SPARSE] = 8e9},
                                            .n_dense = 9,
                                            .index_s = 1.5,
                                            .attention_s = 2.5}};
}

double engine_step_seconds(struct engine *engine) {
    return engine->step_s;
}

void fake_engine_set_step_seconds(struct engine *engine, double seconds) {
    engine->step_s = seconds;
}

bool engine_healthy(struct engine *engine) {
    return engine->healthy;
}

int engine_failure(struct engine *engine, struct error *out) {
    *out = (struct error){0};
    return engine->healthy ? 0 : error_set(out, ERR_DEVICE, "it was told to fail");
}

uint32_t engine_n_ranks(const struct engine *engine) {
    (void)engine;
    return 1;
}

void engine_rank(const struct engine *engine, uint32_t rank, struct engine_rank *out) {
    (void)engine, (void)rank;
    *out = (struct engine_rank){0};
}

uint64_t engine_disk_failure(struct engine *engine, struct error *out) {
    (void)engine, (void)out;
    return 0;
}

void engine_skip_saving(struct engine *engine) {
    (void)engine;
}

void engine_stop(struct engine *engine) {
    for (struct sequence *s = engine->sequences; s; s = s->next) s->cancelled = true;
    while (fake_engine_step(engine) > 0) continue;
}

void engine_destroy(struct engine *engine) {
    if (!engine) return;
    engine_stop(engine);
    struct engine_event *event = engine_take_events(engine);
    while (event) {
        struct engine_event *next = event->next;
        engine_event_free(event);
        event = next;
    }
    free(engine);
}

void fake_engine_refuse(struct engine *engine, int code, const char *param) {
    engine->refuse = code;
    engine->refuse_param = param;
}

void fake_engine_fail_after(struct engine *engine, uint32_t n) {
    engine->fail_after = n;
}

void fake_engine_break(struct engine *engine) {
    engine->healthy = false;
    engine->refuse = ERR_DEVICE;
}

uint32_t fake_engine_n_live(const struct engine *engine) {
    return engine->n_live;
}

uint32_t fake_engine_n_cancelled(const struct engine *engine) {
    return engine->n_cancelled;
}

void fake_engine_answer(struct engine *engine, const char *text) {
    engine->answer = text;
}
