/* quantise_gguf.c - see quantise_gguf.h.  Weights are listed by their rules, then written one by
 * one, row by row. */
#include "engine/quantise/quantise_gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/model_document.h"
#include "engine/model/feed_forward.h"
#include "engine/model/gguf_layout.h"
#include "engine/model/model.h"
#include "engine/model/rotary_order.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"
#include "engine/quantise/gguf_settings.h"
#include "engine/quantise/gguf_vocab.h"
#include "engine/quantise/gguf_writer.h"
#include "engine/quantise/packing.h"
#include "engine/quantise/quantise.h"

enum { MAX_CONFIG = 1 << 20, NO_LAYER = -1, MOST_QUANTISATION_VERSION = 2 };

struct item {
    const struct weight_rule *rule;
    int64_t layer; /* NO_LAYER: it is the model's */
    struct weight weight;
};

struct work {
    const struct quantise_plan *plan;
    const struct model_config *c;
    const struct weight_source *files;
    const struct gguf_architecture *architecture;
    struct gguf_writer out;
    struct item *items; /* [n_items], as many as the first tensors of out */
    uint32_t n_items;
    struct layer_loss *losses;
    uint64_t done;
    struct error *err;
};

/* ---- the list ---- */

/* Returns the shape of the rule's tensor, with the rows of others in it. */
static struct tensor_shape shape_of(const struct work *w, const struct weight_rule *rule,
                                    const struct layer_shape *layer) {
    const bool is_vector = rule->rows == SIDE_VECTOR;
    const enum weight_side rows = rule->whole ? rule->whole : is_vector ? rule->cols : rule->rows;
    struct tensor_shape shape = {.n_dims = is_vector ? 1 : 2,
                                 .dims = {weights_side(rows, w->c, layer)}};
    if (!is_vector) shape.dims[1] = weights_side(rule->cols, w->c, layer);
    return shape;
}

/* Returns which element a weight gets: the plan's, or where its rows are not whole blocks another
 * one. */
static enum element element_for(const struct work *w, const struct item *item) {
    const struct packing *packing = w->plan->packing;
    const struct weight *weight = &item->weight;
    const enum element wanted[] = {item->layer == NO_LAYER ? ELEMENT_Q8_0 : packing->element,
                                   packing->otherwise};
    if (item->rule->rows == SIDE_VECTOR) return ELEMENT_F32;
    for (int i = 0; i < 2; i++)
        if (weight->cols % packed_block(wanted[i]) == 0) return wanted[i];
    return weight->format.element;
}

static int refuse(const struct work *w, int code, const char *name, const char *why) {
    return error_set(w->err, code, "tensor '%.160s' %s", name, why);
}

static int add_item(struct work *w, const struct weight_rule *rule, int64_t layer) {
    const uint32_t number = layer == NO_LAYER ? 0 : (uint32_t)layer;
    const struct layer_shape *side = layer == NO_LAYER ? NULL : &w->c->layers[number];
    const struct tensor_shape shape = shape_of(w, rule, side);
    struct item *item = &w->items[w->n_items];
    struct gguf_tensor t = {.n_dims = shape.n_dims};
    char name[WEIGHTS_MAX_NAME];
    weights_tensor_name(name, w->c->tensors, rule->name, number, 0);
    weights_tensor_name(t.name, gguf_layout_tensors(w->c), rule->name, number, 0);
    if (rule->stacked || strncmp(t.name, "model.", 6) == 0)
        return refuse(w, ERR_UNSUPPORTED, name,
                      "has no name in the GGUF files that are written here");
    *item = (struct item){.rule = rule, .layer = layer};
    const int rc = w->files->ops->get(w->files, name, &shape, &item->weight, w->err);
    if (rc) return rc;
    if (!weight_is_plain(&item->weight.format) || !item->weight.data)
        return refuse(w, ERR_UNSUPPORTED, name, "is quantised already");
    t.element = element_for(w, item);
    memcpy(t.dims, shape.dims, sizeof(shape.dims));
    w->n_items++;
    return gguf_writer_add(&w->out, &t, w->err);
}

static int add_rules(struct work *w, const struct weight_rules *rules, int64_t layer) {
    const struct layer_shape *shape = layer == NO_LAYER ? NULL : &w->c->layers[layer];
    int rc = 0;
    for (size_t i = 0; i < rules->n && !rc; i++) {
        const struct weight_rule *rule = &rules->rules[i];
        if (!weights_rule_applies(rule, w->c, shape) || rule->before != SIDE_NONE) continue;
        rc = add_item(w, rule, layer);
    }
    return rc;
}

static int list_weights(struct work *w) {
    const size_t most = weights_of_model.n + w->c->n_layers * weights_of_layer.n;
    w->items = calloc(most, sizeof(*w->items));
    if (!w->items) return error_set(w->err, ERR_NOMEM, "no memory for the names of tensors");
    int rc = add_rules(w, &weights_of_model, NO_LAYER);
    for (uint32_t i = 0; i < w->c->n_layers && !rc; i++) rc = add_rules(w, &weights_of_layer, i);
    return rc;
}

/* ---- writing ---- */

/* Returns where row i of the weight is in the file, for which rows of q and k may be in pairs. */
static uint32_t place_of(const struct work *w, const struct item *item, uint32_t i) {
    const uint32_t at = i % w->c->head_dim;
    if (!item->rule->is_rotary || w->c->paired_rotary || !w->architecture->paired_rotary) return i;
    return i - at + rotary_place(at, w->c->n_freqs);
}

