/* publishers.c - see publishers.h. */
#include "server/kv_events/publishers.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/kv_events/publisher.h"

enum { MOST_PORT = 65535 };

/* A publisher, and the endpoints that it borrows. */
struct replica_publisher {
    struct kv_publisher *publisher;
    char *endpoint, *replay_endpoint;
};

struct kv_publishers {
    uint32_t n;
    struct replica_publisher all[];
};

/* Writes the endpoint of replica i to *out, or leaves NULL where there is none. */
static int endpoint_of(char **out, const char *first, uint32_t i, struct error *err) {
    const char *port = first ? strrchr(first, ':') : NULL;
    char *end = NULL;
    if (!first) return 0;
    const size_t size = strlen(first) + 16;
    *out = malloc(size);
    if (!*out) return error_set(err, ERR_NOMEM, "no memory for --kv-events");
    const unsigned long number = port ? strtoul(port + 1, &end, 10) : 0;
    const bool is_tcp = strncmp(first, "tcp://", 6) == 0 && end && end != port + 1 && !*end;
    if (i == 0) snprintf(*out, size, "%s", first);
    else if (is_tcp && number + i > MOST_PORT)
        return error_set(err, ERR_INVALID, "--kv-events: replica %" PRIu32 " has no port behind %s",
                         i, first);
    else if (is_tcp) snprintf(*out, size, "%.*s:%lu", (int)(port - first), first, number + i);
    else snprintf(*out, size, "%s_dp%" PRIu32, first, i);
    return 0;
}

static int start_one(struct kv_publishers *publishers, const struct kv_publisher_config *first,
                     uint32_t i, struct error *err) {
    struct replica_publisher *one = &publishers->all[i];
    int rc = endpoint_of(&one->endpoint, first->endpoint, i, err);
    if (!rc) rc = endpoint_of(&one->replay_endpoint, first->replay_endpoint, i, err);
    const struct kv_publisher_config config = {.endpoint = one->endpoint,
                                               .replay_endpoint = one->replay_endpoint,
                                               .topic = first->topic,
                                               .rank = i};
    return rc ? rc : kv_publisher_start(&one->publisher, &config, err);
}

int kv_publishers_start(struct kv_publishers **out, const struct kv_publisher_config *config,
                        uint32_t n, struct error *err) {
    struct kv_publishers *publishers =
        calloc(1, sizeof(*publishers) + n * sizeof(*publishers->all));
    int rc = publishers ? 0 : error_set(err, ERR_NOMEM, "no memory for --kv-events");
    if (rc) return rc;
    publishers->n = n;
    for (uint32_t i = 0; i < n && !rc; i++) rc = start_one(publishers, config, i, err);
    if (rc) kv_publishers_stop(publishers);
    else *out = publishers;
    return rc;
}

struct kv_feed *kv_publishers_feed(struct kv_publishers *publishers, uint32_t i) {
    return kv_publisher_feed(publishers->all[i].publisher);
}

void kv_publishers_stop(struct kv_publishers *publishers) {
    for (uint32_t i = 0; publishers && i < publishers->n; i++) {
        kv_publisher_stop(publishers->all[i].publisher);
        free(publishers->all[i].endpoint);
        free(publishers->all[i].replay_endpoint);
    }
    free(publishers);
}
