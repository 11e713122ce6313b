/* test_weight_find.c - stacks of matrices, one for each expert, in files of every layout.
 *
 * A file is written that has the same numbers in all layouts.  The element of an expert's row and
 * column is 100 * expert + 10 * row + column, so a stack that took the wrong rows differs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/device/weight.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/weight_find.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"
#include "tests/test.h"

enum { N_EXPERTS = 3, FFN_DIM = 2, DIM = 5, MAX_HEADER = 4096, MAX_DATA = 4096, LENGTH_BYTES = 8 };

static const struct model_config config = {.dim = DIM};
static const struct layer_shape layer = {.ffn_dim = FFN_DIM, .n_experts = N_EXPERTS};

/* A safetensors file that is being written. */
struct image {
    char header[MAX_HEADER];
    float data[MAX_DATA];
    size_t n_header, n_data;
};

struct fixture {
    struct image image;
    char dir[64], path[96];
    struct weight_source *files;
};

/* Adds a tensor whose data are what was added since `begin`. */
static void add_entry(struct image *image, const char *name, const char *dtype, const char *shape,
                      size_t begin) {
    image->n_header +=
        (size_t)snprintf(image->header + image->n_header, MAX_HEADER - image->n_header,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                         image->n_header ? "," : "{", name, dtype, shape, begin * sizeof(float),
                         image->n_data * sizeof(float));
}

/* Adds experts first to first + n - 1 of a tensor of n_rows rows; n_cols 0: they are elements. */
static void add(struct image *image, const char *name, const char *shape, uint32_t first,
                uint32_t n, uint32_t n_rows, uint32_t n_cols) {
    const size_t begin = image->n_data;
    for (uint32_t expert = first; expert < first + n; expert++)
        for (uint32_t row = 0; row < n_rows; row++)
            for (uint32_t col = 0; col < (n_cols ? n_cols : 1); col++)
                image->data[image->n_data++] = (float)(100 * expert + 10 * row + col);
    add_entry(image, name, "F32", shape, begin);
}

/* Adds a tensor of n zeros as F16; n is even. */
static void add_halves(struct image *image, const char *name, const char *shape, uint32_t n) {
    const size_t begin = image->n_data;
    image->n_data += n / 2;
    add_entry(image, name, "F16", shape, begin);
}

static void write_image(const struct fixture *f) {
    const struct image *image = &f->image;
    unsigned char length[LENGTH_BYTES] = {0};
    const size_t padded = (image->n_header + 1 + 7) / 8 * 8;
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    length[0] = (unsigned char)padded, length[1] = (unsigned char)(padded >> 8);
    assert_int_equal(fwrite(length, 1, sizeof(length), file), sizeof(length));
    fprintf(file, "%s}%*s", image->header, (int)(padded - image->n_header - 1), "");
    assert_int_equal(fwrite(image->data, sizeof(float), image->n_data, file), image->n_data);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    struct error err = {0};
    if (!f) return -1;
    *state = f;
    snprintf(f->dir, sizeof(f->dir), "/tmp/quire-test-XXXXXX");
    if (!mkdtemp(f->dir)) return -1;
    snprintf(f->path, sizeof(f->path), "%s/model.safetensors", f->dir);
    for (uint32_t i = 0; i < N_EXPERTS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "layers.7.experts.%u.up.weight", i);
        add(&f->image, name, "[2,5]", i, 1, FFN_DIM, DIM);
        snprintf(name, sizeof(name), "layers.7.experts.%u.gate_up.weight", i);
        add(&f->image, name, "[4,5]", i, 1, 2 * FFN_DIM, DIM);
        snprintf(name, sizeof(name), "layers.7.experts.%u.up.bias", i);
        add(&f->image, name, "[2]", i, 1, FFN_DIM, 0);
        snprintf(name, sizeof(name), "layers.7.gaps.%u.weight", 2 * i);
        add(&f->image, name, "[2,5]", i, 1, FFN_DIM, DIM);
        snprintf(name, sizeof(name), "layers.7.mixed.%u.weight", i);
        if (i != 1) add(&f->image, name, "[2,5]", i, 1, FFN_DIM, DIM);
        else add_halves(&f->image, name, "[2,5]", FFN_DIM * DIM);
        snprintf(name, sizeof(name), "layers.7.uneven.%u.weight", i);
        if (i < 2) add(&f->image, name, "[2,5]", i, 1, FFN_DIM, DIM);
        else add(&f->image, name, "[5,2]", i, 1, DIM, FFN_DIM);
    }
    add(&f->image, "layers.7.experts.up.weight", "[3,2,5]", 0, N_EXPERTS, FFN_DIM, DIM);
    add(&f->image, "layers.7.experts.gate_up.weight", "[3,4,5]", 0, N_EXPERTS, 2 * FFN_DIM, DIM);
    add(&f->image, "layers.7.experts.up.bias", "[3,2]", 0, N_EXPERTS, FFN_DIM, 0);
    add(&f->image, "layers.7.experts.gate_up.bias", "[3,4]", 0, N_EXPERTS, 2 * FFN_DIM, 0);
    write_image(f);
    return safetensors_source.open(&f->files, f->dir, &err);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    f->files->ops->close(f->files);
    unlink(f->path);
    const int rc = rmdir(f->dir);
    free(f);
    return rc;
}

