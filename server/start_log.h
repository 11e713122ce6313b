/* start_log.h - what the log says once a model is loaded.
 *
 * That is the memory plan, with what exceeds it, and the cache on disk.  It is how prompts are
 * computed, what is offloaded, and what was taken from the model's files.
 *
 * Thread: loop.  Memory: none is kept. */
#ifndef SERVER_START_LOG_H
#define SERVER_START_LOG_H

struct model_load;
struct options;
struct server;

/* Logs it all.  The server has its replicas, info, limits and model_name. */
void start_log_model(const struct server *server, const struct options *options,
                     const struct model_load *load);

#endif
