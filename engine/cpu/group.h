/* group.h - CPU backends that compute one model together: collective.h for ranks that are threads
 * of one process.
 *
 * Thread: each rank's own, but for create and destroy.  Memory: the group's, from create on. */
#ifndef ENGINE_CPU_GROUP_H
#define ENGINE_CPU_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct collective_ops;
struct cpu_backend;
struct cpu_group;
struct error;

extern const struct collective_ops cpu_collective_ops;

/* Makes a group of n_ranks backends, at least 2, and takes them from ranks on.  Each of them then
 * knows its group and its number. */
int cpu_group_create(struct cpu_group **out, struct backend *const *ranks, uint32_t n_ranks,
                     struct error *err);
/* Destroys the group and all of its backends but that of rank 0.  NULL is allowed. */
void cpu_group_destroy(struct cpu_group *group);

/* Makes each of x[n] the sum of all ranks' x.  ERR_STOPPED as in collective_ops. */
int cpu_group_sum(struct cpu_backend *cpu, float *x, size_t n, struct error *err);
/* Makes each of x[n] the largest of all ranks' x, for a backend that may be alone.  ERR_STOPPED as
 * in collective_ops. */
int cpu_group_largest(struct cpu_backend *cpu, float *x, size_t n, struct error *err);
/* Tells whether other ranks have the rank's KV heads, too, with other queries. */
bool cpu_group_shares_heads(const struct cpu_backend *cpu);
/* Makes each of x[n] the mean over the ranks that have the same KV head.  All ranks call it, with
 * the same n.  ERR_STOPPED as in collective_ops. */
int cpu_group_mean_of_head(struct cpu_backend *cpu, float *x, size_t n, struct error *err);

#endif
