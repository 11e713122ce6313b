/* devices.h - which backends a command computes on, as its options say.  The only module that names
 * them.
 *
 * Thread: main.  Memory: backends are the caller's to destroy. */
#ifndef SERVER_DEVICES_H
#define SERVER_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

struct backend;
struct error;
struct options;

/* Creates the backend of a replica that --device names; refuses --activations fp8 on a device that
 * has no such products.  tells: the log says why it is the CPU, and what makes that slow; a
 * command says so once.  ERR_INVALID, ERR_UNSUPPORTED, ERR_DEVICE, ERR_NOMEM. */
int devices_create(struct backend **out, const struct options *options, uint32_t replica,
                   bool tells, struct error *err);
/* Creates one on the CPU, or on GPUs, whatever --device says. */
int devices_create_cpu(struct backend **out, const struct options *options, uint32_t replica,
                       struct error *err);
int devices_create_cuda(struct backend **out, const struct options *options, uint32_t replica,
                        struct error *err);
/* Returns the instruction set whose kernels the CPU would take if this build had them (cpu.h), or
 * NULL. */
const char *devices_lack_kernels(const struct options *options);
/* Creates the backend of each replica.  After a failure the caller destroys those that are there,
 * too; backends [n] are NULL before. */
int devices_create_all(struct backend **backends, const struct options *options, struct error *err);
void devices_destroy_all(struct backend **backends, uint32_t n);

#endif
