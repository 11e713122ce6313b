/* quantise.c - see quantise.h.  Tensors are listed, then written one by one. */
#include "engine/quantise/quantise.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/device/experts.h"
#include "engine/gguf/model_document.h"
#include "engine/model/expert_layout.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/model/text_half.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"
#include "engine/quantise/checkpoint.h"
#include "engine/quantise/quantise_gguf.h"

enum { MAX_CONFIG = 1 << 20, MAX_SMALL_FILE = 256 << 20, NO_LAYER = -1, UINT32_DIGITS = 10 };

/* A tensor of the model, and the first of those that it becomes. */
struct item {
    char name[WEIGHT_SOURCE_NAME];
    int64_t layer; /* NO_LAYER: it is copied */
    uint32_t first;
};

struct work {
    const struct quantise_plan *plan;
    struct error *err;
    struct model_config config;
    struct weight_source *files;
    struct checkpoint out;
    struct item *items; /* [n_items] */
    uint32_t n_items;
    struct layer_loss *losses;
    uint64_t done, total; /* bytes */
};

double rounding_loss(const struct rounding_error *sum) {
    return sum->values > 0 ? sqrt(sum->error / sum->values) : 0;
}

/* ---- what becomes of a tensor ---- */

/* Returns true if the rule's tensor of the layer has this name, and is to be quantised. */
static bool rule_has(const struct work *w, const struct weight_rule *rule, uint32_t layer,
                     const char *name) {
    const struct model_config *c = &w->config;
    const struct layer_shape *shape = &c->layers[layer];
    char own[WEIGHTS_MAX_NAME];
    if (!weights_rule_applies(rule, c, shape) || !(weights_uses(rule, c) & WEIGHT_PRODUCT) ||
        weights_are_router(rule))
        return false;
    const uint32_t n = rule->stacked ? weights_side(rule->stacked, c, shape) : 1;
    for (uint32_t expert = 0; expert < n; expert++) {
        weights_file_name(own, c, rule->name, layer, expert);
        if (strcmp(own, name) == 0) return true;
    }
    return false;
}

/* Returns the first number between the points of a name, which of a layer's tensor is the layer's;
 * NO_LAYER: there is none. */
static int64_t number_in(const char *name) {
    for (const char *at = strchr(name, '.'); at; at = strchr(at + 1, '.')) {
        const size_t n = strspn(at + 1, "0123456789");
        if (n > 0 && n < UINT32_DIGITS && at[1 + n] == '.') return strtoll(at + 1, NULL, 10);
    }
    return NO_LAYER;
}

/* Returns the layer of which the tensor is a matrix, or NO_LAYER. */
static int64_t layer_of(const struct work *w, const char *name) {
    const int64_t layer = number_in(name);
    if (layer == NO_LAYER || layer >= w->config.n_layers) return NO_LAYER;
    for (size_t i = 0; i < weights_of_layer.n; i++)
        if (rule_has(w, &weights_of_layer.rules[i], (uint32_t)layer, name)) return layer;
    return NO_LAYER;
}

static uint32_t group_of(const struct work *w, uint64_t cols) {
    return w->plan->rounding->has_groups ? w->plan->group : (uint32_t)cols;
}

static int add_part(struct work *w, const char *module, const char *suffix, const char *dtype,
                    uint32_t element_bytes, uint64_t rows, uint64_t cols) {
    struct checkpoint_tensor t = {.element_bytes = element_bytes,
                                  .n_dims = cols ? 2 : 1,
                                  .dims = {rows, cols},
                                  .bytes = rows * (cols ? cols : 1) * element_bytes};
    const int n = snprintf(t.name, sizeof(t.name), "%s%s", module, suffix);
    if (n < 0 || n >= CHECKPOINT_NAME)
        return error_set(w->err, ERR_UNSUPPORTED, "tensor '%.160s': its name is too long", module);
    snprintf(t.dtype, sizeof(t.dtype), "%s", dtype);
    return checkpoint_add(&w->out, &t, w->err);
}

