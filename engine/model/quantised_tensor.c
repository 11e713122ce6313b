/* quantised_tensor.c - see quantised_tensor.h.  A layout is a row of a table: the tensor with the
 * codes, how it is described, and how it is converted. */
#include "engine/model/quantised_tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/model/quantisation.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_source.h"

enum { WORD_BITS = 32, MX_GROUP = 32, MAX_NAME = 256, TILE_ROWS = 64 };

/* What was found of a module. */
struct found {
    const struct quantised_module *m;
    const char *suffix; /* of its codes */
    struct safetensors_view codes, scales, zeros;
    struct weight weight;
    uint32_t bits, n_groups, group; /* of codes in words; columns of a group */
    bool has_zeros;
};

struct layout {
    const char *suffix, *dtype;
    const char *weight;       /* what the weight's name has behind the module's */
    enum qweight_order order; /* of the configuration */
    int (*describe)(struct found *f);
    int (*convert)(const struct found *f, uint32_t first, const struct weight *to);
};

static int refuse(const struct found *f, int code, const char *suffix, const char *why) {
    return error_set(f->m->err, code, "tensor '%.160s%s': %s", f->m->name, suffix, why);
}

static bool name_of(char out[MAX_NAME], const char *module, const char *suffix) {
    const int n = snprintf(out, MAX_NAME, "%s%s", module, suffix);
    return n > 0 && n < MAX_NAME;
}

static bool has(const struct weight_source *files, const char *module, const char *suffix) {
    char name[MAX_NAME];
    return name_of(name, module, suffix) && files->ops->has(files, name);
}

/* Finds a tensor of the module; its absence is an error. */
static int find(const struct found *f, const char *suffix, struct safetensors_view *out) {
    char name[MAX_NAME];
    if (!has(f->m->files, f->m->name, suffix))
        return error_set(f->m->err, ERR_INVALID, "tensor '%.160s%s' has no '%.160s%s' beside it",
                         f->m->name, f->suffix, f->m->name, suffix);
    name_of(name, f->m->name, suffix);
    return f->m->files->ops->view(f->m->files, name, out, f->m->err);
}

static bool has_dims(const struct safetensors_view *view, const uint64_t *dims, uint32_t n) {
    uint32_t i = 0;
    while (i < n && i < view->n_dims && view->dims[i] == dims[i]) i++;
    return view->n_dims == n && i == n;
}

static bool is_shape(const struct safetensors_view *view, uint64_t rows, uint64_t cols) {
    const uint64_t dims[] = {rows, cols};
    return has_dims(view, dims, 2);
}

static int refuse_shape(const struct found *f, const char *suffix,
                        const struct safetensors_view *view) {
    char shape[96] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < view->n_dims && n < sizeof(shape) - 24; i++)
        n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%" PRIu64, i ? ", " : "",
                              view->dims[i]);
    return error_set(f->m->err, ERR_INVALID,
                     "tensor '%.160s%s': its shape [%s] does not go with a weight of %" PRIu32
                     " x %" PRIu32,
                     f->m->name, suffix, shape, f->m->rows, f->m->cols);
}

/* Checks that the type of scales is one of weight.h, and notes it. */
static int read_scale_type(struct found *f, const char *suffix) {
    static const struct {
        const char *dtype;
        enum scale_type type;
    } types[] = {{"F32", SCALE_F32},
                 {"F16", SCALE_F16},
                 {"BF16", SCALE_BF16},
                 {"F8_E8M0", SCALE_E8M0},
                 {"U8", SCALE_E8M0}};
    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(types[i].dtype, f->scales.dtype) == 0) {
            f->weight.format.scale = types[i].type;
            return 0;
        }
    return refuse(f, ERR_UNSUPPORTED, suffix,
                  "scales must be F32, F16, BF16, F8_E8M0 or U8 with exponents");
}

/* Returns the columns of each of n groups in a row, or 0 if no such groups make up a row. */
static uint32_t group_of(const struct found *f, uint64_t n) {
    const struct quantisation *q = f->m->how;
    const uint32_t cols = f->m->cols;
    for (uint32_t i = 0; i < q->n_blocks; i++)
        if (q->blocks[i].rows == 1 && div_up(cols, q->blocks[i].cols) == n)
            return q->blocks[i].cols;
    return n > 0 && cols % n == 0 && cols / n <= UINT16_MAX ? (uint32_t)(cols / n) : 0;
}

/* Notes the blocks that a tensor of scales is for: the whole weight, rows, groups of columns, or
 * blocks of both. */
