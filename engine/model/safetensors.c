/* safetensors.c - see safetensors.h. */
#include "engine/model/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/device/weight.h"
#include "engine/model/weight_source.h"

enum { LENGTH_BYTES = 8, SHAPE_TEXT = 24 * SAFETENSORS_MAX_DIMS };

/* Every dtype of the format: the sizes of unused tensors are checked, too. */
struct dtype_name {
    const char *name;
    uint32_t size_bytes;
    int element; /* enum element, or -1: weights are not read from it */
};

static const struct dtype_name dtype_names[] = {
    {"F32", 4, ELEMENT_F32}, {"F16", 2, ELEMENT_F16}, {"BF16", 2, ELEMENT_BF16},
    {"F64", 8, -1},          {"I64", 8, -1},          {"U64", 8, -1},
    {"I32", 4, -1},          {"U32", 4, -1},          {"I16", 2, -1},
    {"U16", 2, -1},          {"I8", 1, -1},           {"U8", 1, -1},
    {"BOOL", 1, -1},         {"F8_E4M3", 1, -1},      {"F8_E5M2", 1, -1},
    {"C64", 8, -1},          {"F8_E8M0", 1, -1},
};

struct tensor {
    const char *name; /* in the parsed header */
    const struct dtype_name *dtype;
    uint32_t n_dims;
    uint64_t dims[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end; /* from the start of the data */
};

struct safetensors {
    char *label;
    json_t *header;
    const unsigned char *data;
    uint64_t data_bytes;
    struct tensor *tensors; /* sorted by name once parsed */
    uint32_t n_tensors;
};

static int refuse(const struct safetensors *file, const char *name, const char *why,
                  struct error *err) {
    return error_set(err, ERR_INVALID, "%.200s: tensor '%.160s': %s", file->label, name, why);
}

static const struct dtype_name *find_dtype(const json_t *value) {
    const char *name = json_string_value(value);
    for (size_t i = 0; name && i < sizeof(dtype_names) / sizeof(dtype_names[0]); i++)
        if (strcmp(name, dtype_names[i].name) == 0) return &dtype_names[i];
    return NULL;
}

static bool get_u64(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* Fills in dims and the bytes they take, without overflow. */
static int read_shape(const struct safetensors *file, struct tensor *t, const json_t *shape,
                      uint64_t *size_bytes, struct error *err) {
    if (!json_is_array(shape)) return refuse(file, t->name, "'shape' is not a list", err);
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return refuse(file, t->name, "too many dimensions", err);
    *size_bytes = t->dtype->size_bytes;
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!get_u64(json_array_get(shape, i), &t->dims[i]))
            return refuse(file, t->name, "'shape' holds something other than a size", err);
        if (__builtin_mul_overflow(*size_bytes, t->dims[i], size_bytes))
            return refuse(file, t->name, "the size of its shape overflows", err);
    }
    return 0;
}

static int read_tensor(const struct safetensors *file, struct tensor *t, const json_t *entry,
                       struct error *err) {
    uint64_t size_bytes = 0;
    if (!json_is_object(entry))
        return refuse(file, t->name, "its header entry is not an object", err);
    t->dtype = find_dtype(json_object_get(entry, "dtype"));
    if (!t->dtype) return refuse(file, t->name, "unknown 'dtype'", err);
    int rc = read_shape(file, t, json_object_get(entry, "shape"), &size_bytes, err);
    if (rc) return rc;
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2 || !get_u64(json_array_get(offsets, 0), &t->begin) ||
        !get_u64(json_array_get(offsets, 1), &t->end))
        return refuse(file, t->name, "'data_offsets' is not [begin, end]", err);
    if (t->begin > t->end) return refuse(file, t->name, "its data ends before it begins", err);
    if (t->end > file->data_bytes)
        return refuse(file, t->name, "its data reaches past the end of the file", err);
    if (t->end - t->begin != size_bytes)
        return refuse(file, t->name, "its data is not as long as its shape", err);
    return 0;
}

static int by_begin(const void *a, const void *b) {
    const struct tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1; /* an empty tensor before its neighbour */
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int check_overlap(struct safetensors *file, struct error *err) {
    qsort(file->tensors, file->n_tensors, sizeof(*file->tensors), by_begin);
    for (uint32_t i = 1; i < file->n_tensors; i++) {
        if (file->tensors[i].begin < file->tensors[i - 1].end)
            return error_set(err, ERR_INVALID, "%.200s: tensor '%.120s' overlaps tensor '%.120s'",
                             file->label, file->tensors[i].name, file->tensors[i - 1].name);
    }
    qsort(file->tensors, file->n_tensors, sizeof(*file->tensors), by_name);
    return 0;
}

static int read_tensors(struct safetensors *file, struct error *err) {
    const char *name;
    json_t *entry;
    size_t n = json_object_size(file->header);
    file->tensors =
        calloc(n + 1, sizeof(*file->tensors)); /* n is bounded by the guard's count of values */
    if (!file->tensors)
        return error_set(err, ERR_NOMEM, "%.200s: no memory for its header", file->label);
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        struct tensor *t = &file->tensors[file->n_tensors];
        t->name = name;
        int rc = read_tensor(file, t, entry, err);
        if (rc) return rc;
        file->n_tensors++;
    }
    return check_overlap(file, err);
}

/* Parses a copy of the header: a mapped file may change between its check and its use. */
static int parse_header(struct safetensors *file, const unsigned char *bytes, size_t length,
                        struct error *err) {
    char *copy = malloc(length + 1);
    if (!copy) return error_set(err, ERR_NOMEM, "%.200s: no memory for its header", file->label);
    memcpy(copy, bytes, length);
    const int rc = json_guard_parse(&file->header, copy, length, file->label, err);
    free(copy);
    return rc;
}

