/* test_load.c - whole model directories that lie: the index, the shards, the weights behind a
 * config.
 *
 * Every case starts from a good tiny model, linked into a fresh directory, and breaks one thing. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_arena.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "engine/device/recurrent.h"
#include "engine/model/model.h"
#include "engine/model/random_weights.h"
#include "tests/model/tiny_models.h"
#include "tests/test.h"

#define INDEX "model.safetensors.index.json"
#define SHARDED DATA_DIR "/gqa-f32-sharded"
#define NEOX DATA_DIR "/neox-mha-f16-head24-sequential"
#define OPT DATA_DIR "/opt-mha-f16-head16"
#define BIASED DATA_DIR "/mqa-f16-linear-bias"
#define MAMBA DATA_DIR "/granite4h-gqa-bf16-head16-dense"
#define NEMOTRON DATA_DIR "/nemotronh-gqa-bf16-head16"

enum { PATH_BYTES = 1024 };

static const char *const file_names[] = {"config.json",
                                         "generation_config.json",
                                         "model.safetensors",
                                         INDEX,
                                         "model-00001-of-00003.safetensors",
                                         "model-00002-of-00003.safetensors",
                                         "model-00003-of-00003.safetensors"};
enum { N_FILES = sizeof(file_names) / sizeof(file_names[0]) };

struct fixture {
    char dir[64];
    struct backend *be;
};

static void path_of(char *out, const char *dir, const char *name) {
    assert_in_range(snprintf(out, PATH_BYTES, "%s/%s", dir, name), 1, PATH_BYTES - 1);
}

static void remove_file(const struct fixture *f, const char *name) {
    char path[PATH_BYTES];
    path_of(path, f->dir, name);
    assert_true(remove(path) == 0 || errno == ENOENT);
}

static void write_file(const struct fixture *f, const char *name, const char *text) {
    char path[PATH_BYTES];
    remove_file(f, name); /* never through the link */
    path_of(path, f->dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

/* The directory becomes links to the files of `model`, as a download cache is. */
static void link_model(const struct fixture *f, const char *model) {
    for (int i = 0; i < N_FILES; i++) {
        char from[PATH_BYTES], to[PATH_BYTES];
        remove_file(f, file_names[i]);
        path_of(from, model, file_names[i]);
        path_of(to, f->dir, file_names[i]);
        if (access(from, F_OK) == 0) assert_int_equal(symlink(from, to), 0);
    }
}

/* Puts members over an object inside a JSON file of the directory; key NULL is the root. */
static void change_json(const struct fixture *f, const char *name, const char *key,
                        const char *changes) {
    char path[PATH_BYTES];
    path_of(path, f->dir, name);
    json_t *root = json_load_file(path, 0, NULL), *over = json_loads(changes, 0, NULL);
    assert_non_null(root);
    assert_non_null(over);
    json_object_update(key ? json_object_get(root, key) : root, over);
    char *text = json_dumps(root, 0);
    write_file(f, name, text);
    json_arena_free(text);
    json_decref(root);
    json_decref(over);
}

static void expect_refused(const struct fixture *f, int code, const char *needle) {
    struct model *model = NULL;
    struct error err = {0};
    const int rc = model_load(&model, f->dir, NULL, f->be, &err);
    if (rc != code) fail_msg("%d, not %d: %s", rc, code, err.text);
    assert_null(model);
    if (!strstr(err.text, needle)) fail_msg("'%s' does not say '%s'", err.text, needle);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    struct error err = {0};
    if (!f) return -1;
    snprintf(f->dir, sizeof(f->dir), "/tmp/quire-test-XXXXXX");
    *state = f;
    return mkdtemp(f->dir) ? cpu_backend_create(&f->be, &(struct cpu_config){.n_threads = 1}, &err)
                           : -1;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < N_FILES; i++) remove_file(f, file_names[i]);
    const int rc = rmdir(f->dir);
    f->be->ops->destroy(f->be);
    free(f);
    return rc;
}

