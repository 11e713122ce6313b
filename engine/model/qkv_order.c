/* qkv_order.c - see qkv_order.h. */
#include "engine/model/qkv_order.h"

#include <string.h>

void qkv_order(void *out, const void *in, size_t n_groups, size_t group_bytes, size_t first_byte,
               size_t part_bytes) {
    for (size_t i = 0; i < n_groups; i++)
        memcpy((char *)out + i * part_bytes, (const char *)in + i * group_bytes + first_byte,
               part_bytes);
}
