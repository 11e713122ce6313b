/* health_command.c - see health_command.h. */
#include "server/health_command.h"

#include "engine/base/error.h"
#include "server/http/http_client.h"
#include "server/settings/options.h"

enum { WAIT_S = 2 };

int health_command(const struct options *options, struct error *err) {
    struct http_client_request request = {.host = options->host,
                                          .port = (uint16_t)options->port,
                                          .wait_s = WAIT_S,
                                          .authority = "localhost", /* always allowed */
                                          .path = "/health"};
    struct http_client_trust *trust = NULL;
    unsigned status;
    int rc = options->ssl_certfile ? http_client_trust_create_any(&trust, err) : 0;
    request.trust = trust;
    if (!rc) rc = http_client_ask(&status, &request, err);
    http_client_trust_destroy(trust);
    if (rc || status == 200) return rc;
    return error_set(err, ERR_IO, "%.200s port %u answers /health with %u", options->host,
                     request.port, status);
}
