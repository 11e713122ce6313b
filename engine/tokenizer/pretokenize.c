/* pretokenize.c - cuts a text into the pieces that are encoded on their own: ByteLevel, Split,
 * Digits, Punctuation, Metaspace, and sequences of them.
 *
 * Every step cuts each piece of the step before into matches and what lies between:
 *
 *   text      in 2024,  x
 *   segments  [in][ ][2024][, ][x]     digits match, the rest does not
 *   pieces    a segment joins the one before it or begins a new piece, as the behavior says
 *
 * Pieces go down the steps one at a time, so no list of them exists.  Steps behind ByteLevel see a
 * piece as it spells its bytes, a character for each.  Behind the last step it is bytes again.
 *
 * Thread: immutable once parsed.  Memory: steps own their pattern. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

static const char *const BEHAVIOR_NAMES[] = {"Removed", "Isolated", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous"};

/* JOINS[behavior][the segment before is a match][this one is]: this one joins it */
static const bool JOINS[][2][2] = {
    [SPLIT_REMOVED] = {{false, false}, {false, false}},
    [SPLIT_ISOLATED] = {{false, false}, {false, false}},
    [SPLIT_MERGED_WITH_PREVIOUS] = {{false, true}, {false, false}},
    [SPLIT_MERGED_WITH_NEXT] = {{false, false}, {true, false}},
    [SPLIT_CONTIGUOUS] = {{true, false}, {false, true}},
};

/* The pieces that one step makes of one text. */
struct cutting {
    struct encoding *encoding;
    size_t step;
    const char *text;
    size_t begin, end; /* the piece being gathered, if any */
    bool any, matched; /* matched: its last segment is a match */
};

static int run_step(struct encoding *encoding, size_t step, const char *text, size_t n);

static int hand_on(struct cutting *cut) {
    if (!cut->any || cut->begin == cut->end) return 0;
    return run_step(cut->encoding, cut->step + 1, cut->text + cut->begin, cut->end - cut->begin);
}

/* Takes the next segment: the piece before it is handed on if this one does not join it, and so is
 * this one's if no segment can. */
static int take_segment(struct cutting *cut, const struct split *split, size_t begin, size_t end,
                        bool matched) {
    const bool(*joins)[2] = JOINS[split->behavior];
    int rc = 0;
    matched ^= split->invert;
    if (!cut->any || !joins[cut->matched][matched]) {
        rc = hand_on(cut);
        cut->begin = begin;
    }
    cut->end = end;
    cut->any = !(matched && split->behavior == SPLIT_REMOVED);
    cut->matched = matched;
    if (rc || joins[matched][false] || joins[matched][true]) return rc;
    rc = hand_on(cut);
    cut->begin = end;
    cut->any = false;
    return rc;
}

/* Takes the next match and the segments that it ends.  *found: there is one, so *taken is its end.
 * The text behind the last one of a whole text is a segment, too. */
static int take_match(struct cutting *cut, const struct split *split, struct match *match, size_t n,
                      enum extent extent, size_t *taken) {
    struct encoding *e = cut->encoding;
    int rc = 0;
    if (extent == EXTENT_CERTAIN)
        match_next_certain(&e->matcher, split->pattern, cut->text, n, match);
    else rc = match_next(&e->matcher, split->pattern, cut->text, n, match, e->err);
    if (rc || (!match->found && extent == EXTENT_CERTAIN)) return rc;
    const size_t until = match->found ? match->begin : n;
    if (until > *taken) rc = take_segment(cut, split, *taken, until, false);
    if (rc == 0 && match->found) rc = take_segment(cut, split, match->begin, match->end, true);
    *taken = match->end;
    return rc;
}

/* Hands on the pieces of a text, of which the last ones may be uncertain. */
static int cut_text(struct encoding *encoding, size_t step, const char *text, size_t n,
                    enum extent extent, size_t *done) {
    const struct split *split = &encoding->tokenizer->pretokenizer.steps[step];
    struct cutting cut = {.encoding = encoding, .step = step, .text = text};
    struct match match = {0};
    size_t taken = 0;
    do {
        const int rc = take_match(&cut, split, &match, n, extent, &taken);
        if (rc) return rc;
    } while (match.found && !(extent == EXTENT_FIRST && cut.begin > 0));
    const bool is_whole = !match.found && extent != EXTENT_CERTAIN;
    *done = is_whole ? n : cut.begin;
    return is_whole ? hand_on(&cut) : 0;
}

static int split_text(struct encoding *encoding, size_t step, const char *text, size_t n) {
    const struct split *split = &encoding->tokenizer->pretokenizer.steps[step];
    size_t done;
    if (!split->pattern) return run_step(encoding, step + 1, text, n);
    if (!split->pattern->is_forward) return cut_text(encoding, step, text, n, EXTENT_WHOLE, &done);
    return encode_chunks(encoding, step, text, n, cut_text);
}

/* Appends the text with its spaces as the step writes them, and with one in front if it is to begin
 * so. */