static void loads_shards_and_biases(void **state) {
    const struct fixture *f = *state;
    struct model *model = NULL;
    struct error err = {0};
    link_model(f, SHARDED);
    assert_int_equal(model_load(&model, f->dir, NULL, f->be, &err), 0);
    assert_non_null(model->layers[1].o_bias.data);
    assert_null(model->layers[1].gate_bias.data);
    assert_ptr_equal(model->head.data, model->embedding.data);
    model_destroy(model, f->be);
    link_model(f, BIASED);
    assert_int_equal(model_load(&model, f->dir, NULL, f->be, &err), 0);
    assert_int_equal(model->layers[0].gate_bias.format.element, ELEMENT_F16);
    assert_ptr_not_equal(model->head.data, model->embedding.data);
    model_destroy(model, f->be);
    model_destroy(NULL, f->be);
}

static float bf16_at(const struct weight *w, size_t i) {
    const uint32_t bits = (uint32_t)((const uint16_t *)w->data)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct told {
    uint64_t n, last, total;
    uint64_t stop_at; /* the call that ends the loading; 0: none does */
};

static bool listen(void *ctx, uint64_t done, uint64_t total) {
    struct told *told = ctx;
    assert_true(told->n++ == 0 ? done == 0 : done > told->last);
    told->last = done;
    told->total = total;
    return told->n != told->stop_at;
}

static void makes_weights_up_from_a_config_alone(void **state) {
    const struct fixture *f = *state;
    struct model *model = NULL;
    struct error err = {0};
    struct told told = {0};
    const struct model_source source = {.random = true, .progress = listen, .ctx = &told};
    for (int i = 0; i < N_FILES; i++) remove_file(f, file_names[i]);
    char from[PATH_BYTES], to[PATH_BYTES];
    path_of(from, BIASED, "config.json");
    path_of(to, f->dir, "config.json");
    assert_int_equal(symlink(from, to), 0);
    assert_int_equal(model_load(&model, f->dir, &source, f->be, &err), 0);
    assert_int_equal(err.code, 0); /* many models have no generation_config.json */
    const struct weight *q = &model->layers[0].q, *up = &model->layers[1].up;
    double sum = 0, squares = 0;
    const size_t n = (size_t)q->rows * q->cols;
    for (size_t i = 0; i < n; i++) {
        sum += bf16_at(q, i);
        squares += (double)bf16_at(q, i) * bf16_at(q, i);
    }
    assert_true(fabs(sum / (double)n) < 0.002);
    assert_true(fabs(sqrt(squares / (double)n) - 0.02) < 0.002);
    assert_true(bf16_at(&model->layers[1].ffn_norm, 3) == 1);
    assert_memory_not_equal(up->data, model->layers[0].up.data, 64);
    assert_int_equal(told.last, told.total);
    assert_int_equal(told.total, model->weight_bytes);
    model_destroy(model, f->be);
}

static void ends_where_it_is_stopped(void **state) {
    const struct fixture *f = *state;
    struct error err = {0};
    struct model *model = NULL;
    link_model(f, SHARDED);
    for (uint64_t stop_at = 1; stop_at <= 3; stop_at++) {
        struct told told = {.stop_at = stop_at};
        const struct model_source source = {.progress = listen, .ctx = &told};
        assert_int_equal(model_load(&model, f->dir, &source, f->be, &err), ERR_STOPPED);
        assert_null(model);
        assert_int_equal(told.n, stop_at);
    }
}

/* Adds the values of a matrix, and their squares, to two sums. */
static void add_values(const struct weight *w, double *sum, double *squares) {
    float row[512];
    assert_in_range(w->cols, 1, 512);
    for (uint32_t i = 0; i < w->rows; i++) {
        weight_to_float(w, i, row);
        for (uint32_t k = 0; k < w->cols; k++) {
            assert_true(isfinite(row[k]));
            *sum += row[k];
            *squares += (double)row[k] * row[k];
        }
    }
}

static void makes_weights_of_every_format_up(void **state) {
    static const char *const names[] = {RANDOM_FORMAT_NAMES};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct random_weights *random = NULL;
        struct error err = {0};
        double sum = 0, squares = 0;
        struct weight w = weight_plain(NULL, ELEMENT_BF16, 300, 512), norm = w;
        const double n = 300 * 512;
        w.format = random_formats[i];
        assert_int_equal(random_weights_create(&random, &w.format, &err), 0);
        for (int again = 0; again < 3; again++) {
            assert_int_equal(random_weights_get(random, false, &w, &err), 0);
            assert_int_equal((uintptr_t)w.data % 64, 0);
            random_weights_take_back(random);
            random_weights_take_back(random); /* there is none any more */
        }
        add_values(&w, &sum, &squares);
        print_message("%s: mean %g, deviation %g\n", names[i], sum / n, sqrt(squares / n));
        assert_true(fabs(sum / n) < 0.003); /* the codes of most packed blocks have a mean */
        assert_true(fabs(sqrt(squares / n) - 0.02) < 0.004);
        assert_int_equal(random_weights_get(random, true, &norm, &err), 0);
        assert_true(bf16_at(&norm, 3) == 1);
        random_weights_destroy(random);
    }
    (void)state;
}

