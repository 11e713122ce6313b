/* quantisation.c - see quantisation.h.  A method is a row of a table with the function that reads
 * it. */
#include "engine/model/quantisation.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <jansson.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/model/config_reader.h"

#define KEY "quantization_config"
#define READ                                                                                       \
    "read are FP8, int8 and int4 of compressed-tensors, FP8 of fp8, fbgemm_fp8 and modelopt, and " \
    "int4 and int8 of gptq, awq and auto-round, and mxfp4 of gpt-oss"

enum { MAX_SIDE = 65535, MAX_FILE_BYTES = 1 << 20 };

struct reading {
    struct quantisation *out;
    const json_t *how; /* the object that says how */
    const char *label;
    struct error *err;
};

static int refuse(const struct reading *r, int code, const char *key, const char *why) {
    return error_set(r->err, code, "%.200s: config.json: '" KEY "': '%s' %s", r->label, key, why);
}

/* Refuses a value that is known and not read. */
static int refuse_value(const struct reading *r, const char *key, const char *value) {
    return error_set(r->err, ERR_UNSUPPORTED,
                     "%.200s: config.json: '" KEY "': '%s': weights quantised as '%.60s' are not "
                     "supported: " READ,
                     r->label, key, value);
}

static int read_flag(const struct reading *r, const char *key, bool *out) {
    const json_t *value = config_get(r->how, key);
    if (value && !json_is_boolean(value))
        return refuse(r, ERR_INVALID, key, "is not true or false");
    if (value) *out = json_is_true(value);
    return 0;
}

/* Refuses a number of bits that no reader knows.  The tensors' shapes say which of them it is. */
static int check_bits(const struct reading *r, const json_t *how, const char *key) {
    const json_t *value = config_get(how, key);
    if (!value) return 0;
    if (!json_is_integer(value)) return refuse(r, ERR_INVALID, key, "is not a whole number");
    const json_int_t bits = json_integer_value(value);
    if (bits == 4 || bits == 8 || bits >= 16) return 0;
    return error_set(r->err, ERR_UNSUPPORTED,
                     "%.200s: config.json: '" KEY "': '%s': weights of %" PRId64
                     " bits are not supported: 4 and 8 are",
                     r->label, key, (int64_t)bits);
}

static int add_block(const struct reading *r, const char *key, json_int_t rows, json_int_t cols) {
    struct quantisation *q = r->out;
    if (rows < 1 || rows > MAX_SIDE || cols < 1 || cols > MAX_SIDE)
        return refuse(r, ERR_INVALID, key, "is not the size of a block");
    for (uint32_t i = 0; i < q->n_blocks; i++)
        if (q->blocks[i].rows == rows && q->blocks[i].cols == cols) return 0;
    if (q->n_blocks == QUANTISATION_MOST_BLOCKS)
        return refuse(r, ERR_UNSUPPORTED, key, "has too many sizes of groups and blocks");
    q->blocks[q->n_blocks].rows = (uint16_t)rows;
    q->blocks[q->n_blocks++].cols = (uint16_t)cols;
    return 0;
}

/* Reads the columns of a group; null and -1: one group is a whole row. */
static int read_group(const struct reading *r, const json_t *how, const char *key) {
    const json_t *value = config_get(how, key);
    if (!value) return 0;
    if (!json_is_integer(value)) return refuse(r, ERR_INVALID, key, "is not a whole number");
    const json_int_t size = json_integer_value(value);
    return size == -1 ? 0 : add_block(r, key, 1, size);
}

/* Reads the sides of a block, a list of two or a text such as "128x128". */
static int read_sides(const struct reading *r, const json_t *how, const char *key) {
    const json_t *value = config_get(how, key);
    unsigned rows, cols;
    char end;
    if (!value) return 0;
    if (json_is_string(value) &&
        sscanf(json_string_value(value), "%5ux%5u%c", &rows, &cols, &end) == 2)
        return add_block(r, key, rows, cols);
    if (!json_is_array(value) || json_array_size(value) != 2)
        return refuse(r, ERR_INVALID, key, "is not a list of two sizes");
    return add_block(r, key, json_integer_value(json_array_get(value, 0)),
                     json_integer_value(json_array_get(value, 1)));
}

