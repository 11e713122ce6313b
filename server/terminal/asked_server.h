/* asked_server.h - the server that a command asks: its own (private_server.h), or one by its URL.
 *
 * Thread: main.  Memory: of the command's life; strings of the settings are borrowed. */
#ifndef SERVER_TERMINAL_ASKED_SERVER_H
#define SERVER_TERMINAL_ASKED_SERVER_H

#include <signal.h>

#include "server/http/address.h"
#include "server/http/http_client.h"
#include "server/terminal/private_server.h"

struct error;

struct asked_server {
    struct private_server own; /* where there is no URL */
    struct http_address address;
    struct http_client_trust *trust;
    const char *key;   /* NULL: none */
    const char *model; /* its name in requests; NULL: the one that is served */
    bool is_remote;
};

/* Prepares to ask the server at a URL.  ERR_INVALID: it has another form. */
int asked_server_at(struct asked_server *out, const char *url, struct error *err);
/* Starts a server of the command's own, and waits until its model is loaded.  What it says goes to
 * standard error.  ERR_STOPPED: *stop did. */
int asked_server_start(struct asked_server *out, private_server_run run, void *ctx,
                       const volatile sig_atomic_t *stop, struct error *err);
/* Posts a body, and gives the answer's to take(), as http_client_read() does. */
int asked_server_post(unsigned *status, struct asked_server *server, const char *path,
                      const char *body, const volatile sig_atomic_t *stop, http_client_take take,
                      void *ctx, struct error *err);
void asked_server_fini(struct asked_server *server);

#endif
