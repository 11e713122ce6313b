/* fuzz_template.c - any bytes at all as a template, compiled and rendered.
 *
 * Bytes behind the first zero are the variables, if they are JSON; otherwise there is a small
 * conversation.  All of its texts are of one character, which must never be in a trusted span: no
 * operation may lose an origin. */
#define _GNU_SOURCE /* memmem */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* U+E000: no template has it, and no change of case makes it. */
#define MINE "\xee\x80\x80"
static const char CONVERSATION[] =
    "{\"messages\": [{\"role\": \"" MINE "\", \"content\": \"" MINE MINE MINE "\", \"n\": 3},"
    " {\"" MINE "\": [\"" MINE "\", 1.5, null, true], \"content\": {\"" MINE "\": \"" MINE "\"}}],"
    " \"s\": \"" MINE MINE "\", \"n\": 7, \"f\": 0.5, \"l\": [\"" MINE
    "\", 2, [3]], \"tools\": null}";

static const struct template_limits LIMITS = {
    .max_output_bytes = 1 << 16, .max_memory_bytes = 1 << 21, .max_steps = 20000, .max_depth = 100};

static void check_text(const struct template_text *text, const char *foreign) {
    size_t end = 0;
    if (text->bytes[text->n_bytes]) abort();
    for (size_t i = 0; i < text->n_trusted; i++) {
        const struct byte_span *span = &text->trusted[i];
        if (span->begin >= span->end || span->end > text->n_bytes) abort();
        if (i && span->begin <= end) abort();
        end = span->end;
        const size_t n = span->end - span->begin;
        if (foreign && memmem(text->bytes + span->begin, n, foreign, strlen(foreign))) abort();
    }
}

static void render(const struct template *t, const json_t *variables, const char *foreign) {
    struct error err = {0};
    struct template_text text;
    json_t *own = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
    const struct template_input input = {variables, own, {.tm_year = 126, .tm_mday = 1}};
    if (!template_render(t, &input, &LIMITS, &text, &err)) {
        check_text(&text, foreign);
        template_text_fini(&text);
    } else if (!err.code) {
        abort();
    }
    json_decref(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = {0};
    struct template *t = NULL;
    const uint8_t *zero = memchr(data, 0, size);
    const size_t n = zero ? (size_t)(zero - data) : size;
    if (template_compile(&t, (const char *)data, n, &LIMITS, &err)) return err.text[0] ? 0 : 1;
    json_error_t why;
    json_t *mine = json_loads(CONVERSATION, 0, &why);
    json_t *theirs =
        zero ? json_loadb((const char *)zero + 1, size - n - 1, JSON_ALLOW_NUL, &why) : NULL;
    /* A template may write the character itself, or as an escape. */
    const bool is_free = memmem(data, n, MINE, strlen(MINE)) || memchr(data, '\\', n);
    render(t, mine, is_free ? NULL : MINE);
    if (json_is_object(theirs)) render(t, theirs, NULL);
    json_decref(theirs);
    json_decref(mine);
    template_destroy(t);
    return 0;
}
