/* loop_poll.h - starts to watch a descriptor, or says why not.
 *
 * uv_poll_start() only notes the descriptor.  The loop enters it into its epoll set when it polls
 * next, and aborts where the system refuses that (ENOMEM; ENOSPC beyond fs.epoll.max_user_watches).
 *
 * Thread: loop.  Memory: the system's, for the entry in the set. */
#ifndef SERVER_HTTP_LOOP_POLL_H
#define SERVER_HTTP_LOOP_POLL_H

#include <uv.h>

/* Does uv_poll_start() and enters the descriptor at once; the loop then finds it there.  Returns 0
 * or libuv's code, and then watches nothing. */
int loop_poll_start(uv_poll_t *poll, int events, uv_poll_cb callback);

#endif
