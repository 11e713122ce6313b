/* sorting.c - see sorting.h: merge sort, bottom up. */
#include "engine/template/sorting.h"

#include <string.h>

#include "engine/template/containers.h"
#include "engine/template/render.h"

static bool comes_first(struct render *r, struct value b, struct value a, bool in_reverse) {
    return in_reverse ? value_compare(r, "<", a, b) < 0 : value_compare(r, "<", b, a) < 0;
}

/* Merges [begin, middle) and [middle, end) of `from` into `to`. */
static void merge(struct render *r, const struct keyed *from, struct keyed *to,
                  const size_t bounds[3], bool in_reverse) {
    size_t a = bounds[0], b = bounds[1];
    for (size_t i = bounds[0]; i < bounds[2]; i++) {
        const bool take_b = b < bounds[2] && (a >= bounds[1] ||
                                              comes_first(r, from[b].key, from[a].key, in_reverse));
        to[i] = take_b ? from[b++] : from[a++];
    }
}

void sort_keyed(struct render *r, struct keyed *rows, size_t n, bool in_reverse) {
    struct keyed *other = n > 1 ? render_take(r, n * sizeof(*other)) : NULL;
    if (!other) return;
    struct keyed *from = rows, *to = other;
    for (size_t width = 1; width < n && !r->rc; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            const size_t left = n - begin;
            const size_t middle = begin + (width < left ? width : left);
            const size_t end = begin + (2 * width < left ? 2 * width : left);
            merge(r, from, to, (const size_t[]){begin, middle, end}, in_reverse);
        }
        struct keyed *swap = from;
        from = to, to = swap;
    }
    if (from != rows) memcpy(rows, from, n * sizeof(*rows));
}

const struct dict *sort_dict(struct render *r, const struct dict *dict) {
    struct dict *sorted = dict_new(r, dict->n);
    struct keyed *rows = render_take(r, dict->n * sizeof(*rows));
    if (!rows) return sorted;
    for (size_t i = 0; i < dict->n; i++)
        rows[i] = (struct keyed){dict->entries[i].key, dict->entries[i].value};
    sort_keyed(r, rows, dict->n, false);
    for (size_t i = 0; i < dict->n; i++) dict_set(r, sorted, rows[i].key, rows[i].item);
    return sorted;
}
