/* stats_board.h - the newest statistics of the engine thread, for readers that must not delay it.
 *
 *   writer ──► back ──exchange──► middle ──exchange──► front ──► readers, one at a time
 *
 * There are three copies.  The writer fills its own and swaps it with the middle one;
 * a reader swaps the middle one with its own if that is newer.  So the writer takes no lock.
 *
 * Thread: one writes, any reads.  Memory: embedded. */
#ifndef ENGINE_SCHEDULE_STATS_BOARD_H
#define ENGINE_SCHEDULE_STATS_BOARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/schedule/stats.h"

/* The three copies, and which of them the writer and the readers have now. */
struct stats_board {
    struct engine_stats copies[3];
    atomic_uint middle;        /* index, and STATS_FRESH while no reader has taken it */
    unsigned back, front;      /* the writer's; the readers', under their lock */
    pthread_mutex_t read_lock; /* among readers */
};

/* Makes the statistics zero.  Called before any other thread uses the board. */
void stats_board_init(struct stats_board *board);
/* Frees the lock; no thread may use the board any more. */
void stats_board_fini(struct stats_board *board);

/* Publishes a copy of the statistics, without waiting for readers.  Thread: the writer's. */
void stats_board_write(struct stats_board *board, const struct engine_stats *stats);
/* Copies the newest published statistics.  Thread: any. */
void stats_board_read(struct stats_board *board, struct engine_stats *out);

#endif
