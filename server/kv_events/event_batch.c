/* event_batch.c - see event_batch.h. */
#include "server/kv_events/event_batch.h"

#include "engine/kv/kv_feed.h"
#include "server/kv_events/msgpack.h"

static const char *medium_of(enum kv_place place) {
    return place == KV_ON_HOST ? "CPU" : "GPU";
}

/* Tells whether `next` continues the event that `last` is in. */
static bool continues(const struct kv_feed_event *last, const struct kv_feed_event *next) {
    if (last->is_added != next->is_added || last->place != next->place) return false;
    return !next->is_added || (next->has_parent && next->parent == last->hash);
}

/* Returns how many of the n events, at least one, become one. */
static uint32_t run_length(const struct kv_feed_event *events, uint32_t n) {
    uint32_t length = 1;
    while (length < n && continues(&events[length - 1], &events[length])) length++;
    return length;
}

static void write_hashes(struct msgpack *out, const struct kv_feed_event *events, uint32_t n) {
    msgpack_string(out, "block_hashes");
    msgpack_array(out, n);
    for (uint32_t i = 0; i < n; i++) msgpack_uint(out, events[i].hash);
}

static void write_nil(struct msgpack *out, const char *key) {
    msgpack_string(out, key);
    msgpack_nil(out);
}

static void write_text(struct msgpack *out, const char *key, const char *text) {
    msgpack_string(out, key);
    msgpack_string(out, text);
}

static void write_number(struct msgpack *out, const char *key, uint64_t value) {
    msgpack_string(out, key);
    msgpack_uint(out, value);
}

static void write_stored(struct msgpack *out, const struct kv_feed_event *events, uint32_t n) {
    msgpack_map(out, 11);
    write_text(out, "type", "BlockStored");
    write_hashes(out, events, n);
    if (events[0].has_parent) write_number(out, "parent_block_hash", events[0].parent);
    else write_nil(out, "parent_block_hash");
    msgpack_string(out, "token_ids");
    msgpack_array(out, n * PAGE_TOKENS);
    for (uint32_t i = 0; i < n; i++)
        for (unsigned k = 0; k < PAGE_TOKENS; k++) msgpack_uint(out, events[i].tokens[k]);
    write_number(out, "block_size", PAGE_TOKENS);
    write_nil(out, "lora_id");
    write_text(out, "medium", medium_of(events[0].place));
    write_nil(out, "lora_name");
    write_nil(out, "extra_keys");
    write_number(out, "group_idx", 0);
    write_text(out, "kv_cache_spec_kind", "full_attention");
}

static void write_removed(struct msgpack *out, const struct kv_feed_event *events, uint32_t n) {
    msgpack_map(out, 3);
    write_text(out, "type", "BlockRemoved");
    write_hashes(out, events, n);
    write_text(out, "medium", medium_of(events[0].place));
}

void event_batch_write(struct msgpack *out, double time_s, uint32_t rank, bool cleared,
                       const struct kv_feed_event *events, uint32_t n) {
    uint32_t n_runs = 0;
    for (uint32_t i = 0; i < n; i += run_length(events + i, n - i)) n_runs++;
    msgpack_array(out, 3);
    msgpack_double(out, time_s);
    msgpack_array(out, n_runs + cleared);
    if (cleared) {
        msgpack_map(out, 1);
        write_text(out, "type", "AllBlocksCleared");
    }
    for (uint32_t i = 0, length; i < n; i += length) {
        length = run_length(events + i, n - i);
        if (events[i].is_added) write_stored(out, events + i, length);
        else write_removed(out, events + i, length);
    }
    msgpack_uint(out, rank);
}
