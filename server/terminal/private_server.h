/* private_server.h - a server of this process alone: a child that takes connections from a feed
 * (feed.h), so that no port is open.
 *
 * The child is in a process group of its own, so a terminal's Ctrl-C does not reach it, and it ends
 * with its parent.
 *
 * Thread: main, before there is another one.  Memory: none. */
#ifndef SERVER_TERMINAL_PRIVATE_SERVER_H
#define SERVER_TERMINAL_PRIVATE_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

struct error;

struct private_server {
    pid_t pid; /* 0: it has ended */
    int feed;  /* the end for connections that are made */
};

/* Serves until SIGTERM comes, with connections from the feed.  Returns the child's exit status. */
typedef int (*private_server_run)(void *ctx, int feed);

int private_server_start(struct private_server *out, private_server_run run, void *ctx,
                         struct error *err);
/* Returns a new connection; ERR_IO: the server has ended. */
int private_server_connect(int *fd, struct private_server *server, struct error *err);
/* Ends the child and waits for it.  One that was never started is allowed. */
void private_server_stop(struct private_server *server);

#endif
