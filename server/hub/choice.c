/* choice.c - see choice.h. */
#define _GNU_SOURCE /* FNM_CASEFOLD, strcasestr() */

#include "server/hub/choice.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf_files.h"
#include "server/hub/files.h"
#include "server/hub/name.h"

#define FIVE_DIGITS "[0-9][0-9][0-9][0-9][0-9]"

enum { LISTED_BYTES = 240 };

static const char *const small_names[] = {"config.json",
                                          "generation_config.json",
                                          "tokenizer.json",
                                          "tokenizer_config.json",
                                          "special_tokens_map.json",
                                          "added_tokens.json",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "additional_chat_templates/*.jinja",
                                          "quantize_config.json",
                                          "quant_config.json",
                                          "hf_quant_config.json",
                                          "model.safetensors.index.json",
                                          NULL};
static const char *const shard_names[] = {"model-" FIVE_DIGITS "-of-" FIVE_DIGITS ".safetensors",
                                          NULL};
static const char *const pickle_names[] = {"*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", NULL};

/* Tells whether the path fits one of the patterns, in which * stands for no slash. */
static bool fits(const char *path, const char *const *patterns) {
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, path, FNM_PATHNAME) == 0) return true;
    return false;
}

static const struct hub_file *find(const struct hub_files *files, const char *path) {
    for (size_t i = 0; i < files->n; i++)
        if (strcmp(files->all[i].path, path) == 0) return &files->all[i];
    return NULL;
}

static const struct hub_file *find_fitting(const struct hub_files *files,
                                           const char *const *patterns) {
    for (size_t i = 0; i < files->n; i++)
        if (fits(files->all[i].path, patterns)) return &files->all[i];
    return NULL;
}

/* ---- safetensors ---- */

/* Checks that a split in safetensors is whole: each of its names says how many there are. */
static int check_shards(const struct hub_choice *choice, const char *repository,
                        struct error *err) {
    const char *of = strstr(choice->weights[0]->path, "-of-");
    const unsigned long n = strtoul(of + strlen("-of-"), NULL, 10);
    if (n == choice->n_weights) return 0;
    return error_set(err, ERR_INVALID, "%.200s has %zu of %lu files of weights", repository,
                     choice->n_weights, n);
}

/* Chooses weights.  One file is read before a split, so no split is fetched beside it. */
static int choose_safetensors(struct hub_choice *out, const struct hub_files *files,
                              const char *repository, struct error *err) {
    const struct hub_file *one = find(files, "model.safetensors");
    if (one) out->weights[out->n_weights++] = one;
    for (size_t i = 0; !one && i < files->n; i++)
        if (fits(files->all[i].path, shard_names)) out->weights[out->n_weights++] = &files->all[i];
    if (one) return 0;
    if (out->n_weights > 0) return check_shards(out, repository, err);
    const struct hub_file *pickle = find_fitting(files, pickle_names);
    if (pickle)
        return error_set(err, ERR_INVALID,
                         "%.200s has no weights in safetensors, only pickles (%.100s), which may "
                         "run code and are not read: look for its weights in safetensors or GGUF",
                         repository, pickle->path);
    return error_set(err, ERR_INVALID,
                     "%.200s has no weights that are read: these are model.safetensors, or "
                     "model-00001-of-0000N.safetensors, or a GGUF file",
                     repository);
}

static int choose_folder(struct hub_choice *out, const struct hub_files *files,
                         const char *repository, bool has_weights, struct error *err) {
    if (!find(files, "config.json"))
        return error_set(err, ERR_INVALID,
                         "%.200s has no config.json: it is no model in the layout of transformers, "
                         "and has no GGUF file",
                         repository);
    if (!find(files, "tokenizer.json"))
        return error_set(err, ERR_INVALID,
                         "%.200s has no tokenizer.json: AutoTokenizer of transformers can write "
                         "one with save_pretrained()",
                         repository);
    for (size_t i = 0; i < files->n; i++)
        if (fits(files->all[i].path, small_names)) out->small[out->n_small++] = &files->all[i];
    return has_weights ? choose_safetensors(out, files, repository, err) : 0;
}

/* ---- GGUF ---- */

/* Returns what follows the last slash. */
static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Tells whether a path is that of a model's GGUF file: of a split, its first. */
static bool is_model(const char *path) {
    uint32_t number, count;
    if (fnmatch("*.gguf", path, FNM_CASEFOLD) != 0 ||
        fnmatch("*mmproj*", last_part(path), FNM_CASEFOLD) == 0)
        return false;
    return !gguf_split_name(path, &number, &count) || number == 1;
}

