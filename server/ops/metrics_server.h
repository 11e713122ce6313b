/* metrics_server.h - metrics of what the server does around its engine.
 *
 * Thread: loop.  Memory: the buffer's. */
#ifndef SERVER_OPS_METRICS_SERVER_H
#define SERVER_OPS_METRICS_SERVER_H

struct metrics_text;
struct server;

/* Writes what is known of the process before it has an engine. */
void metrics_server_write(const struct metrics_text *text, const struct server *server);
/* Writes what the server keeps of earlier requests: tokens of texts, and responses. */
void metrics_server_write_caches(const struct metrics_text *text, const struct server *server);

#endif
