/* span.h - a part of a text: bytes begin to end - 1.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_SPAN_H
#define ENGINE_BASE_SPAN_H

#include <stddef.h>

struct byte_span {
    size_t begin, end;
};

#endif