static struct weight_query query_of(const struct weight_rule *rule) {
    return (struct weight_query){.config = &config, .rule = rule, .shape = &layer, .layer = 7};
}

/* Finds the stack, gathers it if it is scattered, and compares all of its elements.  first_row:
 * where in the tensor's matrices the weight begins. */
static void expect_stack(const struct fixture *f, const struct weight_rule *rule, bool scattered,
                         uint32_t first_row) {
    const struct weight_query query = query_of(rule);
    const bool is_vector = rule->rows == SIDE_VECTOR;
    struct error err = {0};
    struct weight w;
    float copy[N_EXPERTS * FFN_DIM * DIM + 8]; /* and padding */
    if (weight_find(f->files, &query, &w, &err)) fail_msg("%s", err.text);
    assert_int_equal(w.n_stacked, N_EXPERTS);
    assert_int_equal(w.rows, is_vector ? 1 : FFN_DIM);
    assert_int_equal(w.cols, is_vector ? FFN_DIM : DIM);
    assert_true(w.format.element == ELEMENT_F32);
    assert_int_equal(weight_bytes(&w), N_EXPERTS * FFN_DIM * (is_vector ? 1 : DIM) * sizeof(float));
    assert_true(weight_is_scattered(&query) == scattered);
    if (scattered) {
        assert_true(weight_copy_bytes(&w) <= sizeof(copy));
        assert_int_equal(weight_gather(f->files, &query, copy, &w, &err), 0);
        assert_ptr_equal(w.data, copy);
    }
    const float *x = w.data;
    for (uint32_t expert = 0; expert < N_EXPERTS; expert++)
        for (uint32_t row = 0; row < FFN_DIM; row++)
            for (uint32_t col = 0; col < (is_vector ? 1 : DIM); col++)
                assert_true(*x++ == (float)(100 * expert + 10 * (first_row + row) + col));
}

TEST(a_stack_is_a_tensor_for_each_expert_or_one_for_all) {
    struct weight_rule rule = {.name = "layers.#.experts.@.up.weight",
                               .rows = SIDE_FFN,
                               .cols = SIDE_DIM,
                               .stacked = SIDE_EXPERTS};
    expect_stack(*state, &rule, true, 0);
    rule.name = "layers.#.experts.up.weight";
    expect_stack(*state, &rule, false, 0);
}

TEST(a_stack_takes_its_rows_of_every_experts_matrix) {
    struct weight_rule rule = {
        .rows = SIDE_FFN, .cols = SIDE_DIM, .whole = SIDE_GATE_UP, .stacked = SIDE_EXPERTS};
    static const char *const names[] = {"layers.#.experts.@.gate_up.weight",
                                        "layers.#.experts.gate_up.weight"};
    for (int i = 0; i < 2; i++) {
        rule.name = names[i];
        rule.before = SIDE_NONE;
        expect_stack(*state, &rule, true, 0);
        rule.before = SIDE_FFN;
        expect_stack(*state, &rule, true, FFN_DIM);
    }
}

TEST(biases_of_experts_are_stacks_of_vectors) {
    struct weight_rule rule = {.name = "layers.#.experts.@.up.bias",
                               .rows = SIDE_VECTOR,
                               .cols = SIDE_FFN,
                               .stacked = SIDE_EXPERTS};
    expect_stack(*state, &rule, true, 0);
    rule.name = "layers.#.experts.up.bias";
    expect_stack(*state, &rule, false, 0);
    rule.name = "layers.#.experts.gate_up.bias";
    rule.whole = SIDE_GATE_UP;
    rule.before = SIDE_FFN;
    expect_stack(*state, &rule, true, FFN_DIM);
}

TEST(without_files_a_stack_has_a_shape) {
    const struct weight_rule rule = {.name = "layers.#.experts.@.up.weight",
                                     .rows = SIDE_FFN,
                                     .cols = SIDE_DIM,
                                     .stacked = SIDE_EXPERTS};
    const struct weight_query query = query_of(&rule);
    struct error err = {0};
    struct weight w;
    assert_int_equal(weight_find(NULL, &query, &w, &err), 0);
    assert_null(w.data);
    assert_int_equal(weight_bytes(&w), N_EXPERTS * FFN_DIM * DIM * sizeof(uint16_t));
}

