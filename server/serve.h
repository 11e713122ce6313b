/* serve.h - `quire serve`: engine, transport and routes on one loop, from start to a clean end.
 *
 *   loading  ──► /live and /metrics answer, /ready and what needs the model are refused
 *   loaded   ──► ready
 *   signal 1 ──► drain: no new connections, no new completions, running ones may finish
 *   timeout  ──► cancel what is left            signal 2 ──► close all at once
 *   nothing left ──► join the engine thread, close the transport, close the handles
 *
 * Thread: main; it becomes the loop thread.  Memory: everything is freed on return. */
#ifndef SERVER_SERVE_H
#define SERVER_SERVE_H

struct backend;
struct error;
struct options;

/* Runs until stopped by a signal (0) or by a failure (negative, with its cause in err).  backends:
 * borrowed, one for each replica, options->data_parallel_size of them. */
int serve_run(const struct options *options, const char *model_dir, struct backend *const *backends,
              struct error *err);

#endif
