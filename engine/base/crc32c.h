/* crc32c.h - CRC-32C (Castagnoli), by the processor's instruction where it has one.
 *
 * It notices every change of up to 32 bits in a row, and others but for one in 2^32.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_CRC32C_H
#define ENGINE_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the checksum of what gave `crc` (0: nothing) and these bytes behind it. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t size);
/* Does the same without the instruction. */
uint32_t crc32c_plain(uint32_t crc, const void *bytes, size_t size);

#endif
