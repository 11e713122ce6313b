/* loop_poll.c - see loop_poll.h. */
#include "server/http/loop_poll.h"

#include <errno.h>
#include <sys/epoll.h>

int loop_poll_start(uv_poll_t *poll, int events, uv_poll_cb callback) {
    uv_os_fd_t fd;
    int status = uv_poll_start(poll, events, callback);
    if (!status) status = uv_fileno((uv_handle_t *)poll, &fd);
    if (status) return status;
    /* No events yet: libuv's own entry fails with EEXIST, and it then sets them. */
    struct epoll_event entry = {.data.fd = fd};
    if (epoll_ctl(uv_backend_fd(poll->loop), EPOLL_CTL_ADD, fd, &entry) == 0) return 0;
    status = uv_translate_sys_error(errno);
    uv_poll_stop(poll);
    return status;
}