/* Checks a text against those that are read; NULL ends them.  Case does not matter. */
static int check_text(const struct reading *r, const json_t *how, const char *key,
                      const char *const *known) {
    const json_t *value = config_get(how, key);
    const char *text = json_string_value(value);
    if (!value) return 0;
    if (!text) return refuse(r, ERR_INVALID, key, "is not a text");
    while (*known && strcasecmp(*known, text) != 0) known++;
    return *known ? 0 : refuse_value(r, key, text);
}

/* ---- compressed-tensors ---- */

static const char *const packings[] = {"dense",
                                       "int-quantized",
                                       "float-quantized",
                                       "naive-quantized",
                                       "pack-quantized",
                                       "mixed-precision",
                                       "mxfp4-pack-quantized",
                                       "mxfp8-quantized",
                                       NULL};

/* Notes what activations the model was made for.  E4M3 somewhere counts: only weights of E4M3 ask
 * for it. */
static void note_activations(const struct reading *r, enum activation_kind kind) {
    if (r->out->activations != ACTIVATIONS_E4M3) r->out->activations = kind;
}

static void read_activations(const struct reading *r, const json_t *how) {
    const char *type = json_string_value(config_get(how, "type"));
    const json_t *bits = config_get(how, "num_bits");
    const bool is_e4m3 = type && strcasecmp(type, "float") == 0 && json_integer_value(bits) == 8;
    if (how) note_activations(r, is_e4m3 ? ACTIVATIONS_E4M3 : ACTIVATIONS_OTHER);
}

/* Reads a preset, such as W8A16 or FP8_DYNAMIC.  The tensors show all that its name says, but for
 * activations. */
static int read_preset(const struct reading *r, const char *name) {
    if (strncasecmp(name, "FP8", 3) == 0) note_activations(r, ACTIVATIONS_E4M3);
    else if (!strstr(name, "A16")) note_activations(r, ACTIVATIONS_OTHER);
    return 0;
}

/* Reads what holds for a list of modules; a preset is an array of them. */
static int read_group_of_modules(const struct reading *r, const char *name, const json_t *group) {
    const json_t *weights = config_get(group, "weights");
    static const char *const types[] = {"int", "float", NULL};
    if (json_is_array(group)) return read_preset(r, name);
    if (!json_is_object(group)) return refuse(r, ERR_INVALID, "config_groups", "is malformed");
    if (config_get(group, "output_activations"))
        return refuse(r, ERR_UNSUPPORTED, "output_activations",
                      "is not null: what a product gives is not rounded");
    read_activations(r, config_get(group, "input_activations"));
    int rc = check_text(r, group, "format", packings);
    if (!rc && weights && !json_is_object(weights))
        rc = refuse(r, ERR_INVALID, "weights", "is not an object");
    if (!rc) rc = check_text(r, weights, "type", types);
    if (!rc) rc = check_bits(r, weights, "num_bits");
    if (!rc) rc = read_group(r, weights, "group_size");
    if (!rc) rc = read_sides(r, weights, "block_structure");
    return rc;
}

static int read_compressed_tensors(const struct reading *r) {
    static const char *const sparsities[] = {"dense", NULL};
    json_t *groups = json_object_get(r->how, "config_groups"), *group;
    const json_t *transforms = config_get(r->how, "transform_config");
    const char *name;
    int rc = check_text(r, r->how, "format", packings);
    if (!rc) rc = check_text(r, config_get(r->how, "sparsity_config"), "format", sparsities);
    if (rc) return rc;
    if (json_object_size(transforms) > 0)
        return refuse(r, ERR_UNSUPPORTED, "transform_config",
                      "is not empty: rotations of activations are not supported");
    if (groups && !json_is_object(groups))
        return refuse(r, ERR_INVALID, "config_groups", "is not an object");
    json_object_foreach(groups, name, group) {
        if (!rc) rc = read_group_of_modules(r, name, group);
    }
    return rc;
}

/* ---- FP8 ---- */

