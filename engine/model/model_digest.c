/* model_digest.c - see model_digest.h. */
#include "engine/model/model_digest.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/digest.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_arena.h"
#include "engine/gguf/model_document.h"
#include "engine/model/model.h"
#include "engine/model/weight_source.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* Absorbs what the keys of a GGUF file stand for. */
static int absorb_keys(struct digest *digest, const char *path, struct error *err) {
    json_t *config = NULL;
    const int code = model_document_read(&config, path, "config.json", MAX_CONFIG_BYTES, err);
    if (code) return code;
    char *text = json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(config);
    if (!text) return error_set(err, ERR_NOMEM, "%.200s: no memory for its settings", path);
    digest_absorb_bytes(digest, text, strlen(text));
    json_arena_free(text);
    return 0;
}

static int absorb_config_file(struct digest *digest, const char *dir, struct error *err) {
    char path[PATH_MAX], *text;
    size_t size;
    if (model_is_gguf(dir)) return absorb_keys(digest, dir, err);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    const int code = file_read(&text, &size, path, MAX_CONFIG_BYTES, err);
    if (code) return code;
    digest_absorb_bytes(digest, text, size);
    free(text);
    return 0;
}

/* Absorbs n elements, or that there are none. */
static void absorb_array(struct digest *digest, const void *elements, size_t n, size_t size) {
    digest_absorb_bytes(digest, elements ? elements : "", elements ? n * size : 0);
}

/* Absorbs what the configuration says only together with the settings. */
static void absorb_config(struct digest *digest, const struct model_config *c) {
    const float scales[] = {c->attn_scale, c->rope_scale, c->embed_scale, c->norm_eps};
    digest_absorb_bytes(digest, scales, sizeof(scales));
    digest_absorb(digest, c->head_source);
    /* A file beside config.json may say how codes are read. */
    if (*c->quantisation.method)
        digest_absorb(digest, c->quantisation.order << 16 | c->quantisation.has_zeros << 8 |
                                  c->quantisation.zero_less);
    absorb_array(digest, c->inv_freq, c->n_freqs, sizeof(*c->inv_freq));
    absorb_array(digest, c->local_freq, c->n_local_freqs, sizeof(*c->local_freq));
    absorb_array(digest, c->slopes, c->n_heads, sizeof(*c->slopes));
    absorb_array(digest, c->windows, c->n_layers, sizeof(*c->windows));
}

int model_digest(struct digest *digest, const struct model *model, const char *dir,
                 struct error *err) {
    const int code = absorb_config_file(digest, dir, err);
    if (code) return code;
    absorb_config(digest, &model->config);
    const struct weight_source *files = model->files;
    digest_absorb(digest, files != NULL); /* random weights are the same every time */
    if (!files) return 0;
    files->ops->digest(files, digest);
    return files->ops->check(files, err);
}
