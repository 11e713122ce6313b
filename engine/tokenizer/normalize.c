/* normalize.c - the normalizers: Unicode forms, Lowercase, Replace, Prepend, Strip, and sequences
 * of them.
 *
 * Thread: immutable once parsed.  Memory: steps own their pattern and content; running one
 * allocates in proportion to the text. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

/* A character decomposes into at most 18 (U+FDFA). */
enum { DECOMPOSED_MOST = 18 };

struct normalizer_kind {
    const char *name;
    int (*run)(const struct normalizer_step *step, struct matcher *matcher, struct text *text,
               struct error *err);
    int (*parse)(struct normalizer_step *step, const json_t *component, struct error *err);
    bool compose, compat; /* which of the Unicode forms */
};

struct codepoints {
    int32_t *data;
    size_t n, capacity;
};

static int decompose(struct codepoints *out, const char *part, size_t n_part, bool compat) {
    const utf8proc_option_t options = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    const char *end = part + n_part;
    for (const char *p = part; p < end;) {
        if (out->capacity - out->n < DECOMPOSED_MOST) {
            const size_t capacity = 2 * out->capacity + n_part + DECOMPOSED_MOST;
            int32_t *data = realloc(out->data, capacity * sizeof(*data));
            if (!data) return ERR_NOMEM;
            out->data = data;
            out->capacity = capacity;
        }
        const utf8proc_ssize_t n =
            utf8proc_decompose_char((utf8proc_int32_t)utf8_next(p, &p), out->data + out->n,
                                    (utf8proc_ssize_t)(out->capacity - out->n), options, NULL);
        if (n < 0) return ERR_NOMEM;
        out->n += (size_t)n;
    }
    return 0;
}

static unsigned combining_class(int32_t c) {
    return (unsigned)utf8proc_get_property(c)->combining_class & 0xFF;
}

/* Sorts a run of combining marks by class, stably.  Counting keeps a text of nothing but marks
 * linear: the library's own reordering is a bubble sort. */
static void sort_marks(int32_t *marks, size_t n, int32_t *sorted) {
    size_t place[257] = {0};
    for (size_t i = 0; i < n; i++) place[combining_class(marks[i]) + 1]++;
    for (size_t c = 0; c < 256; c++) place[c + 1] += place[c];
    for (size_t i = 0; i < n; i++) sorted[place[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, sorted, n * sizeof(*marks));
}

static int reorder(struct codepoints *text) {
    int32_t *sorted = malloc((text->n + 1) * sizeof(*sorted));
    if (!sorted) return ERR_NOMEM;
    for (size_t i = 0; i < text->n; i++) {
        size_t end = i;
        while (end < text->n && combining_class(text->data[end]) != 0) end++;
        if (end > i + 1) sort_marks(text->data + i, end - i, sorted);
        if (end > i) i = end - 1;
    }
    free(sorted);
    return 0;
}

static int append_form(const struct normalizer_kind *kind, struct codepoints *points,
                       const char *part, size_t n, struct text *out) {
    points->n = 0;
    int rc = decompose(points, part, n, kind->compat);
    if (rc == 0) rc = reorder(points);
    if (rc) return rc;
    if (kind->compose) {
        const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
        points->n =
            (size_t)utf8proc_normalize_utf32(points->data, (utf8proc_ssize_t)points->n, options);
    }
    for (size_t i = 0; i < points->n && rc == 0; i++)
        rc = text_append_char(out, (uint32_t)points->data[i]);
    return rc;
}

static size_t ascii_length(const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n && (unsigned char)bytes[i] < 0x80) i++;
    return i;
}

static size_t other_length(const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n && (unsigned char)bytes[i] >= 0x80) i++;
    return i;
}

/* Writes the text in a Unicode form.  ASCII has one form and joins nothing before it, so only the
 * last of its characters can change by what follows.  Other characters are written together with
 * that one. */
static int run_form(const struct normalizer_step *step, struct matcher *matcher, struct text *text,
                    struct error *err) {
    (void)matcher, (void)err;
    struct codepoints points = {0};
    struct text out = {0};
    int rc = 0;
    for (size_t i = 0; i < text->n && rc == 0;) {
        const size_t ascii = ascii_length(text->data + i, text->n - i);
        const size_t other = other_length(text->data + i + ascii, text->n - i - ascii);
        const size_t same = ascii > 0 && other > 0 ? ascii - 1 : ascii;
        rc = text_append(&out, text->data + i, same);
        if (rc == 0 && other > 0)
            rc =
                append_form(step->kind, &points, text->data + i + same, ascii - same + other, &out);
        i += ascii + other;
    }
    free(points.data);
    free(text->data);
    *text = out;
    return rc;
}