/* Matrices of layers get the format.  The embedding is bf16 unless the format is packed. */
static void makes_a_model_of_a_format_up(void **state) {
    static const struct {
        struct weight_format format;
        int code;
        bool has_table;
    } cases[] = {{{ELEMENT_I4, SCALE_BF16, 1, 128, false}, 0, false},
                 {{.element = ELEMENT_Q8_0}, 0, true},
                 {{.element = ELEMENT_Q4_K}, ERR_UNSUPPORTED, true}};
    const struct fixture *f = *state;
    link_model(f, BIASED);
    change_json(f, "config.json", NULL,
                "{\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":4}");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *model = NULL;
        struct error err = {0};
        const struct model_source source = {.random = true, .random_format = &cases[i].format};
        assert_int_equal(model_measure(&model, f->dir, &source, f->be, &err), cases[i].code);
        if (cases[i].code) {
            assert_non_null(strstr(err.text, "--random-format: its rows have 64 elements"));
            continue;
        }
        const struct weight_tally *tally = &model->tally;
        bool has_format = false;
        for (uint32_t k = 0; k < tally->files.n; k++)
            has_format |= weight_same_format(&tally->files.formats[k].format, &cases[i].format);
        assert_true(has_format);
        model_destroy(model, f->be);
        assert_int_equal(model_load(&model, f->dir, &source, f->be, &err), 0);
        const bool has_table = weight_same_format(&model->embedding.format, &cases[i].format);
        assert_int_equal(has_table, cases[i].has_table && !model->config.tied_head);
        model_destroy(model, f->be);
    }
}

static bool takes_all(const struct backend *be, const struct weight_format *format, unsigned uses) {
    return true;
}

static bool rounds_e4m3(const struct backend *be, const struct weight *weight) {
    return weight->format.element == ELEMENT_E4M3;
}

/* Python writes a word that JSON does not have, also into limits that have none. */
static void infinity_is_read_as_nothing(void **state) {
    static const char more[] = "{\"limits\":[-Infinity,Infinity,0],\"word\":\"\\\"Infinity\",";
    const struct fixture *f = *state;
    struct model *model = NULL;
    struct error err = {0};
    char path[PATH_BYTES], *config, text[4096];
    size_t size;
    link_model(f, BIASED);
    path_of(path, f->dir, "config.json");
    assert_int_equal(file_read(&config, &size, path, sizeof(text) - sizeof(more), &err), 0);
    snprintf(text, sizeof(text), "%s%.*s", more, (int)size - 1, config + 1);
    free(config);
    write_file(f, "config.json", text);
    assert_int_equal(model_load(&model, f->dir, NULL, f->be, &err), 0);
    model_destroy(model, f->be);
    text[1] = ' '; /* outside of a string such words are still no JSON */
    write_file(f, "config.json", text);
    expect_refused(f, ERR_INVALID, "config.json");
}

