/* gguf.c - see gguf.h. */
#include "engine/gguf/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf_types.h"

enum {
    MAX_KEYS = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_NESTING = 4,
    MAX_KEY_BYTES = 1 << 10,
    USUAL_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 16
};

static const char MAGIC[4] = {'G', 'G', 'U', 'F'};
static const uint8_t type_bytes[GGUF_N_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};

struct key {
    const char *name;
    size_t n;
    struct gguf_value value;
};

struct gguf {
    char label[256];
    const uint8_t *bytes, *end;
    struct key *keys;            /* by name */
    struct gguf_tensor *tensors; /* by name */
    uint32_t n_keys, n_tensors;
};

/* What is still to be read of the file, and where its errors go. */
struct reader {
    struct gguf *file;
    const uint8_t *at, *end;
    struct error *err;
};

static int invalid(const struct reader *r, const char *why) {
    return error_set(r->err, ERR_INVALID, "%.200s: %s", r->file->label, why);
}

static int cut_short(const struct reader *r) {
    return invalid(r, "the file ends inside its header: it is cut short, or malformed");
}

static uint64_t left(const struct reader *r) {
    return (uint64_t)(r->end - r->at);
}

static uint64_t number_at(const uint8_t *bytes, size_t n) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static int read_number(struct reader *r, size_t n, uint64_t *out) {
    *out = 0;
    if (left(r) < n) return cut_short(r);
    *out = number_at(r->at, n);
    r->at += n;
    return 0;
}

static int read_string(struct reader *r, const char **out, uint64_t *n) {
    const int rc = read_number(r, 8, n);
    *out = "";
    if (rc) return rc;
    if (*n > left(r)) return cut_short(r);
    *out = (const char *)r->at;
    r->at += *n;
    return 0;
}

static int read_type(struct reader *r, enum gguf_type *out) {
    uint64_t type;
    const int rc = read_number(r, 4, &type);
    *out = GGUF_U8;
    if (rc) return rc;
    if (type >= GGUF_N_TYPES) return invalid(r, "a key has a type that there is not");
    *out = (enum gguf_type)type;
    return 0;
}

/* Passes over n elements. */
static int skip(struct reader *r, enum gguf_type type, uint64_t n, int depth) {
    const char *text;
    uint64_t n_inner;
    enum gguf_type inner;
    int rc = 0;
    if (type_bytes[type]) {
        if (n > left(r) / type_bytes[type]) return cut_short(r);
        r->at += n * type_bytes[type];
        return 0;
    }
    if (depth == MAX_NESTING) return invalid(r, "arrays are nested too deeply");
    if (n > left(r) / 8) return cut_short(r); /* each has a length of 8 bytes, at least */
    for (uint64_t i = 0; !rc && i < n; i++) {
        if (type == GGUF_STRING) {
            rc = read_string(r, &text, &n_inner);
            continue;
        }
        rc = read_type(r, &inner);
        if (!rc) rc = read_number(r, 8, &n_inner);
        if (!rc) rc = skip(r, inner, n_inner, depth + 1);
    }
    return rc;
}

static int read_value(struct reader *r, struct gguf_value *out) {
    const char *text;
    int rc = read_type(r, &out->type);
    if (rc) return rc;
    out->n = 1;
    out->element = out->type;
    out->bytes = r->at;
    if (out->type == GGUF_STRING) {
        rc = read_string(r, &text, &out->n);
        if (!rc) out->bytes = (const uint8_t *)text;
        return rc;
    }
    if (out->type != GGUF_ARRAY) return skip(r, out->type, 1, 0);
    rc = read_type(r, &out->element);
    if (!rc) rc = read_number(r, 8, &out->n);
    out->bytes = r->at;
    return rc ? rc : skip(r, out->element, out->n, 0);
}

