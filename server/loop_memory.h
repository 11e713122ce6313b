/* loop_memory.h - the event loop's memory, reserved before the loop exists.
 *
 * libuv aborts when its table of descriptors cannot grow, which it does whenever a connection gets
 * a higher one.  So its memory comes from one block that is large enough for every descriptor the
 * server opens.
 *
 * Thread: main; before the loop is made, and after it is closed.  Memory: one block. */
#ifndef SERVER_LOOP_MEMORY_H
#define SERVER_LOOP_MEMORY_H

#include <stdint.h>

struct error;

/* Reserves memory for a loop that watches descriptors below n_descriptors. */
int loop_memory_reserve(uint32_t n_descriptors, struct error *err);
void loop_memory_release(void);

#endif
