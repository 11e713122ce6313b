/* decoder.c - decoders, as far as each token can be decoded by itself, which happens at load.
 *
 *   Replace, Strip, Metaspace   change a token
 *   ByteFallback                makes a token <0xE2> a byte; ByteLevel makes all tokens bytes
 *   Fuse                        ends the steps that see a token by itself
 *   Strip                       after Fuse or ByteLevel: removes a character at the beginning
 *
 * Any other order is refused.  detokenize.c decides what runs of bytes become.
 *
 * Thread: immutable once parsed.  Memory: steps own their pattern and content. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

static int add_step(struct text_decoder *decoder, const json_t *component,
                    struct decoder_step **out, struct error *err) {
    const char *type = component_type(component);
    if (decoder->byte_fallback || decoder->fused)
        return refuse(err, "after ByteFallback, ByteLevel or Fuse the decoder", type);
    if (decoder->n_steps == MAX_STEPS) return refuse(err, "a longer sequence before decoder", type);
    *out = &decoder->steps[decoder->n_steps++];
    **out = (struct decoder_step){0};
    return 0;
}

static int parse_replace(struct text_decoder *decoder, const json_t *component, struct error *err) {
    struct decoder_step *step = NULL;
    const int rc = add_step(decoder, component, &step, err);
    return rc ? rc : replace_parse(&step->pattern, &step->content, component, err);
}

static int parse_metaspace(struct text_decoder *decoder, const json_t *component,
                           struct error *err) {
    struct decoder_step *step = NULL;
    struct metaspace metaspace;
    int rc = metaspace_parse(&metaspace, component, err);
    if (rc == 0) rc = add_step(decoder, component, &step, err);
    if (rc) return rc;
    step->drops_at_first = metaspace.prepend != PREPEND_NEVER;
    decoder->first_counts |= step->drops_at_first;
    rc = text_append(&step->content, " ", 1);
    if (rc) return rc;
    return pattern_compile(&step->pattern, metaspace.space, strlen(metaspace.space), true, err);
}

static int parse_strip(struct text_decoder *decoder, const json_t *component, struct error *err) {
    const json_t *given = json_object_get(component, "start");
    const json_int_t start = json_is_integer(given) || !given ? json_integer_value(given) : -1;
    size_t n;
    const char *content = member_text(component, "content", &n), *after = content;
    if (content && n > 0) utf8_next(content, &after);
    if (!content || n == 0 || after != content + n || start < 0)
        return error_set(err, ERR_INVALID, "tokenizer.json: a Strip has no character or no start");
    if (json_integer_value(json_object_get(component, "stop")) != 0)
        return refuse(err, "decoder Strip with", "stop");
    if (!decoder->fused) {
        struct decoder_step *step = NULL;
        const int rc = add_step(decoder, component, &step, err);
        if (rc) return rc;
        step->most = start;
        return text_append(&step->content, content, n);
    }
    /* A stream knows only whether its text has begun. */
    if (start > 1 || decoder->strip.n > 0 || decoder->first_counts)
        return refuse(err, "after Fuse or ByteLevel, of more than one character, the decoder",
                      "Strip");
    return start == 0 ? 0 : text_append(&decoder->strip, content, n);
}

static int parse_byte_fallback(struct text_decoder *decoder, const json_t *component,
                               struct error *err) {
    if (decoder->byte_fallback || decoder->fused)
        return refuse(err, "after itself, ByteLevel or Fuse the decoder",
                      component_type(component));
    decoder->byte_fallback = true;
    return 0;
}

static int parse_byte_level(struct text_decoder *decoder, const json_t *component,
                            struct error *err) {
    if (decoder->byte_fallback || decoder->fused)
        return refuse(err, "after itself, ByteFallback or Fuse the decoder",
                      component_type(component));
    decoder->byte_level = decoder->fused = true;
    return 0;
}

static int parse_fuse(struct text_decoder *decoder, const json_t *component, struct error *err) {
    (void)component, (void)err;
    decoder->fused = true;
    return 0;
}

static int parse_sequence(struct text_decoder *decoder, const json_t *component,
                          struct error *err) {
    const json_t *list = json_object_get(component, "decoders");
    if (!json_is_array(list))
        return error_set(err, ERR_INVALID, "tokenizer.json: a Sequence lists no decoders");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (strcmp(component_type(one), "Sequence") == 0)
            return refuse(err, "inside a Sequence the decoder", "Sequence");
        const int rc = decoder_parse(decoder, one, err);
        if (rc) return rc;
    }
    return 0;
}

int decoder_parse(struct text_decoder *decoder, const json_t *component, struct error *err) {
    static const struct {
        const char *name;
        int (*parse)(struct text_decoder *decoder, const json_t *component, struct error *err);
    } KINDS[] = {
        {"ByteFallback", parse_byte_fallback},
        {"ByteLevel", parse_byte_level},
        {"Fuse", parse_fuse},
        {"Metaspace", parse_metaspace},
        {"Replace", parse_replace},
        {"Sequence", parse_sequence},
        {"Strip", parse_strip},
    };
    const char *type = component_type(component);
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(*KINDS); i++)
        if (strcmp(type, KINDS[i].name) == 0) return KINDS[i].parse(decoder, component, err);
    return refuse(err, "decoder", type);
}

void decoder_fini(struct text_decoder *decoder) {
    for (size_t i = 0; i < decoder->n_steps; i++) {
        pattern_free(decoder->steps[i].pattern);
        free(decoder->steps[i].content.data);
    }
    free(decoder->strip.data);
    *decoder = (struct text_decoder){0};
}

static void strip(const struct decoder_step *step, struct text *token) {
    const size_t n = step->content.n;
    size_t begin = 0;
    for (json_int_t i = 0; i < step->most && token->n - begin >= n; i++, begin += n) {
        if (memcmp(token->data + begin, step->content.data, n) != 0) break;
    }
    token->n -= begin;
    memmove(token->data, token->data + begin, token->n);
}

static int hex_digit(char c) {
    static const char DIGITS[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(DIGITS, c) : NULL;
    return at ? (int)((at - DIGITS) % 16) : -1;
}

/* Returns the byte that a token <0x00> to <0xFF> stands for, or -1. */
static int fallback_byte(const struct text *token) {
    if (token->n != 6 || memcmp(token->data, "<0x", 3) != 0 || token->data[5] != '>') return -1;
    const int high = hex_digit(token->data[3]), low = hex_digit(token->data[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

int decoder_run(const struct text_decoder *decoder, struct matcher *matcher, bool first,
                struct text *token, bool *is_byte, struct error *err) {
    *is_byte = false;
    for (size_t i = 0; i < decoder->n_steps && token->n > 0; i++) {
        const struct decoder_step *step = &decoder->steps[i];
        const size_t n = first && step->drops_at_first ? 0 : step->content.n;
        int rc = 0;
        if (!step->pattern) strip(step, token);
        if (step->pattern)
            rc = replace_run(matcher, step->pattern, step->content.data, n, token, err);
        if (rc) return rc;
    }
    if (decoder->byte_level && token->n > 0)
        alphabet_to_bytes(token->data, token->n, token->data, &token->n);
    const int byte = decoder->byte_fallback ? fallback_byte(token) : -1;
    if (byte >= 0) {
        token->data[0] = (char)byte;
        token->n = 1;
        *is_byte = true;
    }
    return 0;
}
