/* metrics.h - counters of the server and the engine as Prometheus text.
 *
 * Thread: loop.  Memory: the buffer's. */
#ifndef SERVER_OPS_METRICS_H
#define SERVER_OPS_METRICS_H

struct buffer;
struct counters;
struct engine_stats;
struct offload_rules;

void metrics_write(const struct counters *counters, const struct engine_stats *stats,
                   const struct offload_rules *offload, struct buffer *out);

#endif