/* Lowers character by character, without the final sigma's rule, as the reference library does. */
static int run_lowercase(const struct normalizer_step *step, struct matcher *matcher,
                         struct text *text, struct error *err) {
    (void)step, (void)matcher, (void)err;
    struct text lower = {0};
    int rc = 0;
    const char *end = text->data + text->n;
    for (const char *p = text->data; p < end && rc == 0;) {
        const uint32_t c = utf8_next(p, &p);
        if (c == 0x130) { /* the only character whose lower case is two: i and a dot above */
            rc = text_append(&lower, "i\xCC\x87", 3);
        } else {
            rc = text_append_char(&lower, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
        }
    }
    free(text->data);
    *text = lower;
    return rc;
}

static int run_replace(const struct normalizer_step *step, struct matcher *matcher,
                       struct text *text, struct error *err) {
    return replace_run(matcher, step->pattern, step->content.data, step->content.n, text, err);
}

static int run_prepend(const struct normalizer_step *step, struct matcher *matcher,
                       struct text *text, struct error *err) {
    (void)matcher, (void)err;
    struct text longer = {0};
    int rc = text_append(&longer, step->content.data, step->content.n);
    if (rc == 0) rc = text_append(&longer, text->data, text->n);
    free(text->data);
    *text = longer;
    return rc;
}

static int run_strip(const struct normalizer_step *step, struct matcher *matcher, struct text *text,
                     struct error *err) {
    (void)matcher, (void)err;
    const size_t end = step->right ? skip_space_back(text->data, text->n, 0) : text->n;
    const size_t begin = step->left ? skip_space(text->data, 0, end) : 0;
    text->n = end - begin;
    memmove(text->data, text->data + begin, text->n);
    return 0;
}

static int parse_replace(struct normalizer_step *step, const json_t *component, struct error *err) {
    return replace_parse(&step->pattern, &step->content, component, err);
}

static int parse_prepend(struct normalizer_step *step, const json_t *component, struct error *err) {
    return member_append(&step->content, component, "prepend", err);
}

static int parse_strip(struct normalizer_step *step, const json_t *component, struct error *err) {
    (void)err;
    step->left = member_flag(component, "strip_left", false);
    step->right = member_flag(component, "strip_right", false);
    return 0;
}

static const struct normalizer_kind KINDS[] = {
    {"NFC", run_form, NULL, true, false},
    {"NFD", run_form, NULL, false, false},
    {"NFKC", run_form, NULL, true, true},
    {"NFKD", run_form, NULL, false, true},
    {"Lowercase", run_lowercase, NULL, false, false},
    {"Replace", run_replace, parse_replace, false, false},
    {"Prepend", run_prepend, parse_prepend, false, false},
    {"Strip", run_strip, parse_strip, false, false},
};

int normalizer_run(const struct normalizer *normalizer, struct matcher *matcher, struct text *text,
                   struct error *err) {
    for (size_t i = 0; i < normalizer->n_steps && text->n > 0; i++) {
        const struct normalizer_step *step = &normalizer->steps[i];
        int rc = step->kind->run(step, matcher, text, err);
        if (rc == 0 && !step->pattern) rc = matcher_use_budget(matcher, text->n, err);
        if (rc) return rc;
    }
    return 0;
}

static int parse_sequence(struct normalizer *normalizer, const json_t *component,
                          struct error *err);

static int parse_one(struct normalizer *normalizer, const json_t *component, struct error *err) {
    const char *type = component_type(component);
    if (strcmp(type, "Sequence") == 0) return parse_sequence(normalizer, component, err);
    if (normalizer->n_steps == MAX_STEPS)
        return refuse(err, "a longer sequence before normalizer", type);

    for (size_t i = 0; i < sizeof(KINDS) / sizeof(*KINDS); i++) {
        if (strcmp(type, KINDS[i].name) != 0) continue;
        struct normalizer_step *step = &normalizer->steps[normalizer->n_steps++];
        *step = (struct normalizer_step){.kind = &KINDS[i]};
        return KINDS[i].parse ? KINDS[i].parse(step, component, err) : 0;
    }
    return refuse(err, "normalizer", type);
}

static int parse_sequence(struct normalizer *normalizer, const json_t *component,
                          struct error *err) {
    const json_t *list = json_object_get(component, "normalizers");
    if (!json_is_array(list))
        return error_set(err, ERR_INVALID, "tokenizer.json: a Sequence lists no normalizers");
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one) {
        const int rc = parse_one(normalizer, one, err);
        if (rc) return rc;
    }
    return 0;
}

int normalizer_parse(struct normalizer *normalizer, const json_t *component, struct error *err) {
    return !component || json_is_null(component) ? 0 : parse_one(normalizer, component, err);
}

void normalizer_fini(struct normalizer *normalizer) {
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        pattern_free(normalizer->steps[i].pattern);
        free(normalizer->steps[i].content.data);
    }
    normalizer->n_steps = 0;
}
