/* devices.c - see devices.h. */
#include "server/devices.h"

#include <inttypes.h>
#include <stdlib.h>

#ifdef QUIRE_CUDA
#include "cuda/cuda.h"
#include "cuda/ranks/ranks.h"
#endif
#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "server/settings/log.h"
#include "server/settings/options.h"

/* Returns how many ranks a replica has, whatever they share. */
static uint32_t n_ranks_of(const struct options *options) {
    return (uint32_t)(options->tensor_parallel_size * options->context_parallel_size);
}

static int check_ranks(const struct options *options, struct error *err) {
    if (options->tensor_parallel_size == 1 || options->context_parallel_size == 1) return 0;
    return error_set(err, ERR_INVALID,
                     "--context-parallel-size does not go with --tensor-parallel-size: ranks share "
                     "a prompt's rows, or the weights");
}

#ifdef QUIRE_CUDA
/* Reads which device each rank of each replica has. */
static int read_devices(uint32_t devices[CUDA_MOST_RANKS], const struct options *options,
                        struct error *err) {
    const char *at = options->tensor_parallel_devices;
    const uint64_t n = n_ranks_of(options) * options->data_parallel_size;
    if (n > CUDA_MOST_RANKS)
        return error_set(err, ERR_INVALID,
                         "%" PRIu64 " replicas of %" PRIu32 " ranks are %" PRIu64
                         ", but at most %d ranks are allowed",
                         options->data_parallel_size, n_ranks_of(options), n, CUDA_MOST_RANKS);
    for (uint32_t i = 0; i < n; i++) {
        char *end = NULL;
        devices[i] = at ? (uint32_t)strtoul(at, &end, 10) : i;
        if (at && (end == at || *end != (i + 1 < n ? ',' : '\0')))
            return error_set(
                err, ERR_INVALID,
                "--tensor-parallel-devices: '%.64s' is not a number for each of %" PRIu64
                " ranks, with commas between them",
                options->tensor_parallel_devices, n);
        if (at) at = end + 1;
    }
    return 0;
}

int devices_create_cuda(struct backend **out, const struct options *options, uint32_t replica,
                        struct error *err) {
    static const enum input_rounding roundings[] = {[ACTIVATIONS_AUTO] = ROUND_AS_DECLARED,
                                                    [ACTIVATIONS_BF16] = ROUND_NEVER,
                                                    [ACTIVATIONS_FP8] = ROUND_ALWAYS};
    uint32_t all[CUDA_MOST_RANKS] = {0};
    const uint32_t n_ranks = n_ranks_of(options), *devices = all + replica * n_ranks;
    const int rc = read_devices(all, options, err);
    if (rc) return rc;
    const struct cuda_config config = {.device = devices[0],
                                       .batch_invariant = options->batch_invariant,
                                       .input_rounding = roundings[options->activations]};
    const struct rank_options together = {0};
    return n_ranks > 1 ? cuda_ranks_create(out, &config, devices, n_ranks, &together, err)
                       : cuda_backend_create(out, &config, err);
}
#else
int devices_create_cuda(struct backend **out, const struct options *options, uint32_t replica,
                        struct error *err) {
    (void)out, (void)options, (void)replica;
    return error_set(err, ERR_UNSUPPORTED, "this quire was built without CUDA");
}
#endif

/* Refuses what no GPU has been tested with. */
static int check_cuda(struct backend *gpu, const struct options *options, struct error *err) {
    if (options->context_parallel_size == 1) return 0;
    gpu->ops->destroy(gpu);
    return error_set(err, ERR_INVALID,
                     "--context-parallel-size is not supported on GPUs yet: use "
                     "--tensor-parallel-size, or --device cpu");
}

/* Returns a replica's part of the CPU's threads. */
static uint32_t threads_of(const struct options *options, uint32_t replica) {
    const uint32_t n = (uint32_t)options->data_parallel_size,
                   n_threads =
                       options->threads ? (uint32_t)options->threads : cpu_default_threads(),
                   n_own = n_threads * (replica + 1) / n - n_threads * replica / n;
    return n_own > 0 ? n_own : 1;
}

static struct cpu_config cpu_config_of(const struct options *options, uint32_t replica) {
    static const enum cpu_isa isas[] = {
        [ISA_AUTO] = CPU_ISA_AUTO,     [ISA_PLAIN] = CPU_ISA_PLAIN, [ISA_AVX2] = CPU_ISA_AVX2,
        [ISA_AVX512] = CPU_ISA_AVX512, [ISA_AMX] = CPU_ISA_AMX,     [ISA_NEON] = CPU_ISA_NEON};
    return (struct cpu_config){
        .n_threads = threads_of(options, replica),
        .isa = isas[options->isa],
        .matmul_dtype = options->dtype == PRODUCTS_BF16 ? DTYPE_BF16 : DTYPE_F32,
        .int8_products = options->dtype == PRODUCTS_AUTO,
        .n_ranks = n_ranks_of(options)};
}

int devices_create_cpu(struct backend **out, const struct options *options, uint32_t replica,
                       struct error *err) {
    const struct cpu_config config = cpu_config_of(options, replica);
    return cpu_backend_create(out, &config, err);
}

const char *devices_lack_kernels(const struct options *options) {
    const struct cpu_config config = cpu_config_of(options, 0);
    return cpu_lacks_kernels(&config);
}

/* Creates a replica's backend on the CPU, and tells what makes it slow. */
static int open_cpu(struct backend **out, const struct options *options, uint32_t replica,
                    bool tells, struct error *err) {
    const int rc = devices_create_cpu(out, options, replica, err);
    const char *lacking = devices_lack_kernels(options);
    if (rc == 0 && tells && lacking)
        log_event(LOG_WARN,
                  "the CPU is slow here: this quire was built for another processor, without "
                  "kernels for %s; scripts/build makes those of all processors",
                  lacking);
    return rc;
}

/* Creates the backend that --device names.  Under auto that is a GPU where one is usable; a GPU
 * that is there but fails is an error, not a reason for the CPU. */
static int open_device(struct backend **out, const struct options *options, uint32_t replica,
                       bool tells, struct error *err) {
    struct error why = {0};
    int rc = check_ranks(options, err);
    if (rc) return rc;
    if (options->device == DEVICE_CPU) return open_cpu(out, options, replica, tells, err);
    rc = devices_create_cuda(out, options, replica, &why);
    if (rc == 0) return check_cuda(*out, options, err);
    if (options->device == DEVICE_CUDA)
        return error_set(err, rc, "--device cuda: %.480s", why.text);
    if (rc != ERR_UNSUPPORTED) return error_set(err, rc, "%s", why.text);
    if (tells) log_event(LOG_INFO, "running on the CPU: %s", why.text);
    return open_cpu(out, options, replica, tells, err);
}

int devices_create(struct backend **out, const struct options *options, uint32_t replica,
                   bool tells, struct error *err) {
    const int rc = open_device(out, options, replica, tells, err);
    if (rc || options->activations != ACTIVATIONS_FP8 || (*out)->rounds_inputs_from > 0) return rc;
    error_set(err, ERR_UNSUPPORTED,
              "--activations fp8: the device %s computes with activations as they are: auto and "
              "bf16 are allowed here",
              (*out)->name);
    (*out)->ops->destroy(*out);
    return ERR_UNSUPPORTED;
}

void devices_destroy_all(struct backend **backends, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (backends[i]) backends[i]->ops->destroy(backends[i]);
}

int devices_create_all(struct backend **backends, const struct options *options,
                       struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < options->data_parallel_size && !rc; i++)
        rc = devices_create(&backends[i], options, i, i == 0, err);
    return rc;
}