static int read_header(struct safetensors *file, const unsigned char *bytes, size_t size,
                       struct error *err) {
    uint64_t length = 0;
    if (size < LENGTH_BYTES)
        return error_set(err, ERR_INVALID, "%.200s: too short for a header", file->label);
    for (int i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > size - LENGTH_BYTES)
        return error_set(err, ERR_INVALID, "%.200s: a header of %" PRIu64 " bytes in a file of %zu",
                         file->label, length, size);
    if (length > SAFETENSORS_MAX_HEADER)
        return error_set(err, ERR_INVALID,
                         "%.200s: a header of %" PRIu64 " bytes, more than the %d allowed",
                         file->label, length, SAFETENSORS_MAX_HEADER);
    file->data = bytes + LENGTH_BYTES + length;
    file->data_bytes = size - LENGTH_BYTES - length;
    return parse_header(file, bytes + LENGTH_BYTES, (size_t)length, err);
}

int safetensors_parse(struct safetensors **out, const void *bytes, size_t size, const char *label,
                      struct error *err) {
    int rc = ERR_NOMEM;
    struct safetensors *file = calloc(1, sizeof(*file));
    if (file) file->label = strdup(label);
    if (!file || !file->label) {
        error_set(err, ERR_NOMEM, "%.200s: no memory for its header", label);
        goto fail;
    }
    rc = read_header(file, bytes, size, err);
    if (rc) goto fail;
    rc = read_tensors(file, err);
    if (rc) goto fail;
    *out = file;
    return 0;

fail:
    safetensors_destroy(file);
    return rc;
}

void safetensors_destroy(struct safetensors *file) {
    if (!file) return;
    json_decref(file->header); /* accepts NULL */
    free(file->tensors);
    free(file->label);
    free(file);
}

uint32_t safetensors_count(const struct safetensors *file) {
    return file->n_tensors;
}

static const struct tensor *find(const struct safetensors *file, const char *name,
                                 struct error *err) {
    const struct tensor key = {.name = name};
    const struct tensor *t = bsearch(&key, file->tensors, file->n_tensors, sizeof(key), by_name);
    if (!t) error_set(err, ERR_NOT_FOUND, "%.200s: no tensor '%.160s'", file->label, name);
    return t;
}

int safetensors_has(const struct safetensors *file, const char *name, struct error *err) {
    return find(file, name, err) ? 0 : ERR_NOT_FOUND;
}

static bool shape_matches(const struct tensor *t, const struct tensor_shape *want) {
    if (t->n_dims != want->n_dims) return false;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (t->dims[i] != want->dims[i]) return false;
    return true;
}

/* Writes the dimensions to out [SHAPE_TEXT], with commas between them. */
static void write_shape(char *out, const uint64_t *dims, uint32_t n_dims) {
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n_dims; i++)
        n += (size_t)snprintf(out + n, SHAPE_TEXT - n, "%s%" PRIu64, i ? ", " : "", dims[i]);
}

static int refuse_shape(const struct safetensors *file, const struct tensor *t,
                        const struct tensor_shape *want, struct error *err) {
    char has[SHAPE_TEXT], wanted[SHAPE_TEXT];
    uint64_t dims[3];
    for (uint32_t i = 0; i < want->n_dims; i++) dims[i] = want->dims[i];
    write_shape(has, t->dims, t->n_dims);
    write_shape(wanted, dims, want->n_dims);
    return error_set(err, ERR_INVALID,
                     "%.200s: tensor '%.160s': its shape is [%s], the configuration asks for [%s]",
                     file->label, t->name, has, wanted);
}

/* Returns the tensor's data, or NULL if they are not aligned. */
static const void *data_of(const struct safetensors *file, const struct tensor *t,
                           struct error *err) {
    const unsigned char *data = file->data + t->begin;
    if ((uintptr_t)data % t->dtype->size_bytes == 0) return data;
    refuse(file, t->name, "its data is not aligned for its dtype", err);
    return NULL;
}

int safetensors_view(const struct safetensors *file, const char *name, struct safetensors_view *out,
                     struct error *err) {
    const struct tensor *t = find(file, name, err);
    if (!t) return ERR_NOT_FOUND;
    *out = (struct safetensors_view){.dtype = t->dtype->name,
                                     .n_dims = t->n_dims,
                                     .size_bytes = t->end - t->begin,
                                     .data = data_of(file, t, err)};
    memcpy(out->dims, t->dims, sizeof(out->dims));
    return out->data ? 0 : ERR_INVALID;
}

const char *safetensors_name(const struct safetensors *file, uint32_t i) {
    return file->tensors[i].name;
}

int safetensors_get(const struct safetensors *file, const char *name,
                    const struct tensor_shape *shape, struct weight *out, struct error *err) {
    const struct tensor *t = find(file, name, err);
    if (!t) return ERR_NOT_FOUND;
    if (t->dtype->element < 0)
        return error_set(err, ERR_UNSUPPORTED,
                         "%.200s: tensor '%.160s': dtype %s is not supported: weights must be F32, "
                         "F16 or BF16, and not quantised",
                         file->label, name, t->dtype->name);
    if (!shape_matches(t, shape)) return refuse_shape(file, t, shape, err);
    const void *data = data_of(file, t, err);
    if (!data) return ERR_INVALID;
    uint32_t rows = 1;
    for (uint32_t i = 0; i + 1 < shape->n_dims; i++) rows *= shape->dims[i];
    *out =
        weight_plain(data, (enum element)t->dtype->element, rows, shape->dims[shape->n_dims - 1]);
    return 0;
}
