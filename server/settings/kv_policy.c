/* kv_policy.c - see kv_policy.h. */
#include "server/settings/kv_policy.h"

#include <stddef.h>
#include <string.h>

#include "engine/device/evict.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"

static const char *const type_names[KV_N_TYPES] = {[KV_FULL] = "full",
                                                   [KV_STREAMING] = "streaming",
                                                   [KV_HEAVY_HITTER] = "heavy_hitter",
                                                   [KV_OFFLOAD] = "offload"};

static const char *const score_names[] = {[KV_SCORE_SUM] = "sum",
                                          [KV_SCORE_MEAN] = "mean",
                                          [KV_SCORE_DECAY] = "decay",
                                          [KV_SCORE_WINDOW] = "window"};
enum { N_SCORES = sizeof(score_names) / sizeof(*score_names) };

static const char *const pooling_names[] = {
    [KV_POOLING_NONE] = "none", [KV_POOLING_MAX] = "max", [KV_POOLING_AVERAGE] = "average"};
enum { N_POOLINGS = sizeof(pooling_names) / sizeof(*pooling_names), DEFAULT_KERNEL = 7 };

/* Errors name members by their whole path; the JSON key is what follows the prefix. */
#define PREFIX "kv_policy."
#define DECAY_NAME PREFIX "decay"
#define SINK_NAME PREFIX "sink"
#define CHUNK_NAME PREFIX "chunk"
#define WINDOW_NAME PREFIX "window"
#define POOLING_NAME PREFIX "pooling"
#define KERNEL_NAME PREFIX "kernel"

enum {
    STREAMING = 1u << KV_STREAMING,
    HEAVY = 1u << KV_HEAVY_HITTER,
    OFFLOAD = 1u << KV_OFFLOAD,
    BOUNDED = STREAMING | HEAVY
};

struct member {
    const char *name;
    unsigned types; /* the types that have it */
    int (*read)(struct kv_policy *out, const struct member *member, const json_t *value,
                struct api_error *err);
    uint32_t low;
    size_t tokens, fraction; /* offsets in struct kv_policy */
};

const char *kv_type_name(enum kv_type type) {
    return type_names[type];
}

struct kv_policy kv_policy_default(enum kv_type type) {
    static const struct kv_policy defaults[KV_N_TYPES] = {
        [KV_FULL] = {.tokens = {.type = KV_FULL}},
        [KV_STREAMING] = {.tokens = {.type = KV_STREAMING,
                                     .n_sink = 4,
                                     .n_recent = 2044,
                                     .chunk = KV_DEFAULT_CHUNK,
                                     .cache_positions = true}},
        [KV_HEAVY_HITTER] = {.tokens = {.type = KV_HEAVY_HITTER,
                                        .n_sink = 4,
                                        .n_recent = 1020,
                                        .n_heavy = 1024,
                                        .score = KV_SCORE_SUM,
                                        .decay = 0.99f,
                                        .chunk = KV_DEFAULT_CHUNK}},
        [KV_OFFLOAD] =
            {.tokens = {.type = KV_OFFLOAD, .n_sink = 4, .n_selected = 2048, .n_tail = 512}},
    };
    return defaults[type];
}

static int refuse(struct api_error *err, const char *name, const char *rule) {
    return api_error_set(err, 400, NULL, name, "%s %s", name, rule);
}

static int refuse_number(struct api_error *err, const struct member *member, int high,
                         json_int_t n) {
    return api_error_set(err, 400, NULL, member->name,
                         "%s must be between %u and %d, not %" JSON_INTEGER_FORMAT, member->name,
                         member->low, high, n);
}

static int read_tokens(struct kv_policy *out, const struct member *member, const json_t *value,
                       struct api_error *err) {
    if (!json_is_integer(value)) return refuse(err, member->name, "must be an integer");
    const json_int_t n = json_integer_value(value);
    if (n < (json_int_t)member->low || n > KV_POLICY_MAX_TOKENS)
        return refuse_number(err, member, KV_POLICY_MAX_TOKENS, n);
    *(uint32_t *)((char *)out + member->tokens) = (uint32_t)n;
    return 0;
}