static bool takes_no_mamba(const struct backend *be, const struct recurrent_shape *shape) {
    (void)be;
    return shape->kind != RECURRENT_MAMBA;
}

/* As a GPU does, which has no kernels for them. */
static void recurrent_layers_without_kernels_are_refused_by_name(void **state) {
    const struct fixture *f = *state;
    struct backend be = *f->be;
    struct backend_ops ops = *f->be->ops;
    struct recurrent_ops recurrent = *f->be->ops->recurrent;
    struct model *model = NULL;
    struct error err = {0};
    recurrent.takes = takes_no_mamba;
    ops.recurrent = &recurrent;
    be.ops = &ops;
    link_model(f, MAMBA);
    assert_int_equal(model_load(&model, f->dir, NULL, &be, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.text,
                        "GraniteMoeHybridForCausalLM: its recurrent layers (Mamba-2, 4 heads of 24 "
                        "x 16) are not supported on the device cpu");
    assert_int_equal(model_load(&model, f->dir, NULL, f->be, &err), 0);
    model_destroy(model, f->be);
}

/* As a GPU does, whose activations are bf16. */
static void functions_without_kernels_are_refused_by_name(void **state) {
    const struct fixture *f = *state;
    struct backend be = *f->be;
    struct model *model = NULL;
    struct error err = {0};
    be.act_dtype = DTYPE_BF16;
    link_model(f, NEMOTRON);
    assert_int_equal(model_load(&model, f->dir, NULL, &be, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.text,
                        "NemotronHForCausalLM: its feed-forward parts (the square of a ReLU) are "
                        "not supported on the device cpu");
    assert_int_equal(model_load(&model, f->dir, NULL, f->be, &err), 0);
    model_destroy(model, f->be);
}

/* Which products round their input depends on the setting and on what config.json says. */
static void products_round_as_declared_or_as_set(void **state) {
    static const struct weight_format fp8 = {ELEMENT_E4M3, SCALE_F32, 1, 0, false};
    static const char *const declared =
        "{\"quantization_config\":{\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":9}}";
    static const struct {
        enum input_rounding rounding;
        const char *changes;
        bool rounds;
    } cases[] = {{ROUND_AS_DECLARED, "{}", false},
                 {ROUND_AS_DECLARED, declared, true},
                 {ROUND_NEVER, declared, false},
                 {ROUND_ALWAYS, "{}", true}};
    const struct fixture *f = *state;
    struct backend be = *f->be;
    struct backend_ops ops = *f->be->ops;
    ops.takes = takes_all;
    ops.rounds = rounds_e4m3;
    be.ops = &ops;
    be.rounds_inputs_from = 3;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *model = NULL;
        struct error err = {0};
        const struct model_source source = {.random = true, .random_format = &fp8};
        link_model(f, BIASED);
        change_json(f, "config.json", NULL, cases[i].changes);
        be.input_rounding = cases[i].rounding;
        assert_int_equal(model_measure(&model, f->dir, &source, &be, &err), 0);
        assert_int_equal(model->tally.rounding_bytes > 0, cases[i].rounds);
        assert_int_equal(model->tally.rounds_from, 3);
        model_destroy(model, &be);
    }
}

