/* transfer.c - see transfer.h. */
#include "server/hub/transfer.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "engine/base/error.h"
#include "server/hub/wire.h"
#include "server/json/buffer.h"

/* BREAKS_MAX: of one part, each after new bytes. */
/* PAUSE_MAX_S: the hub counts requests in windows of five minutes. */
enum { ATTEMPTS = 6, BREAKS_MAX = 1000, PAUSE_MAX_S = 301 };

/* Tells whether the same request may succeed later. */
static bool may_pass(const struct hub_answer *answer) {
    static const long statuses[] = {408, 429, 500, 502, 503, 504};
    if (*answer->trouble) return true;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++)
        if (answer->status == statuses[i]) return true;
    return false;
}

/* Returns how many seconds to wait before attempt number n + 1, from 1 on. */
static long pause_of(int n, const struct hub_answer *answer) {
    if (answer->retry_after >= 0) return answer->retry_after;
    /* The seconds that are left may be rounded down. */
    if (answer->status == 429 && answer->window_left >= 0) return answer->window_left + 1;
    return 1l << (n - 1);
}

/* Waits before attempt number n + 1, and says so. */
static void pause_after(int n, const struct hub_answer *answer, const struct hub_voice *voice) {
    char line[300];
    const long wanted = pause_of(n, answer);
    struct timespec left = {.tv_sec = wanted < PAUSE_MAX_S ? wanted : PAUSE_MAX_S};
    if (*answer->trouble)
        snprintf(line, sizeof(line), "the connection to the hub failed (%.180s): again in %ld s",
                 answer->trouble, (long)left.tv_sec);
    else
        snprintf(line, sizeof(line), "the hub answers %ld: again in %ld s", answer->status,
                 (long)left.tv_sec);
    voice->say(voice->ctx, line);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

static bool is_good(const struct hub_answer *answer) {
    return !*answer->trouble && (answer->status == 200 || answer->status == 206);
}

/* ---- a whole answer ---- */

struct text {
    struct buffer *out;
    size_t max;
};

static int take_text(void *ctx, uint64_t at, const char *bytes, size_t n, struct error *err) {
    struct text *text = ctx;
    if (at == 0) buffer_clear(text->out);
    if (n > text->max - text->out->length)
        return error_set(err, ERR_INVALID, "the hub's answer is longer than %zu bytes", text->max);
    buffer_append(text->out, bytes, n);
    return text->out->failed ? error_set(err, ERR_NOMEM, "no memory for the hub's answer") : 0;
}

int hub_transfer_text(struct hub_wire *wire, const char *url, size_t max, int attempts,
                      const struct hub_voice *voice, struct buffer *out, struct hub_answer *answer,
                      struct error *err) {
    struct text text = {out, max};
    const struct hub_get get = {.url = url, .take = take_text, .ctx = &text};
    for (int n = 1;; n++) {
        const int rc = hub_wire_get(wire, &get, answer, err);
        if (rc || is_good(answer)) return rc;
        if (n >= attempts || !may_pass(answer)) return ERR_IO;
        pause_after(n, answer, voice);
    }
}

/* ---- a part ---- */

static int take_part(void *ctx, uint64_t at, const char *bytes, size_t n, struct error *err) {
    struct hub_part *part = ctx;
    if (at >= part->end && part->end < part->size) return ERR_STOPPED; /* it ignores ranges */
    if (at > part->size || n > part->size - at)
        return error_set(err, ERR_INVALID, "the hub sends more bytes than the file has");
    const int rc = part->take(part->ctx, at, bytes, n, err);
    if (!rc) part->at = at + n;
    return rc;
}

int hub_transfer_part(struct hub_wire *wire, struct hub_part *part, const struct hub_voice *voice,
                      struct hub_answer *answer, struct error *err) {
    int idle = 0, breaks = 0;
    while (part->at < part->end) {
        const uint64_t before = part->at;
        const struct hub_get get = {
            .url = part->url, .from = before, .end = part->end, .take = take_part, .ctx = part};
        const int rc = hub_wire_get(wire, &get, answer, err);
        if (rc && rc != ERR_STOPPED) return rc;
        if (part->at >= part->end) break;
        if (part->at > before && ++breaks <= BREAKS_MAX) {
            idle = 0;
            continue;
        }
        part->is_short = is_good(answer) || answer->status == 416;
        if (++idle >= ATTEMPTS || !may_pass(answer)) return ERR_IO;
        pause_after(idle, answer, voice);
    }
    return 0;
}
