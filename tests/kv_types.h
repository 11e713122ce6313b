/* kv_types.h - the rows of the table of KV policies by number, for tests that count by them.
 * tests/server/test_kv_policy.c holds them to the table. */
#ifndef TESTS_KV_TYPES_H
#define TESTS_KV_TYPES_H

enum { TYPE_FULL, TYPE_STREAMING, TYPE_HEAVY_HITTER, TYPE_OFFLOAD };

#endif
