/* kv_policy.c - see kv_policy.h. */
#include "server/settings/kv_policy.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/evict.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/settings/kv_layers.h"

static const char type_name[] = "kv_policy.type";

const char *kv_type_name(unsigned type) {
    return kv_policies_row(type)->name;
}

/* Appends a word to a list in out.  What does not fit is cut off. */
static void append_word(char *out, size_t size, const char *separator, const char *word) {
    const size_t length = strlen(out);
    snprintf(out + length, size - length, "%s%s", length ? separator : "", word);
}

void kv_type_names(char out[KV_NAMES_SIZE], const bool wanted[KV_MAX_POLICIES], const char *last) {
    unsigned n_left = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < kv_policies_count(); i++) n_left += !wanted || wanted[i];
    for (unsigned i = 0; i < kv_policies_count(); i++) {
        if (wanted && !wanted[i]) continue;
        append_word(out, KV_NAMES_SIZE, --n_left ? ", " : last, kv_type_name(i));
    }
}

struct kv_policy kv_policy_default(unsigned type) {
    return (struct kv_policy){.tokens = kv_policies_default(type)};
}

static void *target(struct kv_choice *choice, const struct kv_member *member) {
    return (char *)choice + member->offset;
}

/* ---- reading ---- */

static int refuse(struct api_error *err, const char *name, const char *rule) {
    return api_error_set(err, 400, NULL, name, "%s %s", name, rule);
}

static int read_number(struct kv_choice *out, const struct kv_member *member, const json_t *value,
                       struct api_error *err) {
    const json_int_t n = json_integer_value(value);
    if (n < (json_int_t)member->low || n > (json_int_t)member->high)
        return api_error_set(err, 400, NULL, member->name,
                             "%s must be between %u and %u, not %" JSON_INTEGER_FORMAT,
                             member->name, member->low, member->high, n);
    *(uint32_t *)target(out, member) = (uint32_t)n;
    return 0;
}

static int read_tokens(struct kv_policy *out, unsigned id, const json_t *value,
                       struct api_error *err) {
    const struct kv_member *member = &kv_members[id];
    if (!json_is_integer(value)) return refuse(err, member->name, "must be an integer");
    return read_number(&out->tokens, member, value, err);
}

static int read_odd(struct kv_policy *out, unsigned id, const json_t *value,
                    struct api_error *err) {
    const struct kv_member *member = &kv_members[id];
    if (!json_is_integer(value) || json_integer_value(value) % 2 == 0)
        return refuse(err, member->name, "must be an odd number of tokens");
    return read_number(&out->tokens, member, value, err);
}

static int read_amount(struct kv_policy *out, unsigned id, const json_t *value,
                       struct api_error *err) {
    const struct kv_member *member = &kv_members[id];
    if (json_is_integer(value)) return read_number(&out->tokens, member, value, err);
    const double x = json_real_value(value);
    if (!json_is_real(value) || !(x > 0 && x < 1)) {
        return refuse(err, member->name,
                      "must be a number of tokens, or a fraction of the prompt between 0 and 1");
    }
    *(uint32_t *)target(&out->tokens, member) = 0;
    out->fractions[id] = x;
    return 0;
}

static int read_share(struct kv_policy *out, unsigned id, const json_t *value,
                      struct api_error *err) {
    const struct kv_member *member = &kv_members[id];
    const float x = (float)json_number_value(value);
    if (!json_is_number(value) || !(x > 0 && x < 1))
        return refuse(err, member->name, "must be a number between 0 and 1, both excluded");
    *(float *)target(&out->tokens, member) = x;
    return 0;
}

static unsigned count_words(const struct kv_member *member) {
    unsigned n = 0;
    while (n < KV_MAX_WORDS && member->words[n]) n++;
    return n;
}

static int refuse_word(struct api_error *err, const struct kv_member *member) {
    char words[128] = "";
    const unsigned n = count_words(member);
    for (unsigned i = 0; i < n; i++)
        append_word(words, sizeof(words), i + 1 < n ? ", " : " or ", member->words[i]);
    return api_error_set(err, 400, NULL, member->name, "%s must be %s", member->name, words);
}

/* Returns the number of the member's word that the value is, or count_words() for none. */
static unsigned find_word(const struct kv_member *member, const json_t *value) {
    const char *word = json_is_string(value) ? json_string_value(value) : "";
    const unsigned n = count_words(member);
    unsigned i = 0;
    while (i < n && strcmp(word, member->words[i]) != 0) i++;
    return i;
}

static int read_word(struct kv_policy *out, unsigned id, const json_t *value,
                     struct api_error *err) {
    const struct kv_member *member = &kv_members[id];
    const unsigned i = find_word(member, value);
    if (i == count_words(member)) return refuse_word(err, member);
    *(uint32_t *)target(&out->tokens, member) = member->low + i;
    return 0;
}

