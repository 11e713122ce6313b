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

/* Moments of a clock that is never set back, in seconds; 0: not yet. */
struct timing {
    double arrived_s, queued_s, started_s, first_s, newest_s;
};

/* Notes that the engine has taken the sequence.  Without a time of arrival this is it. */
void timing_queue(struct timing *timing, double now_s);
/* Notes that a step has given the sequence new tokens. */
void timing_token(struct timing *timing, struct engine_stats *stats, double now_s);
/* Adds the times and numbers of tokens of a sequence that has finished by itself to the
 * histograms. */
void timing_finish(const struct timing *timing, struct engine_stats *stats, uint32_t n_prompt,
                   uint32_t n_generated, double now_s);

#endif