/* Returns how many bytes of a name stand before ".gguf" and the numbers of a split. */
static size_t stem_length(const char *name) {
    uint32_t number, count;
    const size_t n_split = strlen("-00001-of-00001");
    const size_t n = strlen(name) - strlen(".gguf");
    return gguf_split_name(name, &number, &count) ? n - n_split : n;
}

bool hub_is_asked(const char *path, const char *quant) {
    const char *name = last_part(path);
    if (fnmatch("*.gguf", path, FNM_CASEFOLD) != 0) return false;
    const size_t n = strlen(quant), n_stem = stem_length(name);
    if (strcasecmp(path, quant) == 0 || strcasecmp(name, quant) == 0) return true;
    if (n > n_stem || strncasecmp(name + n_stem - n, quant, n) != 0) return false;
    return n == n_stem || !isalnum((unsigned char)name[n_stem - n - 1]);
}

/* Writes the names of GGUF files, as many as fit, for a message. */
static void list_models(char out[LISTED_BYTES], const struct hub_files *files, const char *quant) {
    size_t length = 0;
    out[0] = 0;
    for (size_t i = 0; i < files->n; i++) {
        const char *path = files->all[i].path;
        if (!is_model(path) || (*quant && !hub_is_asked(path, quant))) continue;
        const int n =
            snprintf(out + length, LISTED_BYTES - length, "%s%s", length ? ", " : "", path);
        if (n < 0 || (size_t)n >= LISTED_BYTES - length) {
            snprintf(out + (length < LISTED_BYTES - 6 ? length : LISTED_BYTES - 6), 6, ", ...");
            return;
        }
        length += (size_t)n;
    }
}

/* Adds the other files of a split whose first file is chosen. */
static int add_split(struct hub_choice *out, const struct hub_files *files, const char *repository,
                     struct error *err) {
    const char *first = out->weights[0]->path;
    const size_t n_stem = strlen(first) - strlen("-00001-of-00001.gguf");
    uint32_t number, count;
    if (!gguf_split_name(first, &number, &count)) return 0;
    for (uint32_t i = 2; i <= count; i++) {
        char path[HUB_PATH_MAX + 16];
        snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", (int)n_stem, first, i, count);
        const struct hub_file *file = find(files, path);
        if (!file)
            return error_set(err, ERR_INVALID, "%.200s has no %.200s, which belongs to a split",
                             repository, path);
        out->weights[out->n_weights++] = file;
    }
    return 0;
}

static int choose_gguf(struct hub_choice *out, const struct hub_files *files,
                       const struct hub_name *name, struct error *err) {
    char listed[LISTED_BYTES];
    size_t n = 0;
    for (size_t i = 0; i < files->n; i++) {
        const char *path = files->all[i].path;
        if (!is_model(path) || (*name->quant && !hub_is_asked(path, name->quant))) continue;
        out->weights[0] = &files->all[i];
        n++;
    }
    out->is_gguf = true;
    out->n_weights = n > 0;
    if (n == 1) return add_split(out, files, name->repository, err);
    list_models(listed, files, n > 0 ? name->quant : "");
    if (n == 0)
        return error_set(err, ERR_INVALID, "%.100s has no GGUF file for '%.60s'%s%s",
                         name->repository, name->quant, *listed ? "; it has " : "", listed);
    return error_set(err, ERR_INVALID,
                     "%.100s has %zu GGUF files%s: name one, as hf:%.100s:FILE or :FORMAT; there "
                     "are %s",
                     name->repository, n, *name->quant ? " that fit" : "", name->repository,
                     listed);
}

/* ---- both ---- */

int hub_choose(struct hub_choice *out, const struct hub_files *files, const struct hub_name *name,
               bool has_weights, struct error *err) {
    *out = (struct hub_choice){.small = calloc(files->n + 1, sizeof(*out->small)),
                               .weights = calloc(files->n + 1, sizeof(*out->weights))};
    bool has_safetensors = find(files, "model.safetensors") || find_fitting(files, shard_names),
         has_gguf = false;
    int rc = 0;
    for (size_t i = 0; i < files->n; i++) has_gguf |= is_model(files->all[i].path);
    if (!out->small || !out->weights)
        rc = error_set(err, ERR_NOMEM, "no memory for the list of files");
    else if (*name->quant || (has_gguf && !has_safetensors))
        rc = choose_gguf(out, files, name, err);
    else rc = choose_folder(out, files, name->repository, has_weights, err);
    if (rc) hub_choice_fini(out);
    return rc;
}

void hub_choice_fini(struct hub_choice *choice) {
    free(choice->small);
    free(choice->weights);
    *choice = (struct hub_choice){0};
}

uint64_t hub_choice_bytes(const struct hub_choice *choice) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < choice->n_small; i++) bytes += choice->small[i]->size;
    for (size_t i = 0; i < choice->n_weights; i++) bytes += choice->weights[i]->size;
    return bytes;
}