static int put(struct work *w, const struct item *item, uint64_t at, const void *bytes, size_t n) {
    const int rc = gguf_writer_write(&w->out, (uint32_t)(item - w->items), at, bytes, n, w->err);
    w->done += n;
    if (!rc && w->plan->progress) w->plan->progress(w->plan->ctx, w->done, w->out.data_bytes);
    return rc;
}

/* Writes a vector in f32; norms get the 1 that a checkpoint may lack. */
static int write_vector(struct work *w, const struct item *item, float *values, float *placed) {
    const uint32_t n = item->weight.cols;
    const float more = item->rule->is_norm && w->c->norms_from_one ? 1 : 0;
    weight_to_float(&item->weight, 0, values);
    for (uint32_t i = 0; i < n; i++) placed[place_of(w, item, i)] = more + values[i];
    return put(w, item, 0, placed, n * sizeof(*placed));
}

static void add_loss(struct work *w, const struct item *item, const struct rounding_error *sum) {
    if (item->layer == NO_LAYER) return;
    struct layer_loss *loss = &w->losses[item->layer];
    loss->sum.error += sum->error;
    loss->sum.values += sum->values;
    if (*loss->name && rounding_loss(sum) <= loss->worst) return;
    loss->worst = rounding_loss(sum);
    snprintf(loss->name, sizeof(loss->name), "%s", w->out.tensors[item - w->items].name);
}

static int write_rows(struct work *w, const struct item *item, float *values, void *packed) {
    const struct weight *weight = &item->weight;
    const struct gguf_tensor *t = &w->out.tensors[item - w->items];
    const size_t bytes = element_bytes(t->element, weight->cols);
    struct rounding_error sum = {0};
    for (uint32_t row = 0; row < weight->rows; row++) {
        const void *from = packed;
        if (element_is_packed(t->element)) {
            weight_to_float(weight, row, values);
            if (!packing_row(t->element, values, weight->cols, packed, &sum))
                return refuse(w, ERR_INVALID, t->name,
                              "has a value that is NaN, or not below 65504 in size");
        } else {
            from = weight_row_at(weight, row);
        }
        const int rc = put(w, item, place_of(w, item, row) * bytes, from, bytes);
        if (rc) return rc;
    }
    add_loss(w, item, &sum);
    return 0;
}

static int write_weight(struct work *w, const struct item *item) {
    const size_t n = item->weight.cols;
    float *values = malloc(n * sizeof(*values)), *more = malloc(n * sizeof(*more));
    int rc;
    if (!values || !more) rc = error_set(w->err, ERR_NOMEM, "no memory for a row");
    else if (item->rule->rows == SIDE_VECTOR) rc = write_vector(w, item, values, more);
    else rc = write_rows(w, item, values, more);
    free(values);
    free(more);
    return rc;
}

/* ---- the order ---- */

static void put_general(struct work *w) {
    const char *architecture = w->architecture->name, *from = w->plan->from;
    const char *slash = strrchr(from, '/'), *name = slash && slash[1] ? slash + 1 : from;
    gguf_put_string(&w->out, "general.architecture", architecture, strlen(architecture));
    gguf_put_string(&w->out, "general.name", name, strlen(name));
    gguf_put_u32(&w->out, "general.file_type", w->plan->packing->file_type);
    gguf_put_u32(&w->out, "general.quantization_version", MOST_QUANTISATION_VERSION);
}

/* Writes keys and tensors.  Weights come first, then what belongs to the keys. */
static int write_all(struct work *w, const json_t *config) {
    int rc = list_weights(w);
    put_general(w);
    gguf_settings_put(&w->out, w->architecture, w->c, config);
    if (!rc) rc = gguf_settings_add(&w->out, w->c, config, w->err);
    if (!rc) rc = gguf_vocab_put(&w->out, w->plan->from, w->c, w->err);
    if (!rc) rc = gguf_writer_begin(&w->out, w->err);
    if (!rc) rc = quantise_check_disk(w->out.partial, w->out.data_bytes, w->err);
    if (!rc) rc = gguf_settings_write(&w->out, w->n_items, w->c, config, w->err);
    if (!rc) rc = gguf_settings_check(&w->out, w->c, w->err);
    for (uint32_t i = 0; i < w->n_items && !rc; i++) rc = write_weight(w, &w->items[i]);
    if (w->files->ops->check(w->files, w->err)) return ERR_IO;
    return rc ? rc : gguf_writer_end(&w->out, w->err);
}

int quantise_gguf(const struct quantise_plan *plan, const struct model_config *config,
                  const struct weight_source *files, struct layer_loss *losses, struct error *err) {
    struct work w = {.plan = plan,
                     .c = config,
                     .files = files,
                     .architecture = gguf_architecture_for(config->architecture),
                     .losses = losses,
                     .err = err};
    json_t *document;
    if (!w.architecture)
        return error_set(
            err, ERR_UNSUPPORTED,
            "%.200s: %.60s has no architecture in GGUF that is written here: write fp8, "
            "int8 or int4 instead",
            plan->from, config->architecture);
    if (access(plan->to, F_OK) == 0)
        return error_set(err, ERR_INVALID, "--out: %.300s exists: name a new file", plan->to);
    int rc = model_document_read(&document, plan->from, "config.json", MAX_CONFIG, err);
    if (rc) return rc;
    rc = gguf_writer_init(&w.out, plan->to, err);
    if (!rc) rc = write_all(&w, document);
    gguf_writer_fini(&w.out);
    json_decref(document);
    free(w.items);
    return rc;
}
