/* template.h - chat templates: Jinja as the Hugging Face library uses it, compiled once, rendered
 * per request.
 *
 *   source ──compile──► template ──render(variables)──► text, and which of its bytes are trusted
 *
 * A template is a file of the model; messages come from clients.  So every byte of the output
 * carries its origin: literal text and string literals of the template, and the caller's trusted
 * variables, are trusted; all that stems from other variables is not, whatever filters, slices and
 * concatenations it went through.  A tokenizer that looks for special tokens in trusted spans only
 * cannot be made to see one that a client wrote.
 *
 * The language is that of jinja2's ImmutableSandboxedEnvironment with trim_blocks and
 * lstrip_blocks, loop controls, and the tag `generation`; docs/chat-templates.md lists it.  What is
 * not supported is refused by name when the template is compiled, or when an unsupported method is
 * called.
 *
 * Thread: any; a compiled template is immutable, and may be rendered on several threads at once.
 * Memory: a template owns one arena, a render another that is freed before it returns; the text is
 * the caller's. */
#ifndef ENGINE_TEMPLATE_TEMPLATE_H
#define ENGINE_TEMPLATE_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <jansson.h>

#include "engine/base/span.h"

struct error;
struct template;

/* Bounds of a compilation (source, depth, memory) and of a render (all but source).  Zero means the
 * default, which TEMPLATE_DEFAULT_LIMITS has.  The depth is that of nested expressions, blocks,
 * macro calls and values. */
struct template_limits {
    size_t max_source_bytes;
    size_t max_output_bytes;
    size_t max_memory_bytes; /* of the arena: what a render makes, not the variables' strings */
    uint64_t max_steps;      /* expressions and statements evaluated, items and KiB moved */
    uint32_t max_depth;
};
extern const struct template_limits TEMPLATE_DEFAULT_LIMITS;

/* What a render reads; all of it is borrowed.  Where a name is in both objects, `trusted` wins. */
struct template_input {
    /* An object: messages, tools, documents, add_generation_prompt, what the request adds.  Its
     * strings must be UTF-8, as jansson's are.  Not trusted. */
    const json_t *variables;
    /* An object, or NULL: bos_token, eos_token and whatever else is the model's own. */
    const json_t *trusted;
    /* What strftime_now() formats; the reference library takes the local time. */
    struct tm now;
};

struct template_text {
    char *bytes; /* UTF-8; a zero follows the last byte, and is not counted */
    size_t n_bytes;
    struct byte_span *trusted; /* in order, disjoint, not adjacent, none empty */
    size_t n_trusted;
};

/* Compiles the source (UTF-8, borrowed).  limits may be NULL.  On failure *out is untouched.
 * ERR_INVALID: a syntax error; the text begins with "line 3, column 17: ".  ERR_UNSUPPORTED: the
 * same for what this program cannot do.  ERR_TOO_LONG: a bound was exceeded, and is named.
 * ERR_NOMEM. */
int template_compile(struct template **out, const char *source, size_t n_bytes,
                     const struct template_limits *limits, struct error *err);
void template_destroy(struct template *t); /* NULL is allowed */

/* Renders into *out, which the caller releases with template_text_fini(); on failure it is
 * untouched.  limits may be NULL.  ERR_INVALID: the template called raise_exception(), and the text
 * is its message; or an operation failed, and the text begins with "line 3: ".  ERR_UNSUPPORTED,
 * ERR_TOO_LONG and ERR_NOMEM are as above. */
int template_render(const struct template *t, const struct template_input *input,
                    const struct template_limits *limits, struct template_text *out,
                    struct error *err);
void template_text_fini(struct template_text *text); /* a zeroed one is allowed */

#endif