static int read_fp8(const struct reading *r) {
    static const char *const floats[] = {"e4m3", "float8_e4m3fn", NULL};
    static const char *const experts[] = {"fp8", NULL};
    r->out->activations = ACTIVATIONS_E4M3;
    const json_t *most = config_get(r->how, "activation_scale_ub");
    if (most && !(json_number_value(most) > 0))
        return refuse(r, ERR_INVALID, "activation_scale_ub", "is not a number above 0");
    r->out->activation_most = (float)json_number_value(most);
    int rc = check_text(r, r->how, "fmt", floats);
    if (!rc) rc = check_text(r, r->how, "expert_dtype", experts);
    return rc ? rc : read_sides(r, r->how, "weight_block_size");
}

static int read_modelopt(const struct reading *r) {
    static const char *const algorithms[] = {"fp8", NULL};
    r->out->activations = ACTIVATIONS_E4M3;
    return check_text(r, r->how, "quant_algo", algorithms);
}

/* ---- GPTQ, AWQ, AutoRound ---- */

static const char *const bits_keys[] = {"bits", "w_bit"}, *const group_keys[] = {"group_size",
                                                                                 "q_group_size"};

static int read_sizes(const struct reading *r) {
    int rc = 0;
    for (size_t i = 0; i < COUNT(bits_keys) && !rc; i++) {
        rc = check_bits(r, r->how, bits_keys[i]);
        if (!rc) rc = read_group(r, r->how, group_keys[i]);
    }
    return rc;
}

/* Refuses exceptions that no tensor shows: modules with other zero points than the rest.  Adds the
 * groups of the exceptions.  overrides: an object of objects. */
static int read_overrides(const struct reading *r, const char *key) {
    json_t *overrides = json_object_get(r->how, key), *override;
    const char *name;
    int rc = 0;
    if (config_get(r->how, key) && !json_is_object(overrides))
        return refuse(r, ERR_INVALID, key, "is not an object");
    json_object_foreach(overrides, name, override) {
        const json_t *sym = config_get(override, "sym");
        if (sym && json_is_true(sym) == r->out->has_zeros)
            return refuse(r, ERR_UNSUPPORTED, key,
                          "has another 'sym' for some modules, which is not supported");
        if (!rc) rc = check_bits(r, override, "bits");
        if (!rc) rc = read_group(r, override, "group_size");
    }
    return rc;
}

static int read_sym(const struct reading *r) {
    bool sym = true;
    const int rc = read_flag(r, "sym", &sym);
    r->out->has_zeros = !sym;
    return rc;
}

static int read_gptq(const struct reading *r) {
    static const char *const formats[] = {"gptq", "gptq_v2", NULL}, *const words[] = {"int32",
                                                                                      NULL};
    const char *format = json_string_value(config_get(r->how, "checkpoint_format"));
    r->out->order = QWEIGHT_GPTQ;
    r->out->zero_less = !format || strcasecmp(format, "gptq_v2") != 0;
    int rc = check_text(r, r->how, "checkpoint_format", formats);
    if (!rc) rc = check_text(r, r->how, "pack_dtype", words);
    if (!rc) rc = read_sizes(r);
    if (!rc) rc = read_sym(r);
    return rc ? rc : read_overrides(r, "dynamic");
}

static int read_awq(const struct reading *r) {
    static const char *const versions[] = {"gemm", NULL};
    bool zeros = true;
    r->out->order = QWEIGHT_AWQ;
    int rc = check_text(r, r->how, "version", versions);
    if (!rc) rc = read_sizes(r);
    if (!rc) rc = read_flag(r, "zero_point", &zeros);
    if (rc || zeros) return rc;
    return refuse(r, ERR_UNSUPPORTED, "zero_point",
                  "is false: AWQ without zero points is not supported");
}

static int read_auto_round(const struct reading *r) {
    static const char *const packed[] = {"auto_round:auto_gptq",      "auto_round:gptqmodel",
                                         "auto_round:auto_awq",       "auto_round",
                                         "auto_round:llm_compressor", NULL},
                             *const types[] = {"int", NULL};
    const char *packing = json_string_value(config_get(r->how, "packing_format"));
    r->out->order = packing && strstr(packing, "awq") ? QWEIGHT_AWQ : QWEIGHT_GPTQ;
    r->out->zero_less = 1;
    const json_t *act_bits = config_get(r->how, "act_bits");
    if (act_bits && json_integer_value(act_bits) < 16) r->out->activations = ACTIVATIONS_OTHER;
    int rc = check_text(r, r->how, "packing_format", packed);
    if (!rc) rc = check_text(r, r->how, "data_type", types);
    if (!rc) rc = read_sizes(r);
    if (!rc) rc = read_sym(r);
    return rc ? rc : read_overrides(r, "extra_config");
}

