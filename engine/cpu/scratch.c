/* scratch.c - see buffer.h, and backend.h for the workers' scratch. */
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/cpu/backend.h"

int cpu_buffer_reserve(struct cpu_buffer *buffer, size_t bytes, struct error *err) {
    if (bytes <= buffer->capacity) return 0;
    size_t capacity = round_up(bytes + bytes / 2, CPU_BUFFER_ALIGN);
    void *data = aligned_alloc(CPU_BUFFER_ALIGN, capacity);
    if (!data)
        return error_set(err, ERR_NOMEM, "cpu: no memory for %zu bytes of scratch", capacity);
    free(buffer->data);
    *buffer = (struct cpu_buffer){data, capacity};
    return 0;
}

void buffer_free(struct cpu_buffer *buffer) {
    free(buffer->data);
    *buffer = (struct cpu_buffer){0};
}

int scratch_reserve(struct cpu_backend *cpu, size_t bytes, struct error *err) {
    if (bytes <= cpu->scratch_bytes) return 0;
    size_t each = round_up(bytes, CPU_BUFFER_ALIGN);
    int rc = cpu_buffer_reserve(&cpu->scratch, each * pool_size(cpu->pool), err);
    if (rc < 0) return rc;
    cpu->scratch_bytes = each;
    return 0;
}

void *scratch_of(const struct cpu_backend *cpu, uint32_t worker) {
    return (char *)cpu->scratch.data + cpu->scratch_bytes * worker;
}
