/* quantise_gguf.c - see quantise_gguf.h.  Weights are listed by their rules, then written one by
 * one, the rows of a matrix by threads. */
#include "engine/quantise/quantise_gguf.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/base/thread.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/model_document.h"
#include "engine/model/feed_forward.h"
#include "engine/model/gguf_layout.h"
#include "engine/model/model.h"
#include "engine/model/rotary_order.h"
#include "engine/model/text_half.h"
#include "engine/model/weight_find.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"
#include "engine/quantise/gguf_settings.h"
#include "engine/quantise/gguf_vocab.h"
#include "engine/quantise/gguf_writer.h"
#include "engine/quantise/packing.h"
#include "engine/quantise/quantise.h"

enum { MAX_CONFIG = 1 << 20, NO_LAYER = -1, QUANTISATION_VERSION = 2 };
enum { RUN = 16 }; /* rows that a thread takes at a time */

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
    const struct weight_query query = {
        .config = w->c, .rule = rule, .shape = side, .layer = number};
    const struct tensor_shape shape = weight_tensor_shape(&query);
    struct item *item = &w->items[w->n_items];
    struct gguf_tensor t = {.n_dims = shape.n_dims};
    char name[WEIGHTS_MAX_NAME];
    weights_file_name(name, w->c, rule->name, number, 0);
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
        /* A shared norm is another rule's tensor, too. */
        const bool repeats = rule->before != SIDE_NONE || rule->with & TRAIT_SHARED_NORM;
        if (!weights_rule_applies(rule, w->c, shape) || repeats) continue;
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

/* Writes a vector in f32; norms get the 1 that a checkpoint may lack. */
static int write_vector(struct work *w, const struct item *item) {
    const uint32_t n = item->weight.cols;
    const float more = item->rule->is_norm && w->c->norms_from_one ? 1 : 0;
    float *values = malloc(2 * n * sizeof(*values)), *placed = values + n;
    if (!values) return error_set(w->err, ERR_NOMEM, "no memory for a vector");
    weight_to_float(&item->weight, 0, values);
    for (uint32_t i = 0; i < n; i++) placed[place_of(w, item, i)] = more + values[i];
    const int rc = gguf_writer_write(&w->out, (uint32_t)(item - w->items), 0, placed,
                                     n * sizeof(*placed), w->err);
    free(values);
    return rc;
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

/* What threads share that write a matrix: each takes the next run of rows until none is left. */
struct rows {
    struct work *w;
    const struct item *item;
    atomic_uint next_run;
    atomic_bool has_failed;
};

struct row_thread {
    struct rows *rows;
    float *values; /* [2 * cols]: a row's, and space for it packed */
    struct rounding_error sum;
    struct error err;
    int rc;
};

static int write_row(struct row_thread *t, uint32_t row) {
    const struct work *w = t->rows->w;
    const struct item *item = t->rows->item;
    const uint32_t tensor = (uint32_t)(item - w->items), cols = item->weight.cols;
    const enum element element = w->out.tensors[tensor].element;
    const size_t bytes = element_bytes(element, cols);
    const void *from = weight_row_at(&item->weight, row);
    if (element_is_packed(element)) {
        weight_to_float(&item->weight, row, t->values);
        from = t->values + cols;
        if (!packing_row(element, t->values, cols, t->values + cols, &t->sum))
            return error_set(&t->err, ERR_INVALID,
                             "tensor '%.160s' has a value that is NaN, or not below 65504 in size",
                             w->out.tensors[tensor].name);
    }
    return gguf_writer_write(&w->out, tensor, place_of(w, item, row) * bytes, from, bytes, &t->err);
}

static void *write_runs(void *arg) {
    struct row_thread *t = arg;
    const uint32_t n = t->rows->item->weight.rows;
    while (!t->rc && !atomic_load(&t->rows->has_failed)) {
        const uint64_t first = (uint64_t)atomic_fetch_add(&t->rows->next_run, 1) * RUN;
        if (first >= n) break;
        for (uint64_t row = first; row < n && row < first + RUN && !t->rc; row++)
            t->rc = write_row(t, (uint32_t)row);
    }
    if (t->rc) atomic_store(&t->rows->has_failed, true);
    return NULL;
}

static int write_matrix(struct work *w, const struct item *item) {
    struct rows rows = {.w = w, .item = item};
    struct row_thread threads[THREADS_MOST];
    const uint32_t n = threads_useful(div_up(item->weight.rows, RUN)), cols = item->weight.cols;
    struct rounding_error sum = {0};
    float *values = malloc((size_t)n * 2 * cols * sizeof(*values));
    int rc = 0;
    if (!values) return error_set(w->err, ERR_NOMEM, "no memory for rows");
    for (uint32_t i = 0; i < n; i++)
        threads[i] = (struct row_thread){.rows = &rows, .values = values + (size_t)i * 2 * cols};
    threads_run(n, write_runs, threads, sizeof(*threads));
    for (uint32_t i = 0; i < n && !rc; i++) {
        sum.error += threads[i].sum.error;
        sum.values += threads[i].sum.values;
        if (threads[i].rc) rc = error_set(w->err, threads[i].rc, "%s", threads[i].err.text);
    }
    free(values);
    if (!rc) add_loss(w, item, &sum);
    return rc;
}

static int write_weight(struct work *w, const struct item *item) {
    const int rc = item->rule->rows == SIDE_VECTOR ? write_vector(w, item) : write_matrix(w, item);
    w->done += w->out.tensors[item - w->items].n_bytes;
    if (!rc && w->plan->progress) w->plan->progress(w->plan->ctx, w->done, w->out.data_bytes);
    return rc;
}

/* ---- the order ---- */

static void put_general(struct work *w) {
    const char *architecture = w->architecture->name, *from = w->plan->from;
    const char *slash = strrchr(from, '/'), *name = slash && slash[1] ? slash + 1 : from;
    gguf_put_string(&w->out, "general.architecture", architecture, strlen(architecture));
    gguf_put_string(&w->out, "general.name", name, strlen(name));
    gguf_put_u32(&w->out, "general.file_type", w->plan->packing->file_type);
    gguf_put_u32(&w->out, "general.quantization_version", QUANTISATION_VERSION);
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
    json_t *document, *text = NULL;
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
    rc = text_half_config(&text, document, plan->from, err);
    if (!rc) rc = gguf_writer_init(&w.out, plan->to, err);
    if (!rc) rc = write_all(&w, text ? text : document);
    gguf_writer_fini(&w.out);
    json_decref(text);
    json_decref(document);
    free(w.items);
    return rc;
}
