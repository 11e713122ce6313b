/* timing.h - when a sequence arrived, ran and answered, and what that adds to the histograms.
 *
 *   arrived ──► queued ──► started ──────► first token ── … ── newest token ──► end
 *   the server  engine     first admission
 *
 * Thread: engine.  Memory: embedded. */
#ifndef ENGINE_SCHEDULE_TIMING_H
#define ENGINE_SCHEDULE_TIMING_H

#include <stdint.h>

struct engine_stats;

/* Times of a clock that is never set back, in seconds; 0: not yet. */
struct timing {
    double arrived_s, queued_s, started_s, first_s, newest_s;
};

/* Notes that the engine has queued the sequence at now_s: its arrival, too, if that is 0. */
void timing_queue(struct timing *timing, double now_s);
/* Notes that a step gave the sequence new tokens at now_s.  Adds the time to the first token, or
 * between two steps with tokens, to the histograms. */
void timing_token(struct timing *timing, struct engine_stats *stats, double now_s);
/* Adds times and numbers of tokens of a sequence that finished by itself to the histograms. */
void timing_finish(const struct timing *timing, struct engine_stats *stats, uint32_t n_prompt,
                   uint32_t n_generated, double now_s);

#endif
