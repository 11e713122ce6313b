/* prompts.c - see prompts.h.  A recursive-descent reader of depth two over one balanced array. */
#include "server/api/prompts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/digits.h"
#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_strings.h"
#include "engine/base/populate.h"
#include "engine/base/sizes.h"
#include "engine/template/template.h"
#include "server/api/spare_ids.h"
#include "server/json/api_error.h"
#include "server/json/json_guard.h"

struct prompt_reader {
    const char *at, *end;
    uint32_t n_vocab;
    size_t n_tokens; /* over all prompts */
    const char *param;
    struct api_error *err;
};

void prompt_list_fini(struct prompt_list *list) {
    for (uint32_t i = 0; i < list->n; i++) {
        free(list->items[i].text);
        free(list->items[i].trusted);
        free(list->items[i].tokens.ids);
    }
    free(list->items);
    *list = (struct prompt_list){0};
}

static int add_prompt(struct prompt_list *list, struct prompt **out, const char *param,
                      struct api_error *err) {
    if (list->n == PROMPTS_MAX) {
        return api_error_set(err, 400, NULL, param, "%s holds more than %d prompts", param,
                             PROMPTS_MAX);
    }
    if (list->n == list->capacity) {
        const uint32_t capacity = list->capacity ? 2 * list->capacity : 1;
        struct prompt *items = realloc(list->items, capacity * sizeof(*items));
        if (!items) return api_error_no_memory(err);
        list->items = items;
        list->capacity = capacity;
    }
    *out = &list->items[list->n++];
    **out = (struct prompt){0};
    return 0;
}

int prompt_list_add_text(struct prompt_list *list, const char *text, size_t length,
                         struct api_error *err) {
    struct prompt *prompt = NULL;
    const int rc = add_prompt(list, &prompt, "prompt", err);
    if (rc) return rc;
    prompt->text = malloc(length + 1);
    if (!prompt->text) return api_error_no_memory(err);
    memcpy(prompt->text, text, length);
    prompt->text[length] = 0;
    prompt->length = length;
    return 0;
}

int prompt_list_take_rendered(struct prompt_list *list, struct template_text *text,
                              struct api_error *err) {
    struct prompt *prompt = NULL;
    const int rc = add_prompt(list, &prompt, "messages", err);
    if (rc) return rc;
    prompt->rendered = true;
    prompt->text = text->bytes;
    prompt->length = text->n_bytes;
    prompt->trusted = text->trusted;
    prompt->n_trusted = text->n_trusted;
    *text = (struct template_text){0};
    return 0;
}

/* Returns where the last text begins that is not the template's. */
static size_t last_text_at(const struct prompt *prompt) {
    size_t n = prompt->n_trusted;
    if (n > 0 && prompt->trusted[n - 1].end == prompt->length) n--;
    return n > 0 ? prompt->trusted[n - 1].end : 0;
}

/* Counts tokens from the end.  Where their bytes are not those of the text, as with other white
 * space, the number is off by a few. */
void prompt_find_last(struct prompt *prompt, const struct tokenizer *tokenizer) {
    if (!prompt->rendered) return;
    const size_t n_behind = prompt->length - last_text_at(prompt);
    size_t n_bytes = 0, n = prompt->tokens.n;
    while (n > 0 && n_bytes < n_behind) {
        size_t length = 0;
        tokenizer_token_bytes(tokenizer, prompt->tokens.ids[--n], &length);
        n_bytes += length;
    }
    prompt->n_before_last = (uint32_t)n;
}

static char peek(struct prompt_reader *r) {
    while (r->at < r->end && json_is_space(*r->at)) r->at++;
    return r->at < r->end ? *r->at : 0;
}

static int malformed(struct prompt_reader *r) {
    return api_error_set(
        r->err, 400, NULL, r->param,
        "%s must be a string, an array of strings, an array of token ids, or an array "
        "of arrays of token ids",
        r->param);
}

/* Returns 1 when another element follows, 0 when the array has ended, negative on an error. */
static int next_element(struct prompt_reader *r) {
    const char c = peek(r);
    if (c != ',' && c != ']') return malformed(r);
    r->at++;
    return c == ',';
}

