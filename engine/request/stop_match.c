/* stop_match.c - one Knuth-Morris-Pratt automaton per string: its state is exactly the length held
 * back. */
#include "engine/request/stop_match.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"

static int pattern_init(struct stop_pattern *p, const char *text) {
    p->text = text;
    p->length = (uint32_t)strlen(text);
    p->fallback = calloc(p->length ? p->length : 1, sizeof(*p->fallback));
    if (!p->fallback) return ERR_NOMEM;
    for (uint32_t i = 1, k = 0; i < p->length; i++) {
        while (k > 0 && text[i] != text[k]) k = p->fallback[k - 1];
        if (text[i] == text[k]) k++;
        p->fallback[i] = k;
    }
    return 0;
}

int stop_match_init(struct stop_match *match, char *const *strings, uint32_t n_strings) {
    *match = (struct stop_match){0};
    if (n_strings == 0) return 0;
    match->patterns = calloc(n_strings, sizeof(*match->patterns));
    if (!match->patterns) return ERR_NOMEM;
    match->n_patterns = n_strings;
    for (uint32_t i = 0; i < n_strings; i++) {
        if (pattern_init(&match->patterns[i], strings[i]) == 0) continue;
        stop_match_fini(match);
        return ERR_NOMEM;
    }
    return 0;
}

void stop_match_fini(struct stop_match *match) {
    for (uint32_t i = 0; i < match->n_patterns; i++) free(match->patterns[i].fallback);
    free(match->patterns);
    *match = (struct stop_match){0};
}

static bool pattern_read(struct stop_pattern *p, char byte) {
    uint32_t k = p->n_matched;
    while (k > 0 && p->text[k] != byte) k = p->fallback[k - 1];
    if (p->text[k] == byte) k++;
    p->n_matched = k;
    return k == p->length;
}

bool stop_match_read(struct stop_match *match, const char *text, size_t n, size_t *n_read,
                     uint32_t *index) {
    *n_read = n;
    for (size_t i = 0; i < n && match->n_patterns > 0; i++) {
        const struct stop_pattern *best = NULL;
        for (uint32_t j = 0; j < match->n_patterns; j++) {
            struct stop_pattern *p = &match->patterns[j];
            if (pattern_read(p, text[i]) && (!best || p->length > best->length)) best = p;
        }
        if (!best) continue;
        *n_read = i + 1;
        *index = (uint32_t)(best - match->patterns);
        return true;
    }
    return false;
}

void stop_match_pass(struct stop_match *match) {
    for (uint32_t i = 0; i < match->n_patterns; i++) {
        struct stop_pattern *p = &match->patterns[i];
        if (p->n_matched == p->length) p->n_matched = p->fallback[p->length - 1];
    }
}

size_t stop_match_held(const struct stop_match *match) {
    size_t held = 0;
    for (uint32_t i = 0; i < match->n_patterns; i++)
        if (match->patterns[i].n_matched > held) held = match->patterns[i].n_matched;
    return held;
}
