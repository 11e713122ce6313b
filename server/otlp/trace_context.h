/* trace_context.h - where a request stands in a trace: the header traceparent of W3C's Trace
 * Context.
 *
 *   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01      version, trace, span, flags
 *
 * Thread: any.  Memory: fixed. */
#ifndef SERVER_OTLP_TRACE_CONTEXT_H
#define SERVER_OTLP_TRACE_CONTEXT_H

#include <stdbool.h>

enum { TRACE_ID_CHARS = 32, SPAN_ID_CHARS = 16 };

struct trace_context {
    bool sampled;                      /* a span is to be recorded */
    char trace_id[TRACE_ID_CHARS + 1]; /* lower-case hex */
    char span_id[SPAN_ID_CHARS + 1];   /* the request's own */
    char parent_id[SPAN_ID_CHARS + 1]; /* the caller's span; empty: it is the first of its trace */
};

/* Begins a span below the caller's.  header: traceparent, or NULL.  One that is not legal counts as
 * none: the span begins a trace of its own, which is recorded. */
void trace_context_begin(struct trace_context *out, const char *header);

#endif