static int write_spaces(const struct encoding *encoding, const struct split *split,
                        const char *text, size_t n, struct text *out) {
    const size_t n_space = strlen(split->space);
    const bool has_one =
        text[0] == ' ' || (n >= n_space && memcmp(text, split->space, n_space) == 0);
    const bool wants =
        split->prepend == PREPEND_ALWAYS || (split->prepend == PREPEND_FIRST && encoding->at_start);
    int rc = wants && !has_one ? text_append(out, split->space, n_space) : 0;
    for (const char *p = text, *end = text + n; p < end && rc == 0;) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        rc = text_append(out, p, (size_t)((space ? space : end) - p));
        if (rc == 0 && space) rc = text_append(out, split->space, n_space);
        p = space ? space + 1 : end;
    }
    return rc;
}

/* Runs the steps behind ByteLevel on what it spells. */
static int run_spelled(struct encoding *encoding, size_t step, const char *text, size_t n) {
    struct text spelled = {0};
    int rc = matcher_use_budget(&encoding->matcher, n, encoding->err);
    for (size_t i = 0; i < n && rc == 0; i++) {
        char character[4];
        const size_t length = utf8_write(character, alphabet_char((unsigned char)text[i]));
        rc = text_append(&spelled, character, length);
    }
    if (rc == 0) rc = split_text(encoding, step, spelled.data, spelled.n);
    free(spelled.data);
    return rc;
}

/* Encodes a piece of what ByteLevel spells. */
static int encode_spelled(struct encoding *encoding, const char *piece, size_t n) {
    char few[64], *bytes = n <= sizeof(few) ? few : malloc(n);
    size_t n_bytes = 0;
    if (!bytes) return ERR_NOMEM;
    alphabet_to_bytes(piece, n, bytes, &n_bytes);
    const int rc = encode_piece(encoding, bytes, n_bytes);
    if (bytes != few) free(bytes);
    return rc;
}

static int run_step(struct encoding *encoding, size_t step, const char *text, size_t n) {
    const struct pretokenizer *pretokenizer = &encoding->tokenizer->pretokenizer;
    if (step == pretokenizer->n_steps)
        return pretokenizer->n_spelled > 0 ? encode_spelled(encoding, text, n)
                                           : encode_piece(encoding, text, n);
    if (pretokenizer->n_spelled > 0 && step + pretokenizer->n_spelled == pretokenizer->n_steps)
        return run_spelled(encoding, step, text, n);
    if (!pretokenizer->steps[step].space[0]) return split_text(encoding, step, text, n);

    struct text spaced = {0};
    int rc = write_spaces(encoding, &pretokenizer->steps[step], text, n, &spaced);
    if (rc == 0) rc = matcher_use_budget(&encoding->matcher, spaced.n, encoding->err);
    if (rc == 0) rc = split_text(encoding, step, spaced.data, spaced.n);
    free(spaced.data);
    return rc;
}

int pretokenizer_run(struct encoding *encoding, const char *text, size_t n) {
    return n > 0 ? run_step(encoding, 0, text, n) : 0;
}

static int parse_behavior(enum split_behavior *out, const json_t *component, struct error *err) {
    const char *name = json_string_value(json_object_get(component, "behavior"));
    if (!name) return error_set(err, ERR_INVALID, "tokenizer.json: a Split has no behavior");
    for (size_t i = 0; i < sizeof(BEHAVIOR_NAMES) / sizeof(*BEHAVIOR_NAMES); i++) {
        if (strcmp(name, BEHAVIOR_NAMES[i]) == 0) {
            *out = (enum split_behavior)i;
            return 0;
        }
    }
    return refuse(err, "Split behavior", name);
}

static int parse_split(struct pretokenizer *pretokenizer, struct split *split,
                       const json_t *component, struct error *err) {
    (void)pretokenizer;
    split->invert = member_flag(component, "invert", false);
    const int rc = parse_behavior(&split->behavior, component, err);
    return rc ? rc : pattern_parse(&split->pattern, json_object_get(component, "pattern"), err);
}

static int parse_digits(struct pretokenizer *pretokenizer, struct split *split,
                        const json_t *component, struct error *err) {
    (void)pretokenizer;
    split->behavior =
        member_flag(component, "individual_digits", false) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return pattern_compile(&split->pattern, "\\p{N}", 5, false, err);
}

/* Cuts at what Unicode calls punctuation, and at the other ASCII characters that are neither
 * letters, digits nor spaces. */
static int parse_punctuation(struct pretokenizer *pretokenizer, struct split *split,
                             const json_t *component, struct error *err) {
    static const char PATTERN[] = "[\\p{P}$+<=>^`|~]";
    const bool says = json_object_get(component, "behavior") != NULL;
    (void)pretokenizer;
    split->behavior = SPLIT_ISOLATED;
    const int rc = says ? parse_behavior(&split->behavior, component, err) : 0;
    return rc ? rc : pattern_compile(&split->pattern, PATTERN, sizeof(PATTERN) - 1, false, err);
}

