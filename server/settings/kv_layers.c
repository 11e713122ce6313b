/* kv_layers.c - see kv_layers.h. */
#include "server/settings/kv_layers.h"

#include <inttypes.h>
#include <string.h>

#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/settings/kv_policy.h"

enum { MAX_RANGES = 64 };

static const char layers_name[] = "kv_policy.layers";

static int refuse(struct api_error *err, const char *rule) {
    return api_error_set(err, 400, NULL, layers_name, "%s %s", layers_name, rule);
}

/* Reads a range's layers; each is in one range. */
static int read_range(struct layer_set *layers, const json_t *range, struct api_error *err) {
    const json_t *first = json_object_get(range, "first"), *last = json_object_get(range, "last");
    if (!json_is_integer(first) || !json_is_integer(last))
        return refuse(err, "must have the integers first and last in each range");
    const json_int_t from = json_integer_value(first), to = json_integer_value(last);
    if (from < 0 || from > to || to >= LAYER_SET_MAX)
        return api_error_set(
            err, 400, NULL, layers_name,
            "%s: first and last must be layers, in order, not %" JSON_INTEGER_FORMAT
            " and %" JSON_INTEGER_FORMAT,
            layers_name, from, to);
    for (uint32_t l = (uint32_t)from; l <= (uint32_t)to; l++) {
        if (layer_set_has(layers, l)) return refuse(err, "must name each layer once");
        layer_set_add(layers, l);
    }
    return 0;
}

/* Reads a range's policy.  Layers count positions alike, so `text` is the default here. */
static int read_policy(struct kv_policy *out, const json_t *value, struct api_error *err) {
    if (!value) return refuse(err, "must have a kv_policy in each range");
    const int rc = kv_policy_read(out, value, err);
    if (rc) return rc;
    const json_t *positions = json_object_get(value, "positions");
    if (!kv_choice_is_bounded(&out->tokens))
        return refuse(err, "needs policies that keep a budget, streaming or heavy_hitter");
    if (!positions || json_is_null(positions)) out->tokens.cache_positions = false;
    if (!out->tokens.cache_positions) return 0;
    return api_error_set(err, 400, NULL, kv_members[KV_MEMBER_POSITIONS].name,
                         "%s must be text within %s: the other layers count them so",
                         kv_members[KV_MEMBER_POSITIONS].name, layers_name);
}

static bool same_policy(const struct kv_policy *a, const struct kv_policy *b) {
    if (a->tokens.type != b->tokens.type) return false;
    for (unsigned id = 0; id < KV_N_MEMBERS; id++) {
        const bool is_share = kv_members[id].form == KV_FORM_SHARE;
        if (a->fractions[id] != b->fractions[id]) return false;
        if (is_share ? a->tokens.decay != b->tokens.decay
                     : kv_member_value(&kv_members[id], &a->tokens) !=
                           kv_member_value(&kv_members[id], &b->tokens))
            return false;
    }
    return true;
}

static int read_one(struct kv_policy *policy, const json_t *range, struct kv_policy *inner,
                    struct api_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(range)) return refuse(err, "must have objects with first, last, kv_policy");
    json_object_foreach((json_t *)range, key, value) {
        if (strcmp(key, "first") != 0 && strcmp(key, "last") != 0 && strcmp(key, "kv_policy") != 0)
            return api_error_set(err, 400, NULL, layers_name, "%s.%.64s is not known", layers_name,
                                 key);
    }
    const int rc = read_range(&policy->override.layers, range, err);
    return rc ? rc : read_policy(inner, json_object_get(range, "kv_policy"), err);
}

int kv_layers_read(struct kv_policy *policy, const json_t *value, struct api_error *err) {
    struct kv_policy first = {0}, other;
    const size_t n = json_array_size(value);
    if (!json_is_array(value) || n == 0 || n > MAX_RANGES)
        return refuse(err, "must be an array of 1 to 64 ranges of layers");
    if (kv_choice_is_bounded(&policy->tokens))
        return refuse(err, "goes with full and offload: other layers keep everything, or select");
    for (size_t i = 0; i < n; i++) {
        const int rc = read_one(policy, json_array_get(value, i), i ? &other : &first, err);
        if (rc) return rc;
        if (i > 0 && !same_policy(&first, &other))
            return refuse(err, "must have the same kv_policy in all ranges");
    }
    policy->override.choice = first.tokens;
    memcpy(policy->override_fractions, first.fractions, sizeof(first.fractions));
    return 0;
}

static struct kv_policy inner_of(const struct kv_policy *policy) {
    struct kv_policy inner = {.tokens = policy->override.choice};
    memcpy(inner.fractions, policy->override_fractions, sizeof(inner.fractions));
    return inner;
}

void kv_layers_write(const struct kv_policy *policy, struct buffer *out) {
    const struct layer_set *layers = &policy->override.layers;
    const struct kv_policy inner = inner_of(policy);
    if (layer_set_is_empty(layers)) return;
    buffer_puts(out, ",\"layers\":");
    const char *before = "[";
    for (uint32_t end, l = layer_set_next(layers, 0); l < LAYER_SET_MAX;
         l = layer_set_next(layers, end)) {
        end = layer_set_end(layers, l);
        buffer_printf(out, "%s{\"first\":%" PRIu32 ",\"last\":%" PRIu32 ",\"kv_policy\":", before,
                      l, end - 1);
        kv_policy_write(&inner, out);
        buffer_puts(out, "}");
        before = ",";
    }
    buffer_puts(out, "]");
}
