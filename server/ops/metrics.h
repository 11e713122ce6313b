/* metrics.h - counters of the server and the engine as Prometheus text.
 *
 * What vLLM has, too, is written under both names: ours, and vLLM's with its labels model_name and
 * engine, so that routers and dashboards made for it read it.
 *
 * Thread: loop.  Memory: the buffer's. */
#ifndef SERVER_OPS_METRICS_H
#define SERVER_OPS_METRICS_H

struct buffer;
struct engine_stats;
struct server;

/* Writes the metrics of the process, and of the engine; stats NULL: there is no engine yet. */
void metrics_write(const struct server *server, const struct engine_stats *stats,
                   struct buffer *out);

#endif
