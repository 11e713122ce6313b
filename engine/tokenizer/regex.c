/* regex.c - the reference library's patterns (Oniguruma's Ruby syntax) on PCRE2, and what Replace
 * does with them; see internal.h.
 *
 * Where the two syntaxes give one spelling two meanings, the pattern is translated (\s, \w, \b, ^,
 * $) or refused (\h, nested classes, a possessive {n,m}+): it must never silently split
 * differently.
 *
 * Thread: any.  Memory: the pattern is compiled once, at load; a matcher lives for one call. */
#define _GNU_SOURCE /* memmem */

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/tokenizer/internal.h"

enum {
    JIT_STACK_START = 32 << 10,
    JIT_STACK_MOST = 4 << 20,
    LEAST_STEPS = 10000000, /* PCRE2's own limit */
    STEPS_PER_BYTE = 8,
};

/* A run of space is tried by several alternatives from end to end, so the steps that a match may
 * take grow with the text; what backtracks without end needs more than any multiple of it. */
static uint32_t most_steps(size_t n_text) {
    const size_t n = LEAST_STEPS + STEPS_PER_BYTE * n_text;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

int matcher_init(struct matcher *matcher, size_t n_text) {
    /* One pair is enough: nothing here asks for a group. */
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MOST, NULL);
    if (!matcher->data || !matcher->context || !matcher->stack) {
        matcher_fini(matcher);
        return ERR_NOMEM;
    }
    pcre2_set_match_limit(matcher->context, most_steps(n_text));
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return 0;
}

void matcher_fini(struct matcher *matcher) {
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    *matcher = (struct matcher){0};
}

/* Ruby's word characters: PCRE2's have no marks.  Outside a class Latin-1's fractions and raised
 * digits count, too, which Oniguruma looks up in an older table. */
#define WORD_IN_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_SET WORD_IN_CLASS "\\xB2\\xB3\\xB9\\xBC-\\xBE"
#define WORD "[" WORD_SET "]"

/* Escapes with another meaning, and the text that takes their place.  NULL: no text can. */
static const struct translation {
    char escape;
    const char *outside, *in_class;
} translations[] = {
    /* PCRE2's \s also takes U+180E, which has not been a space since Unicode 6.3. */
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'v', "\\x0B", "\\x0B"},
    {'w', WORD, WORD_IN_CLASS},
    {'W', "[^" WORD_SET "]", NULL},
    {'b', "(?:(?<=" WORD ")(?!" WORD ")|(?<!" WORD ")(?=" WORD "))", "\\x08"},
    {'B', "(?:(?<=" WORD ")(?=" WORD ")|(?<!" WORD ")(?!" WORD "))", NULL},
};

static const struct translation *find_translation(char c) {
    for (size_t i = 0; i < sizeof(translations) / sizeof(*translations); i++)
        if (translations[i].escape == c) return &translations[i];
    return NULL;
}

static bool is_in(const char *set, char c) {
    return c != '\0' && strchr(set, c) != NULL;
}

/* Whether the escape of n bytes at p means something else in Oniguruma, or lets a match begin where
 * it was not found: \pL is an L, \xE9 and \351 are bytes of UTF-8. */
static bool escape_is_refused(const char *p, size_t n) {
    const char c = n > 1 ? p[1] : '\0', next = n > 2 ? p[2] : '\0', last = n > 3 ? p[3] : '\0';
    if (is_in("hHKGCRXQEgk", c)) return true;
    if (is_in("pP", c)) return next != '{';
    if (c == 'x') return is_in("89abcdefABCDEF", next) && is_in("0123456789abcdefABCDEF", last);
    return is_in("123456789", c) && is_in("0123456789", next);
}

static int refuse_pattern(struct error *err, const char *why) {
    return error_set(err, ERR_UNSUPPORTED,
                     "tokenizer.json: a pattern has %s, which is not supported", why);
}

/* Translates the escape at pattern[*i], a backslash, and moves past it. */
static int translate_escape(struct text *out, const char *pattern, size_t n, size_t *i,
                            bool in_class, struct error *err) {
    const char c = *i + 1 < n ? pattern[*i + 1] : '\0';
    const size_t length = c == '\0' ? 1 : 2;
    const struct translation *translation = find_translation(c);
    const char *text = !translation ? NULL
                       : in_class   ? translation->in_class
                                    : translation->outside;
    if (escape_is_refused(pattern + *i, n - *i) || (translation && !text)) {
        const char spelling[] = {'\\', c, '\0'};
        return refuse_pattern(err, spelling);
    }
    const int rc = text ? text_append(out, text, strlen(text))
                        : text_append(out, pattern + *i, length);
    *i += length;
    return rc;
}

/* Ruby's {n,m}+ repeats the repetition and its {n}? makes it optional; PCRE2's + and ? change how
 * it matches. */
static const char *misread_interval(const char *pattern, size_t n, size_t i, size_t open) {
    if (pattern[i] != '}' || open >= i) return NULL;
    const char *bounds = pattern + open + 1;
    const size_t n_bounds = i - open - 1;
    if (n_bounds == 0 || strspn(bounds, "0123456789,") != n_bounds) return NULL;
    if (bounds[0] == ',') return "{,"; /* text to PCRE2 */
    const char after = i + 1 < n ? pattern[i + 1] : '\0';
    if (after == '+') return "}+";
    return after == '?' && !memchr(bounds, ',', n_bounds) ? "}?" : NULL;
}

/* Ruby's option m lets the dot match a newline. */
static bool sets_option_m(const char *pattern, size_t n, size_t i) {
    if (pattern[i] != '(' || i + 1 >= n || pattern[i + 1] != '?') return false;
    const char *letters = pattern + i + 2;
    return memchr(letters, 'm', strspn(letters, "imsx-")) != NULL;
}

