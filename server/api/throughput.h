/* throughput.h - tokens per second, one window of ten seconds after another.
 *
 * Thread: loop.  Memory: embedded. */
#ifndef SERVER_API_THROUGHPUT_H
#define SERVER_API_THROUGHPUT_H

#include <stdbool.h>
#include <stdint.h>

struct engine_stats;

enum { THROUGHPUT_WINDOW_MS = 10000 };

/* Zero-initialise. */
struct throughput {
    uint64_t begun_ms, n_steps, prompt_tokens, cached_tokens, queried_tokens, generated_tokens;
    /* Of the last whole window: prompt tokens that were computed, generated ones. */
    double prompt_per_s, generated_per_s;
    double hit_rate; /* of its prompt tokens, those found in the caches; NAN: there were none */
};

/* Ends the window if it is over.  Returns true if it is and there was work in it. */
bool throughput_tick(struct throughput *throughput, const struct engine_stats *stats,
                     uint64_t now_ms);
/* Writes the window that has ended, and what the engine holds now, to the log. */
void throughput_log(const struct throughput *throughput, const struct engine_stats *stats);

#endif
