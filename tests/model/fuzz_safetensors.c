/* fuzz_safetensors.c - any bytes at all as a safetensors file: read to its last tensor or refused.
 *
 * Each tensor that comes through is summed: a range outside the input is an address error. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/weight.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The names a mutated file is likely to keep. */
static const char *const names[] = {"a", "b", "w", "model.norm.weight", ""};

static void read_all(const struct safetensors *file, const char *name) {
    static volatile uint32_t sink;
    struct error err = {0};
    for (uint32_t cols = 0; cols < 9; cols++) {
        for (uint32_t rows = 0; rows < 9; rows++) {
            struct weight w;
            const struct tensor_shape shapes[] = {
                {1, {cols}}, {2, {rows, cols}}, {3, {2, rows, cols}}};
            const struct tensor_shape shape = shapes[rows % 3];
            if (safetensors_get(file, name, &shape, &w, &err)) continue;
            const size_t n = weight_bytes(&w);
            for (size_t i = 0; i < n; i++) sink += ((const uint8_t *)w.data)[i];
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = {0};
    struct safetensors *file = NULL;
    if (safetensors_parse(&file, data, size, "fuzz", &err)) {
        if (file || err.text[0] == '\0') abort(); /* a refusal says why and gives nothing */
        return 0;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) read_all(file, names[i]);
    safetensors_destroy(file);
    return 0;
}