static int compare_names(const char *a, size_t n_a, const char *b, size_t n_b) {
    const int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare_keys(const void *left_key, const void *right_key) {
    const struct key *a = left_key, *b = right_key;
    return compare_names(a->name, a->n, b->name, b->n);
}

static int read_keys(struct reader *r, uint64_t n) {
    struct gguf *file = r->file;
    if (n > MAX_KEYS || n > left(r) / 12) return invalid(r, "it has more keys than it can have");
    file->keys = calloc(n ? n : 1, sizeof(*file->keys));
    if (!file->keys)
        return error_set(r->err, ERR_NOMEM, "%.200s: no memory for its keys", file->label);
    for (uint64_t i = 0; i < n; i++) {
        struct key *key = &file->keys[file->n_keys];
        uint64_t n_name;
        int rc = read_string(r, &key->name, &n_name);
        if (!rc && (n_name == 0 || n_name > MAX_KEY_BYTES))
            rc = invalid(r, "a key has no name, or one that is too long");
        if (rc) return rc;
        key->n = n_name;
        if ((rc = read_value(r, &key->value))) return rc;
        file->n_keys++;
    }
    qsort(file->keys, file->n_keys, sizeof(*file->keys), compare_keys);
    for (uint32_t i = 1; i < file->n_keys; i++)
        if (compare_keys(&file->keys[i - 1], &file->keys[i]) == 0)
            return error_set(r->err, ERR_INVALID, "%.200s: the key '%.*s' is there twice",
                             file->label, (int)file->keys[i].n, file->keys[i].name);
    return 0;
}

static int blame_tensor(const struct reader *r, const struct gguf_tensor *t, const char *why) {
    return error_set(r->err, ERR_INVALID, "%.160s: tensor '%.100s' %s", r->file->label, t->name,
                     why);
}

static int read_name(struct reader *r, struct gguf_tensor *t) {
    const char *name;
    uint64_t n;
    const int rc = read_string(r, &name, &n);
    if (rc) return rc;
    if (n == 0 || n >= GGUF_MAX_NAME || memchr(name, '\0', n))
        return invalid(r, "a tensor has no name, or one that is too long");
    memcpy(t->name, name, n);
    return 0;
}

static int read_dims(struct reader *r, struct gguf_tensor *t) {
    uint64_t n, dim;
    int rc = read_number(r, 4, &n);
    if (rc) return rc;
    if (n == 0 || n > GGUF_MAX_DIMS) return blame_tensor(r, t, "has not 1 to 4 dimensions");
    t->n_dims = (uint32_t)n;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if ((rc = read_number(r, 8, &dim))) return rc;
        if (dim == 0 || dim > INT32_MAX)
            return blame_tensor(r, t, "has a dimension that is not from 1 to 2^31 - 1");
        t->dims[t->n_dims - 1 - i] = (uint32_t)dim;
    }
    return 0;
}

static int read_tensor_type(struct reader *r, struct gguf_tensor *t) {
    uint64_t type;
    char number[24], known[GGUF_TYPES_TEXT];
    const int rc = read_number(r, 4, &type);
    if (rc || gguf_element_of(type, &t->element)) return rc;
    const char *name = gguf_type_name(type);
    snprintf(number, sizeof(number), "number %" PRIu64, type);
    gguf_types_text(known);
    return error_set(r->err, ERR_UNSUPPORTED,
                     "%.160s: tensor '%.100s': its type, %s, is not supported; these are: %s",
                     r->file->label, t->name, name ? name : number, known);
}

/* Computes the bytes of a tensor; no product wraps. */
static int measure(const struct reader *r, struct gguf_tensor *t) {
    const uint32_t cols = t->dims[t->n_dims - 1];
    uint64_t rows = 1;
    if (element_is_packed(t->element) && cols % packed_block(t->element) != 0)
        return blame_tensor(r, t, "has rows that are not whole blocks");
    for (uint32_t i = 0; i + 1 < t->n_dims; i++) {
        rows *= t->dims[i];
        if (rows > INT32_MAX) return blame_tensor(r, t, "has too many rows");
    }
    t->n_bytes = rows * element_bytes(t->element, cols);
    return 0;
}

/* Reads what the header says of a tensor.  Its data is its offset until all are read. */
static int read_tensor(struct reader *r, struct gguf_tensor *t, uint64_t *offset) {
    int rc = read_name(r, t);
    if (!rc) rc = read_dims(r, t);
    if (!rc) rc = read_tensor_type(r, t);
    if (!rc) rc = read_number(r, 8, offset);
    return rc ? rc : measure(r, t);
}

