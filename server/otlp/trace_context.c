/* trace_context.c - see trace_context.h. */
#include "server/otlp/trace_context.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { HEADER_CHARS = 55 }; /* of version 00, and of what later ones begin with */

static bool is_hex(const char *text, size_t n) {
    return strspn(text, "0123456789abcdef") >= n;
}

static bool is_zero(const char *text, size_t n) {
    return strspn(text, "0") >= n;
}

/* Tells whether the header is legal.  Later versions may have more behind another dash. */
static bool is_legal(const char *header) {
    if (strlen(header) < HEADER_CHARS) return false;
    const char *trace = header + 3, *span = header + 36, *flags = header + 53;
    const bool is_first_version = strncmp(header, "00", 2) == 0;
    if (!is_hex(header, 2) || strncmp(header, "ff", 2) == 0) return false;
    if (header[2] != '-' || header[35] != '-' || header[52] != '-') return false;
    if (!is_hex(trace, TRACE_ID_CHARS) || is_zero(trace, TRACE_ID_CHARS)) return false;
    if (!is_hex(span, SPAN_ID_CHARS) || is_zero(span, SPAN_ID_CHARS) || !is_hex(flags, 2))
        return false;
    return header[HEADER_CHARS] == 0 || (!is_first_version && header[HEADER_CHARS] == '-');
}

/* Writes n_chars random hex digits, which are never all zero. */
static void make_id(char *out, size_t n_chars) {
    uint64_t words[2] = {0};
    /* Without random numbers ids may repeat: that confuses a trace, and nothing else. */
    if (getrandom(words, sizeof(words), 0) < 0) words[0] = (uint64_t)(uintptr_t)out;
    for (size_t i = 0; i < n_chars; i += 16)
        snprintf(out + i, 17, "%016llx", (unsigned long long)(words[i / 16] | 1));
}

void trace_context_begin(struct trace_context *out, const char *header) {
    *out = (struct trace_context){.sampled = true};
    make_id(out->span_id, SPAN_ID_CHARS);
    if (!header || !is_legal(header)) {
        make_id(out->trace_id, TRACE_ID_CHARS);
        return;
    }
    memcpy(out->trace_id, header + 3, TRACE_ID_CHARS);
    memcpy(out->parent_id, header + 36, SPAN_ID_CHARS);
    const char low = header[54];
    out->sampled = (low <= '9' ? low - '0' : low - 'a' + 10) & 1;
}
