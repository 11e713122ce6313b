/* model.c - see model.h.  Walks the family's weight map: find, check, hand to the backend. */
#include "engine/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/model/checkpoint.h"
#include "engine/model/weights.h"

enum { MAX_NAME = 128 };

struct loader {
    struct model *model;
    struct backend *be;
    struct error *err;
};

/* Writes the rule's name with its '#' replaced. */
static void expand_name(char *out, const char *name, uint32_t layer) {
    const char *mark = strchr(name, '#');
    if (mark) snprintf(out, MAX_NAME, "%.*s%u%s", (int)(mark - name), name, layer, mark + 1);
    else snprintf(out, MAX_NAME, "%s", name);
}

static int load_weight(struct loader *l, const struct weight_rule *rule, uint32_t layer,
                       struct weight *out) {
    char name[MAX_NAME];
    struct weight host;
    const struct model_config *config = &l->model->config;
    const struct tensor_shape shape = {
        .n_dims = rule->rows == SIDE_VECTOR ? 1 : 2,
        .rows = weights_side(rule->rows, config),
        .cols = weights_side(rule->cols, config),
    };
    if (!weights_rule_applies(rule, config)) return 0;
    expand_name(name, rule->name, layer);
    int rc = checkpoint_get(l->model->private_data, name, &shape, &host, l->err);
    if (rc) return rc;
    const size_t bytes = (size_t)host.rows * host.cols * dtype_size(host.dtype);
    const void *data;
    rc = l->be->ops->weight_upload(l->be, host.data, bytes, &data, l->err);
    if (rc) return rc;
    *out = host;
    out->data = data;
    l->model->weight_bytes += bytes;
    return 0;
}

static int load_rules(struct loader *l, const struct weight_rule *rules, size_t n, uint32_t layer,
                      void *base) {
    for (size_t i = 0; i < n; i++) {
        int rc =
            load_weight(l, &rules[i], layer, (struct weight *)((char *)base + rules[i].offset));
        if (rc) return rc;
    }
    return 0;
}

static int load_weights(struct loader *l) {
    struct model *model = l->model;
    const struct weight_family *family = weights_find_family(model->config.architecture);
    int rc = load_rules(l, family->model_rules, family->n_model_rules, 0, model);
    for (uint32_t i = 0; !rc && i < model->config.n_layers; i++)
        rc = load_rules(l, family->layer_rules, family->n_layer_rules, i, &model->layers[i]);
    if (rc) return rc;
    if (model->config.tied_head) model->head = model->embedding;
    model->config.weight_dtype = model->embedding.dtype;
    return 0;
}

int model_load(struct model **out, const char *dir, struct backend *be, struct error *err) {
    int rc = ERR_NOMEM;
    struct checkpoint *checkpoint = NULL;
    struct model *model = calloc(1, sizeof(*model));
    struct loader loader = {.model = model, .be = be, .err = err};
    if (!model) return error_set(err, ERR_NOMEM, "%.200s: no memory for the model", dir);
    rc = model_config_load(&model->config, dir, err);
    if (rc) goto fail;
    model->layers = calloc(model->config.n_layers, sizeof(*model->layers));
    if (!model->layers) {
        rc = error_set(err, ERR_NOMEM, "%.200s: no memory for its layers", dir);
        goto fail;
    }
    rc = checkpoint_open(&checkpoint, dir, err);
    if (rc) goto fail;
    model->private_data = checkpoint;
    rc = load_weights(&loader);
    if (rc) goto fail;
    *out = model;
    return 0;

fail:
    model_destroy(model, be);
    return rc;
}

static void release_rules(struct backend *be, const struct weight_rule *rules, size_t n,
                          const void *base) {
    for (size_t i = 0; i < n; i++) {
        const struct weight *w = (const struct weight *)((const char *)base + rules[i].offset);
        if (w->data) be->ops->weight_release(be, w->data);
    }
}

void model_destroy(struct model *model, struct backend *be) {
    if (!model) return;
    const struct weight_family *family = weights_find_family(model->config.architecture);
    if (model->config.tied_head) model->head.data = NULL; /* the embedding's, released once */
    if (family) release_rules(be, family->model_rules, family->n_model_rules, model);
    for (uint32_t i = 0; model->layers && i < model->config.n_layers; i++)
        release_rules(be, family->layer_rules, family->n_layer_rules, &model->layers[i]);
    checkpoint_close(model->private_data);
    free(model->layers);
    model_config_fini(&model->config);
    free(model);
}
