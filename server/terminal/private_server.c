/* private_server.c - see private_server.h. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */

#include "server/terminal/private_server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/http/feed.h"

/* Runs the child, unless its parent has ended before the child asked to be told of that. */
static _Noreturn void be_child(private_server_run run, void *ctx, int feed, pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int status = getppid() == parent ? run(ctx, feed) : 0;
    fflush(NULL);
    _exit(status);
}

int private_server_start(struct private_server *out, private_server_run run, void *ctx,
                         struct error *err) {
    const pid_t parent = getpid();
    int feeds[2];
    *out = (struct private_server){.feed = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, feeds) != 0)
        return error_set(err, ERR_IO, "no pair of sockets: %s", strerror(errno));
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        close(feeds[0]);
        be_child(run, ctx, feeds[1], parent);
    }
    const int why = errno;
    close(feeds[1]);
    out->feed = feeds[0];
    if (pid > 0) {
        out->pid = pid;
        return 0;
    }
    close(feeds[0]);
    out->feed = -1;
    return error_set(err, ERR_IO, "no process for the server: %s", strerror(why));
}

/* Tells whether the child runs. */
static bool runs(struct private_server *server) {
    if (server->pid && waitpid(server->pid, NULL, WNOHANG) != 0) server->pid = 0;
    return server->pid;
}

int private_server_connect(int *fd, struct private_server *server, struct error *err) {
    *fd = runs(server) ? feed_connect(server->feed) : -1;
    return *fd < 0 ? error_set(err, ERR_IO, "the server has ended") : 0;
}

void private_server_stop(struct private_server *server) {
    if (runs(server)) {
        kill(server->pid, SIGTERM);
        while (waitpid(server->pid, NULL, 0) < 0 && errno == EINTR) continue;
    }
    if (server->feed > 0) close(server->feed);
    *server = (struct private_server){.feed = -1};
}
