/* absent.c - wire.h where quire is built without libcurl: what the cache has is found, and nothing
 * is fetched. */
#include "engine/base/error.h"
#include "server/hub/wire.h"

int hub_wire_open(struct hub_wire **out, const struct hub_settings *settings, struct error *err) {
    (void)out, (void)settings;
    return error_set(err, ERR_UNSUPPORTED,
                     "this quire was built without libcurl and fetches no models: install "
                     "libcurl4-gnutls-dev and build again, or name a model's folder");
}

void hub_wire_close(struct hub_wire *wire) {
    (void)wire;
}

int hub_wire_get(struct hub_wire *wire, const struct hub_get *get, struct hub_answer *answer,
                 struct error *err) {
    (void)wire, (void)get, (void)answer;
    return error_set(err, ERR_UNSUPPORTED, "this quire was built without libcurl");
}
