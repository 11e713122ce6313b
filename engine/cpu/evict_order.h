/* evict_order.h - the operation order() of bounded caches (engine/device/evict.h).
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_CPU_EVICT_ORDER_H
#define ENGINE_CPU_EVICT_ORDER_H

struct backend;
struct error;
struct kv_pool;

int cpu_evict_order(struct backend *be, const struct kv_pool *kv, struct error *err);

#endif
