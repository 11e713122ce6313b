/* fuzz_traceparent.c - whatever the header says, the ids of a span are whole and lower-case hex. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/otlp/trace_context.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require_id(const char *id, size_t n) {
    if (strlen(id) != n || strspn(id, "0123456789abcdef") != n || strspn(id, "0") == n) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct trace_context trace;
    char *header = malloc(size + 1);
    if (!header) return 0;
    if (size > 0) memcpy(header, data, size);
    header[size] = 0;
    trace_context_begin(&trace, header);
    require_id(trace.trace_id, TRACE_ID_CHARS);
    require_id(trace.span_id, SPAN_ID_CHARS);
    if (trace.parent_id[0]) require_id(trace.parent_id, SPAN_ID_CHARS);
    if (!trace.parent_id[0] && !trace.sampled) abort();
    free(header);
    return 0;
}