static int read_either(struct kv_policy *out, unsigned id, const json_t *value,
                       struct api_error *err) {
    const struct kv_member *member = &kv_members[id];
    const unsigned i = find_word(member, value);
    if (i == count_words(member)) return refuse_word(err, member);
    *(bool *)target(&out->tokens, member) = i == 0;
    return 0;
}

static int read_place(struct kv_policy *out, unsigned id, const json_t *value,
                      struct api_error *err) {
    const struct kv_member *member = &kv_members[id];
    if (!json_is_boolean(value)) return refuse(err, member->name, "must be true or false");
    *(bool *)target(&out->tokens, member) = json_is_false(value);
    out->placed = true;
    return 0;
}

static int (*const readers[])(struct kv_policy *out, unsigned id, const json_t *value,
                              struct api_error *err) = {
    [KV_FORM_TOKENS] = read_tokens, [KV_FORM_ODD] = read_odd,   [KV_FORM_AMOUNT] = read_amount,
    [KV_FORM_SHARE] = read_share,   [KV_FORM_WORD] = read_word, [KV_FORM_EITHER] = read_either,
    [KV_FORM_PLACE] = read_place,
};

static unsigned find_member(const char *key) {
    unsigned id = 0;
    while (id < KV_N_MEMBERS && strcmp(kv_member_key(&kv_members[id]), key) != 0) id++;
    return id;
}

static int read_type(unsigned *out, const json_t *value, struct api_error *err) {
    char names[KV_NAMES_SIZE];
    if (!value || json_is_null(value)) return refuse(err, type_name, "is required");
    if (json_is_string(value)) {
        *out = kv_policies_find(json_string_value(value), strlen(json_string_value(value)));
        if (*out < kv_policies_count()) return 0;
    }
    kv_type_names(names, NULL, " or ");
    return api_error_set(err, 400, NULL, type_name, "%s must be %s", type_name, names);
}

static int read_member(struct kv_policy *policy, const char *key, const json_t *value,
                       struct api_error *err) {
    if (strcmp(key, "type") == 0) return 0;   /* has been read */
    if (strcmp(key, "layers") == 0) return 0; /* is read last */
    const unsigned id = find_member(key);
    if (id == KV_N_MEMBERS)
        return api_error_set(err, 400, NULL, "kv_policy", "kv_policy.%.64s is not known", key);
    if (json_is_null(value)) return 0;
    const struct kv_member *member = &kv_members[id];
    if (!kv_policies_has(policy->tokens.type, id))
        return api_error_set(err, 400, NULL, member->name, "%s is not a parameter of %s",
                             member->name, kv_type_name(policy->tokens.type));
    return readers[member->form](policy, id, value, err);
}

/* Refuses members that have no use with the other members' values. */
static int check_uses(const struct kv_choice *choice, const json_t *value, struct api_error *err) {
    for (unsigned id = 0; id < KV_N_MEMBERS; id++) {
        const struct kv_member *member = &kv_members[id];
        const json_t *given = json_object_get(value, kv_member_key(member));
        if (given && !json_is_null(given) && !kv_member_has_use(member, choice))
            return refuse(err, member->name, member->use.rule);
    }
    return 0;
}

/* Checks the rules that involve more than one member.  No fraction breaks one: whatever the prompt,
 * it comes to the least that the rules allow. */
static int check_together(const struct kv_policy *policy, const json_t *value,
                          struct api_error *err) {
    const struct kv_choice choice = kv_policy_resolve(policy, 1);
    const int rc = check_uses(&policy->tokens, value, err);
    if (rc) return rc;
    const struct kv_conflict *conflict = kv_choice_conflict(&choice);
    return conflict ? refuse(err, kv_members[conflict->member].name, conflict->rule) : 0;
}

int kv_policy_read(struct kv_policy *out, const json_t *value, struct api_error *err) {
    unsigned type = 0;
    if (!json_is_object(value))
        return refuse(err, "kv_policy", "must be an object such as {\"type\": \"full\"}");
    int rc = read_type(&type, json_object_get(value, "type"), err);
    if (rc) return rc;
    struct kv_policy policy = kv_policy_default(type);
    void *at = json_object_iter((json_t *)value);
    for (; at && !rc; at = json_object_iter_next((json_t *)value, at))
        rc = read_member(&policy, json_object_iter_key(at), json_object_iter_value(at), err);
    if (!rc) rc = check_together(&policy, value, err);
    const json_t *layers = json_object_get(value, "layers");
    if (!rc && layers && !json_is_null(layers)) rc = kv_layers_read(&policy, layers, err);
    if (rc) return rc;
    kv_members_complete(&policy.tokens);
    *out = policy;
    return 0;
}

