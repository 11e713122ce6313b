/* scores.c - see scores.h. */
#include "server/api/conversation/scores.h"

#include <stdlib.h>
#include <string.h>

void scores_fini(struct scores *s) {
    for (size_t i = 0; i < s->n_waiting; i++) buffer_fini(&s->waiting[i].json);
    free(s->waiting);
    *s = (struct scores){0};
}

struct buffer *scores_add(struct scores *s, size_t n_own, bool is_part) {
    if (s->n_waiting == s->capacity) {
        const size_t capacity = 2 * s->capacity + 8;
        struct score *waiting = realloc(s->waiting, capacity * sizeof(*waiting));
        if (!waiting) return NULL;
        s->waiting = waiting;
        s->capacity = capacity;
    }
    struct score *score = &s->waiting[s->n_waiting++];
    *score = (struct score){.begin = s->n_text, .end = s->n_text + n_own + is_part};
    s->n_text += n_own;
    return &score->json;
}

void scores_decide(struct scores *s, uint64_t n, uint64_t n_content, struct buffer *list) {
    size_t n_done = 0;
    s->n_decided += n;
    for (; n_done < s->n_waiting; n_done++) {
        struct score *score = &s->waiting[n_done];
        const bool is_content =
            n_content > 0 && score->begin < s->n_decided && score->end > s->n_decided - n_content;
        if (!is_content && score->end > s->n_decided) break;
        if (is_content) {
            if (list->length > 0) buffer_puts(list, ",");
            buffer_append(list, score->json.data, score->json.length);
            list->failed |= score->json.failed;
        }
        buffer_fini(&score->json);
    }
    s->n_waiting -= n_done;
    memmove(s->waiting, s->waiting + n_done, s->n_waiting * sizeof(*s->waiting));
}