/* As a backend with memory of its own does: every tensor comes back once it is copied. */
static void memory_that_comes_back_is_used_again(void **state) {
    struct random_weights *random = NULL;
    struct error err = {0};
    struct weight large = weight_plain(NULL, ELEMENT_BF16, 1000, 512),
                  small = weight_plain(NULL, ELEMENT_BF16, 10, 512),
                  norm = weight_plain(NULL, ELEMENT_BF16, 1, 512);
    uint16_t before[512];
    assert_int_equal(random_weights_create(&random, NULL, &err), 0);
    assert_int_equal(random_weights_get(random, false, &large, &err), 0);
    memcpy(before, large.data, sizeof(before));
    random_weights_take_back(random);
    assert_int_equal(random_weights_get(random, true, &norm, &err), 0);
    assert_true(bf16_at(&norm, 511) == 1);
    random_weights_take_back(random);
    assert_int_equal(random_weights_get(random, false, &small, &err), 0);
    const uintptr_t at = (uintptr_t)small.data - (uintptr_t)large.data + (1 << 16);
    assert_true(at < 1 << 17); /* the same memory, begun elsewhere */
    assert_memory_not_equal(small.data, before, sizeof(before));
    random_weights_destroy(random);
}

static void refuses_an_index_that_leaves_its_directory(void **state) {
    const struct fixture *f = *state;
    static const char *const names[] = {
        "\"../x\"", "\"/etc/passwd\"", "\"a/b\"", "\"..\"", "\".\"", "\"\"", "7"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char changes[128];
        snprintf(changes, sizeof(changes), "{\"model.norm.weight\":%s}", names[i]);
        link_model(f, SHARDED);
        change_json(f, INDEX, "weight_map", changes);
        expect_refused(f, ERR_INVALID, "'model.norm.weight'");
    }
}

static void refuses_an_index_of_things_that_are_not_there(void **state) {
    const struct fixture *f = *state;
    link_model(f, SHARDED);
    change_json(f, INDEX, "weight_map", "{\"ghost\":\"model-00001-of-00003.safetensors\"}");
    expect_refused(f, ERR_NOT_FOUND, "model-00001-of-00003.safetensors: no tensor 'ghost'");
    link_model(f, SHARDED);
    change_json(f, INDEX, "weight_map", "{\"ghost\":\"gone.safetensors\"}");
    expect_refused(f, ERR_NOT_FOUND, "gone.safetensors");
    link_model(f, SHARDED);
    remove_file(f, "model-00002-of-00003.safetensors");
    expect_refused(f, ERR_NOT_FOUND, "model-00002-of-00003.safetensors");
    link_model(f, SHARDED);
    write_file(f, INDEX, "{\"weight_map\":{}}");
    expect_refused(f, ERR_NOT_FOUND, "no tensor 'model.embed_tokens.weight'");
}

static void refuses_broken_indices_and_shards(void **state) {
    const struct fixture *f = *state;
    link_model(f, SHARDED);
    write_file(f, INDEX, "{\"weight_map\":[]}");
    expect_refused(f, ERR_INVALID, "weight_map");
    write_file(f, INDEX, "nonsense");
    expect_refused(f, ERR_INVALID, INDEX);
    link_model(f, SHARDED);
    write_file(f, "model-00003-of-00003.safetensors", "");
    expect_refused(f, ERR_INVALID, "model-00003-of-00003.safetensors: empty");
    write_file(f, "model-00003-of-00003.safetensors", "12345678{}");
    expect_refused(f, ERR_INVALID, "model-00003-of-00003.safetensors: a header of");
}

static void refuses_directories_in_place_of_files(void **state) {
    const struct fixture *f = *state;
    char path[PATH_BYTES];
    link_model(f, BIASED);
    remove_file(f, "model.safetensors");
    path_of(path, f->dir, "model.safetensors");
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refused(f, ERR_INVALID, "not a regular file");
    remove_file(f, "config.json");
    path_of(path, f->dir, "config.json");
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refused(f, ERR_INVALID, "config.json: not a regular file");
}

static void names_what_is_missing(void **state) {
    const struct fixture *f = *state;
    link_model(f, BIASED);
    remove_file(f, "model.safetensors");
    expect_refused(f, ERR_NOT_FOUND, "neither model.safetensors nor " INDEX);
    remove_file(f, "config.json");
    expect_refused(f, ERR_NOT_FOUND, "config.json");
}

