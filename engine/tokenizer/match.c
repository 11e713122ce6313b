/* match.c - searches texts for patterns, and replaces matches for Replace; see internal.h.
 *
 * A tokenizer.json is input, and so is the text, so what both together may cost is bounded: the
 * steps that searching takes, and the bytes that rewriting makes.
 *
 * PCRE2 bounds the steps of one attempt to match at one place.  But a text has many places, and
 * PCRE2 does not report how many steps it took.  So each attempt has FEW_STEPS, which are nearly
 * always enough.  They are not counted, as they add up to a multiple of the text's length.  If they
 * are not enough, the attempt is repeated with more and more steps.  Each number that was too small
 * is taken from the budget:
 *
 *   search   from place 0 on, each with FEW_STEPS ──────────── a place needs more
 *   one place after the other   0: no   1: no   2: needs more
 *   place 2  FEW_STEPS, * 8, * 64 …    each is taken from matcher.steps; none left: refused
 *
 * Thread: any.  Memory: a matcher lives for one call, or for a load. */
#define _GNU_SOURCE /* memmem */

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

enum {
    JIT_STACK_START = 32 << 10,
    JIT_STACK_MOST = 4 << 20,
    HEAP_MOST_KIB = 64 << 10, /* the interpreter's, where there is no just-in-time compiler */
    FEW_STEPS = 4096,
    MORE_STEPS = 8, /* factor from one attempt to the next */
};

/* Several alternatives try a run of space from end to end, so the steps grow with the text.  A
 * pattern that backtracks without end needs more than any multiple of it.  Normalizers in use write
 * a few times the text's bytes, as each of their steps writes all of it. */
static const uint64_t LEAST_STEPS = 1 << 20, STEPS_PER_BYTE = 64;
static const uint64_t LEAST_BUDGET = 64 << 10, BUDGET_PER_BYTE = 64;

int matcher_init(struct matcher *matcher, size_t n_text) {
    /* One pair is enough: nothing here asks for a group. */
    *matcher = (struct matcher){
        .data = pcre2_match_data_create(1, NULL),
        .context = pcre2_match_context_create(NULL),
        .stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MOST, NULL),
        .steps = LEAST_STEPS + STEPS_PER_BYTE * n_text,
        .budget = LEAST_BUDGET + BUDGET_PER_BYTE * n_text,
    };
    if (!matcher->data || !matcher->context || !matcher->stack) {
        matcher_fini(matcher);
        return ERR_NOMEM;
    }
    pcre2_set_heap_limit(matcher->context, HEAP_MOST_KIB);
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return 0;
}

void matcher_fini(struct matcher *matcher) {
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    *matcher = (struct matcher){0};
}

static bool fits_budget(const struct matcher *matcher, size_t n) {
    return n <= matcher->budget && n <= LONGEST_TEXT;
}

int matcher_use_budget(struct matcher *matcher, size_t n, struct error *err) {
    if (!fits_budget(matcher, n))
        return error_set(err, ERR_INVALID, "the tokenizer's rules make this text too long");
    matcher->budget -= n;
    return 0;
}

static int report(int code, struct error *err) {
    char reason[128];
    if (code == PCRE2_ERROR_NOMEMORY) return ERR_NOMEM;
    pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof(reason));
    return error_set(err, ERR_INVALID,
                     "tokenizer: the pattern cannot be matched against this text: %s", reason);
}

static int match_literal(const struct text *literal, const char *text, size_t n,
                         struct match *match) {
    const char *at = memmem(text + match->next, n - match->next, literal->data, literal->n);
    if (at) match->begin = (size_t)(at - text);
    if (at) match->end = match->begin + literal->n;
    match->next = at ? match->end : n + 1;
    match->found = at != NULL;
    return 0;
}

/* Returns the place behind the character at `at`, or n + 1 at the text's end. */
static size_t next_place(const char *text, size_t n, size_t at) {
    const char *after = text + n + 1;
    if (at < n) utf8_next(text + at, &after);
    return (size_t)(after - text);
}

/* What a matcher searches, and for what. */
struct match_search {
    struct matcher *matcher;
    const struct pattern *pattern;
    const char *text;
    size_t n;
};

/* Runs the pattern from place `from` on; `last` is the last place that is tried. */
static int run_code(const struct match_search *s, const pcre2_code *code, size_t from, size_t last,
                    uint32_t steps) {
    pcre2_set_offset_limit(s->matcher->context, last);
    pcre2_set_match_limit(s->matcher->context, steps);
    /* Checking the whole text again for every match would be quadratic. */
    return pcre2_match(code, (PCRE2_SPTR)s->text, s->n, from, PCRE2_NO_UTF_CHECK, s->matcher->data,
                       s->matcher->context);
}

