/* feed.c - see feed.h. */
#define _GNU_SOURCE /* SOCK_CLOEXEC, MSG_CMSG_CLOEXEC */

#include "server/http/feed.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A message of one byte with a descriptor beside it. */
struct message {
    char byte;
    struct iovec vector;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct msghdr head;
};

static void message_init(struct message *message) {
    *message = (struct message){.byte = 0};
    message->vector = (struct iovec){.iov_base = &message->byte, .iov_len = 1};
    message->head = (struct msghdr){.msg_iov = &message->vector,
                                    .msg_iovlen = 1,
                                    .msg_control = message->control,
                                    .msg_controllen = sizeof(message->control)};
}

static int send_descriptor(int feed, int fd) {
    struct message message;
    message_init(&message);
    struct cmsghdr *control = CMSG_FIRSTHDR(&message.head);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(control), &fd, sizeof(fd));
    return sendmsg(feed, &message.head, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

int feed_connect(int feed) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
    const int rc = send_descriptor(feed, pair[1]), why = errno;
    close(pair[1]);
    if (rc == 0) return pair[0];
    close(pair[0]);
    errno = why;
    return -1;
}

int feed_take(int feed) {
    struct message message;
    int fd = -1;
    message_init(&message);
    const ssize_t n = recvmsg(feed, &message.head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0) return -1;
    const struct cmsghdr *control = n > 0 ? CMSG_FIRSTHDR(&message.head) : NULL;
    errno = EPIPE;
    if (!control || control->cmsg_type != SCM_RIGHTS) return -1;
    memcpy(&fd, CMSG_DATA(control), sizeof(fd));
    if (fcntl(fd, F_SETFL, O_NONBLOCK) == 0) return fd;
    close(fd);
    return -1;
}
