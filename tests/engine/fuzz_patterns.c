/* fuzz_patterns.c - any bytes at all as a pattern file of a model with 2 layers of 3 heads.
 *
 * What is accepted must keep the promises that index buffers are sized by. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/sparse.h"
#include "engine/sparsity/patterns.h"

enum { N_LAYERS = 2, N_HEADS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct attn_pattern *pattern) {
    switch (pattern->kind) {
    case PATTERN_DENSE:
        if (pattern->p1 || pattern->p2) abort();
        break;
    case PATTERN_A_SHAPE:
        if (pattern->p2 == 0) abort();
        break;
    case PATTERN_VERTICAL_SLASH:
        if (pattern->p1 > SPARSE_MAX_COLUMNS) abort();
        break;
    case PATTERN_BLOCK_SPARSE:
        if (pattern->p1 == 0 || pattern->p1 > SPARSE_MAX_PAGES || pattern->p2) abort();
        break;
    default: abort();
    }
    if (pattern->p1 > PATTERNS_MAX_TOKENS || pattern->p2 > PATTERNS_MAX_TOKENS) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = {0};
    struct patterns patterns;
    if (patterns_parse(&patterns, (const char *)data, size, "fuzz", N_LAYERS, N_HEADS, &err))
        return err.text[0] ? 0 : 1;
    for (size_t i = 0; i < N_LAYERS * N_HEADS; i++) check(&patterns.heads[i]);
    if (patterns.n_break_evens > PATTERNS_MAX_BACKENDS) abort();
    for (uint32_t i = 0; i < patterns.n_break_evens; i++) {
        const struct pattern_break_even *at = &patterns.break_evens[i];
        if (!memchr(at->backend, 0, sizeof(at->backend)) || at->n_tokens == 0) abort();
        if (patterns_min_sparse_tokens(&patterns, at->backend) != at->n_tokens) abort();
    }
    patterns_fini(&patterns);
    return 0;
}
