/* stats_board.c - see stats_board.h. */
#include "engine/schedule/stats_board.h"

enum { STATS_FRESH = 4 };

void stats_board_init(struct stats_board *board) {
    for (unsigned i = 0; i < 3; i++) board->copies[i] = (struct engine_stats){0};
    board->back = 0;
    atomic_init(&board->middle, 1);
    board->front = 2;
    pthread_mutex_init(&board->read_lock, NULL);
}

void stats_board_fini(struct stats_board *board) {
    pthread_mutex_destroy(&board->read_lock);
}

void stats_board_write(struct stats_board *board, const struct engine_stats *stats) {
    board->copies[board->back] = *stats;
    board->back = atomic_exchange(&board->middle, board->back | STATS_FRESH) & ~STATS_FRESH;
}

void stats_board_read(struct stats_board *board, struct engine_stats *out) {
    pthread_mutex_lock(&board->read_lock);
    if (atomic_load(&board->middle) & STATS_FRESH)
        board->front = atomic_exchange(&board->middle, board->front) & ~STATS_FRESH;
    *out = board->copies[board->front];
    pthread_mutex_unlock(&board->read_lock);
}
