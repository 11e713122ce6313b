/* replay.c - see replay.h. */
#include "server/kv_events/replay.h"

#include <stdlib.h>

static void drop_oldest(struct replay *replay) {
    struct replay_message *oldest = &replay->messages[replay->first];
    replay->n_bytes -= oldest->n;
    free(oldest->data);
    *oldest = (struct replay_message){0};
    replay->first = (replay->first + 1) % REPLAY_MESSAGES;
    replay->n--;
}

void replay_add(struct replay *replay, uint64_t number, unsigned char *data, size_t n) {
    while (replay->n > 0 && (replay->n == REPLAY_MESSAGES || replay->n_bytes + n > REPLAY_BYTES))
        drop_oldest(replay);
    const uint32_t at = (replay->first + replay->n) % REPLAY_MESSAGES;
    replay->messages[at] = (struct replay_message){.number = number, .data = data, .n = n};
    replay->n++;
    replay->n_bytes += n;
}

const struct replay_message *replay_get(const struct replay *replay, uint32_t i) {
    return &replay->messages[(replay->first + i) % REPLAY_MESSAGES];
}

void replay_fini(struct replay *replay) {
    while (replay->n > 0) drop_oldest(replay);
}