/* The config and the file are each well-formed, but disagree. */
static void refuses_weights_that_are_not_the_configs(void **state) {
    const struct fixture *f = *state;
    static const struct {
        const char *model, *changes;
        int code;
        const char *needle;
    } cases[] = {
        {BIASED, "{\"vocab_size\":130}", ERR_INVALID, "'model.embed_tokens.weight'"},
        {BIASED, "{\"hidden_size\":96,\"head_dim\":16}", ERR_INVALID,
         "'model.embed_tokens.weight'"},
        {BIASED, "{\"num_hidden_layers\":3}", ERR_NOT_FOUND,
         "'model.layers.2.input_layernorm.weight'"},
        {BIASED, "{\"num_key_value_heads\":3}", ERR_INVALID,
         "'model.layers.0.self_attn.k_proj.weight'"},
        {BIASED, "{\"intermediate_size\":51}", ERR_INVALID,
         "'model.layers.0.mlp.gate_proj.weight'"},
        {BIASED, "{\"head_dim\":8}", ERR_INVALID, "'model.layers.0.self_attn.q_proj.weight'"},
        {OPT, "{\"max_position_embeddings\":1023}", ERR_INVALID,
         "'model.decoder.embed_positions.weight'"},
        {OPT, "{\"num_hidden_layers\":3}", ERR_NOT_FOUND,
         "'model.decoder.layers.2.self_attn_layer_norm.weight'"},
        {NEOX, "{\"hidden_size\":96}", ERR_INVALID, "'gpt_neox.embed_in.weight'"},
        {NEOX, "{\"attention_bias\":true}", ERR_NOT_FOUND,
         "'gpt_neox.layers.0.attention.query_key_value.bias'"},
        {SHARDED, "{\"mlp_bias\":true}", ERR_NOT_FOUND, "'model.layers.0.mlp.gate_proj.bias'"},
        {SHARDED, "{\"tie_word_embeddings\":false}", ERR_NOT_FOUND, "'lm_head.weight'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        link_model(f, cases[i].model);
        change_json(f, "config.json", NULL, cases[i].changes);
        expect_refused(f, cases[i].code, cases[i].needle);
    }
}

/* As a device without ALiBi does, whatever the directory has besides a config. */
static bool takes_no_f16_products(const struct backend *be, const struct weight_format *format,
                                  unsigned uses) {
    (void)be;
    return format->element != ELEMENT_F16 || !(uses & WEIGHT_PRODUCT);
}

static int loads_nothing(struct backend *be, const struct weight *host, struct weight *out,
                         struct error *err) {
    (void)be, (void)host, (void)out, (void)err;
    fail_msg("a weight was loaded before all were checked");
    return ERR_DEVICE;
}

static void refuses_formats_that_the_device_does_not_take(void **state) {
    const struct fixture *f = *state;
    const struct backend_ops *ops = f->be->ops;
    struct backend_ops changed = *ops;
    changed.takes = takes_no_f16_products;
    changed.weight_load = loads_nothing;
    link_model(f, BIASED);
    f->be->ops = &changed;
    expect_refused(f, ERR_UNSUPPORTED,
                   "tensor 'lm_head.weight': its format, F16, is not "
                   "supported on the device cpu");
    f->be->ops = ops;
}

static void refuses_a_config_too_large_to_be_one(void **state) {
    const struct fixture *f = *state;
    const size_t size = (1 << 20) + 1;
    char *text = malloc(size + 1);
    assert_non_null(text);
    memset(text, ' ', size);
    text[size] = '\0';
    link_model(f, BIASED);
    write_file(f, "config.json", text);
    expect_refused(f, ERR_INVALID, "more than the 1048576 allowed");
    free(text);
}

/* Makes a real file of a link, so that it can be cut short. */
static void copy_in(const struct fixture *f, const char *name, char *path) {
    char bytes[4096];
    size_t n;
    path_of(path, f->dir, name);
    FILE *from = fopen(path, "rb");
    assert_non_null(from);
    remove_file(f, name); /* the link; what is open stays */
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    while ((n = fread(bytes, 1, sizeof(bytes), from)) > 0)
        assert_int_equal(fwrite(bytes, 1, n, to), n);
    assert_int_equal(fclose(from) | fclose(to), 0);
}

/* When the first byte is about to be loaded, all but the first page goes. */
static bool cut_short(void *ctx, uint64_t done, uint64_t total) {
    (void)total;
    if (done == 0) assert_int_equal(truncate(ctx, 4096), 0);
    return true;
}

/* This family's queries and keys are reordered, hence read, while they are loaded. */
static void says_when_a_file_is_cut_short_while_it_is_loaded(void **state) {
    const struct fixture *f = *state;
    char path[PATH_BYTES];
    const struct model_source source = {.progress = cut_short, .ctx = path};
    struct model *model = NULL;
    struct error err = {0};
    link_model(f, DATA_DIR "/glm-gqa-bf16-head64");
    copy_in(f, "model.safetensors", path);
    assert_int_equal(model_load(&model, f->dir, &source, f->be, &err), ERR_IO);
    if (!strstr(err.text, "'model.safetensors' was cut short")) fail_msg("%s", err.text);
    assert_null(model);
}

/* Zero sinks need no tensor; learned ones do. */
static void learned_sinks_must_be_there(void **state) {
    struct fixture *f = *state;
    struct model *model = NULL;
    link_model(f, SHARDED);
    change_json(f, "config.json", NULL, "{\"softmax_type\":\"off-by-one\"}");
    assert_int_equal(model_load(&model, f->dir, NULL, f->be, NULL), 0);
    model_destroy(model, f->be);
    change_json(f, "config.json", NULL, "{\"softmax_type\":\"learnable\"}");
    expect_refused(f, ERR_NOT_FOUND, "self_attn.sinks");
}

/* A layer behind the last one is read by no rule; that it may be there config.json says. */
static void a_layer_that_guesses_tokens_is_ignored(void **state) {
    const struct fixture *f = *state;
    struct model *model = NULL;
    struct error err = {0};
    link_model(f, DATA_DIR "/glm4moe-gqa-bf16-head64-groups");
    change_json(f, "config.json", NULL, "{\"num_hidden_layers\":1,\"num_nextn_predict_layers\":1}");
    if (model_load(&model, f->dir, NULL, f->be, &err)) fail_msg("%s", err.text);
    model_destroy(model, f->be);
    change_json(f, "config.json", NULL, "{\"num_nextn_predict_layers\":0}");
    expect_refused(f, ERR_UNSUPPORTED, "model.layers.1.");
}

/* Writes zeros into the data of the tensors with this suffix. */
static void clear_tensors(const struct fixture *f, const char *suffix) {
    char path[PATH_BYTES];
    const char *name;
    json_t *about;
    size_t n = 0;
    struct error err = {0};
    char *bytes = NULL;
    path_of(path, f->dir, "model.safetensors");
    assert_int_equal(file_read(&bytes, &n, path, 1 << 20, &err), 0);
    uint64_t n_header;
    memcpy(&n_header, bytes, sizeof(n_header));
    json_t *header = json_loadb(bytes + 8, n_header, 0, NULL);
    json_object_foreach(header, name, about) {
        const json_t *offsets = json_object_get(about, "data_offsets");
        if (!offsets || strcmp(name + strlen(name) - strlen(suffix), suffix) != 0) continue;
        const json_int_t begin = json_integer_value(json_array_get(offsets, 0)),
                         end = json_integer_value(json_array_get(offsets, 1));
        memset(bytes + 8 + n_header + begin, 0, (size_t)(end - begin));
    }
    remove_file(f, "model.safetensors");
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
    json_decref(header);
    free(bytes);
}

/* Biases of zeros that no rule reads change nothing: here those of a model that says it has none.
 * Its own have other values. */
static void biases_of_zeros_are_ignored(void **state) {
    const struct fixture *f = *state;
    struct model *model = NULL;
    struct error err = {0};
    link_model(f, DATA_DIR "/qwen3-gqa-bf16-head64-bias");
    change_json(f, "config.json", NULL, "{\"attention_bias\":false}");
    expect_refused(f, ERR_UNSUPPORTED, "_proj.bias");
    clear_tensors(f, ".bias");
    if (model_load(&model, f->dir, NULL, f->be, &err)) fail_msg("%s", err.text);
    model_destroy(model, f->be);
}

/* Nothing of a tiny model is left out: models that are read in part are refused. */
static void every_tensor_of_a_model_is_read(void **state) {
    const struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(tiny_models) / sizeof(*tiny_models); i++) {
        char dir[PATH_BYTES];
        struct model *model = NULL;
        struct error err = {0};
        path_of(dir, DATA_DIR, tiny_models[i]);
        if (model_load(&model, dir, NULL, f->be, &err)) fail_msg("%s: %s", dir, err.text);
        model_destroy(model, f->be);
    }
    link_model(f, BIASED);
    change_json(f, "config.json", NULL, "{\"mlp_bias\":false}");
    expect_refused(f, ERR_UNSUPPORTED,
                   "proj.bias' (6 in all) is nothing that config.json describes");
}

