/* buffer.h - memory that an operation needs beside its arguments, kept for the next one.
 *
 * Thread: engine.  Memory: 64-byte aligned; grows to the largest size asked for. */
#ifndef ENGINE_CPU_BUFFER_H
#define ENGINE_CPU_BUFFER_H

#include <stddef.h>

struct error;

enum { CPU_BUFFER_ALIGN = 64 };

struct cpu_buffer {
    void *data;
    size_t capacity;
};

/* Grows the buffer to at least `bytes`.  Its contents may be lost. */
int cpu_buffer_reserve(struct cpu_buffer *buffer, size_t bytes, struct error *err);
void buffer_free(struct cpu_buffer *buffer);

#endif
