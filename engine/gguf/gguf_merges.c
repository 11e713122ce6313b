/* gguf_merges.c - see gguf_merges.h. */
#include "engine/gguf/gguf_merges.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct merge {
    const char *text; /* of the token, which the vocabulary has */
    uint32_t n, n_left, id;
    uint32_t left_chars, right_chars;
    float score;
};

struct merges {
    struct merge *all;
    size_t n, capacity;
};

static bool begins_char(char byte) {
    return ((unsigned char)byte & 0xC0) != 0x80;
}

static uint32_t count_chars(const char *text, size_t n) {
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) count += begins_char(text[i]);
    return count;
}

static int append(struct merges *merges, const struct merge *merge) {
    if (merges->n == merges->capacity) {
        const size_t capacity = 2 * merges->capacity + 1024;
        struct merge *all = realloc(merges->all, capacity * sizeof(*all));
        if (!all) return -1;
        merges->all = all;
        merges->capacity = capacity;
    }
    merges->all[merges->n++] = *merge;
    return 0;
}

/* Appends each pair of tokens that makes this one. */
static int append_pairs(struct merges *merges, const json_t *vocab, const char *text, size_t n,
                        uint32_t id, float score) {
    const uint32_t n_chars = count_chars(text, n);
    uint32_t left_chars = 1;
    for (size_t i = 1; i < n; i++) {
        if (!begins_char(text[i])) continue;
        const struct merge merge = {.text = text,
                                    .n = (uint32_t)n,
                                    .n_left = (uint32_t)i,
                                    .id = id,
                                    .left_chars = left_chars,
                                    .right_chars = n_chars - left_chars,
                                    .score = score};
        left_chars++;
        if (json_object_getn(vocab, text, i) && json_object_getn(vocab, text + i, n - i) &&
            append(merges, &merge))
            return -1;
    }
    return 0;
}

/* Orders by the score, and among equal ones as transformers does. */
static int compare(const void *left, const void *right) {
    const struct merge *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->left_chars != b->left_chars) return a->left_chars > b->left_chars ? -1 : 1;
    if (a->right_chars != b->right_chars) return a->right_chars > b->right_chars ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static json_t *write_all(const struct merges *merges) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < merges->n; i++) {
        const struct merge *m = &merges->all[i];
        json_t *left = json_stringn_nocheck(m->text, m->n_left),
               *right = json_stringn_nocheck(m->text + m->n_left, m->n - m->n_left);
        if (!json_array_append_new(list, json_pack("[o, o]", left, right))) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

json_t *gguf_merges(json_t *vocab, const float *scores, uint64_t n) {
    struct merges merges = {0};
    const char *text;
    size_t n_text;
    json_t *value, *list = NULL;
    json_object_keylen_foreach(vocab, text, n_text, value) {
        const json_int_t id = json_integer_value(value);
        if (id < 0 || (uint64_t)id >= n || !(scores[id] > GGUF_NO_SCORE)) continue;
        if (append_pairs(&merges, vocab, text, n_text, (uint32_t)id, scores[id])) goto done;
    }
    if (merges.n > 0) qsort(merges.all, merges.n, sizeof(*merges.all), compare);
    list = write_all(&merges);

done:
    free(merges.all);
    return list;
}
