/* early_signals.h - takes signals before the loop does.
 *
 * The kernel drops SIGTERM and SIGINT for process 1 of a container as long as they have no handler.
 * So main() sets handlers first of all; only the dynamic loader, some milliseconds, runs before.  A
 * device may take seconds to open before the loop starts.  Nothing has been served until then, so
 * the process ends at once, with status 0 as after any signal.
 *
 *   main() ──► early_signals_take() ──► ... ──► uv_signal_start(), in serve.c
 *                SIGTERM, SIGINT: status 0        they drain
 *                SIGHUP: noted                    early_signals_hung_up()
 *
 * Thread: main.  Memory: none. */
#ifndef SERVER_EARLY_SIGNALS_H
#define SERVER_EARLY_SIGNALS_H

#include <stdbool.h>

/* Sets the handlers.  What the parent has set to be ignored stays ignored, but for SIGTERM. */
void early_signals_take(void);
/* Tells whether SIGHUP came before the loop took over. */
bool early_signals_hung_up(void);

#endif