static int read_amount(struct kv_policy *out, const struct member *member, const json_t *value,
                       struct api_error *err) {
    if (json_is_integer(value)) return read_tokens(out, member, value, err);
    const double x = json_real_value(value);
    if (!json_is_real(value) || !(x > 0 && x < 1)) {
        return refuse(err, member->name,
                      "must be a number of tokens, or a fraction of the prompt between 0 and 1");
    }
    *(uint32_t *)((char *)out + member->tokens) = 0;
    *(double *)((char *)out + member->fraction) = x;
    return 0;
}

static int read_score(struct kv_policy *out, const struct member *member, const json_t *value,
                      struct api_error *err) {
    const char *word = json_is_string(value) ? json_string_value(value) : "";
    for (unsigned i = KV_SCORE_SUM; i < N_SCORES; i++) {
        if (strcmp(word, score_names[i]) != 0) continue;
        out->tokens.score = (enum kv_score)i;
        return 0;
    }
    return refuse(err, member->name, "must be sum, mean, decay or window");
}

static int read_pooling(struct kv_policy *out, const struct member *member, const json_t *value,
                        struct api_error *err) {
    const char *word = json_is_string(value) ? json_string_value(value) : "";
    for (unsigned i = 0; i < N_POOLINGS; i++) {
        if (strcmp(word, pooling_names[i]) != 0) continue;
        out->tokens.pooling = (enum kv_pooling)i;
        return 0;
    }
    return refuse(err, member->name, "must be none, max or average");
}

static int read_kernel(struct kv_policy *out, const struct member *member, const json_t *value,
                       struct api_error *err) {
    const json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n % 2 == 0)
        return refuse(err, member->name, "must be an odd number of tokens");
    if (n < (json_int_t)member->low || n > KV_POLICY_MAX_KERNEL)
        return refuse_number(err, member, KV_POLICY_MAX_KERNEL, n);
    out->tokens.kernel = (uint32_t)n;
    return 0;
}

static int read_prompt(struct kv_policy *out, const struct member *member, const json_t *value,
                       struct api_error *err) {
    const char *word = json_is_string(value) ? json_string_value(value) : "";
    out->tokens.whole = strcmp(word, "whole") == 0;
    if (out->tokens.whole || strcmp(word, "chunks") == 0) return 0;
    return refuse(err, member->name, "must be whole or chunks");
}

static int read_decay(struct kv_policy *out, const struct member *member, const json_t *value,
                      struct api_error *err) {
    const float x = (float)json_number_value(value);
    if (!json_is_number(value) || !(x > 0 && x < 1))
        return refuse(err, member->name, "must be a number between 0 and 1, both excluded");
    out->tokens.decay = x;
    return 0;
}

static int read_positions(struct kv_policy *out, const struct member *member, const json_t *value,
                          struct api_error *err) {
    const char *word = json_is_string(value) ? json_string_value(value) : "";
    const bool cache = strcmp(word, "cache") == 0;
    if (!cache && strcmp(word, "text") != 0)
        return refuse(err, member->name, "must be cache or text");
    out->tokens.cache_positions = cache;
    return 0;
}

static int read_offload(struct kv_policy *out, const struct member *member, const json_t *value,
                        struct api_error *err) {
    if (!json_is_boolean(value)) return refuse(err, member->name, "must be true or false");
    out->tokens.on_device = json_is_false(value);
    out->placed = true;
    return 0;
}

#define AT(member) offsetof(struct kv_policy, member)