/* What a wrapper has beside its text model is left out and named; all else must be read. */
static void parts_for_images_are_left_out(void **state) {
    const struct fixture *f = *state;
    struct model *model = NULL;
    struct error err = {0};
    link_model(f, DATA_DIR "/gemma3-wrapper-gqa-bf16-head32");
    if (model_measure(&model, f->dir, NULL, f->be, &err)) fail_msg("%s", err.text);
    assert_int_equal(model->tally.n_left_out, 34);
    assert_string_equal(model->tally.left_out, "multi_modal_projector, vision_tower");
    model_destroy(model, f->be);
    change_json(f, "config.json", "text_config",
                "{\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"]}");
    expect_refused(f, ERR_UNSUPPORTED,
                   "tensor 'language_model.model.layers.1.input_layernorm.weight' (13 in all)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_shards_and_biases),
        cmocka_unit_test(every_tensor_of_a_model_is_read),
        cmocka_unit_test(parts_for_images_are_left_out),
        cmocka_unit_test(learned_sinks_must_be_there),
        cmocka_unit_test(makes_weights_up_from_a_config_alone),
        cmocka_unit_test(ends_where_it_is_stopped),
        cmocka_unit_test(makes_weights_of_every_format_up),
        cmocka_unit_test(makes_a_model_of_a_format_up),
        cmocka_unit_test(products_round_as_declared_or_as_set),
        cmocka_unit_test(infinity_is_read_as_nothing),
        cmocka_unit_test(recurrent_layers_without_kernels_are_refused_by_name),
        cmocka_unit_test(functions_without_kernels_are_refused_by_name),
        cmocka_unit_test(memory_that_comes_back_is_used_again),
        cmocka_unit_test(refuses_an_index_that_leaves_its_directory),
        cmocka_unit_test(refuses_an_index_of_things_that_are_not_there),
        cmocka_unit_test(refuses_broken_indices_and_shards),
        cmocka_unit_test(refuses_directories_in_place_of_files),
        cmocka_unit_test(names_what_is_missing),
        cmocka_unit_test(refuses_weights_that_are_not_the_configs),
        cmocka_unit_test(refuses_formats_that_the_device_does_not_take),
        cmocka_unit_test(refuses_a_config_too_large_to_be_one),
        cmocka_unit_test(a_layer_that_guesses_tokens_is_ignored),
        cmocka_unit_test(biases_of_zeros_are_ignored),
        cmocka_unit_test(says_when_a_file_is_cut_short_while_it_is_loaded),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