static int grow_tokens(struct prompt_reader *r, struct token_list *tokens) {
    const size_t capacity = tokens->capacity ? 2 * tokens->capacity : 64;
    uint32_t *ids = realloc(tokens->ids, capacity * sizeof(*ids));
    if (!ids) return api_error_no_memory(r->err);
    tokens->ids = ids;
    tokens->capacity = capacity;
    return 0;
}

/* Makes space for the only list of tokens, and for what the engine appends to it.  A token has a
 * digit and a comma at least; a likely one has five digits and two bytes behind them. */
static int reserve_tokens(struct prompt_reader *r, struct token_list *tokens,
                          struct spare_ids *spare) {
    const size_t n_bytes = (size_t)(r->end - r->at),
                 most = min_u64(n_bytes / 2 + 1, PROMPTS_MAX_TOKENS),
                 likely = min_u64(n_bytes / 7, most);
    if (spare) tokens->ids = spare_ids_take(spare, likely, &tokens->capacity);
    if (tokens->ids) return 0;
    tokens->ids = malloc((most + PROMPT_SPARE_TOKENS) * sizeof(*tokens->ids));
    if (!tokens->ids) return api_error_no_memory(r->err);
    tokens->capacity = most + PROMPT_SPARE_TOKENS;
    populate(tokens->ids, likely * sizeof(*tokens->ids));
    return 0;
}

/* Gives space back that has not been touched. */
static void trim_tokens(struct token_list *tokens) {
    const size_t capacity = tokens->n + PROMPT_SPARE_TOKENS;
    uint32_t *ids =
        capacity < tokens->capacity ? realloc(tokens->ids, capacity * sizeof(*tokens->ids)) : NULL;
    if (!ids) return;
    tokens->ids = ids;
    tokens->capacity = capacity;
}

static int append_token(struct prompt_reader *r, struct token_list *tokens, uint32_t id) {
    if (++r->n_tokens > PROMPTS_MAX_TOKENS) {
        return api_error_set(r->err, 400, NULL, r->param, "%s holds more than %d token ids",
                             r->param, PROMPTS_MAX_TOKENS);
    }
    if (tokens->n == tokens->capacity && grow_tokens(r, tokens)) return ERR_NOMEM;
    tokens->ids[tokens->n++] = id;
    return 0;
}

static int refuse_token(struct prompt_reader *r, const char *start) {
    return api_error_set(r->err, 400, NULL, r->param,
                         "%s: token id %.*s is out of range, the vocabulary has %u tokens",
                         r->param, (int)(r->at - start > 24 ? 24 : r->at - start), start,
                         r->n_vocab);
}

/* Reads one JSON integer in [0, n_vocab).  `1.0`, `1e3` and `01` are not integers here.  The array
 * is balanced, so its last bracket ends the digits of the last number. */
static int read_token(struct prompt_reader *r, struct token_list *tokens) {
    peek(r);
    const char *start = r->at, *at = start;
    const bool negative = *at == '-';
    if (negative) at++;
    const char *digits = at;
    uint64_t id = 0;
    for (; (uint8_t)(*at - '0') <= 9; at++)
        if (id < UINT32_MAX) id = id * 10 + (uint64_t)(*at - '0');
    const bool leading_zero = at - digits > 1 && *digits == '0';
    r->at = at;
    if (at == digits || leading_zero || *at == '.' || *at == 'e' || *at == 'E') return malformed(r);
    if ((negative && id > 0) || id >= r->n_vocab) return refuse_token(r, start);
    return append_token(r, tokens, (uint32_t)id);
}

/* Does the same as read_plain_tokens() for as many tokens as vector instructions can read. */
static void read_blocks(struct prompt_reader *r, struct token_list *tokens) {
    const size_t left = PROMPTS_MAX_TOKENS - r->n_tokens, space = tokens->capacity - tokens->n;
    const size_t n = digits_read_blocks(&r->at, r->end, r->n_vocab, tokens->ids + tokens->n,
                                        left < space ? left : space);
    r->n_tokens += n;
    tokens->n += n;
}