static const struct member members[] = {
    {SINK_NAME, BOUNDED | OFFLOAD, read_tokens, 0, AT(tokens.n_sink), 0},
    {PREFIX "recent", BOUNDED, read_amount, 1, AT(tokens.n_recent), AT(recent)},
    {PREFIX "heavy", HEAVY, read_amount, 1, AT(tokens.n_heavy), AT(heavy)},
    {PREFIX "score", HEAVY, read_score, 0, 0, 0},
    {DECAY_NAME, HEAVY, read_decay, 0, 0, 0},
    {WINDOW_NAME, HEAVY, read_tokens, 1, AT(tokens.window), 0},
    {POOLING_NAME, HEAVY, read_pooling, 0, 0, 0},
    {KERNEL_NAME, HEAVY, read_kernel, 1, 0, 0},
    {PREFIX "prompt", BOUNDED, read_prompt, 0, 0, 0},
    {CHUNK_NAME, BOUNDED, read_tokens, 1, AT(tokens.chunk), 0},
    {PREFIX "positions", BOUNDED, read_positions, 0, 0, 0},
    {PREFIX "selected", OFFLOAD, read_amount, 1, AT(tokens.n_selected), AT(selected)},
    {PREFIX "tail", OFFLOAD, read_tokens, 1, AT(tokens.n_tail), 0},
    {PREFIX "offload", OFFLOAD, read_offload, 0, 0, 0},
};

#undef AT

static const struct member *find_member(const char *key) {
    for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++)
        if (strcmp(members[i].name + strlen(PREFIX), key) == 0) return &members[i];
    return NULL;
}

static int read_type(enum kv_type *out, const json_t *value, struct api_error *err) {
    static const char name[] = PREFIX "type";
    if (!value || json_is_null(value)) return refuse(err, name, "is required");
    for (unsigned i = 0; json_is_string(value) && i < KV_N_TYPES; i++) {
        if (strcmp(json_string_value(value), type_names[i]) != 0) continue;
        *out = (enum kv_type)i;
        return 0;
    }
    return refuse(err, name, "must be full, streaming, heavy_hitter or offload");
}

static int read_member(struct kv_policy *policy, const char *key, const json_t *value,
                       struct api_error *err) {
    const struct member *member = find_member(key);
    if (strcmp(key, "type") == 0) return 0; /* has been read */
    if (!member)
        return api_error_set(err, 400, NULL, "kv_policy", "kv_policy.%.64s is not known", key);
    if (json_is_null(value)) return 0;
    if (!(member->types & 1u << policy->tokens.type)) {
        return api_error_set(err, 400, NULL, member->name, "%s is not a parameter of %s",
                             member->name, type_names[policy->tokens.type]);
    }
    return member->read(policy, member, value, err);
}

static bool is_given(const json_t *value, const char *name) {
    const json_t *member = json_object_get(value, name + strlen(PREFIX));
    return member && !json_is_null(member);
}

/* Refuses members that have no use with the other members' values. */
static int check_uses(const struct kv_choice *c, const json_t *value, struct api_error *err) {
    const bool window = c->score == KV_SCORE_WINDOW, pools = c->pooling != KV_POOLING_NONE;
    if (is_given(value, DECAY_NAME) && c->score != KV_SCORE_DECAY)
        return refuse(err, DECAY_NAME, "needs the score decay");
    if (is_given(value, WINDOW_NAME) && !window)
        return refuse(err, WINDOW_NAME, "needs the score window");
    if (is_given(value, POOLING_NAME) && !window)
        return refuse(err, POOLING_NAME, "needs the score window");
    if (is_given(value, KERNEL_NAME) && !pools)
        return refuse(err, KERNEL_NAME, "needs the pooling max or average");
    if (is_given(value, CHUNK_NAME) && c->whole)
        return refuse(err, CHUNK_NAME, "has no use where the prompt is read whole");
    if (pools && !c->whole) return refuse(err, POOLING_NAME, "needs a prompt that is read whole");
    return 0;
}

/* Checks the rules that involve more than one member. */
static int check_together(const struct kv_policy *policy, const json_t *value,
                          struct api_error *err) {
    const struct kv_choice *c = &policy->tokens;
    const int rc = check_uses(c, value, err);
    if (rc) return rc;
    if (c->type == KV_OFFLOAD && !(policy->selected > 0) && c->n_sink > c->n_selected)
        return refuse(err, SINK_NAME, "must not be more than selected");
    return 0;
}

