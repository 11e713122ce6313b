/* evict_order.h - the operation order() of bounded caches (engine/device/evict.h).
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_CPU_EVICT_ORDER_H
#define ENGINE_CPU_EVICT_ORDER_H

#include <stdint.h>

struct backend;
struct error;
struct kv_pool;
struct kv_view;

int cpu_evict_order(struct backend *be, const struct kv_pool *kv, const struct kv_view *layers,
                    uint32_t n_layers, struct error *err);

#endif