/* Reads `digits, digits, …` as far as that goes and tokens has space, eight bytes at a time, and
 * stops before an element that read_token() must judge or append.  What stands between the first
 * two numbers is expected between all: so the place of the next number depends on the digits
 * alone.  A comma is not the array's last byte. */
static void read_plain_tokens(struct prompt_reader *r, struct token_list *tokens) {
    peek(r);
    const char *at = r->at;
    const size_t left = PROMPTS_MAX_TOKENS - r->n_tokens, space = tokens->capacity - tokens->n;
    const size_t most = left < space ? left : space;
    size_t gap = 0, n_read = 0;
    uint32_t id;
    for (unsigned n; n_read < most && (n = digits_read(at, r->end, &id)) > 0; at += n + gap) {
        if (at[n] != ',' || (n > 1 && *at == '0') || id >= r->n_vocab) break;
        if (gap == 0) gap = at[n + 1] == ' ' ? 2 : 1;
        if (gap == 2 && at[n + 1] != ' ') break;
        tokens->ids[tokens->n + n_read++] = id;
    }
    r->at = at;
    r->n_tokens += n_read;
    tokens->n += n_read;
}

/* Reads the elements of an array whose opening bracket has been read. */
static int read_tokens(struct prompt_reader *r, struct token_list *tokens) {
    if (peek(r) == ']')
        return api_error_set(r->err, 400, NULL, r->param, "%s is an empty array", r->param);
    int rc;
    do {
        if (tokens->n > 0) { /* behind a comma */
            read_blocks(r, tokens);
            read_plain_tokens(r, tokens);
        }
        rc = read_token(r, tokens);
        if (!rc) rc = next_element(r);
    } while (rc == 1);
    return rc;
}

static int read_token_arrays(struct prompt_reader *r, struct prompt_list *list) {
    int rc;
    do {
        struct prompt *prompt = NULL;
        if (peek(r) != '[') return malformed(r);
        r->at++;
        rc = add_prompt(list, &prompt, r->param, r->err);
        if (!rc) rc = read_tokens(r, &prompt->tokens);
        if (!rc) rc = next_element(r);
    } while (rc == 1);
    return rc;
}

static int read_text(struct prompt_reader *r, struct prompt_list *list) {
    if (peek(r) != '"') return malformed(r);
    const char *start = r->at, *quote = json_string_end(start + 1, r->end);
    if (!quote) return malformed(r);
    r->at = quote + 1;

    json_error_t why = {0};
    json_t *text = NULL;
    int rc = json_arena_load(&text, start, (size_t)(r->at - start),
                             JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (rc == ERR_NOMEM) return api_error_no_memory(r->err);
    if (rc) {
        return api_error_set(r->err, 400, NULL, r->param, "%s: invalid JSON: %.200s", r->param,
                             why.text);
    }
    rc = prompt_list_add_text(list, json_string_value(text), json_string_length(text), r->err);
    json_decref(text);
    return rc;
}

static int read_texts(struct prompt_reader *r, struct prompt_list *list) {
    int rc;
    do {
        rc = read_text(r, list);
        if (!rc) rc = next_element(r);
    } while (rc == 1);
    return rc;
}

int prompt_list_read(struct prompt_list *list, const struct json_span *array, uint32_t n_vocab,
                     const char *param, struct api_error *err) {
    struct prompt_reader r = {.at = array->start + 1,
                              .end = array->start + array->length,
                              .n_vocab = n_vocab,
                              .param = param,
                              .err = err};
    int rc;
    switch (peek(&r)) {
    case '"': rc = read_texts(&r, list); break;
    case '[': rc = read_token_arrays(&r, list); break;
    default: {
        struct prompt *prompt = NULL;
        rc = add_prompt(list, &prompt, param, err);
        if (!rc) rc = reserve_tokens(&r, &prompt->tokens, list->spare);
        if (!rc) rc = read_tokens(&r, &prompt->tokens);
        if (!rc) trim_tokens(&prompt->tokens);
    }
    }
    if (rc) return rc;
    return peek(&r) == 0 ? 0 : malformed(&r);
}
