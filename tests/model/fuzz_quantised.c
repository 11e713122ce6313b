/* fuzz_quantised.c - any bytes at all as config.json and a safetensors file, parted by the first
 * NUL.  Every quantised module is read to its last row, or refused.
 *
 * Rows are converted into memory of exactly their size, and their values are summed.  A range
 * outside the input, or outside that memory, is an address error. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/device/weight.h"
#include "engine/model/quantisation.h"
#include "engine/model/quantised_tensor.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The files of a source: one, in memory. */
struct memory_source {
    struct weight_source base;
    struct safetensors *file;
};

static bool has(const struct weight_source *source, const char *name) {
    return safetensors_has(((const struct memory_source *)source)->file, name, NULL) == 0;
}

static int view(const struct weight_source *source, const char *name, struct safetensors_view *out,
                struct error *err) {
    return safetensors_view(((const struct memory_source *)source)->file, name, out, err);
}

static const struct weight_source_ops memory_source = {.has = has, .view = view};

static void sum_rows(const struct weight *w) {
    static volatile float sink;
    float *values = malloc(w->cols * sizeof(*values));
    if (!values) abort();
    for (uint32_t row = 0; row < w->rows; row++) {
        weight_to_float(w, row, values);
        for (uint32_t i = 0; i < w->cols; i++) sink += values[i];
    }
    free(values);
}

/* Converts two thirds of the rows. */
static void convert(const struct quantised_module *module, const struct weight *described) {
    struct weight to = *described;
    const uint32_t first = to.rows / 3;
    to.rows -= first;
    const size_t n_data = to.rows * weight_row_bytes(&to), n_scales = weight_scale_bytes(&to);
    char *data = malloc(n_data), *scales = malloc(n_scales), *mins = malloc(n_scales);
    if (!data || !scales || !mins) abort();
    to.data = data;
    to.scales = scales;
    to.mins = mins;
    if (quantised_module_read(module, first, &to) == 0) sum_rows(&to);
    free(data), free(scales), free(mins);
}

static void read_module(const struct memory_source *source, const struct quantisation *how,
                        const char *name) {
    static const uint32_t sides[] = {1, 3, 8, 32, 64, 65};
    enum { N_SIDES = sizeof(sides) / sizeof(*sides) };
    struct error err = {0};
    for (uint32_t i = 0; i < N_SIDES * N_SIDES; i++) {
        const struct quantised_module module = {.files = &source->base,
                                                .how = how,
                                                .name = name,
                                                .rows = sides[i / N_SIDES],
                                                .cols = sides[i % N_SIDES],
                                                .err = &err};
        struct weight w;
        if (quantised_module_get(&module, &w)) {
            if (err.text[0] == '\0') abort(); /* a refusal says why */
            continue;
        }
        if (w.data) sum_rows(&w);
        else convert(&module, &w);
    }
}

static void read_all(const struct memory_source *source, const struct quantisation *how) {
    const uint32_t n = safetensors_count(source->file);
    for (uint32_t i = 0; i < n && i < 16; i++) {
        char name[WEIGHT_SOURCE_NAME];
        quantised_name(&source->base, safetensors_name(source->file, i), name, sizeof(name));
        char *suffix = strrchr(name, '.');
        if (!suffix || strcmp(suffix, ".weight") != 0) continue;
        *suffix = '\0';
        if (quantised_module_exists(&source->base, name)) read_module(source, how, name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct memory_source source = {.base.ops = &memory_source};
    struct quantisation how;
    struct error err = {0};
    json_t *config = NULL;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    if (!nul) return 0;
    const size_t n = (size_t)(nul - data), n_file = size - n - 1;
    /* As a mapping: aligned, and nothing behind it. */
    uint8_t *file = malloc(n_file ? n_file : 1);
    if (!file) abort();
    memcpy(file, nul + 1, n_file);
    if (json_guard_parse(&config, (const char *)data, n, "fuzz", &err) == 0 &&
        quantisation_read(&how, config, "fuzz", &err) == 0 &&
        safetensors_parse(&source.file, file, n_file, "fuzz", &err) == 0)
        read_all(&source, &how);
    safetensors_destroy(source.file);
    json_decref(config);
    free(file);
    return 0;
}