static int translate(struct text *out, const char *pattern, size_t n, struct error *err) {
    bool in_class = false;
    size_t class_begin = 0, open = SIZE_MAX;
    for (size_t i = 0; i < n;) {
        const char c = pattern[i];
        if (c == '\\') {
            const int rc = translate_escape(out, pattern, n, &i, in_class, err);
            if (rc) return rc;
            continue;
        }
        if (in_class) {
            const bool first =
                i == class_begin + 1 || (i == class_begin + 2 && pattern[i - 1] == '^');
            if (c == '[') return refuse_pattern(err, "a class inside a class");
            if (c == '&' && i + 1 < n && pattern[i + 1] == '&') return refuse_pattern(err, "&&");
            if (c == ']' && !first) in_class = false;
        } else {
            if (c == '[') {
                in_class = true;
                class_begin = i;
            }
            if (c == '{') open = i;
            const char *misread = misread_interval(pattern, n, i, open);
            if (misread) return refuse_pattern(err, misread);
            if (sets_option_m(pattern, n, i)) return refuse_pattern(err, "the option m");
            if (c == '(' && i + 1 < n && pattern[i + 1] == '*') return refuse_pattern(err, "(*");
        }
        const int rc = text_append(out, &c, 1);
        if (rc) return rc;
        i++;
    }
    return 0;
}

static int compile(pcre2_code **out, const char *pattern, size_t n, struct error *err) {
    struct text text = {0};
    int rc = translate(&text, pattern, n, err);
    if (rc) goto done;

    /* In Ruby's syntax ^ and $ always match at lines. */
    int code = 0;
    PCRE2_SIZE where = 0;
    *out = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.n,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &where, NULL);
    if (!*out) {
        char reason[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof(reason));
        rc = error_set(err, ERR_INVALID, "tokenizer.json: pattern '%.120s': %s at %zu", pattern,
                       reason, where);
        goto done;
    }
    /* Without the just-in-time compiler the same matches come from the interpreter, slower. */
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);

done:
    free(text.data);
    return rc;
}

int pattern_compile(struct pattern **out, const char *pattern, size_t n, bool literal,
                    struct error *err) {
    struct pattern *compiled = calloc(1, sizeof(*compiled));
    if (!compiled) return ERR_NOMEM;
    const int rc = literal && n > 0 ? text_append(&compiled->literal, pattern, n)
                                    : compile(&compiled->code, pattern, n, err);
    if (rc) {
        pattern_free(compiled);
        return rc;
    }
    *out = compiled;
    return 0;
}

void pattern_free(struct pattern *pattern) {
    if (!pattern) return;
    free(pattern->literal.data);
    pcre2_code_free(pattern->code);
    free(pattern);
}

int pattern_parse(struct pattern **out, const json_t *pattern, struct error *err) {
    size_t n;
    const char *text = member_text(pattern, "String", &n);
    if (text) return pattern_compile(out, text, n, true, err);
    text = member_text(pattern, "Regex", &n);
    if (text) return pattern_compile(out, text, n, false, err);
    return error_set(err, ERR_INVALID, "tokenizer.json: a pattern is neither a String nor a Regex");
}

static int report(int code, struct error *err) {
    char reason[128];
    if (code == PCRE2_ERROR_NOMEMORY) return ERR_NOMEM;
    pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof(reason));
    return error_set(err, ERR_INVALID, "tokenizer: the pattern gives up on this text: %s", reason);
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

int match_next(struct matcher *matcher, const struct pattern *pattern, const char *text, size_t n,
               struct match *match, struct error *err) {
    match->found = false;
    while (match->next <= n) {
        if (pattern->literal.n > 0) return match_literal(&pattern->literal, text, n, match);
        /* Checking the whole text again for every match would be quadratic. */
        const int rc = pcre2_match(pattern->code, (PCRE2_SPTR)text, n, match->next,
                                   PCRE2_NO_UTF_CHECK, matcher->data, matcher->context);
        if (rc == PCRE2_ERROR_NOMATCH) {
            match->next = n + 1;
            return 0;
        }
        if (rc < 0) return report(rc, err);
        const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(matcher->data);
        if (pair[0] < match->next || pair[1] < pair[0]) return report(PCRE2_ERROR_INTERNAL, err);
        /* Like the reference library, no empty match right after a match. */
        if (match->repeated && pair[1] == pair[0] && pair[1] == match->end) {
            const char *after = text + n + 1;
            if (match->next < n) utf8_next(text + match->next, &after);
            match->next = (size_t)(after - text);
            continue;
        }
        match->begin = pair[0];
        match->end = match->next = pair[1];
        match->found = match->repeated = true;
        return 0;
    }
    return 0;
}

int replace_parse(struct pattern **pattern, struct text *content, const json_t *component,
                  struct error *err) {
    int rc = member_append(content, component, "content", err);
    if (rc == 0) rc = pattern_parse(pattern, json_object_get(component, "pattern"), err);
    if (rc) return rc;
    /* The reference library loses characters when it replaces nothing by something: no one can rely
     * on it. */
    uint32_t empty = 0;
    if ((*pattern)->code)
        pcre2_pattern_info((*pattern)->code, PCRE2_INFO_MATCHEMPTY, &empty);
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
        rc = text_append(&replaced, text->data + done, until - done);
        if (rc == 0 && match.found) rc = text_append(&replaced, content, n_content);
        done = match.end;
    } while (rc == 0 && match.found);
    free(text->data);
    *text = replaced;
    return rc;
}