/* Adds codes, scales and, of packed codes, the shape. */
static int add_rounded(struct work *w, const char *name, const struct safetensors_view *view) {
    const struct rounding *rounding = w->plan->rounding;
    const uint64_t rows = view->dims[0], cols = view->dims[1];
    const uint32_t group = group_of(w, cols), per_word = 32 / rounding->bits;
    char module[WEIGHT_SOURCE_NAME];
    if (cols == 0 || cols > UINT32_MAX || rows > UINT32_MAX || cols % group != 0 ||
        (!rounding->is_float && cols % per_word != 0))
        return error_set(w->err, ERR_INVALID,
                         "tensor '%.160s': its %" PRIu64 " columns are not groups of %" PRIu32
                         ": --group-size 32, 64 or 128 must divide them",
                         name, cols, group);
    snprintf(module, sizeof(module), "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    int rc = rounding->is_float
                 ? add_part(w, module, ".weight", "F8_E4M3", 1, rows, cols)
                 : add_part(w, module, ".weight_packed", "I32", 4, rows, cols / per_word);
    if (!rc) rc = add_part(w, module, ".weight_scale", "BF16", 2, rows, cols / group);
    if (!rc && !rounding->is_float) rc = add_part(w, module, ".weight_shape", "I64", 8, 2, 0);
    return rc;
}

static int add_copied(struct work *w, const char *name, const struct safetensors_view *view) {
    struct checkpoint_tensor t = {.n_dims = view->n_dims, .bytes = view->size_bytes};
    uint64_t n = 1;
    snprintf(t.name, sizeof(t.name), "%s", name);
    snprintf(t.dtype, sizeof(t.dtype), "%s", view->dtype);
    for (uint32_t i = 0; i < view->n_dims; i++) n *= t.dims[i] = view->dims[i];
    t.element_bytes = n > 0 ? (uint32_t)(view->size_bytes / n) : 1;
    return checkpoint_add(&w->out, &t, w->err);
}

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

static int add_item(struct work *w, struct item *item) {
    struct safetensors_view view;
    const int rc = w->files->ops->view(w->files, item->name, &view, w->err);
    if (rc) return rc;
    item->layer = layer_of(w, item->name);
    item->first = w->out.n;
    if (item->layer == NO_LAYER) return add_copied(w, item->name, &view);
    if (view.n_dims != 2 || !ends_with(item->name, ".weight"))
        return error_set(w->err, ERR_UNSUPPORTED,
                         "tensor '%.160s' is not a matrix of its own, so it cannot be quantised",
                         item->name);
    return add_rounded(w, item->name, &view);
}

static int list_tensors(struct work *w) {
    char name[WEIGHT_SOURCE_NAME];
    uint32_t n = 0;
    while (w->files->ops->name(w->files, n, name)) n++;
    w->items = calloc(n ? n : 1, sizeof(*w->items));
    if (!w->items) return error_set(w->err, ERR_NOMEM, "no memory for the names of tensors");
    for (; w->n_items < n; w->n_items++) {
        struct item *item = &w->items[w->n_items];
        w->files->ops->name(w->files, w->n_items, item->name);
        const int rc = add_item(w, item);
        if (rc) return rc;
    }
    w->total = checkpoint_bytes(&w->out);
    return 0;
}

/* ---- writing ---- */

static int put(struct work *w, uint32_t tensor, uint64_t at, const void *bytes, size_t n) {
    const int rc = checkpoint_write(&w->out, tensor, at, bytes, n, w->err);
    w->done += n;
    if (!rc && w->plan->progress) w->plan->progress(w->plan->ctx, w->done, w->total);
    return rc;
}

static int write_rows(struct work *w, const struct item *item, const struct weight *matrix,
                      float *values, uint8_t *codes, uint16_t *scales) {
    const struct rounding *rounding = w->plan->rounding;
    const uint32_t group = group_of(w, matrix->cols);
    const size_t row_bytes = rounding_bytes(rounding, matrix->cols),
                 scale_bytes = matrix->cols / group * sizeof(*scales);
    struct layer_loss *loss = &w->losses[item->layer];
    struct rounding_error sum = {0};
    for (uint32_t row = 0; row < matrix->rows; row++) {
        weight_to_float(matrix, row, values);
        if (!rounding_row(rounding, group, values, matrix->cols, codes, scales, &sum))
            return error_set(w->err, ERR_INVALID,
                             "tensor '%.160s' has a value that is NaN or infinite in row %" PRIu32,
                             item->name, row);
        int rc = put(w, item->first, row * row_bytes, codes, row_bytes);
        if (!rc) rc = put(w, item->first + 1, row * scale_bytes, scales, scale_bytes);
        if (rc) return rc;
    }
    loss->sum.error += sum.error;
    loss->sum.values += sum.values;
    if (*loss->name && rounding_loss(&sum) <= loss->worst) return 0;
    loss->worst = rounding_loss(&sum);
    snprintf(loss->name, sizeof(loss->name), "%s", item->name);
    return 0;
}

static int write_rounded(struct work *w, const struct item *item,
                         const struct safetensors_view *view) {
    const uint32_t rows = (uint32_t)view->dims[0], cols = (uint32_t)view->dims[1];
    const struct tensor_shape dims = {2, {rows, cols}};
    const int64_t shape[2] = {rows, cols};
    struct weight matrix;
    int rc = w->files->ops->get(w->files, item->name, &dims, &matrix, w->err);
    if (rc) return rc;
    float *values = malloc(cols * sizeof(*values));
    uint8_t *codes = malloc(cols);
    uint16_t *scales = malloc(cols * sizeof(*scales));
    if (values && codes && scales) rc = write_rows(w, item, &matrix, values, codes, scales);
    else rc = error_set(w->err, ERR_NOMEM, "no memory for a row");
    free(values);
    free(codes);
    free(scales);
    if (rc || w->plan->rounding->is_float) return rc;
    return put(w, item->first + 2, 0, shape, sizeof(shape));
}

static int write_tensors(struct work *w) {
    int rc = checkpoint_begin(&w->out, w->err);
    for (uint32_t i = 0; i < w->n_items && !rc; i++) {
        const struct item *item = &w->items[i];
        struct safetensors_view view;
        rc = w->files->ops->view(w->files, item->name, &view, w->err);
        if (rc) break;
        rc = item->layer == NO_LAYER ? put(w, item->first, 0, view.data, view.size_bytes)
                                     : write_rounded(w, item, &view);
    }
    if (w->files->ops->check(w->files, w->err)) return ERR_IO;
    return rc ? rc : checkpoint_end(&w->out, w->err);
}

/* ---- the small files ---- */

/* Returns true if a file of the folder belongs to the model but has no weights. */
static bool is_small_file(const char *name) {
    static const char *const ends[] = {".json", ".jinja", ".txt", ".md", ".model", NULL};
    if (strcmp(name, "config.json") == 0 || ends_with(name, ".safetensors.index.json"))
        return false;
    if (strncmp(name, "LICENSE", 7) == 0 || strncmp(name, "NOTICE", 6) == 0) return true;
    for (size_t i = 0; ends[i]; i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

/* Writes the path of a file in a folder of the model's, or "", to out [PATH_MAX]. */
static int join(const struct work *w, char *out, const char *model, const char *folder,
                const char *name) {
    const int n = snprintf(out, PATH_MAX, "%s/%s%s", model, folder, name);
    if (n > 0 && n < PATH_MAX) return 0;
    return error_set(w->err, ERR_INVALID, "%.300s: the path of a file in it is too long", model);
}

static int copy_file(const struct work *w, const char *folder, const char *name) {
    char from[PATH_MAX], to[PATH_MAX];
    struct stat what;
    char *bytes;
    size_t size;
    int rc = join(w, from, w->plan->from, folder, name);
    if (!rc) rc = join(w, to, w->plan->to, folder, name);
    if (rc || stat(from, &what) || !S_ISREG(what.st_mode)) return rc;
    rc = file_read(&bytes, &size, from, MAX_SMALL_FILE, w->err);
    if (rc) return rc;
    FILE *file = fopen(to, "wb");
    const bool is_whole = file && fwrite(bytes, 1, size, file) == size;
    if ((file && fclose(file)) || !is_whole)
        rc = error_set(w->err, ERR_IO, "%.300s cannot be written: %s", to, strerror(errno));
    free(bytes);
    return rc;
}

/* Copies the small files of a folder inside of the model's; "": the model's own. */
static int copy_files(const struct work *w, const char *folder) {
    char path[PATH_MAX];
    struct dirent *entry;
    int rc = join(w, path, w->plan->from, folder, "");
    DIR *dir = rc ? NULL : opendir(path);
    if (!dir) return rc; /* there is no such folder; the model's own was read before */
    rc = join(w, path, w->plan->to, folder, "");
    if (!rc && *folder && mkdir(path, 0777))
        rc = error_set(w->err, ERR_IO, "%.300s cannot be created: %s", path, strerror(errno));
    while (!rc && (entry = readdir(dir))) {
        if (is_small_file(entry->d_name)) rc = copy_file(w, folder, entry->d_name);
    }
    closedir(dir);
    return rc;
}

/* Returns the modules that stay as they are. */
static json_t *unquantised(const struct model_config *config) {
    const bool has_routers = feed_forward_experts(config, 1).n_experts > 0;
    return has_routers ? json_pack("[s, s, s]", "lm_head", "re:.*[.]gate$", "re:.*_expert_gate$")
                       : json_pack("[s]", "lm_head");
}

static json_t *describe(const struct quantise_plan *plan, const struct model_config *config) {
    const struct rounding *rounding = plan->rounding;
    const char *format = rounding->is_float ? "float-quantized" : "pack-quantized";
    json_t *group_size = rounding->has_groups ? json_integer(plan->group) : json_null();
    json_t *weights =
        json_pack("{s:i, s:s, s:b, s:s, s:o, s:b, s:s}", "num_bits", (int)rounding->bits, "type",
                  rounding->is_float ? "float" : "int", "symmetric", 1, "strategy",
                  rounding->has_groups ? "group" : "channel", "group_size", group_size, "dynamic",
                  0, "observer", "minmax");
    return json_pack("{s:s, s:s, s:s, s:o, s:n, s:{s:{s:[s], s:o, s:n, s:n, s:s}}}", "quant_method",
                     "compressed-tensors", "quantization_status", "compressed", "format", format,
                     "ignore", unquantised(config), "kv_cache_scheme", "config_groups", "group_0",
                     "targets", "Linear", "weights", weights, "input_activations",
                     "output_activations", "format", format);
}

static int write_config(const struct work *w) {
    json_t *config;
    int rc = model_document_read(&config, w->plan->from, "config.json", MAX_CONFIG, w->err);
    if (rc) return rc;
    if (json_object_set_new(config, "quantization_config", describe(w->plan, &w->config)))
        rc = error_set(w->err, ERR_NOMEM, "no memory for config.json");
    else rc = checkpoint_document(w->plan->to, "config.json", config, w->err);
    json_decref(config);
    return rc;
}

/* ---- the order ---- */

static int check_source(struct work *w) {
    const char *from = w->plan->from;
    if (model_is_gguf(from))
        return error_set(w->err, ERR_UNSUPPORTED,
                         "%.300s is a GGUF file: only folders with safetensors can be quantised",
                         from);
    const int rc = model_config_load(&w->config, from, 0, w->err);
    if (rc || !*w->config.quantisation.method) return rc;
    return error_set(w->err, ERR_UNSUPPORTED,
                     "%.300s is quantised already (%s): quantise the model that it was made from",
                     from, w->config.quantisation.method);
}

/* Creates the folder, or makes sure that it is empty. */
static int check_target(const struct work *w) {
    const char *to = w->plan->to;
    struct dirent *entry;
    uint32_t n = 0;
    if (mkdir(to, 0777) == 0) return 0;
    DIR *dir = errno == EEXIST ? opendir(to) : NULL;
    if (!dir)
        return error_set(w->err, ERR_IO, "--out: %.300s cannot be created: %s", to,
                         strerror(errno));
    while ((entry = readdir(dir)))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n ? error_set(w->err, ERR_INVALID, "--out: %.300s is not empty: name a new folder", to)
             : 0;
}

int quantise_check_disk(const char *path, uint64_t bytes, struct error *err) {
    const double gib = 1 << 30;
    struct statvfs disk;
    if (statvfs(path, &disk)) return 0; /* unknown: writing will tell */
    const uint64_t left = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (left >= bytes) return 0;
    return error_set(err, ERR_NOMEM, "--out: %.300s needs %.2f GiB, but its disk has %.2f left",
                     path, (double)bytes / gib, (double)left / gib);
}

/* Writes a folder with quantised matrices. */
static int write_folder(struct work *w) {
    int rc = list_tensors(w);
    if (!rc) rc = check_target(w);
    if (!rc) rc = quantise_check_disk(w->plan->to, w->total, w->err);
    if (!rc) rc = write_tensors(w);
    if (!rc) rc = copy_files(w, "");
    if (!rc) rc = copy_files(w, "additional_chat_templates/");
    return rc ? rc : write_config(w);
}

/* Makes the head one of its own if the files have it, and it is not the embedding. */
static int find_head(struct work *w) {
    const struct tensor_shape shape = {2, {w->config.n_vocab, w->config.dim}};
    char name[WEIGHTS_MAX_NAME], table[WEIGHTS_MAX_NAME];
    struct weight a, b;
    weights_file_name(name, &w->config, "lm_head.weight", 0, 0);
    weights_file_name(table, &w->config, "model.embed_tokens.weight", 0, 0);
    if (!w->config.tied_head || !w->files->ops->has(w->files, name)) return 0;
    int rc = w->files->ops->get(w->files, name, &shape, &a, w->err);
    if (!rc) rc = w->files->ops->get(w->files, table, &shape, &b, w->err);
    if (rc) return rc;
    w->config.tied_head =
        weight_same_format(&a.format, &b.format) && memcmp(a.data, b.data, weight_bytes(&a)) == 0;
    return 0;
}

static int run(struct work *w) {
    int rc = check_source(w);
    if (!rc) rc = weight_source_open(&w->files, w->plan->from, w->err);
    if (rc) return rc;
    if (w->config.is_text_half) w->config.prefix = text_half_prefix(w->files);
    expert_layout_find(&w->config, w->files);
    w->losses = calloc(w->config.n_layers, sizeof(*w->losses));
    if (!w->losses) return error_set(w->err, ERR_NOMEM, "no memory for the losses");
    if (!w->plan->packing) return write_folder(w);
    if (feed_forward_experts(&w->config, 1).n_experts > 0)
        return error_set(w->err, ERR_UNSUPPORTED,
                         "%.300s is a mixture of experts, of which no GGUF file is written: --to "
                         "fp8, int8 and int4 are supported",
                         w->plan->from);
    rc = find_head(w);
    return rc ? rc : quantise_gguf(w->plan, &w->config, w->files, w->losses, w->err);
}

int quantise(const struct quantise_plan *plan, struct layer_loss **losses, uint32_t *n_layers,
             struct error *err) {
    struct work w = {
        .plan = plan, .err = err, .out = {.dir = plan->to, .shard_bytes = plan->shard_bytes}};
    const int rc = run(&w);
    if (!rc) *losses = w.losses, *n_layers = w.config.n_layers;
    else free(w.losses);
    if (w.files) w.files->ops->close(w.files);
    checkpoint_fini(&w.out);
    model_config_fini(&w.config);
    free(w.items);
    return rc;
}
