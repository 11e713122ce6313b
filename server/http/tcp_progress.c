/* tcp_progress.c - see tcp_progress.h. */
#include "server/http/tcp_progress.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <linux/sockios.h>

uint64_t tcp_progress(int fd) {
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);
    int n_queued = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) return info.tcpi_bytes_acked;
    (void)ioctl(fd, SIOCOUTQ, &n_queued);
    return (uint64_t)n_queued;
}
