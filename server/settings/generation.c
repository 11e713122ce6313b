/* generation.c - see generation.h. */
#include "server/settings/generation.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/gguf/model_document.h"
#include "engine/request/request.h"

enum { LARGEST_FILE = 1 << 20 };

struct reading {
    struct generation *out;
    const char *path;
    bool is_own; /* generation_config.json, which says only what its author means */
    struct error *err;
};

/* A member that counts. */
struct member {
    const char *name;
    size_t offset; /* in struct generation */
    bool is_whole; /* a uint32_t, else a float */
    double low, high;
    const char *rule;
};

#define SAMPLER(member) offsetof(struct generation, sampler.member)

static const struct member members[] = {
    {"temperature", SAMPLER(temperature), false, 0, 100, "a number between 0 and 100"},
    {"top_p", SAMPLER(top_p), false, 0, 1, "a number between 0 and 1"},
    {"top_k", SAMPLER(top_k), true, -1, INT32_MAX, "a whole number of at least -1"},
    {"min_p", SAMPLER(min_p), false, 0, 1, "a number between 0 and 1"},
    {"repetition_penalty", SAMPLER(repetition_penalty), false, 0.01, 100,
     "a number between 0.01 and 100"},
    {"presence_penalty", SAMPLER(presence_penalty), false, -2, 2, "a number between -2 and 2"},
    {"frequency_penalty", SAMPLER(frequency_penalty), false, -2, 2, "a number between -2 and 2"},
    {"max_new_tokens", offsetof(struct generation, max_tokens), true, 1, INT32_MAX,
     "a whole number of at least 1"},
};

#undef SAMPLER

enum { N_MEMBERS = sizeof(members) / sizeof(*members) };

/* Members of the file that change answers and are not served.  Others are about the library
 * itself. */
static const char *const unserved[] = {
    "bad_words_ids",
    "begin_suppress_tokens",
    "constraints",
    "diversity_penalty",
    "dola_layers",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "max_length",
    "max_time",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "penalty_alpha",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "top_h",
    "typical_p",
    "watermarking_config",
};

static void add(char *list, size_t size, const char *text) {
    const size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", text);
}

static int refuse(const struct reading *r, const char *name, const char *rule) {
    return error_set(r->err, ERR_INVALID,
                     "%.200s: '%s' must be %s; --generation-config none reads no sampling there",
                     r->path, name, rule);
}

/* Notes a value for the log. */
static void note(const struct reading *r, const char *name, double value) {
    char text[64];
    snprintf(text, sizeof(text), "%s %g", name, value);
    add(r->out->taken, sizeof(r->out->taken), text);
}

static int take(const struct reading *r, const struct member *member, const json_t *value) {
    const double x = json_number_value(value);
    char *target = (char *)r->out + member->offset;
    if (!json_is_number(value) || !(x >= member->low && x <= member->high) ||
        (member->is_whole && x != floor(x)))
        return refuse(r, member->name, member->rule);
    const double before = member->is_whole ? *(uint32_t *)target : *(float *)target;
    if (member->is_whole) *(uint32_t *)target = x < 0 ? 0 : (uint32_t)x;
    else *(float *)target = (float)x;
    if (x != before && !(member->is_whole && x < 0)) note(r, member->name, x);
    return 0;
}

/* Returns true if a value leaves answers as they are: what is off, or once. */
static bool is_neutral(const json_t *value) {
    const double x = json_number_value(value);
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && (x == 0 || x == 1)) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static void note_unserved(const struct reading *r, const json_t *root) {
    for (size_t i = 0; i < sizeof(unserved) / sizeof(*unserved); i++)
        if (!is_neutral(json_object_get(root, unserved[i])))
            add(r->out->unused, sizeof(r->out->unused), unserved[i]);
}

/* Reads do_sample.  Where it is false the likeliest token is taken; where it is absent, as in most
 * files, the other members say how to sample.  In config.json it means nothing: old versions of the
 * library wrote its default there. */
static int take_do_sample(const struct reading *r, const json_t *root) {
    const json_t *value = json_object_get(root, "do_sample");
    if (!value || json_is_null(value) || json_is_true(value)) return 0;
    if (!json_is_false(value)) return refuse(r, "do_sample", "true or false");
    r->out->sampler.temperature = 0;
    add(r->out->taken, sizeof(r->out->taken), "do_sample false");
    return 0;
}

static int take_all(const struct reading *r, const json_t *root) {
    for (int i = 0; i < N_MEMBERS; i++) {
        const json_t *value = json_object_get(root, members[i].name);
        const int rc = !value || json_is_null(value) ? 0 : take(r, &members[i], value);
        if (rc) return rc;
    }
    /* The sampler needs some mass. */
    if (r->out->sampler.top_p < FLT_MIN) r->out->sampler.top_p = FLT_MIN;
    if (!r->is_own) return 0;
    note_unserved(r, root);
    return take_do_sample(r, root);
}

/* Takes what a file says; ERR_NOT_FOUND if there is none. */
static int take_file(struct generation *out, const char *dir, const char *name, bool is_own,
                     struct error *err) {
    char path[PATH_MAX];
    json_t *root = NULL;
    const struct reading r = {out, path, is_own, err};
    int rc = model_document_read(&root, dir, name, LARGEST_FILE, err);
    if (rc) return rc;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    rc = take_all(&r, root);
    json_decref(root);
    if (!rc && *out->taken) snprintf(out->source, sizeof(out->source), "%s", name);
    return rc;
}

int generation_load(struct generation *out, const char *model_dir, bool reads, struct error *err) {
    static const char *const files[] = {"generation_config.json", "config.json"};
    struct error why = {0};
    int rc = ERR_NOT_FOUND;
    *out = (struct generation){.sampler = sampling_defaults().sampler};
    for (int i = 0; reads && i < 2 && rc == ERR_NOT_FOUND; i++)
        rc = take_file(out, model_dir, files[i], i == 0, &why);
    if (!reads || rc == ERR_NOT_FOUND) return 0;
    if (rc) *err = why;
    return rc;
}
