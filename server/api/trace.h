/* trace.h - a completion as a span, with the names of OpenTelemetry's GenAI conventions.
 *
 * No text of a prompt or an answer is in it.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_API_TRACE_H
#define SERVER_API_TRACE_H

struct completion;
struct http_exchange;

/* Begins the completion's span, below that of the header traceparent. */
void trace_begin(struct completion *c, const struct http_exchange *exchange);
/* Gives the span of a completion that ends to the exporter; does nothing without one. */
void trace_end(const struct completion *c);

#endif