static int read_alignment(const struct reader *r, uint64_t *out) {
    const struct gguf_value *value = gguf_find(r->file, "general.alignment");
    *out = USUAL_ALIGNMENT;
    if (!value) return 0;
    if (gguf_whole(value, out) && *out >= MIN_ALIGNMENT && *out <= MAX_ALIGNMENT &&
        (*out & (*out - 1)) == 0)
        return 0;
    return invalid(r, "'general.alignment' is not a power of two from 8 to 65536");
}

static int compare_tensors(const void *a, const void *b) {
    return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int compare_data(const void *left_tensor, const void *right_tensor) {
    const struct gguf_tensor *a = left_tensor, *b = right_tensor;
    return (a->data > b->data) - (a->data < b->data);
}

/* Refuses tensors of which two have the same name, or share bytes; leaves them by name. */
static int check_tensors(const struct reader *r) {
    struct gguf_tensor *t = r->file->tensors;
    const uint32_t n = r->file->n_tensors;
    qsort(t, n, sizeof(*t), compare_data);
    for (uint32_t i = 1; i < n; i++)
        if ((uint64_t)((const char *)t[i].data - (const char *)t[i - 1].data) < t[i - 1].n_bytes)
            return blame_tensor(r, &t[i], "shares bytes with another one");
    qsort(t, n, sizeof(*t), compare_tensors);
    for (uint32_t i = 1; i < n; i++)
        if (strcmp(t[i - 1].name, t[i].name) == 0) return blame_tensor(r, &t[i], "is there twice");
    return 0;
}

/* Sets where the tensors' data is. */
static int place_tensors(struct reader *r, const uint64_t *offsets) {
    struct gguf *file = r->file;
    uint64_t alignment, begin = (uint64_t)(r->at - file->bytes);
    const uint64_t size = (uint64_t)(r->end - file->bytes);
    const int rc = read_alignment(r, &alignment);
    if (rc) return rc;
    begin = (begin + alignment - 1) / alignment * alignment;
    for (uint32_t i = 0; i < file->n_tensors; i++) {
        struct gguf_tensor *t = &file->tensors[i];
        if (offsets[i] % alignment != 0) return blame_tensor(r, t, "is not aligned");
        if (begin > size || offsets[i] > size - begin || t->n_bytes > size - begin - offsets[i])
            return blame_tensor(r, t, "ends beyond the file: it is cut short, or malformed");
        t->data = file->bytes + begin + offsets[i];
    }
    return check_tensors(r);
}

static int read_tensors(struct reader *r, uint64_t n) {
    struct gguf *file = r->file;
    enum { LEAST_BYTES = 8 + 1 + 4 + 8 + 4 + 8 };
    if (n > MAX_TENSORS || n > left(r) / LEAST_BYTES)
        return invalid(r, "it has more tensors than it can have");
    uint64_t *offsets = calloc(n ? n : 1, sizeof(*offsets));
    file->tensors = calloc(n ? n : 1, sizeof(*file->tensors));
    int rc = 0;
    if (!offsets || !file->tensors)
        rc = error_set(r->err, ERR_NOMEM, "%.200s: no memory for its tensors", file->label);
    for (; !rc && file->n_tensors < n; file->n_tensors++)
        rc = read_tensor(r, &file->tensors[file->n_tensors], &offsets[file->n_tensors]);
    if (!rc) rc = place_tensors(r, offsets);
    free(offsets);
    return rc;
}

static int read_version(struct reader *r) {
    uint64_t version;
    if (left(r) < 4 || memcmp(r->at, MAGIC, 4) != 0) return invalid(r, "it is no GGUF file");
    r->at += 4;
    const int rc = read_number(r, 4, &version);
    if (rc || version == 2 || version == 3) return rc;
    if (version != 0 && (version & 0xffff) == 0)
        return error_set(
            r->err, ERR_UNSUPPORTED,
            "%.200s: a big-endian GGUF file is not supported, only a little-endian one",
            r->file->label);
    return error_set(r->err, ERR_UNSUPPORTED,
                     "%.200s: version %" PRIu64 " of GGUF is not supported; 2 and 3 are",
                     r->file->label, version);
}

static int read_file(struct reader *r) {
    uint64_t n_tensors = 0, n_keys = 0;
    int rc = read_version(r);
    if (!rc) rc = read_number(r, 8, &n_tensors);
    if (!rc) rc = read_number(r, 8, &n_keys);
    if (!rc) rc = read_keys(r, n_keys);
    return rc ? rc : read_tensors(r, n_tensors);
}

int gguf_parse(struct gguf **out, const void *bytes, size_t size, const char *label,
               struct error *err) {
    struct gguf *file = calloc(1, sizeof(*file));
    if (!file) return error_set(err, ERR_NOMEM, "%.200s: no memory for its header", label);
    snprintf(file->label, sizeof(file->label), "%s", label);
    file->bytes = bytes;
    file->end = file->bytes + size;
    struct reader r = {.file = file, .at = bytes, .end = file->end, .err = err};
    const int rc = read_file(&r);
    if (rc) gguf_destroy(file);
    else *out = file;
    return rc;
}

void gguf_destroy(struct gguf *file) {
    if (!file) return;
    free(file->keys);
    free(file->tensors);
    free(file);
}

uint32_t gguf_n_tensors(const struct gguf *file) {
    return file->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint32_t i) {
    return &file->tensors[i];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name) {
    struct gguf_tensor like = {0};
    if (strlen(name) >= sizeof(like.name)) return NULL;
    snprintf(like.name, sizeof(like.name), "%s", name);
    return bsearch(&like, file->tensors, file->n_tensors, sizeof(like), compare_tensors);
}

uint32_t gguf_n_keys(const struct gguf *file) {
    return file->n_keys;
}

const char *gguf_key_at(const struct gguf *file, uint32_t i, size_t *n) {
    *n = file->keys[i].n;
    return file->keys[i].name;
}

const struct gguf_value *gguf_find(const struct gguf *file, const char *key) {
    const struct key like = {.name = key, .n = strlen(key)},
                     *found = bsearch(&like, file->keys, file->n_keys, sizeof(like), compare_keys);
    return found ? &found->value : NULL;
}

/* Returns an integer with its sign. */
static int64_t signed_at(const struct gguf_value *value) {
    const unsigned n_bits = 8 * type_bytes[value->type];
    return (int64_t)(number_at(value->bytes, n_bits / 8) << (64 - n_bits)) >> (64 - n_bits);
}

bool gguf_whole(const struct gguf_value *value, uint64_t *out) {
    if (!value) return false;
    switch (value->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64: *out = number_at(value->bytes, type_bytes[value->type]); return true;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        if (signed_at(value) < 0) return false;
        *out = (uint64_t)signed_at(value);
        return true;
    default: return false;
    }
}

bool gguf_number(const struct gguf_value *value, double *out) {
    uint64_t whole;
    float f32;
    if (!value) return false;
    if (gguf_whole(value, &whole)) *out = (double)whole;
    else if (value->type == GGUF_F32) memcpy(&f32, value->bytes, sizeof(f32)), *out = f32;
    else if (value->type == GGUF_F64) memcpy(out, value->bytes, sizeof(*out));
    else if (value->type < GGUF_F32 || value->type == GGUF_I64) *out = (double)signed_at(value);
    else return false;
    return true;
}

bool gguf_truth(const struct gguf_value *value, bool other) {
    return value && value->type == GGUF_BOOL ? value->bytes[0] != 0 : other;
}

struct gguf_value gguf_element(const struct gguf_value *array, uint64_t i) {
    return (struct gguf_value){.type = array->element,
                               .bytes = array->bytes + i * type_bytes[array->element],
                               .n = 1,
                               .element = array->element};
}

const char *gguf_next_string(const struct gguf *file, struct gguf_strings *strings, size_t *n) {
    const struct gguf_value *array = strings->array;
    if (!array || array->type != GGUF_ARRAY || array->element != GGUF_STRING ||
        strings->next == array->n)
        return NULL;
    const uint8_t *at = strings->next == 0 ? array->bytes : strings->at;
    /* The file may have changed since it was checked. */
    if (file->end - at < 8) return NULL;
    const uint64_t length = number_at(at, 8);
    if (length > (uint64_t)(file->end - at) - 8) return NULL;
    strings->at = at + 8 + length;
    strings->next++;
    *n = length;
    return (const char *)at + 8;
}
