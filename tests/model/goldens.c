/* goldens.c - see goldens.h. */
#include "tests/model/goldens.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "tests/test.h"

/* An absent list has no elements. */
static uint32_t *read_counts(const json_t *prompt, const char *key, uint32_t *n) {
    const json_t *list = json_object_get(prompt, key);
    *n = (uint32_t)json_array_size(list);
    uint32_t *out = calloc(*n + 1, sizeof(*out));
    assert_non_null(out);
    for (uint32_t i = 0; i < *n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return out;
}

static float *read_floats(const json_t *list, float *out) {
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
    return out;
}

static void read_prompt(struct golden_prompt *out, const json_t *prompt) {
    const json_t *rows = json_object_get(prompt, "logits"),
                 *top = json_object_get(prompt, "top10_logits"),
                 *margins = json_object_get(prompt, "greedy_margins");
    const size_t n_vocab = json_array_size(json_array_get(rows, 0));
    out->tokens = read_counts(prompt, "tokens", &out->n_tokens);
    out->greedy = read_counts(prompt, json_object_get(prompt, "greedy") ? "greedy" : "greedy32",
                              &out->n_greedy);
    out->positions = read_counts(prompt, "positions", &out->n_positions);
    out->top_ids = read_counts(prompt, "top10_ids", &out->n_top);
    out->logits = calloc(out->n_positions * n_vocab + 1, sizeof(float));
    out->top_logits = calloc(out->n_top + 1, sizeof(float));
    assert_non_null(out->logits);
    assert_non_null(out->top_logits);
    for (uint32_t i = 0; i < out->n_positions; i++)
        read_floats(json_array_get(rows, i), out->logits + i * n_vocab);
    read_floats(top, out->top_logits);
    if (margins) {
        assert_int_equal(json_array_size(margins), out->n_greedy);
        out->margins = calloc(out->n_greedy, sizeof(float));
        assert_non_null(out->margins);
        read_floats(margins, out->margins);
    }
    assert_in_range(out->n_greedy, 32, 64);
    assert_true(out->n_tokens > 0 && out->n_positions + out->n_top > 0);
}

void goldens_load(struct goldens *goldens, const char *dir) {
    char path[4096];
    json_error_t why;
    snprintf(path, sizeof(path), "%s/goldens.json", dir);
    json_t *root = json_load_file(path, 0, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    const json_t *prompts = json_object_get(root, "prompts");
    goldens->context = (uint32_t)json_integer_value(json_object_get(root, "context"));
    goldens->n_prompts = (uint32_t)json_array_size(prompts);
    assert_true(goldens->n_prompts > 0);
    goldens->prompts = calloc(goldens->n_prompts, sizeof(*goldens->prompts));
    assert_non_null(goldens->prompts);
    for (uint32_t i = 0; i < goldens->n_prompts; i++)
        read_prompt(&goldens->prompts[i], json_array_get(prompts, i));
    json_decref(root);
}

void goldens_fini(struct goldens *goldens) {
    for (uint32_t i = 0; i < goldens->n_prompts; i++) {
        struct golden_prompt *p = &goldens->prompts[i];
        free(p->tokens);
        free(p->greedy);
        free(p->positions);
        free(p->top_ids);
        free(p->logits);
        free(p->top_logits);
        free(p->margins);
    }
    free(goldens->prompts);
}
