/* group.h - CUDA backends that compute one model together, in one process: collective.h.
 *
 * Each rank has a device, or several have the same one.  Kernels of the ranks wait for each other
 * (mailbox.h).  Hosts do not meet, so a step may be a CUDA graph, and steps are submitted ahead:
 *
 *   rank 0   … product ─ sum ─ product …       sum: its part goes to all ranks, what comes from
 *                         ╳                    them is added
 *   rank 1   … product ─ sum ─ product …
 *
 * Devices that cannot write each other's memory have their mailboxes in that of the host.
 *
 * A kernel that waits keeps its place on the device.  Ranks of one device therefore have few blocks
 * that wait: RESIDENT_BLOCKS for all of them together.  A rank's next kernel does not start before
 * its sum has ended, so the other ranks' kernels find multiprocessors.  Some have blocks that wait
 * for each other.  There the first blocks end without a wait, and make place for the last ones.
 *
 * The host, too, may wait for such a device, for example to load a kernel, and then the driver lets
 * no other thread launch.  So the ranks of one device meet on the host before and behind each
 * launch of what waits.  All that it waits for has then been launched.
 *
 * Thread: each rank's own, but for create and destroy.  Memory: the group's. */
#ifndef CUDA_RANKS_GROUP_H
#define CUDA_RANKS_GROUP_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend;
struct collective_ops;
struct error;

extern const struct collective_ops cuda_collective_ops;

/* Destroys the group of rank 0, and all of its backends but that one.  An ungrouped backend is
 * allowed. */
void cuda_group_destroy(struct backend *rank_0);

/* Reports whether the backend's group, if it has one, has stopped: a rank has waited for another
 * one for too long, or interrupt() was called.  To be asked when results have come. */
int cuda_group_check(const struct backend *be, struct error *err);

/* Meets the hosts of the other ranks where ranks share a device: before and behind each launch of
 * what waits.  ERR_STOPPED as in collective_ops. */
int cuda_group_meet(const struct backend *be, struct error *err);
/* Sets *do_all to whether all ranks want something, likewise; else to whether this one does. */
int cuda_group_agree(const struct backend *be, bool wants, bool *do_all, struct error *err);

/* Makes the backend's device that of the calling thread, before its memory is allocated or a kernel
 * is launched between steps. */
void cuda_use_device(const struct backend *be);

#ifdef __cplusplus
}
#endif

#endif
