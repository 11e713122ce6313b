/* fuzz_config.c - any bytes at all as config.json and generation_config.json, parted by the first
 * NUL.
 *
 * What is accepted must keep the promises that the decoder builds on. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/model/config.h"
#include "engine/model/feed_forward.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct model_config *c) {
    if (c->n_vocab == 0 || c->dim == 0 || c->n_layers == 0 || c->max_position == 0) abort();
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].ffn_dim == 0) abort();
    if (c->n_heads == 0 || c->n_kv_heads == 0 || c->n_heads % c->n_kv_heads != 0) abort();
    if (c->head_dim == 0 || c->head_dim % 2 != 0 || c->head_dim > 256) abort();
    const bool rotates = c->positions == POSITIONS_ROTARY;
    if (rotates != (c->n_freqs > 0) || c->n_freqs > c->head_dim / 2 || !(c->rope_scale > 0))
        abort();
    if ((c->positions == POSITIONS_ALIBI) != (c->slopes != NULL)) abort();
    for (uint32_t i = 0; c->slopes && i < c->n_heads; i++)
        if (!isfinite(c->slopes[i]) || c->slopes[i] < 0) abort();
    if (c->n_eos > MODEL_MAX_EOS || !(c->norm_eps > 0)) abort();
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] >= c->n_vocab) abort();
    for (uint32_t i = 0; i < c->n_freqs; i++)
        if (!isfinite(c->inv_freq[i]) || c->inv_freq[i] < 0 || c->inv_freq[i] > 100) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = {0};
    struct model_config config;
    json_t *root = NULL, *generation = NULL;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    const size_t n = nul ? (size_t)(nul - data) : size;
    if (nul) json_guard_parse(&generation, (const char *)nul + 1, size - n - 1, "fuzz", &err);
    if (json_guard_parse(&root, (const char *)data, n, "fuzz", &err) == 0 &&
        model_config_parse(&config, root, generation, "fuzz", 0, &err) == 0) {
        check(&config);
        model_config_fini(&config);
    }
    json_decref(root);
    json_decref(generation);
    return 0;
}
