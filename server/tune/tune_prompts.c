/* tune_prompts.c - see tune_prompts.h.
 *
 * A prompt is a head, a body and a tail.  Head and tail are made first.  Then the body grows by
 * items, each tokenized alone, until the next one would not fit.  An item begins with the white
 * space before it, as tokenizers expect. */
#include "server/tune/tune_prompts.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/json/buffer.h"

enum {
    PROSE_BYTES = 4 << 20,
    SENTENCE_MIN = 40, /* bytes: a shorter sentence is joined with the next */
    SENTENCE_MAX = 600,
    N_NEEDLES = 12,
    N_SEVERAL = 4, /* numbers of a name */
    N_GAUGED = 16, /* pairs tokenized to estimate how many will fit */
    MIN_BODY = 128
};

/* The chat form of a question to a model that has been trained to answer. */
static const struct chat_form {
    const char *mark, *before, *after; /* mark: a token of models that know this form */
} chat_forms[] = {
    {"<|im_start|>", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"},
    {"<|start_header_id|>", "<|start_header_id|>user<|end_header_id|>\n\n",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"[/INST]", "[INST] ", "[/INST]"},
    {NULL, "", "\nAnswer:"},
};

struct tune_prompt {
    const struct tokenizer *tokenizer;
    const char *prose, *at; /* at: the next sentence */
    uint64_t seed, n_sampled;
    uint32_t room; /* tokens of the body that are left, */
    uint32_t body; /* of this many */
    uint32_t n_items, n_needles, n_names;
    struct token_list *out;
    struct buffer item;
    struct error *err;
};

/* Writes the next item of a body into p->item. */
typedef void (*next_item)(struct tune_prompt *p);

static const char *const text_names[TUNE_N_TEXTS] = {"retrieval", "needles", "prose", "several"};

const char *tune_text_name(enum tune_text kind) {
    return text_names[kind];
}

/* ---- chance ---- */

/* Returns a random number below `below` that depends only on the seed, `what` and i.  Keys, values
 * and needles are made so that a question can be asked before the body is there. */
static uint32_t number_of(const struct tune_prompt *p, const char *what, uint32_t i,
                          uint32_t below) {
    const uint64_t stream = p->seed * 1000003 + (uint64_t)(unsigned char)*what;
    return (uint32_t)(rng_uniform(stream, i) * below);
}

static uint32_t draw(struct tune_prompt *p, uint32_t below) {
    return (uint32_t)(rng_uniform(p->seed, p->n_sampled++) * below);
}

/* ---- items ---- */

static void pair_item(struct tune_prompt *p) {
    const uint32_t i = p->n_items;
    buffer_printf(&p->item, "%s\"%08x\": \"%08x\"", i ? ", " : "",
                  number_of(p, "key", i, UINT32_MAX), number_of(p, "value", i, UINT32_MAX));
}

static const char *const people[] = {"The gardener",  "A young clerk",        "The old captain",
                                     "My neighbour",  "The schoolmaster",     "Her eldest brother",
                                     "The innkeeper", "A travelling merchant"};
static const char *const deeds[] = {"carried a lantern",       "read the long letter",
                                    "waited for the carriage", "counted the silver coins",
                                    "mended the broken fence", "spoke of the harvest",
                                    "looked for the lost dog", "wrote down every word"};
static const char *const places[] = {"across the old bridge",  "by the kitchen window",
                                     "at the end of the lane", "under the chestnut trees",
                                     "in the empty hall",      "near the harbour",
                                     "behind the mill",        "on the narrow stairs"};
static const char *const times[] = {"before the rain began",    "until the bells rang",
                                    "while the others slept",   "and said nothing of it",
                                    "as he had done for years", "though nobody had asked",
                                    "when the lamps were lit",  "and smiled to himself"};

static void made_up_item(struct tune_prompt *p) {
    const char *person = people[draw(p, 8)], *deed = deeds[draw(p, 8)];
    const char *place = places[draw(p, 8)], *time = times[draw(p, 8)];
    buffer_printf(&p->item, " %s %s %s %s.", person, deed, place, time);
}

/* Returns the end of the sentence that begins at text: white space, so that no character is cut. */
static const char *sentence_end(const char *text) {
    const char *at = text;
    for (; *at; at++) {
        const long length = at - text;
        if (length < SENTENCE_MIN || !isspace((unsigned char)*at)) continue;
        if (length >= SENTENCE_MAX || strchr(".!?\"", at[-1])) break;
    }
    return at;
}

static void prose_item(struct tune_prompt *p) {
    if (!p->prose) {
        made_up_item(p);
        return;
    }
    if (!*p->at) p->at = p->prose; /* again from the beginning */
    const char *end = sentence_end(p->at);
    buffer_append(&p->item, p->at, (size_t)(end - p->at));
    p->at = end;
}

static const char *const needle_names[N_NEEDLES] = {"amber",  "birch",   "coral",   "delta",
                                                    "ember",  "falcon",  "granite", "harbor",
                                                    "indigo", "juniper", "kestrel", "linden"};

/* Writes a needle or, if none is due, prose.  Needles lie at even distances, beginning half a
 * distance from the start. */
static void needles_item(struct tune_prompt *p) {
    const uint64_t done = p->body - p->room;
    const uint32_t i = p->n_needles;
    if (i < N_NEEDLES && done * N_NEEDLES * 2 >= (uint64_t)p->body * (2 * i + 1)) {
        p->n_needles++;
        buffer_printf(&p->item, " %s of %s is %07u.",
                      p->n_names < N_NEEDLES ? "One of the secret numbers" : "The secret number",
                      needle_names[i % p->n_names], number_of(p, "needle", i, 10000000));
    } else {
        prose_item(p);
    }
}

/* ---- the prompt ---- */

static int encode(const struct tune_prompt *p, const char *text, bool add_special,
                  struct token_list *out) {
    return tokenizer_encode(p->tokenizer, text, strlen(text), add_special, 0, out, p->err);
}

static int append(struct tune_prompt *p, const struct token_list *from) {
    struct token_list *out = p->out;
    if (out->capacity - out->n < from->n) {
        const size_t capacity = 2 * (out->n + from->n);
        uint32_t *ids = realloc(out->ids, capacity * sizeof(*ids));
        if (!ids) return error_set(p->err, ERR_NOMEM, "tune: no memory for a prompt");
        out->ids = ids;
        out->capacity = capacity;
    }
    if (from->n) memcpy(out->ids + out->n, from->ids, from->n * sizeof(*from->ids));
    out->n += from->n;
    return 0;
}

static int encode_item(struct tune_prompt *p, next_item next, struct token_list *tokens) {
    buffer_clear(&p->item);
    next(p);
    tokens->n = 0;
    if (p->item.failed) return error_set(p->err, ERR_NOMEM, "tune: no memory for a prompt");
    return encode(p, p->item.data, false, tokens);
}

static int write_body(struct tune_prompt *p, next_item next) {
    struct token_list tokens = {0};
    int rc = 0;
    for (p->n_items = 0; !rc; p->n_items++) {
        rc = encode_item(p, next, &tokens);
        if (rc || tokens.n > p->room || p->n_items > p->body) break; /* or every item is empty */
        rc = append(p, &tokens);
        p->room -= (uint32_t)tokens.n;
    }
    free(tokens.ids);
    return rc;
}

/* Writes head and tail around a body that fills n_tokens. */
static int write_prompt(struct tune_prompt *p, const char *head, const char *tail,
                        uint32_t n_tokens, next_item next) {
    struct token_list last = {0};
    const size_t begin = p->out->n;
    int rc = encode(p, head, true, p->out);
    if (!rc) rc = encode(p, tail, false, &last);
    const size_t around = p->out->n - begin + last.n;
    if (!rc && around + MIN_BODY > n_tokens)
        rc = error_set(p->err, ERR_INVALID,
                       "tune: prompts of %" PRIu32 " tokens are too short: at least %zu", n_tokens,
                       around + MIN_BODY);
    if (!rc) {
        p->body = p->room = n_tokens - (uint32_t)around;
        rc = write_body(p, next);
    }
    if (!rc) rc = append(p, &last);
    free(last.ids);
    return rc;
}

static const struct chat_form *find_form(const struct tune_prompt *p) {
    const struct chat_form *form = chat_forms;
    for (; form->mark; form++) {
        struct token_list tokens = {0};
        const int rc = encode(p, form->mark, false, &tokens);
        const bool known = !rc && tokens.n == 1;
        free(tokens.ids);
        if (known) break;
    }
    return form;
}

/* Estimates how many pairs n tokens hold. */
static int gauge_pairs(struct tune_prompt *p, uint32_t n, uint32_t *n_pairs) {
    struct token_list tokens = {0};
    size_t n_tokens = 1;
    int rc = 0;
    for (p->n_items = 0; p->n_items < N_GAUGED && !rc; p->n_items++) {
        rc = encode_item(p, pair_item, &tokens);
        n_tokens += tokens.n;
    }
    free(tokens.ids);
    *n_pairs = (uint32_t)((uint64_t)n * N_GAUGED / n_tokens);
    return rc;
}

static int write_retrieval(struct tune_prompt *p, const struct chat_form *form, uint32_t n_tokens) {
    char head[256], tail[256];
    uint32_t n_pairs;
    const int rc = gauge_pairs(p, n_tokens, &n_pairs);
    if (rc) return rc;
    const uint32_t asked = draw(p, n_pairs * 3 / 4 + 1); /* the body holds that pair for certain */
    snprintf(head, sizeof(head),
             "%sBelow is a JSON object. Find the value that belongs to a key of it.\n\n{",
             form->before);
    snprintf(tail, sizeof(tail), "}\n\nKey: \"%08x\"\nThe value that belongs to this key is:%s",
             number_of(p, "key", asked, UINT32_MAX), form->after);
    return write_prompt(p, head, tail, n_tokens, pair_item);
}

/* Writes a needles prompt.  n_names: N_NEEDLES, or fewer, when each name has several numbers. */
static int write_needles(struct tune_prompt *p, const struct chat_form *form, uint32_t n_tokens,
                         uint32_t n_names) {
    const bool several = n_names < N_NEEDLES;
    char head[256], tail[256];
    p->n_names = n_names;
    snprintf(head, sizeof(head),
             "%sSecret numbers are hidden in the text below%s. Remember them: you will be asked "
             "for %s.\n\n",
             form->before, several ? ", several of each name" : "", several ? "all of one" : "one");
    snprintf(tail, sizeof(tail), "\n\nWhat %s of %s in the text above?%s",
             several ? "are all the secret numbers" : "is the secret number",
             needle_names[draw(p, n_names)], form->after);
    return write_prompt(p, head, tail, n_tokens, needles_item);
}

/* Moves p->at to the end of a random sentence of the prose. */
static void choose_start(struct tune_prompt *p) {
    const size_t length = strlen(p->prose);
    p->at = p->prose + draw(p, length < UINT32_MAX ? (uint32_t)length : UINT32_MAX);
    while (p->at > p->prose && ((unsigned char)*p->at & 0xC0) == 0x80) p->at--;
    p->at = sentence_end(p->at);
}

int tune_prompt_make(struct token_list *out, const struct tokenizer *tokenizer, const char *prose,
                     enum tune_text kind, uint64_t seed, uint32_t n_tokens, struct error *err) {
    struct tune_prompt p = {.tokenizer = tokenizer,
                            .prose = prose && *prose ? prose : NULL,
                            .seed = seed,
                            .out = out,
                            .err = err};
    int rc = ERR_INVALID;
    const struct chat_form *form = find_form(&p);
    if (p.prose) choose_start(&p);
    switch (kind) {
    case TUNE_RETRIEVAL: rc = write_retrieval(&p, form, n_tokens); break;
    case TUNE_NEEDLES: rc = write_needles(&p, form, n_tokens, N_NEEDLES); break;
    case TUNE_SEVERAL: rc = write_needles(&p, form, n_tokens, N_NEEDLES / N_SEVERAL); break;
    case TUNE_PROSE: rc = write_prompt(&p, "", "", n_tokens, prose_item); break;
    case TUNE_N_TEXTS: break;
    }
    buffer_fini(&p.item);
    return rc;
}

/* ---- the model's prose ---- */

/* Reads the prose up to PROSE_BYTES and leaves out the rest. */
static int read_prose(FILE *file, char *text, const char *path, struct error *err) {
    size_t n = fread(text, 1, PROSE_BYTES, file);
    if (ferror(file)) return error_set(err, ERR_IO, "%.200s: %s", path, strerror(errno));
    while (n > 0 && !isspace((unsigned char)text[n - 1])) n--; /* do not cut a character */
    text[n] = 0;
    return 0;
}

static int open_prose(FILE **out, const char *path, struct error *err) {
    int fd;
    const int rc = file_open(&fd, path, O_RDONLY, err);
    if (rc) return rc;
    *out = fdopen(fd, "rb");
    if (*out) return 0;
    close(fd);
    return error_set(err, ERR_NOMEM, "tune: no memory for the model's prose");
}

int tune_text_load(char **out, const char *path, struct error *err) {
    FILE *file;
    int rc = open_prose(&file, path, err);
    if (rc) return rc;
    char *text = malloc(PROSE_BYTES + 1);
    rc = text ? read_prose(file, text, path, err)
              : error_set(err, ERR_NOMEM, "tune: no memory for the model's prose");
    fclose(file);
    if (rc) free(text);
    else *out = text;
    return rc;
}

int tune_prose_load(char **out, const char *model_dir, struct error *err) {
    char path[PATH_MAX];
    struct error why = {0};
    *out = NULL;
    const int length = snprintf(path, sizeof(path), "%s/eval/held_out.txt", model_dir);
    if (length < 0 || length >= PATH_MAX)
        return error_set(err, ERR_INVALID, "%.200s: the path is too long", model_dir);
    const int rc = tune_text_load(out, path, &why);
    if (rc && rc != ERR_NOT_FOUND) *err = why;
    return rc == ERR_NOT_FOUND ? 0 : rc;
}