static struct kv_choice resolve(const struct kv_choice *tokens,
                                const double fractions[KV_N_MEMBERS], uint32_t n_prompt) {
    struct kv_choice choice = *tokens;
    for (unsigned id = 0; id < KV_N_MEMBERS; id++) {
        const struct kv_member *member = &kv_members[id];
        if (!(fractions[id] > 0)) continue;
        const uint32_t n = (uint32_t)(fractions[id] * n_prompt + 0.5),
                       least = member->least ? member->least(tokens) : 1;
        *(uint32_t *)target(&choice, member) = max_u32(max_u32(n, least), 1);
    }
    return choice;
}

struct kv_choice kv_policy_resolve(const struct kv_policy *policy, uint32_t n_prompt) {
    return resolve(&policy->tokens, policy->fractions, n_prompt);
}

struct kv_override kv_policy_resolve_part(const struct kv_policy *policy, uint32_t n_prompt) {
    return (struct kv_override){
        .layers = policy->override.layers,
        .choice = resolve(&policy->override.choice, policy->override_fractions, n_prompt)};
}

/* ---- writing ---- */

static void write_value(const struct kv_policy *policy, unsigned id, struct buffer *out) {
    const struct kv_member *member = &kv_members[id];
    const uint32_t value = kv_member_value(member, &policy->tokens);
    buffer_printf(out, ",\"%s\":", kv_member_key(member));
    switch (member->form) {
    case KV_FORM_TOKENS:
    case KV_FORM_ODD:
    case KV_FORM_AMOUNT:
        if (policy->fractions[id] > 0) buffer_printf(out, "%.6g", policy->fractions[id]);
        else buffer_printf(out, "%u", value);
        break;
    case KV_FORM_SHARE:
        buffer_printf(out, "%.6g",
                      (double)*(float *)target((struct kv_choice *)&policy->tokens, member));
        break;
    case KV_FORM_WORD: buffer_printf(out, "\"%s\"", member->words[value - member->low]); break;
    case KV_FORM_EITHER: buffer_printf(out, "\"%s\"", member->words[!value]); break;
    case KV_FORM_PLACE: buffer_puts(out, value ? "false" : "true"); break;
    }
}

void kv_policy_write(const struct kv_policy *policy, struct buffer *out) {
    buffer_printf(out, "{\"type\":\"%s\"", kv_type_name(policy->tokens.type));
    for (unsigned id = 0; id < KV_N_MEMBERS; id++) {
        if (!kv_policies_has(policy->tokens.type, id)) continue;
        if (!kv_member_has_use(&kv_members[id], &policy->tokens)) continue;
        if (kv_members[id].form == KV_FORM_PLACE && !policy->placed) continue;
        write_value(policy, id, out);
    }
    kv_layers_write(policy, out);
    buffer_puts(out, "}");
}

/* ---- the schema ---- */

static void write_words(struct buffer *out, const struct kv_member *member) {
    buffer_puts(out, "{\"enum\":[");
    for (unsigned i = 0; i < count_words(member); i++)
        buffer_printf(out, "\"%s\",", member->words[i]);
    buffer_puts(out, "null]}");
}

static void write_member_schema(struct buffer *out, const struct kv_member *member) {
    switch (member->form) {
    case KV_FORM_TOKENS:
    case KV_FORM_ODD:
        buffer_printf(out, "{\"type\":[\"integer\",\"null\"],\"minimum\":%u,\"maximum\":%u}",
                      member->low, member->high);
        break;
    case KV_FORM_AMOUNT:
        buffer_printf(out,
                      "{\"type\":[\"number\",\"null\"],\"exclusiveMinimum\":0,"
                      "\"maximum\":%u}",
                      member->high);
        break;
    case KV_FORM_SHARE:
        buffer_puts(out, "{\"type\":[\"number\",\"null\"],\"exclusiveMinimum\":0,"
                         "\"exclusiveMaximum\":1}");
        break;
    case KV_FORM_WORD:
    case KV_FORM_EITHER: write_words(out, member); break;
    case KV_FORM_PLACE: buffer_puts(out, "{\"type\":[\"boolean\",\"null\"]}"); break;
    }
}

void kv_policy_write_schema(struct buffer *out) {
    buffer_puts(out, "{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"type\"],"
                     "\"properties\":{\"type\":{\"enum\":[");
    for (unsigned i = 0; i < kv_policies_count(); i++)
        buffer_printf(out, i ? ",\"%s\"" : "\"%s\"", kv_policies_row(i)->name);
    buffer_puts(out, "]}");
    for (unsigned id = 0; id < KV_N_MEMBERS; id++) {
        buffer_printf(out, ",\"%s\":", kv_member_key(&kv_members[id]));
        write_member_schema(out, &kv_members[id]);
    }
    buffer_puts(out, ",\"layers\":{\"type\":[\"object\",\"null\"],"
                     "\"description\":\"What some layers keep instead.\"}}}");
}