/* Sets the defaults of members that only other members' values make useful. */
static void complete(struct kv_choice *c) {
    if (c->score == KV_SCORE_WINDOW && c->window == 0) c->window = KV_DEFAULT_WINDOW;
    if (c->pooling != KV_POOLING_NONE && c->kernel == 0) c->kernel = DEFAULT_KERNEL;
}

int kv_policy_read(struct kv_policy *out, const json_t *value, struct api_error *err) {
    enum kv_type type = KV_FULL;
    if (!json_is_object(value)) return refuse(err, "kv_policy", "must be an object");
    int rc = read_type(&type, json_object_get(value, "type"), err);
    if (rc) return rc;
    struct kv_policy policy = kv_policy_default(type);
    void *at = json_object_iter((json_t *)value);
    for (; at && !rc; at = json_object_iter_next((json_t *)value, at))
        rc = read_member(&policy, json_object_iter_key(at), json_object_iter_value(at), err);
    if (!rc) rc = check_together(&policy, value, err);
    if (rc) return rc;
    complete(&policy.tokens);
    *out = policy;
    return 0;
}

static uint32_t resolve(uint32_t n_tokens, double fraction, uint32_t n_prompt) {
    if (!(fraction > 0)) return n_tokens;
    const uint32_t n = (uint32_t)(fraction * n_prompt + 0.5);
    return n ? n : 1;
}

struct kv_choice kv_policy_resolve(const struct kv_policy *policy, uint32_t n_prompt) {
    struct kv_choice choice = policy->tokens;
    choice.n_recent = resolve(choice.n_recent, policy->recent, n_prompt);
    choice.n_heavy = resolve(choice.n_heavy, policy->heavy, n_prompt);
    choice.n_selected = resolve(choice.n_selected, policy->selected, n_prompt);
    if (choice.n_selected < choice.n_sink && policy->selected > 0)
        choice.n_selected = choice.n_sink;
    if (choice.pooling != KV_POOLING_NONE && choice.n_recent < choice.window && policy->recent > 0)
        choice.n_recent = choice.window;
    return choice;
}

static void write_amount(struct buffer *out, const char *name, uint32_t n_tokens, double fraction) {
    if (fraction > 0) {
        buffer_printf(out, ",\"%s\":%.6g", name, fraction);
    } else {
        buffer_printf(out, ",\"%s\":%u", name, n_tokens);
    }
}

void kv_policy_write(const struct kv_policy *policy, struct buffer *out) {
    const struct kv_choice *c = &policy->tokens;
    buffer_printf(out, "{\"type\":\"%s\"", type_names[c->type]);
    if (c->type != KV_FULL) write_amount(out, "sink", c->n_sink, 0);
    if (kv_choice_is_bounded(c)) write_amount(out, "recent", c->n_recent, policy->recent);
    if (c->type == KV_HEAVY_HITTER) {
        write_amount(out, "heavy", c->n_heavy, policy->heavy);
        buffer_printf(out, ",\"score\":\"%s\"", score_names[c->score]);
    }
    if (c->score == KV_SCORE_DECAY) buffer_printf(out, ",\"decay\":%.6g", (double)c->decay);
    if (c->score == KV_SCORE_WINDOW) {
        write_amount(out, "window", c->window, 0);
        buffer_printf(out, ",\"pooling\":\"%s\"", pooling_names[c->pooling]);
    }
    if (c->pooling != KV_POOLING_NONE) write_amount(out, "kernel", c->kernel, 0);
    if (kv_choice_is_bounded(c))
        buffer_printf(out, ",\"prompt\":\"%s\"", c->whole ? "whole" : "chunks");
    if (kv_choice_is_bounded(c) && !c->whole) write_amount(out, "chunk", c->chunk, 0);
    if (kv_choice_is_bounded(c))
        buffer_printf(out, ",\"positions\":\"%s\"", c->cache_positions ? "cache" : "text");
    if (c->type == KV_OFFLOAD) {
        write_amount(out, "selected", c->n_selected, policy->selected);
        write_amount(out, "tail", c->n_tail, 0);
    }
    if (policy->placed) buffer_printf(out, ",\"offload\":%s", c->on_device ? "false" : "true");
    buffer_puts(out, "}");
}
