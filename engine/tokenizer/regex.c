/* regex.c - the reference library's patterns (Oniguruma's Ruby syntax) on PCRE2; see internal.h,
 * and match.c for the search.
 *
 * Where the two syntaxes give one spelling two meanings, the pattern is translated (\s, \w, \b, ^,
 * $) or refused (\h, nested classes, a possessive {n,m}+): it must never silently split
 * differently.
 *
 * Thread: any.  Memory: the pattern is compiled once, at load. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

/* Ten times the largest of published tokenizers.  A repeated part is compiled as often as it is
 * repeated.  So these bound the work that a pattern of a few bytes can cause at every place of a
 * text. */
enum { MOST_PATTERN = 16 << 10, MOST_CODE = 8 << 10, MOST_LEAST_MATCH = 1 << 10 };

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

/* Returns whether the escape at p is refused; n bytes of the pattern are left.  It means something
 * else in Oniguruma, or lets a match begin where it was not found.  There \pL is an L, and \xE9 and
 * \351 are bytes of UTF-8. */
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
    const int rc =
        text ? text_append(out, text, strlen(text)) : text_append(out, pattern + *i, length);
    *i += length;
    return rc;
}

/* Returns the spelling of an interval, closed at pattern[i], that PCRE2 would misread, or NULL.
 * Ruby's {n,m}+ repeats the repetition and its {n}? makes it optional; PCRE2's + and ? change how
 * it matches. */
static const char *misread_interval(const char *pattern, size_t n, size_t i, size_t open) {
    if (pattern[i] != '}' || open >= i) return NULL;
    const char *bounds = pattern + open + 1;
    const size_t n_bounds = i - open - 1;
    if (n_bounds == 0 || strspn(bounds, "0123456789,") != n_bounds) return NULL;
    if (bounds[0] == ',') return "{,"; /* PCRE2 takes it for text */
    const char after = i + 1 < n ? pattern[i + 1] : '\0';
    if (after == '+') return "}+";
    return after == '?' && !memchr(bounds, ',', n_bounds) ? "}?" : NULL;
}

/* Returns whether a group sets Ruby's option m, which lets the dot match a newline. */
static bool sets_option_m(const char *pattern, size_t n, size_t i) {
    if (pattern[i] != '(' || i + 1 >= n || pattern[i + 1] != '?') return false;
    const char *letters = pattern + i + 2;
    return memchr(letters, 'm', strspn(letters, "imsx-")) != NULL;
}

/* Translates a pattern.  *has_line_start tells whether it has a ^ outside a class. */
static int translate(struct text *out, const char *pattern, size_t n, bool *has_line_start,
                     struct error *err) {
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
            if (c == '^') *has_line_start = true;
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

static int compile_code(pcre2_code **out, const struct text *text, uint32_t options,
                        const char *pattern, struct error *err) {
    int code = 0;
    PCRE2_SIZE where = 0;
    /* In Ruby's syntax ^ and $ always match at lines. */
    *out = pcre2_compile((PCRE2_SPTR)(text->data ? text->data : ""), text->n,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | options, &code, &where, NULL);
    if (!*out) {
        char reason[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof(reason));
        return error_set(err, ERR_INVALID, "tokenizer.json: pattern '%.120s': %s at %zu", pattern,
                         reason, where);
    }
    return 0;
}

static int check_cost(const pcre2_code *code, const char *pattern, struct error *err) {
    PCRE2_SIZE size = 0;
    uint32_t least = 0;
    pcre2_pattern_info(code, PCRE2_INFO_SIZE, &size);
    pcre2_pattern_info(code, PCRE2_INFO_MINLENGTH, &least);
    if (size > MOST_CODE)
        return error_set(err, ERR_UNSUPPORTED,
                         "tokenizer.json: pattern '%.120s' has %zu bytes once its repetitions are "
                         "compiled, more than the %d allowed",
                         pattern, size, MOST_CODE);
    if (least > MOST_LEAST_MATCH)
        return error_set(err, ERR_UNSUPPORTED,
                         "tokenizer.json: pattern '%.120s' matches no fewer than %u characters, "
                         "more than the %d allowed",
                         pattern, least, MOST_LEAST_MATCH);
    return 0;
}

/* Returns whether a match depends on nothing before it.  PCRE2 does not count ^ among what looks
 * behind.  Whether a match may be empty depends on the match before it. */
static bool is_forward(const pcre2_code *code, bool has_line_start) {
    uint32_t n_behind = 0, empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MAXLOOKBEHIND, &n_behind);
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    return !has_line_start && n_behind == 0 && !empty;
}

static int compile(struct pattern *out, const char *pattern, size_t n, struct error *err) {
    static const uint32_t one_place = PCRE2_USE_OFFSET_LIMIT | PCRE2_NO_START_OPTIMIZE;
    struct text text = {0};
    bool has_line_start = false;
    if (n > MOST_PATTERN)
        return error_set(err, ERR_UNSUPPORTED,
                         "tokenizer.json: pattern '%.120s' has %zu bytes, more than the %d allowed",
                         pattern, n, MOST_PATTERN);
    int rc = translate(&text, pattern, n, &has_line_start, err);
    if (rc == 0) rc = compile_code(&out->code, &text, 0, pattern, err);
    if (rc == 0) rc = check_cost(out->code, pattern, err);
    if (rc == 0) rc = compile_code(&out->at_place, &text, one_place, pattern, err);
    free(text.data);
    if (rc) return rc;
    out->is_forward = is_forward(out->code, has_line_start);
    /* Without the just-in-time compiler the same matches come from the interpreter, slower. */
    pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    pcre2_jit_compile(out->at_place, PCRE2_JIT_COMPLETE);
    return 0;
}

int pattern_compile(struct pattern **out, const char *pattern, size_t n, bool literal,
                    struct error *err) {
    struct pattern *compiled = calloc(1, sizeof(*compiled));
    if (!compiled) return ERR_NOMEM;
    const int rc = literal && n > 0 ? text_append(&compiled->literal, pattern, n)
                                    : compile(compiled, pattern, n, err);
    if (rc) {
        pattern_free(compiled);
        return rc;
    }
    if (compiled->literal.n > 0) compiled->is_forward = true;
    *out = compiled;
    return 0;
}

void pattern_free(struct pattern *pattern) {
    if (!pattern) return;
    free(pattern->literal.data);
    pcre2_code_free(pattern->code);
    pcre2_code_free(pattern->at_place);
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