static void expect_refused(const struct fixture *f, const char *name, int code,
                           const char *needle) {
    const struct weight_rule rule = {
        .name = name, .rows = SIDE_FFN, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS};
    const struct weight_query query = query_of(&rule);
    struct error err = {0};
    struct weight w = {0};
    assert_int_equal(weight_find(f->files, &query, &w, &err), code);
    if (!strstr(err.text, needle)) fail_msg("'%s' does not say '%s'", err.text, needle);
    assert_null(w.data);
}

TEST(refuses_a_stack_that_lacks_an_expert) {
    expect_refused(*state, "layers.#.gaps.@.weight", ERR_NOT_FOUND, "'layers.7.gaps.1.weight'");
}

TEST(refuses_a_stack_of_another_shape) {
    expect_refused(*state, "layers.#.uneven.@.weight", ERR_INVALID,
                   "'layers.7.uneven.2.weight': its shape is [5, 2]");
    expect_refused(*state, "layers.#.experts.gate_up.weight", ERR_INVALID,
                   "its shape is [3, 4, 5], the configuration asks for [3, 2, 5]");
}

TEST(refuses_a_stack_of_several_formats) {
    expect_refused(
        *state, "layers.#.mixed.@.weight", ERR_INVALID,
        "of layer 7: the weights of expert 1 have another format than those of expert 0");
}

/* ---- rows by KV head ---- */

enum { N_ROWS = 8, N_COLS = 3 };
static const uint8_t codes[N_ROWS * N_COLS] = {0,  1,  2,  10, 11, 12, 20, 21, 22, 30, 31, 32,
                                               40, 41, 42, 50, 51, 52, 60, 61, 62, 70, 71, 72};
static const float row_scales[N_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7};
static uint16_t block_rows;

static int get_scaled(const struct weight_source *source, const char *name,
                      const struct tensor_shape *shape, struct weight *out, struct error *err) {
    (void)source, (void)name, (void)err;
    assert_int_equal(shape->dims[0], N_ROWS);
    *out = weight_plain(codes, ELEMENT_I8, N_ROWS, N_COLS);
    out->format = (struct weight_format){ELEMENT_I8, SCALE_F32, block_rows, 0, false};
    out->scales = row_scales;
    return 0;
}

/* Two KV heads of one row, each with two queries: q0 q1 k0 v0, q2 q3 k1 v1. */
TEST(rows_by_kv_head_are_gathered_with_their_scales) {
    static const struct {
        enum weight_side rows, before;
        uint32_t n, at[4];
    } parts[] = {{SIDE_Q, SIDE_NONE, 4, {0, 1, 4, 5}},
                 {SIDE_KV, SIDE_Q, 2, {2, 6}},
                 {SIDE_KV, SIDE_QK, 2, {3, 7}}};
    const struct model_config by_head = {
        .dim = N_COLS, .n_heads = 4, .n_kv_heads = 2, .qkv_by_group = true};
    const struct layer_shape heads = {.kv = {2, 1}};
    const struct weight_source_ops ops = {.get = get_scaled};
    const struct weight_source files = {&ops};
    struct error err = {0};
    struct weight w;
    char memory[256];
    for (size_t i = 0; i < COUNT(parts); i++) {
        const struct weight_rule rule = {.name = "layers.#.qkv.weight",
                                         .rows = parts[i].rows,
                                         .cols = SIDE_DIM,
                                         .whole = SIDE_QKV,
                                         .before = parts[i].before};
        const struct weight_query query = {.config = &by_head, .rule = &rule, .shape = &heads};
        block_rows = 1;
        assert_int_equal(weight_find(&files, &query, &w, &err), 0);
        assert_true(weight_is_scattered(&query));
        assert_int_equal(weight_gather(&files, &query, memory, &w, &err), 0);
        assert_int_equal(w.rows, parts[i].n);
        for (uint32_t row = 0; row < w.rows; row++) {
            const uint32_t at = parts[i].at[row];
            float values[N_COLS];
            weight_to_float(&w, row, values);
            for (uint32_t k = 0; k < N_COLS; k++)
                assert_true(values[k] == (float)codes[at * N_COLS + k] * row_scales[at]);
        }
        block_rows = 3; /* no head begins with a block */
        assert_int_equal(weight_find(&files, &query, &w, &err), ERR_UNSUPPORTED);
    }
}

int main(void) {
    return tests_run("tests", setup, teardown);
}