static int parse_byte_level(struct pretokenizer *pretokenizer, struct split *split,
                            const json_t *component, struct error *err) {
    static const char PATTERN[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    pretokenizer->byte_level = true;
    split->behavior = SPLIT_ISOLATED;
    if (member_flag(component, "add_prefix_space", true)) {
        split->space[0] = ' ';
        split->prepend = PREPEND_ALWAYS;
    }
    if (!member_flag(component, "use_regex", true)) return 0;
    return pattern_compile(&split->pattern, PATTERN, sizeof(PATTERN) - 1, false, err);
}

int metaspace_parse(struct metaspace *metaspace, const json_t *component, struct error *err) {
    static const char *const SCHEMES[] = {
        [PREPEND_NEVER] = "never", [PREPEND_FIRST] = "first", [PREPEND_ALWAYS] = "always"};
    const char *scheme = json_string_value(json_object_get(component, "prepend_scheme"));
    size_t n, s = 0;
    const char *space = member_text(component, "replacement", &n), *after = space;
    if (space && n > 0) utf8_next(space, &after);
    if (!space || n == 0 || after != space + n || *space == '\0')
        return error_set(err, ERR_INVALID, "tokenizer.json: a Metaspace replaces by no character");
    while (s <= PREPEND_ALWAYS && strcmp(scheme ? scheme : "always", SCHEMES[s]) != 0) s++;
    if (s > PREPEND_ALWAYS) return refuse(err, "Metaspace prepend_scheme", scheme);
    if (s != PREPEND_NEVER && !member_flag(component, "add_prefix_space", true))
        return refuse(err, "Metaspace with add_prefix_space false and prepend_scheme", SCHEMES[s]);
    *metaspace = (struct metaspace){.prepend = (enum prepend)s};
    metaspace->split = member_flag(component, "split", true);
    memcpy(metaspace->space, space, n);
    return 0;
}

static int parse_metaspace(struct pretokenizer *pretokenizer, struct split *split,
                           const json_t *component, struct error *err) {
    struct metaspace metaspace;
    const int rc = metaspace_parse(&metaspace, component, err);
    if (rc) return rc;
    /* It is not known which later piece begins the text. */
    if (metaspace.prepend == PREPEND_FIRST && pretokenizer->n_steps > 1)
        return refuse(err, "behind other pre-tokenizers the Metaspace prepend_scheme", "first");
    memcpy(split->space, metaspace.space, sizeof(split->space));
    split->prepend = metaspace.prepend;
    split->behavior = SPLIT_MERGED_WITH_NEXT;
    if (!metaspace.split) return 0;
    return pattern_compile(&split->pattern, split->space, strlen(split->space), true, err);
}

static const struct {
    const char *name;
    int (*parse)(struct pretokenizer *pretokenizer, struct split *split, const json_t *component,
                 struct error *err);
} KINDS[] = {
    {"ByteLevel", parse_byte_level},    {"Digits", parse_digits}, {"Metaspace", parse_metaspace},
    {"Punctuation", parse_punctuation}, {"Split", parse_split},
};

static int parse_sequence(struct pretokenizer *pretokenizer, const json_t *component,
                          struct error *err);

static int parse_one(struct pretokenizer *pretokenizer, const json_t *component,
                     struct error *err) {
    const char *type = component_type(component);
    if (strcmp(type, "Sequence") == 0) return parse_sequence(pretokenizer, component, err);
    if (pretokenizer->n_steps == MAX_STEPS)
        return refuse(err, "a longer sequence before pre-tokenizer", type);
    const bool is_spelled = pretokenizer->byte_level;
    if (is_spelled && strcmp(type, "ByteLevel") == 0)
        return refuse(err, "after ByteLevel the pre-tokenizer", type);
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(*KINDS); i++) {
        if (strcmp(type, KINDS[i].name) != 0) continue;
        struct split *split = &pretokenizer->steps[pretokenizer->n_steps++];
        *split = (struct split){0};
        const int rc = KINDS[i].parse(pretokenizer, split, component, err);
        if (rc || !is_spelled) return rc;
        pretokenizer->n_spelled++;
        return split->space[0] ? refuse(err, "after ByteLevel the pre-tokenizer", type) : 0;
    }
    return refuse(err, "pre-tokenizer", type);
}

static int parse_sequence(struct pretokenizer *pretokenizer, const json_t *component,
                          struct error *err) {
    const json_t *list = json_object_get(component, "pretokenizers");
    if (!json_is_array(list)) {
        return error_set(err, ERR_INVALID, "tokenizer.json: a Sequence lists no pretokenizers");
    }
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one) {
        const int rc = parse_one(pretokenizer, one, err);
        if (rc) return rc;
    }
    return 0;
}

int pretokenizer_parse(struct pretokenizer *pretokenizer, const json_t *component,
                       struct error *err) {
    return !component || json_is_null(component) ? 0 : parse_one(pretokenizer, component, err);
}

void pretokenizer_fini(struct pretokenizer *pretokenizer) {
    for (size_t i = 0; i < pretokenizer->n_steps; i++) pattern_free(pretokenizer->steps[i].pattern);
    pretokenizer->n_steps = 0;
}
