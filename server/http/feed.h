/* feed.h - connections that another process makes and passes on, in place of a listener: nothing
 * else can connect.
 *
 *   client: a pair of sockets ─► feed_connect() one end ─► socket pair ─► feed_take(): the server
 *
 * Thread: any.  Memory: none; descriptors are the caller's. */
#ifndef SERVER_HTTP_FEED_H
#define SERVER_HTTP_FEED_H

/* Makes a connection and passes its other end on.  Returns the near end, which blocks; -1 with
 * errno: nothing takes connections at the other end of the feed. */
int feed_connect(int feed);
/* Returns a connection that was passed on, and does not block; or -1 with errno.  EAGAIN: there is
 * none now.  EPIPE: none will come any more. */
int feed_take(int feed);

#endif