static bool find_blocks(struct found *f) {
    const struct safetensors_view *s = &f->scales;
    struct weight_format *format = &f->weight.format;
    const struct quantisation *q = f->m->how;
    const uint64_t n_rows = s->n_dims > 0 ? s->dims[0] : 1, n_cols = s->n_dims > 1 ? s->dims[1] : 1;
    if (s->n_dims > 2) return false;
    format->block_rows = format->block_cols = 0;
    if (n_rows == 1 && n_cols == 1) return true;
    if (n_rows == f->m->rows) {
        const uint32_t group = n_cols == 1 ? 0 : group_of(f, n_cols);
        format->block_rows = 1;
        format->block_cols = (uint16_t)group;
        if (n_cols == 1 || group > 0) return true;
    }
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        const uint16_t rows = q->blocks[i].rows, cols = q->blocks[i].cols;
        if (div_up(f->m->rows, rows) != n_rows || div_up(f->m->cols, cols) != n_cols) continue;
        format->block_rows = rows;
        format->block_cols = cols;
        return true;
    }
    return false;
}

/* ---- elements of 8 bits with scales beside them ---- */

static int describe_scaled(struct found *f) {
    static const char *const names[] = {".weight_scale_inv", ".weight_scale"};
    const char *scales = has(f->m->files, f->m->name, names[0]) ? names[0] : names[1];
    if (!is_shape(&f->codes, f->m->rows, f->m->cols)) return refuse_shape(f, f->suffix, &f->codes);
    if (has(f->m->files, f->m->name, ".weight_zero_point"))
        return refuse(f, ERR_UNSUPPORTED, ".weight_zero_point",
                      "zero points of elements of 8 bits are not supported");
    int rc = find(f, scales, &f->scales);
    if (!rc) rc = read_scale_type(f, scales);
    if (!rc && !find_blocks(f)) rc = refuse_shape(f, scales, &f->scales);
    f->weight.format.element = strcmp(f->codes.dtype, "I8") == 0 ? ELEMENT_I8 : ELEMENT_E4M3;
    return rc;
}

/* ---- E2M1 in groups of 32 ---- */

static int describe_mxfp4(struct found *f) {
    static const char scales[] = ".weight_scale";
    const uint32_t rows = f->m->rows, cols = f->m->cols;
    if (has(f->m->files, f->m->name, ".weight_global_scale"))
        return refuse(f, ERR_UNSUPPORTED, f->suffix,
                      "NVFP4 is not supported: mxfp4-pack-quantized, int4 and FP8 are");
    if (cols % MX_GROUP != 0 || !is_shape(&f->codes, rows, cols / 2))
        return refuse_shape(f, f->suffix, &f->codes);
    int rc = find(f, scales, &f->scales);
    if (rc) return rc;
    if (strcmp(f->scales.dtype, "U8") != 0 && strcmp(f->scales.dtype, "F8_E8M0") != 0)
        return refuse(f, ERR_INVALID, scales, "is not U8, as exponents are");
    if (!is_shape(&f->scales, rows, cols / MX_GROUP)) return refuse_shape(f, scales, &f->scales);
    f->weight.format = (struct weight_format){ELEMENT_E2M1, SCALE_E8M0, 1, MX_GROUP, false};
    return 0;
}

/* Describes all experts of a layer, as gpt-oss has them. */
static int describe_blocks(struct found *f) {
    static const char scales[] = "_scales";
    const uint64_t n = f->m->n_stacked, rows = f->m->rows / n, blocks = f->m->cols / MX_GROUP;
    const uint64_t codes[] = {n, rows, blocks, MX_GROUP / 2};
    if (f->m->cols % MX_GROUP != 0 || !has_dims(&f->codes, codes, 4))
        return refuse_shape(f, f->suffix, &f->codes);
    const int rc = find(f, scales, &f->scales);
    if (rc) return rc;
    if (strcmp(f->scales.dtype, "U8") != 0)
        return refuse(f, ERR_INVALID, scales, "is not U8, as exponents are");
    if (!has_dims(&f->scales, codes, 3)) return refuse_shape(f, scales, &f->scales);
    f->weight.format = (struct weight_format){ELEMENT_E2M1, SCALE_E8M0, 1, MX_GROUP, false};
    return 0;
}

/* ---- codes in words of 32 bits ---- */

static uint32_t word_at(const struct safetensors_view *view, size_t i) {
    return ((const uint32_t *)view->data)[i];
}