/* ---- all ---- */

/* Reads nothing: the tensors say all of MXFP4. */
static int read_mxfp4(const struct reading *r) {
    (void)r;
    return 0;
}

static const struct {
    const char *name;
    int (*read)(const struct reading *r);
} methods[] = {{"compressed-tensors", read_compressed_tensors},
               {"fp8", read_fp8},
               {"fbgemm_fp8", read_fp8},
               {"modelopt", read_modelopt},
               {"gptq", read_gptq},
               {"awq", read_awq},
               {"mxfp4", read_mxfp4},
               {"auto-round", read_auto_round},
               {"intel/auto-round", read_auto_round}};

/* Returns the method's name, or NULL.  Earlier versions of two libraries write their settings
 * without one. */
static const char *method_of(const json_t *config, const json_t *how) {
    const char *method = json_string_value(config_get(how, "quant_method"));
    if (method) return method;
    if (config_get(how, "load_in_4bit") || config_get(how, "load_in_8bit")) return "bitsandbytes";
    if (config_get(how, "config_groups")) return "compressed-tensors";
    if (!how && json_is_object(config_get(config, "quantization"))) return "mlx";
    return NULL;
}

int quantisation_read(struct quantisation *out, const json_t *config, const char *label,
                      struct error *err) {
    const json_t *how = config_get(config, KEY);
    if (!how) how = config_get(config, "compression_config");
    const char *method = method_of(config, how);
    struct quantisation q = {0};
    const struct reading r = {.out = &q, .how = how, .label = label, .err = err};
    int rc = 0;
    *out = q;
    if (!how && !method) return 0;
    size_t i = 0;
    while (i < COUNT(methods) && !(method && how && strcmp(methods[i].name, method) == 0)) i++;
    if (i == COUNT(methods))
        return error_set(
            err, ERR_UNSUPPORTED,
            "%.200s: config.json: '%s': the weights are quantised (%.60s), which is not "
            "supported: " READ,
            label, how ? KEY : "quantization", method ? method : "by a method without a name");
    snprintf(q.method, sizeof(q.method), "%s", method);
    rc = methods[i].read(&r);
    if (!rc) rc = add_block(&r, "blocks", 128, 128); /* what all models without the key have */
    if (!rc) *out = q;
    return rc;
}

int quantisation_add_file(json_t *config, const char *dir, struct error *err) {
    static const struct {
        const char *name, *method, *inside;
    } files[] = {{"quantize_config.json", "gptq", NULL},
                 {"quant_config.json", "awq", NULL},
                 {"hf_quant_config.json", "modelopt", "quantization"}};
    char path[PATH_MAX];
    for (size_t i = 0; i < COUNT(files); i++) {
        json_t *root = NULL, *how;
        struct error why;
        if (config_get(config, KEY) || config_get(config, "compression_config")) return 0;
        const int n = snprintf(path, sizeof(path), "%s/%s", dir, files[i].name);
        if (n < 0 || n >= (int)sizeof(path)) continue; /* config.json's own path was shorter */
        const int rc = json_guard_read(&root, path, MAX_FILE_BYTES, &why);
        if (rc == ERR_NOT_FOUND) continue;
        if (rc) return error_set(err, rc, "%s", why.text);
        how = files[i].inside ? json_object_get(root, files[i].inside) : root;
        if (!json_is_object(how)) how = root;
        int failed = json_object_set(config, KEY, how);
        if (!config_get(how, "quant_method"))
            failed |= json_object_set_new(how, "quant_method", json_string(files[i].method));
        json_decref(root);
        if (failed)
            return error_set(err, ERR_NOMEM, "%.200s: no memory for %s", dir, files[i].name);
    }
    return 0;
}
