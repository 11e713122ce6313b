/* completions.h - completions of every API, from the body to the last event.
 *
 *   handle ──► job: parse, tokenise, fan out ──► engine_submit ──► events ──► answer
 *                   │ refused: 4xx                  │ full: 429         │ whole: one body
 *                   └ client gone: freed            └ accepted          └ stream: chunks, [DONE]
 *
 * A completion lives until the final event of its last sequence, even when its client has left.  A
 * client that leaves, or a sequence that fails, cancels the other sequences; their final events
 * still come.
 *
 * Thread: loop (but for the job).  Memory: each completion owns everything of its request. */
#ifndef SERVER_API_COMPLETIONS_H
#define SERVER_API_COMPLETIONS_H

#include <stdint.h>

struct server;

/* Takes the engine's events and writes the answers; call it after each wake. */
void completions_take_events(struct server *server);

/* Ends completions that outlive server->deadline_s, and writes a comment into streams that have
 * been silent; call it every COMPLETIONS_TICK_MS.  With the silence allowed, each client hears from
 * the server at least once a second. */
enum { COMPLETIONS_TICK_MS = 200, COMPLETIONS_SILENCE_MS = 700 };
void completions_tick(struct server *server);

/* Ends the client's requests of this id with what they have generated so far.  id: that of their
 * header, or of their answer.  client: see auth_client().  Returns how many there are. */
uint32_t completions_cancel(struct server *server, const char *id, uint64_t client);
/* Cancels all running sequences.  Their clients get an error; their final events still come. */
void completions_cancel_all(struct server *server);

#endif