/* Returns code number i of those that follow one another in words. */
static uint32_t code_of(uint32_t word, uint32_t i, uint32_t bits) {
    return word >> (i * bits) & ((1u << bits) - 1);
}

/* Notes the format of codes in words; scales: as many groups as n_groups. */
static int describe_codes(struct found *f, const char *scales) {
    const bool is_small = f->bits == 4;
    const int rc = read_scale_type(f, scales);
    if (rc) return rc;
    if (f->weight.format.scale == SCALE_E8M0)
        return refuse(f, ERR_UNSUPPORTED, scales, "scales of int4 and int8 must be floats");
    f->group = f->n_groups == 1 ? 0 : group_of(f, f->n_groups);
    if (f->n_groups != 1 && f->group == 0) return refuse_shape(f, scales, &f->scales);
    f->weight.format = (struct weight_format){
        .element = is_small ? ELEMENT_I4 : ELEMENT_I8,
        .scale = f->has_zeros ? SCALE_F32 : f->weight.format.scale,
        .block_rows = 1,
        .block_cols = (uint16_t)f->group,
        .has_min = f->has_zeros,
    };
    return 0;
}

/* Finds how many bits make `words` words of n codes: 4 or 8. */
static bool find_bits(struct found *f, uint64_t n, uint64_t words) {
    for (f->bits = 4; f->bits <= 8; f->bits += 4)
        if (n * f->bits == words * WORD_BITS) return true;
    return false;
}

static float scale_value(const struct found *f, size_t i) {
    const bool is_f32 = strcmp(f->scales.dtype, "F32") == 0,
               is_f16 = strcmp(f->scales.dtype, "F16") == 0;
    const char *at = (const char *)f->scales.data + i * (is_f32 ? 4 : 2);
    const struct weight one = weight_plain(at,
                                           is_f32   ? ELEMENT_F32
                                           : is_f16 ? ELEMENT_F16
                                                    : ELEMENT_BF16,
                                           1, 1);
    float value;
    weight_to_float(&one, 0, &value);
    return value;
}

/* Writes the scale of a group, number `to_at` of the weight, and with zero points its minimum.
 * at: its number in the file. */
static void put_scale(const struct found *f, const struct weight *to, size_t to_at, size_t at,
                      uint32_t zero) {
    const size_t size = f->weight.format.scale == SCALE_F32 ? 4 : 2;
    if (!f->has_zeros) {
        memcpy((char *)to->scales + to_at * size, (const char *)f->scales.data + at * size, size);
        return;
    }
    const float scale = scale_value(f, at), middle = (float)(1u << (f->bits - 1));
    ((float *)to->scales)[to_at] = scale;
    ((float *)to->mins)[to_at] = (middle - (float)zero) * scale;
}

/* Makes of codes of 8 bits, four in a word, the numbers that are 128 less. */
static uint32_t as_elements(uint32_t word, uint32_t bits) {
    return bits == 8 ? word ^ 0x80808080u : word;
}

static int convert_packed(const struct found *f, uint32_t first, const struct weight *to) {
    const uint32_t n_words = f->m->cols * f->bits / WORD_BITS, per_word = WORD_BITS / f->bits;
    uint32_t *data = (uint32_t *)to->data;
    for (uint32_t i = 0; i < to->rows; i++) {
        const uint32_t row = first + i;
        for (uint32_t k = 0; k < n_words; k++)
            data[(size_t)i * n_words + k] =
                as_elements(word_at(&f->codes, (size_t)row * n_words + k), f->bits);
        for (uint32_t g = 0; g < f->n_groups; g++) {
            const uint32_t zero =
                f->has_zeros
                    ? code_of(word_at(&f->zeros, (size_t)(row / per_word) * f->n_groups + g),
                              row % per_word, f->bits)
                    : 0;
            put_scale(f, to, (size_t)i * f->n_groups + g, (size_t)row * f->n_groups + g, zero);
        }
    }
    return 0;
}

