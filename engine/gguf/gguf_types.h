/* gguf_types.h - the types that tensors of a GGUF file have, by their numbers.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_GGUF_GGUF_TYPES_H
#define ENGINE_GGUF_GGUF_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/weight.h"

/* Writes which element a type is; returns false if it is not read. */
bool gguf_element_of(uint64_t type, enum element *out);
/* Returns the number of the type that has this element, which must be one that is read. */
uint32_t gguf_type_of(enum element element);
/* Returns the name of a type, read or not; NULL: it is not known. */
const char *gguf_type_name(uint64_t type);
/* Writes the names of the types that are read. */
enum { GGUF_TYPES_TEXT = 160 };
void gguf_types_text(char text[GGUF_TYPES_TEXT]);

#endif
