/* health_command.c - see health_command.h. */
#include "server/health_command.h"

#include <stdio.h>

#include "engine/base/error.h"
#include "server/http/http_client.h"
#include "server/settings/options.h"

enum { WAIT_S = 2 };

void health_print_help(void) {
    puts("usage: quire health [options of `quire serve`]\n"
         "\n"
         "Asks /health of the server that these settings start, for health checks of containers:\n"
         "\n"
         "  quire health                      the server at http://127.0.0.1:8000\n"
         "  quire health --port 9000\n"
         "\n"
         "Exit status: 0 it works, 1 it does not, or does not answer, 2 called wrongly.");
}

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