static int describe_packed(struct found *f) {
    static const char scales[] = ".weight_scale", zeros[] = ".weight_zero_point";
    const uint32_t rows = f->m->rows;
    const struct safetensors_view *codes = &f->codes;
    if (has(f->m->files, f->m->name, ".weight_g_idx"))
        return refuse(f, ERR_UNSUPPORTED, ".weight_g_idx",
                      "activation order is not supported: the same scheme without it is");
    if (codes->n_dims != 2 || codes->dims[0] != rows || !find_bits(f, f->m->cols, codes->dims[1]))
        return refuse_shape(f, f->suffix, codes);
    int rc = find(f, scales, &f->scales);
    if (rc) return rc;
    f->n_groups = f->scales.n_dims > 1 ? (uint32_t)min_u64(f->scales.dims[1], UINT32_MAX) : 1;
    if (f->scales.n_dims < 1 || f->scales.n_dims > 2 || f->scales.dims[0] != rows)
        return refuse_shape(f, scales, &f->scales);
    f->has_zeros = has(f->m->files, f->m->name, zeros);
    if (f->has_zeros && (rc = find(f, zeros, &f->zeros))) return rc;
    if (f->has_zeros &&
        (strcmp(f->zeros.dtype, "I32") != 0 ||
         !is_shape(&f->zeros, div_up((uint64_t)rows * f->bits, WORD_BITS), f->n_groups)))
        return refuse_shape(f, zeros, &f->zeros);
    rc = describe_codes(f, scales);
    /* Words of eight codes are bytes of two, the first in the lower half, on a little-endian
     * machine. */
    if (!rc && f->bits == 4 && !f->has_zeros) f->weight.data = codes->data;
    return rc;
}

/* ---- qweight: groups lie by columns of the file ---- */

/* Refuses columns that are not in groups of neighbours.  Files without g_idx have no others. */
static int check_order(struct found *f) {
    static const char order[] = ".g_idx";
    struct safetensors_view view;
    const uint32_t cols = f->m->cols, group = f->group ? f->group : cols;
    if (!has(f->m->files, f->m->name, order)) return 0;
    const int rc = find(f, order, &view);
    if (rc) return rc;
    if (strcmp(view.dtype, "I32") != 0 || view.n_dims != 1 || view.dims[0] != cols)
        return refuse_shape(f, order, &view);
    for (uint32_t k = 0; k < cols; k++)
        if (word_at(&view, k) != k / group)
            return refuse(f, ERR_UNSUPPORTED, order,
                          "activation order (desc_act) is not supported: GPTQ without it is");
    return 0;
}

static int describe_qweight(struct found *f) {
    static const char scales[] = ".scales", zeros[] = ".qzeros";
    const uint32_t rows = f->m->rows;
    int rc = find(f, scales, &f->scales);
    if (!rc) rc = find(f, zeros, &f->zeros);
    if (rc) return rc;
    if (f->scales.n_dims != 2 || f->scales.dims[1] != rows || f->scales.dims[0] > f->m->cols)
        return refuse_shape(f, scales, &f->scales);
    f->n_groups = (uint32_t)f->scales.dims[0];
    if (strcmp(f->zeros.dtype, "I32") != 0 || (uint64_t)rows * f->bits % WORD_BITS != 0 ||
        !is_shape(&f->zeros, f->n_groups, (uint64_t)rows * f->bits / WORD_BITS))
        return refuse_shape(f, zeros, &f->zeros);
    rc = describe_codes(f, scales);
    return rc ? rc : check_order(f);
}

static int describe_gptq(struct found *f) {
    const struct safetensors_view *codes = &f->codes;
    if (codes->n_dims != 2 || codes->dims[1] != f->m->rows ||
        !find_bits(f, f->m->cols, codes->dims[0]))
        return refuse_shape(f, f->suffix, codes);
    f->has_zeros = f->m->how->has_zeros;
    return describe_qweight(f);
}

/* Reads the zero point of a row's group.  Without zero points, the file has the middle there, or
 * what the earlier of two versions makes of it: 1 less. */
static int gptq_zero(const struct found *f, uint32_t row, uint32_t g, uint32_t *zero) {
    const uint32_t per_word = WORD_BITS / f->bits, middle = 1u << (f->bits - 1),
                   word = word_at(&f->zeros, (size_t)g * (f->m->rows / per_word) + row / per_word),
                   code = code_of(word, row % per_word, f->bits);
    *zero = (code + f->m->how->zero_less) & ((1u << f->bits) - 1);
    if (f->has_zeros || code == middle || code + 1 == middle) return 0;
    return refuse(f, ERR_INVALID, ".qzeros",
                  "it has zero points, but the configuration says 'sym': true");
}

/* Copies the codes of n rows.  A word of the file is a word of a row, elsewhere: tiles of few rows
 * are read and written within a first-level cache. */
