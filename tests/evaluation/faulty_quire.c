/* faulty_quire.c - quire with a fault planted in its CPU backend, to see whether the evaluation
 * finds it.
 *
 *   FAULTY_QUIRE=drop-first-page faulty_quire serve ...
 *
 * It is server/main.c and everything below, linked so that creating the CPU backend comes by here
 * (the linker's --wrap).  Without the variable no fault is planted, and the backend still goes
 * through the wrapping, so that what is found is the fault and not the wrapping.
 *
 * Thread: main.  Memory: the backend's. */
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "server/settings/log.h"
#include "tests/evaluation/faulty_backend.h"

int __real_cpu_backend_create(struct backend **out, const struct cpu_config *config,
                              struct error *err);
int __wrap_cpu_backend_create(struct backend **out, const struct cpu_config *config,
                              struct error *err);

int __wrap_cpu_backend_create(struct backend **out, const struct cpu_config *config,
                              struct error *err) {
    const char *name = getenv("FAULTY_QUIRE");
    enum fault fault = FAULT_NONE;
    int rc = name ? fault_of_name(&fault, name, err) : 0;
    if (!rc) rc = __real_cpu_backend_create(out, config, err);
    if (rc) return rc;
    faulty_backend_plant(*out, fault);
    if (fault == FAULT_NONE) log_event(LOG_INFO, "no fault is planted in this quire");
    else log_event(LOG_WARN, "THIS QUIRE IS WRONG ON PURPOSE: fault %s is planted", name);
    return 0;
}