/* Tries one place, with as many steps as the budget pays for. */
static int try_place(const struct match_search *s, size_t place, bool *needed_more) {
    uint64_t steps = FEW_STEPS;
    *needed_more = false;
    for (;;) {
        const int rc = run_code(s, s->pattern->at_place, place, place, (uint32_t)steps);
        if (rc != PCRE2_ERROR_MATCHLIMIT || steps > s->matcher->steps || steps == UINT32_MAX)
            return rc;
        s->matcher->steps -= steps;
        steps = steps * MORE_STEPS < UINT32_MAX ? steps * MORE_STEPS : UINT32_MAX;
        *needed_more = true;
    }
}

/* Searches as pcre2_match() does, which does not report where the steps were not enough. */
static int search_from(const struct match_search *s, size_t from) {
    while (from <= s->n) {
        int rc = run_code(s, s->pattern->code, from, PCRE2_UNSET, FEW_STEPS);
        if (rc != PCRE2_ERROR_MATCHLIMIT) return rc;
        for (bool needed_more = false; from <= s->n && !needed_more;
             from = next_place(s->text, s->n, from)) {
            rc = try_place(s, from, &needed_more);
            if (rc != PCRE2_ERROR_NOMATCH) return rc;
        }
    }
    return PCRE2_ERROR_NOMATCH;
}

int match_next(struct matcher *matcher, const struct pattern *pattern, const char *text, size_t n,
               struct match *match, struct error *err) {
    const struct match_search search = {matcher, pattern, text, n};
    match->found = false;
    while (match->next <= n) {
        if (pattern->literal.n > 0) return match_literal(&pattern->literal, text, n, match);
        const int rc = search_from(&search, match->next);
        if (rc == PCRE2_ERROR_NOMATCH) {
            match->next = n + 1;
            return 0;
        }
        if (rc < 0) return report(rc, err);
        const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(matcher->data);
        if (pair[0] < match->next || pair[1] < pair[0]) return report(PCRE2_ERROR_INTERNAL, err);
        /* As in the reference library, no empty match follows a match directly. */
        if (match->repeated && pair[1] == pair[0] && pair[1] == match->end) {
            match->next = next_place(text, n, match->next);
            continue;
        }
        match->begin = pair[0];
        match->end = match->next = pair[1];
        match->found = match->repeated = true;
        return 0;
    }
    return 0;
}

void match_next_certain(struct matcher *matcher, const struct pattern *pattern, const char *text,
                        size_t n, struct match *match) {
    match->found = false;
    if (match->next > n) return;
    if (pattern->literal.n > 0) {
        match_literal(&pattern->literal, text, n, match);
        return;
    }
    pcre2_set_offset_limit(matcher->context, PCRE2_UNSET);
    pcre2_set_match_limit(matcher->context, FEW_STEPS);
    if (pcre2_match(pattern->code, (PCRE2_SPTR)text, n, match->next,
                    PCRE2_NO_UTF_CHECK | PCRE2_PARTIAL_HARD, matcher->data, matcher->context) < 0)
        return;
    const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(matcher->data);
    if (pair[0] < match->next || pair[1] <= pair[0]) return;
    match->begin = pair[0];
    match->end = match->next = pair[1];
    match->found = true;
}

int replace_parse(struct pattern **pattern, struct text *content, const json_t *component,
                  struct error *err) {
    int rc = member_append(content, component, "content", err);
    if (rc == 0) rc = pattern_parse(pattern, json_object_get(component, "pattern"), err);
    if (rc) return rc;
    /* The reference library loses characters when it replaces an empty match: no file can rely on
     * it. */
    uint32_t empty = 0;
    if ((*pattern)->code) pcre2_pattern_info((*pattern)->code, PCRE2_INFO_MATCHEMPTY, &empty);
    return empty ? refuse(err, "a pattern that matches nothing in", "Replace") : 0;
}

int replace_run(struct matcher *matcher, const struct pattern *pattern, const char *content,
                size_t n_content, struct text *text, struct error *err) {
    struct text replaced = {0};
    struct match match = {0};
    size_t done = 0;
    int rc = 0;
    do {
        rc = match_next(matcher, pattern, text->data, text->n, &match, err);
        if (rc) break;
        const size_t until = match.found ? match.begin : text->n;
        const size_t n_more = match.found ? n_content : 0;
        rc = matcher_use_budget(matcher, until - done + n_more, err);
        if (rc == 0) rc = text_append(&replaced, text->data + done, until - done);
        if (rc == 0) rc = text_append(&replaced, content, n_more);
        done = match.end;
    } while (rc == 0 && match.found);
    free(text->data);
    *text = replaced;
    return rc;
}