static void gptq_codes(const struct found *f, uint32_t first, uint32_t n, uint32_t *data) {
    const uint32_t n_words = f->m->cols * f->bits / WORD_BITS;
    for (uint32_t tile = 0; tile < n; tile += TILE_ROWS)
        for (uint32_t k = 0; k < n_words; k++)
            for (uint32_t i = tile; i < n && i < tile + TILE_ROWS; i++)
                data[(size_t)i * n_words + k] =
                    as_elements(word_at(&f->codes, (size_t)k * f->m->rows + first + i), f->bits);
}

static int convert_gptq(const struct found *f, uint32_t first, const struct weight *to) {
    gptq_codes(f, first, to->rows, (uint32_t *)to->data);
    for (uint32_t i = 0; i < to->rows; i++)
        for (uint32_t g = 0; g < f->n_groups; g++) {
            uint32_t zero;
            const int rc = gptq_zero(f, first + i, g, &zero);
            if (rc) return rc;
            put_scale(f, to, (size_t)i * f->n_groups + g, (size_t)g * f->m->rows + first + i, zero);
        }
    return 0;
}

static int describe_awq(struct found *f) {
    f->bits = 4;
    f->has_zeros = true;
    if ((uint64_t)f->m->rows * f->bits % WORD_BITS != 0 || f->m->cols % 8 != 0 ||
        !is_shape(&f->codes, f->m->cols, (uint64_t)f->m->rows * f->bits / WORD_BITS))
        return refuse_shape(f, f->suffix, &f->codes);
    return describe_qweight(f);
}

