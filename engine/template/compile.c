/* compile.c - see template.h: from a source to nodes whose names have slots.
 *
 * Thread: any.  Memory: the template's arena. */
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/template/ast.h"
#include "engine/template/parser.h"
#include "engine/template/scope.h"
#include "engine/template/template.h"

/* A million tokens are 4 MB of text; memory holds what filters make of it a few times.  The depth
 * is far beyond that of published templates (below 40), and its stack is below a MiB. */
const struct template_limits TEMPLATE_DEFAULT_LIMITS = {
    .max_source_bytes = 1 << 20,
    .max_output_bytes = 64 << 20,
    .max_memory_bytes = 256 << 20,
    .max_steps = 50 * 1000 * 1000,
    .max_depth = 400,
};

static int compile(struct template *t, const char *source, size_t n_bytes, uint32_t max_depth,
                   struct error *err) {
    struct parser parser;
    int rc = parser_init(&parser, &t->arena, source, n_bytes, max_depth, err);
    if (!rc) {
        parse_template(&parser, &t->body);
        rc = parser.rc;
    }
    if (rc) return rc;
    rc = scope_resolve(t);
    return rc ? error_set(err, rc, "the template does not fit %zu bytes", t->arena.max) : 0;
}

int template_compile(struct template **out, const char *source, size_t n_bytes,
                     const struct template_limits *limits, struct error *err) {
    const struct template_limits *defaults = &TEMPLATE_DEFAULT_LIMITS;
    if (!limits) limits = defaults;
    const size_t max_source =
        limits->max_source_bytes ? limits->max_source_bytes : defaults->max_source_bytes;
    if (n_bytes > max_source)
        return error_set(err, ERR_TOO_LONG, "the template has more than %zu bytes", max_source);
    if (!utf8_is_valid(source, n_bytes))
        return error_set(err, ERR_INVALID, "the template is not UTF-8");
    struct template *t = calloc(1, sizeof(*t));
    if (!t) return error_set(err, ERR_NOMEM, "no memory for a template");
    arena_init(&t->arena,
               limits->max_memory_bytes ? limits->max_memory_bytes : defaults->max_memory_bytes);
    const uint32_t max_depth = limits->max_depth ? limits->max_depth : defaults->max_depth;
    const int rc = compile(t, source, n_bytes, max_depth, err);
    if (rc) {
        template_destroy(t);
        return rc;
    }
    *out = t;
    return 0;
}

void template_destroy(struct template *t) {
    if (!t) return;
    arena_fini(&t->arena);
    free(t);
}
