/* visit.h - reads all that a parsed GGUF file has: a range outside is an address error.
 *
 * Thread: any one.  Memory: none. */
#ifndef TESTS_GGUF_VISIT_H
#define TESTS_GGUF_VISIT_H

#include <stdint.h>

#include "engine/gguf/gguf.h"

static inline uint32_t visit_value(const struct gguf *file, const struct gguf_value *value) {
    struct gguf_strings strings = {.array = value};
    uint32_t sum = 0;
    uint64_t whole = 0;
    double number = 0;
    size_t n;
    for (const char *text; (text = gguf_next_string(file, &strings, &n));)
        for (size_t i = 0; i < n; i++) sum += (uint8_t)text[i];
    for (uint64_t i = 0; value->type == GGUF_STRING && i < value->n; i++) sum += value->bytes[i];
    for (uint64_t i = 0; value->type == GGUF_ARRAY && value->element != GGUF_STRING &&
                         value->element != GGUF_ARRAY && i < value->n;
         i++) {
        const struct gguf_value element = gguf_element(value, i);
        sum += gguf_whole(&element, &whole) + gguf_number(&element, &number);
        sum += gguf_truth(&element, false);
    }
    return sum + gguf_whole(value, &whole) + gguf_number(value, &number) + gguf_truth(value, false);
}

static inline uint32_t visit_all(const struct gguf *file) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < gguf_n_keys(file); i++) {
        char name[128] = {0};
        size_t n;
        const char *key = gguf_key_at(file, i, &n);
        for (size_t k = 0; k < n && k + 1 < sizeof(name); k++) name[k] = key[k];
        const struct gguf_value *value = gguf_find(file, name);
        if (value) sum += visit_value(file, value);
    }
    for (uint32_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(file, i);
        for (uint64_t k = 0; k < t->n_bytes; k++) sum += ((const uint8_t *)t->data)[k];
    }
    return sum;
}

#endif