/* Returns the code of a row in line number `line` of a tensor with eight rows in a word. */
static uint32_t awq_code(const struct found *f, const struct safetensors_view *view, uint32_t line,
                         uint32_t row) {
    static const uint8_t places[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return code_of(word_at(view, (size_t)line * (f->m->rows / 8) + row / 8), places[row % 8], 4);
}

static int convert_awq(const struct found *f, uint32_t first, const struct weight *to) {
    const uint32_t n_bytes = f->m->cols / 2;
    uint8_t *data = (uint8_t *)to->data;
    for (uint32_t tile = 0; tile < to->rows; tile += TILE_ROWS)
        for (uint32_t k = 0; k < n_bytes; k++)
            for (uint32_t i = tile; i < to->rows && i < tile + TILE_ROWS; i++)
                data[(size_t)i * n_bytes + k] =
                    (uint8_t)(awq_code(f, &f->codes, 2 * k, first + i) |
                              awq_code(f, &f->codes, 2 * k + 1, first + i) << 4);
    for (uint32_t i = 0; i < to->rows; i++)
        for (uint32_t g = 0; g < f->n_groups; g++)
            put_scale(f, to, (size_t)i * f->n_groups + g, (size_t)g * f->m->rows + first + i,
                      awq_code(f, &f->zeros, g, first + i));
    return 0;
}

/* ---- all layouts ---- */

static const struct layout layouts[] = {
    {".weight_packed", "I32", ".weight", QWEIGHT_NONE, describe_packed, convert_packed},
    {".weight_packed", "U8", ".weight", QWEIGHT_NONE, describe_mxfp4, NULL},
    {".qweight", "I32", ".weight", QWEIGHT_GPTQ, describe_gptq, convert_gptq},
    {".qweight", "I32", ".weight", QWEIGHT_AWQ, describe_awq, convert_awq},
    {".weight", "F8_E4M3", ".weight", QWEIGHT_NONE, describe_scaled, NULL},
    {".weight", "I8", ".weight", QWEIGHT_NONE, describe_scaled, NULL},
    {"_blocks", "U8", "", QWEIGHT_NONE, describe_blocks, NULL},
};

/* What belongs to a module with codes. */
static const char *const companions[] = {".weight_scale",
                                         ".weight_scale_inv",
                                         ".weight_zero_point",
                                         ".weight_shape",
                                         ".weight_g_idx",
                                         ".weight_global_scale",
                                         ".input_scale",
                                         ".input_zero_point",
                                         ".input_global_scale",
                                         ".activation_scale",
                                         ".input_scale_ub",
                                         ".scales",
                                         ".qzeros",
                                         ".g_idx",
                                         "_scales"};

/* Returns the layout of a module, and fills in f->codes; NULL: it has no codes. */
static const struct layout *find_layout(const struct weight_source *files, const char *module,
                                        enum qweight_order order, struct safetensors_view *codes) {
    for (size_t i = 0; i < COUNT(layouts); i++) {
        const struct layout *l = &layouts[i];
        char name[MAX_NAME];
        if (!name_of(name, module, l->suffix) || !files->ops->has(files, name)) continue;
        if (files->ops->view(files, name, codes, NULL)) continue;
        if (strcmp(codes->dtype, l->dtype) != 0) continue;
        if (l->order == QWEIGHT_NONE || l->order == order) return l;
    }
    return NULL;
}

bool quantised_module_exists(const struct weight_source *files, const char *name) {
    struct safetensors_view codes;
    return find_layout(files, name, QWEIGHT_GPTQ, &codes) != NULL;
}

/* Checks that `weight_shape`, where a file has it, says what the model's configuration says. */
static int check_said_shape(struct found *f) {
    static const char suffix[] = ".weight_shape";
    struct safetensors_view view;
    int64_t sides[2];
    if (!has(f->m->files, f->m->name, suffix)) return 0;
    const int rc = find(f, suffix, &view);
    if (rc) return rc;
    const bool is_long = strcmp(view.dtype, "I64") == 0;
    if (view.n_dims != 1 || view.dims[0] != 2 || (!is_long && strcmp(view.dtype, "I32") != 0))
        return refuse_shape(f, suffix, &view);
    for (int i = 0; i < 2; i++)
        sides[i] = is_long ? ((const int64_t *)view.data)[i] : ((const int32_t *)view.data)[i];
    if (sides[0] == f->m->rows && sides[1] == f->m->cols) return 0;
    return refuse(f, ERR_INVALID, suffix, "it says another shape than the configuration");
}

static int describe(const struct quantised_module *m, struct found *f,
                    const struct layout **layout) {
    *f = (struct found){.m = m, .weight = weight_plain(NULL, ELEMENT_BF16, m->rows, m->cols)};
    *layout = find_layout(m->files, m->name, m->how->order, &f->codes);
    f->suffix = *layout ? (*layout)->suffix : ".qweight";
    if (!*layout)
        return refuse(f, ERR_UNSUPPORTED, f->suffix,
                      "the configuration names no method that has such tensors: gptq, awq and "
                      "auto-round have");
    if (m->n_stacked != 1 && (*layout)->describe != describe_blocks)
        return refuse(f, ERR_UNSUPPORTED, f->suffix,
                      "stacks of quantised matrices are read as one tensor for each expert, or as "
                      "the blocks of gpt-oss");
    const int rc = (*layout)->describe(f);
    return rc ? rc : check_said_shape(f);
}

int quantised_module_get(const struct quantised_module *m, struct weight *out) {
    const struct layout *layout;
    struct found f;
    const int rc = describe(m, &f, &layout);
    if (rc) return rc;
    if (!layout->convert) f.weight.data = f.codes.data;
    if (f.weight.data) f.weight.scales = f.scales.data;
    *out = f.weight;
    return 0;
}

int quantised_module_read(const struct quantised_module *m, uint32_t first,
                          const struct weight *to) {
    const struct layout *layout;
    struct found f;
    const int rc = describe(m, &f, &layout);
    return rc ? rc : layout->convert(&f, first, to);
}

/* Writes the module that a tensor belongs to if its name ends with the suffix. */
static bool split(const char *name, const char *suffix, char module[MAX_NAME]) {
    const size_t n = strlen(name), n_suffix = strlen(suffix);
    if (n <= n_suffix || n >= MAX_NAME || strcmp(name + n - n_suffix, suffix) != 0) return false;
    memcpy(module, name, n - n_suffix);
    module[n - n_suffix] = '\0';
    return true;
}

/* Returns true if a tensor has only zeros. */
static bool is_zero(const struct weight_source *files, const char *name) {
    struct safetensors_view view;
    if (files->ops->view(files, name, &view, NULL)) return false;
    const char *bytes = view.data;
    size_t i = 0;
    while (i < view.size_bytes && bytes[i] == 0) i++;
    return i == view.size_bytes;
}

void quantised_name(const struct weight_source *files, const char *name, char *out, size_t size) {
    char module[MAX_NAME];
    snprintf(out, size, "%s", name);
    for (size_t i = 0; i < COUNT(layouts); i++)
        if (split(name, layouts[i].suffix, module) && quantised_module_exists(files, module)) {
            snprintf(out, size, "%s%s", module, layouts[i].weight);
            return;
        }
    for (size_t i = 0; i < COUNT(companions); i++)
        if (split(name, companions[i], module) && quantised_module_exists(files, module)) {
            out[0] = '\0';
            return;
        }
    /* Some writers give every module a bias: zeros, where the model has none. */
    if (split(name, ".bias", module) && quantised_module_exists(files, module) &&
        is_zero(files, name))
        out[0] = '\0';
}
