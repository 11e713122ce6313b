/* health_command.c - see health_command.h. */
#include "server/health_command.h"

#include "engine/base/error.h"
#include "server/http/probe.h"
#include "server/settings/options.h"

int health_command(const struct options *options, struct error *err) {
    const struct probe probe = {.host = options->host,
                                .port = (uint16_t)options->port,
                                .tls = options->ssl_certfile != NULL,
                                .path = "/health"};
    unsigned status;
    const int rc = probe_ask(&status, &probe, err);
    if (rc || status == 200) return rc;
    return error_set(err, ERR_IO, "%.200s port %u answers /health with %u", options->host,
                     probe.port, status);
}
