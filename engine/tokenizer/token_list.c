/* token_list.c - a list of ids that grows.
 *
 * Thread: any.  Memory: the caller's list. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

int token_list_reserve(struct token_list *list, size_t n) {
    if (n <= list->capacity - list->n) return 0;
    size_t capacity = list->capacity < 64 ? 64 : list->capacity;
    while (capacity - list->n < n) capacity *= 2;
    uint32_t *ids = realloc(list->ids, capacity * sizeof(*ids));
    if (!ids) return ERR_NOMEM;
    list->ids = ids;
    list->capacity = capacity;
    return 0;
}

int token_list_append(struct token_list *list, const uint32_t *ids, size_t n) {
    if (token_list_reserve(list, n)) return ERR_NOMEM;
    if (n > 0) memcpy(list->ids + list->n, ids, n * sizeof(*ids));
    list->n += n;
    return 0;
}
