/* rotary_order.c - see rotary_order.h. */
#include "engine/model/rotary_order.h"

#include <string.h>

uint32_t rotary_place(uint32_t i, uint32_t n_freqs) {
    if (i >= 2 * n_freqs) return i;
    return i < n_freqs ? 2 * i : 2 * (i - n_freqs) + 1;
}

void rotary_order(void *out, const void *in, size_t n_rows, size_t row_bytes, uint32_t head_dim,
                  uint32_t n_freqs) {
    for (size_t row = 0; row < n_rows; row++) {
        const uint32_t i = (uint32_t)(row % head_dim);
        const size_t from = row - i + rotary_place(i, n_freqs);
        memcpy((char *)out + row * row_bytes, (const char *)in + from * row_bytes, row_bytes);
    }
}
